package demo

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/money"
)

// life is a purchase that goes well, as observers would see it. Each observation is the first that meets the named
// expectation.
type life struct {
	version int
	pod     corev1.Pod
	pool    v1alpha1.GPUNodePool
	claim   v1alpha1.GPUNodeClaim
}

func (l *life) next() string {
	l.version++
	return strconv.Itoa(l.version)
}

func (l *life) time() time.Time { return at(float64(10 * l.version)) }

func (l *life) sawClaim(w *World, change func(c *v1alpha1.GPUNodeClaim)) {
	l.claim.ResourceVersion = l.next()
	change(&l.claim)
	w.SawClaim(l.claim.DeepCopy(), false, l.time())
}

func (l *life) condition(kind string) func(w *World) {
	return func(w *World) {
		l.sawClaim(w, func(c *v1alpha1.GPUNodeClaim) {
			c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
		})
	}
}

func (l *life) step(name string) func(w *World) {
	return func(w *World) {
		l.sawClaim(w, func(c *v1alpha1.GPUNodeClaim) {
			c.Status.Steps = append(c.Status.Steps, v1alpha1.Step{Name: name, At: metav1.NewMicroTime(l.time())})
		})
	}
}

func (l *life) sawPool(w *World, change func(p *v1alpha1.GPUNodePool)) {
	l.pool.ResourceVersion = l.next()
	change(&l.pool)
	w.SawPool(l.pool.DeepCopy(), l.time())
}

func (l *life) sawPod(w *World, gone bool, conditions ...corev1.PodCondition) {
	l.pod.ResourceVersion = l.next()
	l.pod.Status.Conditions = append(l.pod.Status.Conditions, conditions...)
	w.SawPod(l.pod.DeepCopy(), gone, l.time())
}

type observation struct {
	meets string
	see   func(w *World)
}

func goesWell() []observation {
	l := &life{}
	l.pod.Name, l.pool.Name, l.claim.Name, l.claim.UID = podName, poolName, "qwen-0", "u"
	l.pool.Spec.Scaling.CooldownPeriod = &v1alpha1.Duration{Duration: 5 * time.Second}
	rented := []Rented{{ID: 31000001, GPU: "RTX 3090", GPUs: 1, Total: 0.1051237}}
	return []observation{
		{nPending, func(w *World) {
			l.sawPod(w, false, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable})
		}},
		{"offers considered", func(w *World) {
			w.SawEvent(&eventsv1.Event{Regarding: corev1.ObjectReference{Kind: "GPUNodeClaim"}, Reason: v1alpha1.ReasonPlanned,
				Note: "cheapest of 2"}, l.time())
		}},
		{nReserved, func(w *World) {
			l.sawPool(w, func(p *v1alpha1.GPUNodePool) { p.Status.Reservations = []v1alpha1.Reservation{{Claim: "qwen-0"}} })
		}},
		{nIntent, func(w *World) {
			l.sawClaim(w, func(c *v1alpha1.GPUNodeClaim) {
				c.Status.Attempt = &v1alpha1.Attempt{Token: "gs-1", WrittenAt: metav1.NewMicroTime(l.time())}
			})
		}},
		{nCreated, func(w *World) {
			l.claim.Status.InstanceID, l.claim.Status.DollarsPerHour = "31000001", ptr.To(money.FromMicros(105124))
			l.condition(v1alpha1.ConditionInstanceCreated)(w)
		}},
		{"listed by the provider", func(w *World) { w.SawRented(rented, l.time()) }},
		{"in the market's books", func(w *World) { w.Account = books(1, l.time()) }},
		{nRunning, l.step("InstanceRunning")},
		{nConnected, l.step("AgentConnected")},
		{"GPUs found", l.step("AgentGPUsFound")},
		{"model loading", l.step("AgentLoading")},
		{nLoaded, l.condition(v1alpha1.ConditionModelLoaded)},
		{nReady, func(w *World) {
			l.claim.Status.Phase = v1alpha1.PhaseReady
			l.condition(v1alpha1.ConditionReady)(w)
		}},
		{nServed, func(w *World) {
			l.sawPod(w, false, corev1.PodCondition{Type: v1alpha1.PodConditionServed, Status: corev1.ConditionTrue})
		}},
		{"model at the gateway", func(w *World) { w.SawModels([]string{"other", Model}, l.time()) }},
		{nStreamed, func(w *World) {
			l.next()
			w.Asking(l.time())
			w.Answer = Answer{AskedAt: l.time(), DoneAt: l.time().Add(time.Second), Chunks: 9, Model: Model, Finish: "stop",
				Whole: true, Text: "I am " + Model}
		}},
		{"by the instance's engine", func(w *World) {
			l.sawClaim(w, func(c *v1alpha1.GPUNodeClaim) { c.Status.LastRequestAt = ptr.To(metav1.NewTime(l.time())) })
		}},
		{nPodGone, func(w *World) { l.sawPod(w, true) }},
		{nIdle, l.condition(v1alpha1.ConditionIdle)},
		{nCooldown, func(w *World) {
			l.sawClaim(w, func(c *v1alpha1.GPUNodeClaim) {
				c.DeletionTimestamp = ptr.To(metav1.NewTime(l.time()))
				c.Annotations = map[string]string{v1alpha1.AnnotationDrain: v1alpha1.ReasonCooldownOver}
			})
		}},
		{nDrained, l.condition(v1alpha1.ConditionDrained)},
		{nDestroyed, l.step("DestroyAsked")},
		{"off the provider's list", func(w *World) { l.next(); w.SawRented(nil, l.time()) }},
		{nGone, l.condition(v1alpha1.ConditionInstanceGone)},
		{nReleased, func(w *World) { l.sawPool(w, func(p *v1alpha1.GPUNodePool) { p.Status.Reservations = nil }) }},
		{"claim gone", func(w *World) { l.claim.ResourceVersion = l.next(); w.SawClaim(l.claim.DeepCopy(), true, l.time()) }},
		{"$0/h", func(w *World) { w.Account = books(0, l.time()) }},
		{"spent", func(w *World) { w.LedgerCost = "0.0005" }},
	}
}

func books(live int, at time.Time) Account {
	a := Account{At: at, Rented: 1, Spent: 0.0004}
	a.Now.Live, a.Now.CommittedPerHour = live, float64(live)*0.1
	a.Instances = make([]struct {
		ID          string    `json:"id"`
		Label       string    `json:"label"`
		State       string    `json:"state"`
		CreatedAt   time.Time `json:"createdAt"`
		GoneAt      time.Time `json:"goneAt"`
		GPURate     float64   `json:"gpuRate"`
		StorageRate float64   `json:"storageRate"`
		Spent       float64   `json:"spent"`
	}, 1)
	a.Instances[0].ID, a.Instances[0].CreatedAt, a.Instances[0].GPURate = "31000001", at, 0.1
	return a
}

func whole() *Story {
	var all []Expectation
	for _, part := range [][]Expectation{Buying(), Booting(), Answering(), GivingBack()} {
		all = append(all, part...)
	}
	return NewStory(all)
}

// tellAll tells as much as there is to tell.
func tellAll(t *testing.T, s *Story, w *World) {
	t.Helper()
	for {
		_, ok, err := s.Told(w)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
	}
}

func TestEachObservationMeetsItsExpectation(t *testing.T) {
	s, w := whole(), NewWorld()
	for _, o := range goesWell() {
		if e, _ := s.Waiting(); e.Name != o.meets {
			t.Fatalf("the story waits for %q; next is what meets %q", e.Name, o.meets)
		}
		o.see(w)
		tellAll(t, s, w)
	}
	if e, more := s.Waiting(); more {
		t.Errorf("after everything the story waits for %q", e.Name)
	}
}

func TestTheFirstThatWasNotSeenIsNamed(t *testing.T) {
	for i, left := range goesWell() {
		if left.meets == "in the market's books" {
			continue // they keep what they had: the last look at them shows it too
		}
		t.Run(left.meets, func(t *testing.T) {
			s, w := whole(), NewWorld()
			for j, o := range goesWell() {
				if j != i {
					o.see(w)
				}
			}
			tellAll(t, s, w)
			if e, _ := s.Waiting(); e.Name != left.meets {
				t.Errorf("without what meets %q the story waits for %q", left.meets, e.Name)
			}
		})
	}
}

func TestWhatDoesNotCount(t *testing.T) {
	answered := func(change func(a *Answer)) func(w *World) {
		return func(w *World) {
			w.Answer = Answer{Chunks: 9, Model: Model, Finish: "stop", Whole: true}
			change(&w.Answer)
		}
	}
	claim := func(c v1alpha1.GPUNodeClaim) func(w *World) { return func(w *World) { w.SawClaim(&c, false, start) } }
	for name, c := range map[string]struct {
		see   func(w *World)
		check check
	}{
		"a stream that breaks off":   {answered(func(a *Answer) { a.Whole = false }), streamed},
		"an answer in one piece":     {answered(func(a *Answer) { a.Chunks = 1 }), streamed},
		"another model's answer":     {answered(func(a *Answer) { a.Model = "other" }), streamed},
		"an answer that never ended": {answered(func(a *Answer) { a.Finish = "" }), streamed},
		"a claim that ends for another reason": {claim(v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{
			DeletionTimestamp: ptr.To(metav1.NewTime(start)),
			Annotations:       map[string]string{v1alpha1.AnnotationDrain: v1alpha1.ReasonInterrupted}}}), ending},
		"books while the claim is there": {func(w *World) { w.Account = books(0, start) }, free},
		"books with something in them": {func(w *World) {
			w.note(firstClaimGone, Sighting{})
			w.Account = books(1, start)
		}, free},
		"a bill without the ledger's": {func(w *World) { w.Account = books(0, start) }, spent},
		"another rate than is paid": {func(w *World) {
			claim(v1alpha1.GPUNodeClaim{Status: v1alpha1.GPUNodeClaimStatus{Phase: v1alpha1.PhaseReady, InstanceID: "7", DollarsPerHour: ptr.To(money.FromMicros(200000))}})(w)
			w.SawRented([]Rented{{ID: 7, Total: 0.19}}, start)
		}, first(firstRate)},
		"the last request before ours": {func(w *World) {
			c := v1alpha1.GPUNodeClaim{Status: v1alpha1.GPUNodeClaimStatus{LastRequestAt: ptr.To(metav1.NewTime(start))}}
			claim(c)(w)
			w.Asking(at(0.5))
			w.Answer.Text = Model
			claim(c)(w)
		}, byEngine},
		"a second claim": {func(w *World) {
			claim(v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{UID: "1"}})(w)
			claim(v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{UID: "2"}, Status: v1alpha1.GPUNodeClaimStatus{
				Attempt: &v1alpha1.Attempt{Token: "t"}}})(w)
		}, intent},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWorld()
			c.see(w)
			if s, ok := c.check(w); ok {
				t.Errorf("taken: %q", s.Text)
			}
		})
	}
}

func TestTroubleSaysWhatIsWrong(t *testing.T) {
	w := NewWorld()
	expect := func(want ...string) {
		t.Helper()
		for _, s := range want {
			if got := w.Trouble(); !strings.Contains(got, s) {
				t.Errorf("%q is not in %q", s, got)
			}
		}
	}
	expect("nothing has been seen")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	w.SawPod(pod, false, start)
	expect("gpuscale has said nothing")
	pod.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionServed, Status: corev1.ConditionFalse,
		Reason: v1alpha1.PodReasonNoOffers, Message: "3 offers: 3 over $0.01"}}
	w.SawPod(pod, false, start)
	w.SawPool(&v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "inference"}, Status: v1alpha1.GPUNodePoolStatus{
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonSecretMissing}}}}, start)
	expect("NoOffers", "3 over $0.01", "pool inference: SecretMissing")
	w.SawEvent(&eventsv1.Event{Type: corev1.EventTypeWarning, Reason: "X", Note: "look here",
		Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p"}}, start)
	c := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	c.Status.Phase = v1alpha1.PhaseBootstrapping
	c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionInstanceRunning, Status: metav1.ConditionTrue},
		{Type: v1alpha1.ConditionAgentConnected, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForAgent, Message: "refused"}}
	w.SawClaim(c, false, start)
	expect("claim c is Bootstrapping", "AgentConnected is False: WaitingForAgent: refused", "last warning: Pod p: X: look here")
	c.Status.Failure = &v1alpha1.Failure{Step: "Load", Reason: v1alpha1.ReasonModelFailed, Message: "no memory"}
	w.SawClaim(c, false, start)
	expect(fmt.Sprintf("failed at Load: %s: no memory", v1alpha1.ReasonModelFailed))
}
