package operator_test

import (
	"context"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/controller/sweep"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/statuscheck"
	"github.com/munhq/gpuscale/pkg/provider"
)

// stage is a world whose controllers can be ended and started again, with a driver that misbehaves region by region.
type stage struct {
	*world
	cfg  operator.Config
	halt func() error
	unruly
}

// newStage starts nothing: launch does. At the end the controllers are halted; what is left is the test's affair.
func newStage(t *testing.T, offers []market.Offer, opts ...localkubetest.Option) *stage {
	t.Helper()
	m := market.New(market.Config{Seed: 1, Provider: "vast.ai", Offers: offers,
		Body: virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TTFT": "1ms"}}),
		Boot: market.Boot{Accept: 20 * time.Millisecond, Create: 20 * time.Millisecond, Load: 50 * time.Millisecond}})
	t.Cleanup(m.Close)
	api := httptest.NewServer(simvast.New(m, simvast.Options{Keys: []string{simKey, rotatedKey},
		Others: map[string]int{theirKey: 20002}, LimitScale: -1}))
	t.Cleanup(api.Close)
	cluster := localkubetest.Start(t, opts...)
	scheme, err := operator.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(cluster.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ctx: t.Context(), client: c, market: m, ns: cluster.Namespace(t), admin: cluster.Config(), cluster: cluster}
	w.ensure(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretNS}})
	w.secret(simKey)
	w.watch = statuscheck.Watch(t, c)
	s := &stage{world: w, halt: func() error { return nil }}
	s.unruly.released, s.unruly.createTimeout = map[string]bool{}, 30*time.Second
	s.cfg = operator.Config{
		Rest: w.asController(cluster.Config()), Namespace: secretNS, LedgerURL: "sqlite://" + filepath.Join(t.TempDir(), "ledger.db"),
		Getenv: func(string) string { return "" }, BaseURLs: map[provider.Name]string{provider.VastAI: api.URL}, PaceFactor: -1,
		Wrap: s.unruly.wrap, MetricsAddr: "0", HealthAddr: "0",
		// A test that ends the controllers may end them between a reservation and its claim.
		OrphanAge: 10 * time.Second,
		Agent:     bootstrap.Agent{URL: "http://127.0.0.1:1/gpuscale-agent", SHA256: strings.Repeat("0", 64)},
		Timing: claim.Timing{BootPoll: 200 * time.Millisecond, ReadyPoll: 500 * time.Millisecond, AgentTimeout: 2 * time.Second,
			Skew: 200 * time.Millisecond, LicenceWait: 20 * time.Second, DestroyRetry: 300 * time.Millisecond},
		Sweep: sweep.Timing{Period: 400 * time.Millisecond, MinAge: 3 * time.Second, MaxOrphans: 5, ListTimeout: 5 * time.Second},
		Log:   testLogger(t),
	}
	t.Cleanup(func() {
		w.ctx = context.Background()
		if err := s.halt(); err != nil {
			t.Errorf("operator: %v", err)
		}
		// Demand that outlives its test would be bought for in the next one.
		if err := c.DeleteAllOf(w.ctx, &corev1.Pod{}, client.InNamespace(w.ns), client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stage) launch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- operator.Run(ctx, s.cfg) }()
	s.halt = sync.OnceValue(func() error { cancel(); return <-done })
}

// stop ends the controllers in the middle of whatever they do.
func (s *stage) stop() {
	s.t.Helper()
	if err := s.halt(); err != nil {
		s.t.Fatal(err)
	}
}

// unruly is a driver whose regions each misbehave in a way of their own until they are released.
type unruly struct {
	mu       sync.Mutex
	released map[string]bool
	// createTimeout is time to hold a create for as long as a test needs.
	createTimeout time.Duration
}

// Regions begin with how they misbehave.
const (
	inTheAir  = "A" // the create takes effect once released, and its answer is lost
	unclear   = "U" // the create takes effect, its answer is lost, and lists do not show it until released
	undying   = "D" // a destroy fails until released
	wellMeant = "W"
)

func (u *unruly) release(region string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.released[region] = true
}

func (u *unruly) holds(region, how string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.HasPrefix(region, how) && !u.released[region]
}

func (u *unruly) wrap(p provider.Provider) provider.Provider {
	return &unrulyDriver{lags{p, func() {}}, u}
}

type unrulyDriver struct {
	lags
	*unruly
}

func (d *unrulyDriver) Capabilities() provider.Capabilities {
	c := d.lags.Capabilities()
	c.CreateTimeout = d.createTimeout
	return c
}

func (d *unrulyDriver) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	region := r.Offer.Region
	lost := d.holds(region, inTheAir) || d.holds(region, unclear)
	for d.holds(region, inTheAir) && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	in, err := d.lags.CreateInstance(context.WithoutCancel(ctx), r)
	if lost && err == nil {
		return provider.Instance{}, provider.Errorf(provider.VastAI, "create", provider.Unknown, "the answer was lost")
	}
	return in, err
}

func (d *unrulyDriver) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	all, err := d.lags.ListInstances(ctx, f)
	var shown []provider.Instance
	for _, in := range all {
		if !d.holds(in.Region, unclear) {
			shown = append(shown, in)
		}
	}
	return shown, err
}

func (d *unrulyDriver) DestroyInstance(ctx context.Context, id string) error {
	in, err := d.GetInstance(ctx, id)
	if err == nil && d.holds(in.Region, undying) {
		return provider.Errorf(provider.VastAI, "destroy", provider.Unavailable, "not now")
	}
	return d.lags.DestroyInstance(ctx, id)
}
