package operator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// diskFull is what vLLM writes last when its weights find no room: the cause is not in the last line.
const diskFull = `(EngineCore_DP0 pid=2) ERROR [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=2) ERROR [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=2) ERROR [core.py:708]   File "/usr/local/lib/python3.12/dist-packages/huggingface_hub/file_download.py", line 2366, in http_get
(EngineCore_DP0 pid=2) ERROR [core.py:708] OSError: [Errno 28] No space left on device
(EngineCore_DP0 pid=2) Process EngineCore_DP0:
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}`

// unsupported is the one line that tells of a model that no vLLM of this version can load.
const unsupported = `(APIServer pid=1) ValueError: Model architectures ['SimUnknownForCausalLM'] are not supported for now. ` +
	`Supported architectures: dict_keys(['LlamaForCausalLM', 'Qwen3ForCausalLM'])`

func market4() []market.Offer {
	return []market.Offer{offer("1001"), offer("1002"), offer("1003"), offer("1004")}
}

// notes are all that events say of a pod under a reason.
func (w *world) notes(pod types.UID, reason string) (out []string) {
	w.t.Helper()
	var list eventsv1.EventList
	if err := w.client.List(w.ctx, &list, client.InNamespace(w.ns)); err != nil {
		w.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.UID == pod && e.Reason == reason {
			out = append(out, e.Note)
		}
	}
	return out
}

// neverSaid insists that a pod was never told these things.
func (w *world) neverSaid(pod *corev1.Pod, reasons ...string) {
	w.t.Helper()
	for _, reason := range reasons {
		if got := w.notes(pod.UID, reason); len(got) > 0 {
			w.t.Errorf("pod %s was told %s: %s", pod.Annotations[v1alpha1.AnnotationModel], reason, got)
		}
	}
}

// stays insists that nothing more is rented for a few plans.
func (w *world) stays(what string, rented int) {
	w.t.Helper()
	until := time.Now().Add(3 * time.Second)
	for time.Now().Before(until) {
		if n := len(w.rented()); n != rented {
			w.t.Fatalf("%s: %d machines were rented, want %d\n%s", what, n, rented, w.dump())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestAModelThatCanNeverLoadStopsAfterTwoMachines crashes wherever it is started: exactly two machines are tried, and then
// the model rests with its engine's last lines on the pod, while a good model in the same market is served.
func TestAModelThatCanNeverLoadStopsAfterTwoMachines(t *testing.T) {
	w := start(t, market4())
	w.pool()
	bad := w.pod("sim/disk-full")
	w.within(3*time.Minute, "the model rests", func() error {
		got := &corev1.Pod{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(bad), got); err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == v1alpha1.PodConditionServed && c.Reason == v1alpha1.PodReasonResting {
				return nil
			}
		}
		return fmt.Errorf("it says %+v", got.Status.Conditions)
	})
	w.podSays(bad, corev1.ConditionFalse, v1alpha1.PodReasonResting, "the workload rests until", "Crashed", diskFull)
	w.eventually("the event has the engine's last lines too", func() error {
		notes := w.notes(bad.UID, v1alpha1.PodReasonResting)
		if len(notes) != 1 || !strings.HasSuffix(notes[0], diskFull) {
			return fmt.Errorf("%q", notes)
		}
		return nil
	})
	w.machines("1001", "1002")
	good := w.pod("acme/tiny")
	w.podSays(good, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.stays("a good model beside it", 3)
	w.neverSaid(good, v1alpha1.PodReasonResting, v1alpha1.PodReasonLost)
}

// TestAModelThatNoEngineTakesStopsAfterOneMachine, since its engine says that it is the model; a change of the pool, and
// another pod in its name, are each a new beginning.
func TestAModelThatNoEngineTakesStopsAfterOneMachine(t *testing.T) {
	w := start(t, market4())
	pool := w.pool()
	bad := w.pod("sim/load-error", v1alpha1.AnnotationServedName, "chat")
	w.podSays(bad, corev1.ConditionFalse, v1alpha1.PodReasonResting, "the workload rests until", "BadArgument", unsupported)
	w.stays("it rests", 1)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		pool.Spec.Bootstrap.Image = "vllm/vllm-openai:v0.99.0"
		return w.client.Update(w.ctx, pool)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("a changed pool tries it again", func() error {
		if n := len(w.rented()); n != 2 {
			return fmt.Errorf("%d machines", n)
		}
		return nil
	})
	w.podSays(bad, corev1.ConditionFalse, v1alpha1.PodReasonResting, unsupported)
	w.stays("it rests again", 2)
	w.remove(bad)
	w.podSays(w.pod("acme/tiny", v1alpha1.AnnotationServedName, "chat"), corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(3)
}

// TestAGoodModelIsUntouchedByBadHostsAndBadNeighbours in one market and on one instance.
func TestAGoodModelIsUntouchedByBadHostsAndBadNeighbours(t *testing.T) {
	offers := append(market4(), offer("1005"))
	for i, how := range []market.Breakage{market.WrongGPU, market.WrongGPU, market.DiesBooting} {
		offers[i].Broken, offers[i].MinBid = how, market.USD(0.10+0.01*float64(i))
	}
	w := start(t, offers)
	w.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.BatchWindow.Duration = time.Second })
	good := w.pod("acme/tiny", v1alpha1.AnnotationGPUVRAM, "8")
	bad := w.pod("sim/load-error", v1alpha1.AnnotationGPUVRAM, "8")
	w.podSays(good, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.podSays(bad, corev1.ConditionFalse, v1alpha1.PodReasonResting, unsupported)
	w.podSays(good, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.neverSaid(good, v1alpha1.PodReasonResting, v1alpha1.PodReasonLost)
	// Three bad hosts, two of them bad in the same way, and one that both models were put on.
	w.machines("1001", "1002", "1003", "1004")
	if len(w.live()) != 1 {
		t.Errorf("%d live\n%s", len(w.live()), w.dump())
	}
	for _, reason := range []string{v1alpha1.ReasonGPUMismatch, v1alpha1.ReasonDiedWhileBooting, v1alpha1.ReasonModelFailed} {
		w.event("GPUNodeClaim", reason)
	}
	w.stays("the bad hosts and the bad model rest", 4)
}

// TestPurchasesPerHourAreBounded whatever ends the instances, and across restarts of the controller: six, then the pod
// says so with numbers.
func TestPurchasesPerHourAreBounded(t *testing.T) {
	var offers []market.Offer
	for i := range 9 {
		offers = append(offers, offer(fmt.Sprint(1001+i)))
	}
	s := newStage(t, offers)
	s.launch()
	pool := s.pool()
	pod := s.pod("acme/tiny")
	for n := 1; n <= 6; n++ {
		// The pod may still say so of the instance before.
		s.eventually(fmt.Sprintf("one instance lives in round %d", n), func() error {
			if len(s.rented()) != n || len(s.live()) != 1 {
				return fmt.Errorf("%d rented, %d live", len(s.rented()), len(s.live()))
			}
			return nil
		})
		s.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
		id := s.live()[0].ID
		var err error
		switch n % 3 {
		case 0:
			for _, c := range s.claims() {
				s.delete(&c)
			}
		case 1:
			err = s.market.Reclaim(id)
		case 2:
			err = s.market.Kill(id)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.eventually("it is gone and missed", func() error {
			if live := s.live(); len(live) > 0 && live[0].ID == id {
				return fmt.Errorf("%s is live", id)
			}
			return nil
		})
		if n%2 == 0 {
			s.stop()
			s.launch()
		}
	}
	s.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonResting, "6 instances bought within an hour, the most for one workload; next at ")
	s.stays("the bound holds", 6)
	s.stop()
	s.launch()
	s.stays("the bound holds across a restart", 6)
	other := s.pod("acme/other")
	s.podSays(other, corev1.ConditionTrue, v1alpha1.PodReasonServed) // the bound is one workload's
	s.remove(pod)
	s.remove(other)
	s.give(pool, 0)
}
