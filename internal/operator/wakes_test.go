package operator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/operator"
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
			late, whole := wake(t, n)
			t.Logf("%d models: answered after the API server knew them to be Ready: median %s, last %s; after they were: last %s", n,
				late[len(late)/2], late[len(late)-1], whole[len(whole)-1])
			if bench.Recording() {
				ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
				bench.Record(t, fmt.Sprintf("wake.%d.p50", n), ms(late[len(late)/2]))
				bench.Record(t, fmt.Sprintf("wake.%d.last", n), ms(late[len(late)-1]))
				bench.Record(t, fmt.Sprintf("wake.%d.step", n), ms(whole[len(whole)-1]))
			}
		})
	}
}

// wake has a request wait for each of n models at zero. It returns, in order, how long after the API server knew that the
// model's claim serves each was answered, and how long after the claim's step Ready.
func wake(t *testing.T, n int) (late, whole []time.Duration) {
	redis := redistest.Start(t)
	production := claim.DefaultTiming()
	var served acknowledged
	w := start(t, offers(n+n/4+1), withRedis(redis), polling(production.BootPoll, production.ReadyPoll), served.note, func(_ *world, m *market.Config, _ *simOptions) {
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
	w.rentedAtMost(n)
	served.mu.Lock()
	defer served.mu.Unlock()
	for _, c := range w.claims() {
		at := slices.IndexFunc(c.Status.Steps, func(s v1alpha1.Step) bool { return s.Name == "Ready" })
		if at < 0 || served.at[c.Name].IsZero() {
			continue
		}
		done := answered[c.Spec.Placements[0].Workload]
		whole = append(whole, done.Sub(c.Status.Steps[at].At.Time))
		late = append(late, done.Sub(served.at[c.Name]))
	}
	if len(late) != n {
		t.Fatalf("%d of %d answers came from a claim that was Ready\n%s", len(late), n, w.dump())
	}
	slices.Sort(late)
	slices.Sort(whole)
	return late, whole
}

// polling sets how often instances and agents are looked at while figures are recorded. The tests' own times would ask those
// that serve 25 times as often as production does, 100 of them 500 times a second, on the cores that are measured.
func polling(boot, ready time.Duration) option {
	return func(w *world, _ *market.Config, _ *simOptions) {
		configure := w.configure
		w.configure = func(c *operator.Config) {
			configure(c)
			if bench.Recording() {
				c.Timing.BootPoll, c.Timing.ReadyPoll = boot, ready
			}
		}
	}
}

// acknowledged is when the API server took from the controllers that a claim is served: a gateway can know it from then on.
type acknowledged struct {
	mu sync.Mutex
	at map[string]time.Time
}

// note is an option that begins to note them.
func (a *acknowledged) note(w *world, _ *market.Config, _ *simOptions) {
	a.at = map[string]time.Time{}
	configure := w.configure
	w.configure = func(c *operator.Config) {
		configure(c)
		c.Rest = rest.CopyConfig(c.Rest)
		c.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				name := saysServed(w.t, r)
				response, err := next.RoundTrip(r)
				if name != "" && err == nil && response.StatusCode == http.StatusOK {
					a.mu.Lock()
					defer a.mu.Unlock()
					if a.at[name].IsZero() {
						a.at[name] = time.Now()
					}
				}
				return response, err
			})
		})
	}
}

// saysServed is the name of the claim that a request to the API server says is served; empty for any other request.
func saysServed(t *testing.T, r *http.Request) string {
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	_, name, claims := strings.Cut(path, "/gpunodeclaims/")
	if r.Method != http.MethodPatch || !status || !claims {
		return ""
	}
	body, err := r.GetBody()
	if err != nil {
		t.Error(err)
		return ""
	}
	var said v1alpha1.GPUNodeClaim
	if err := json.NewDecoder(body).Decode(&said); err != nil {
		t.Error(err)
	}
	if !meta.IsStatusConditionTrue(said.Status.Conditions, v1alpha1.ConditionEndpointPublished) {
		return ""
	}
	return name
}
