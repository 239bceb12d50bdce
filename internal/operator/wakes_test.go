package operator_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

// TestWakeFigures measures how long held requests wait once their model is ready, with few and with many models that wake at
// once, and insists that each is bought once.
func TestWakeFigures(t *testing.T) {
	sizes := []int{1, 5}
	if bench.Recording() {
		sizes = []int{1, 25, 100}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			late, published := wake(t, n)
			t.Logf("%d models: answered after they were seen to be Ready: median %s, last %s; seen after they were: last %s", n,
				late[len(late)/2], late[len(late)-1], published[len(published)-1])
			if bench.Recording() {
				ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
				bench.Record(t, fmt.Sprintf("wake.%d.p50", n), ms(late[len(late)/2]))
				bench.Record(t, fmt.Sprintf("wake.%d.last", n), ms(late[len(late)-1]))
				bench.Record(t, fmt.Sprintf("wake.%d.published", n), ms(published[len(published)-1]))
			}
		})
	}
}

// wake has four requests wait for each of n models at zero. It returns, in order, how long after a watch beside the gateway's
// had shown the model's claim to be Ready each was answered, and how long after the claim's step Ready that was shown.
func wake(t *testing.T, n int) (late, published []time.Duration) {
	const each = 4
	redis := redistest.Start(t)
	w := start(t, offers(n+n/4+1), withRedis(redis), func(_ *world, m *market.Config, _ *simOptions) {
		m.Body = virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "3s", "VLLM_SIM_TTFT": "1ms", "VLLM_SIM_TOKENS_PER_SEC": "0"}})
	})
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("model-%03d", i)
	}
	const most = 64 // models of one pool
	for part := range slices.Chunk(names, most) {
		w.pool(roomy, lists(part...), cooldown(10*time.Minute), func(p *v1alpha1.GPUNodePool) { p.Name += "-" + part[0] })
	}
	f := w.front(redis)
	seesAll := w.seesReady(n)
	var (
		all      sync.WaitGroup
		mu       sync.Mutex
		answered = map[string][]time.Time{}
	)
	for _, name := range names {
		for i := range each {
			all.Go(func() {
				if err := f.ask(name, i%2 == 0, 1); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				mu.Lock()
				defer mu.Unlock()
				answered[name] = append(answered[name], time.Now())
			})
		}
	}
	all.Wait()
	seen := seesAll()
	w.rentedAtMost(n)
	for _, c := range w.claims() {
		at := slices.IndexFunc(c.Status.Steps, func(s v1alpha1.Step) bool { return s.Name == "Ready" })
		if at < 0 || seen[c.Name].IsZero() {
			continue
		}
		published = append(published, seen[c.Name].Sub(c.Status.Steps[at].At.Time))
		for _, when := range answered[c.Spec.Placements[0].Workload] {
			late = append(late, when.Sub(seen[c.Name]))
		}
	}
	if len(late) != each*n {
		t.Fatalf("%d of %d answers came from a claim that was Ready\n%s", len(late), each*n, w.dump())
	}
	slices.Sort(late)
	slices.Sort(published)
	return late, published
}

// seesReady begins to note when each claim is seen to serve; what it returns waits until n were.
func (w *world) seesReady(n int) func() map[string]time.Time {
	w.t.Helper()
	watching, err := w.client.(client.WithWatch).Watch(w.ctx, &v1alpha1.GPUNodeClaimList{})
	if err != nil {
		w.t.Fatal(err)
	}
	seen, done := map[string]time.Time{}, make(chan struct{})
	go func() {
		defer close(done)
		for e := range watching.ResultChan() {
			c, ok := e.Object.(*v1alpha1.GPUNodeClaim)
			if !ok || c.Status.Phase != v1alpha1.PhaseReady || !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionEndpointPublished) {
				continue
			}
			if _, before := seen[c.Name]; !before {
				seen[c.Name] = time.Now()
			}
			if len(seen) == n {
				return
			}
		}
	}()
	return func() map[string]time.Time {
		select {
		case <-done:
		case <-time.After(time.Minute):
			w.t.Errorf("a watch never showed all to be Ready")
		}
		watching.Stop()
		<-done
		return seen
	}
}
