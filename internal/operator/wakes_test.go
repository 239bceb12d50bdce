package operator_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

// TestWakeFigures measures how long a request for a model at zero waits for its claim, and held requests once their model is
// ready, with few and with many models that wake at once. It insists that each is bought once.
func TestWakeFigures(t *testing.T) {
	sizes := []int{1, 5}
	if bench.Recording() {
		sizes = []int{1, 25, 100}
		t.Run("claims", func(t *testing.T) {
			took := claimed(t, 40)
			bench.Record(t, "wake.claim.p95", float64(took[len(took)*95/100].Microseconds())/1e3)
		})
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

// wake has a request wait for each of n models at zero. It returns, in order, how long after a watch beside the gateway's had
// shown the model's claim to be Ready each was answered, and how long after the claim's step Ready that was shown.
func wake(t *testing.T, n int) (late, published []time.Duration) {
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
		answered = map[string]time.Time{}
	)
	for i, name := range names {
		all.Go(func() {
			if err := f.ask(name, i%2 == 0, 1); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			answered[name] = time.Now()
		})
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
		late = append(late, answered[c.Spec.Placements[0].Workload].Sub(seen[c.Name]))
	}
	if len(late) != n {
		t.Fatalf("%d of %d answers came from a claim that was Ready\n%s", len(late), n, w.dump())
	}
	slices.Sort(late)
	slices.Sort(published)
	return late, published
}

// seesReady begins to note when each claim is seen to serve; what it returns waits until n were.
func (w *world) seesReady(n int) func() map[string]time.Time {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Minute)
	seen, done := map[string]time.Time{}, make(chan error, 1)
	note := func(c *v1alpha1.GPUNodeClaim) {
		if _, before := seen[c.Name]; !before && c.Status.Phase == v1alpha1.PhaseReady &&
			meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionEndpointPublished) {
			seen[c.Name] = time.Now()
		}
	}
	go func() {
		var err error
		for err == nil && len(seen) < n { // The API server ends watches of those that read too slowly.
			err = w.watchClaims(ctx, note, func() bool { return len(seen) == n })
		}
		done <- err
	}()
	return func() map[string]time.Time {
		defer cancel()
		if err := <-done; err != nil {
			w.t.Errorf("%d of %d were seen to be Ready: %v", len(seen), n, err)
		}
		return seen
	}
}

// watchClaims calls note with every claim as it is, and as it changes, until enough, or until the watch ends.
func (w *world) watchClaims(ctx context.Context, note func(*v1alpha1.GPUNodeClaim), enough func() bool) error {
	var list v1alpha1.GPUNodeClaimList
	if err := w.client.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		note(&list.Items[i])
	}
	watching, err := w.client.(client.WithWatch).Watch(ctx, &v1alpha1.GPUNodeClaimList{},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		return err
	}
	defer watching.Stop()
	for !enough() {
		e, open := <-watching.ResultChan()
		if !open {
			return ctx.Err()
		}
		if c, ok := e.Object.(*v1alpha1.GPUNodeClaim); ok {
			note(c)
		}
	}
	return nil
}
