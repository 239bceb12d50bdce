// Package operator puts the controllers together and runs them against one cluster.
package operator

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/agentfile"
	"github.com/munhq/gpuscale/internal/billing"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/controller/disruption"
	"github.com/munhq/gpuscale/internal/controller/pool"
	"github.com/munhq/gpuscale/internal/controller/provisioning"
	"github.com/munhq/gpuscale/internal/controller/sweep"
	"github.com/munhq/gpuscale/internal/controller/workermetrics"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/ledger"
	restbook "github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/internal/traffic"
	"github.com/munhq/gpuscale/internal/workerclient"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Config is all that the operator is told.
type Config struct {
	Rest *rest.Config
	// Namespace that the controller runs in (POD_NAMESPACE): its Secrets and its lease are there.
	Namespace string
	// LedgerURL names the money history, as ledger.Open takes it.
	LedgerURL string
	// RedisURL is where gateways write what is asked of them; without it they wake and scale nothing.
	RedisURL string
	// Traffic are the times by which what gateways say is believed; the zero value is traffic's defaults.
	Traffic traffic.Settings
	// Getenv reads the environment, where credentials are looked for that no Secret gives.
	Getenv func(string) string
	// BaseURLs and PaceFactor direct drivers to simulated clouds; empty and 0 in production.
	BaseURLs   map[provider.Name]string
	PaceFactor float64
	// Transport carries the drivers' calls; nil is the standard one.
	Transport http.RoundTripper
	// Wrap goes around every driver that is opened; nil is none. Tests shorten a cloud's lags with it.
	Wrap func(provider.Provider) provider.Provider
	// Agent is what instances fetch whose pool names no agent.
	Agent bootstrap.Agent
	// WrapLedger goes around what claims write their history to, WrapWorkers around what claims and idleness call agents
	// with; nil is none. Tests end the process on either side of a call with them, or keep agents from answering.
	WrapLedger  func(claim.Ledger) claim.Ledger
	WrapWorkers func(claim.Workers) claim.Workers
	// MetricsAddr and HealthAddr are listened on; "0" turns either off.
	MetricsAddr string
	HealthAddr  string
	// WorkerMetrics say what is scraped of workers and where it is served; the zero value turns that off.
	WorkerMetrics workermetrics.Settings
	// LeaderElection is for installations with more than one replica.
	LeaderElection bool
	// Lease is how long a leader may be silent, for how long it tries to renew, and how often; the zero value is
	// controller-runtime's.
	Lease struct{ Duration, Renew, Retry time.Duration }
	// AllGPUPods lets a pod without a gpuscale.io/ annotation spend money.
	AllGPUPods bool
	// SearchPatience is how long one slow provider is waited for; 0 is provisioning.DefaultSearchTimeout.
	SearchPatience time.Duration
	// Timing of the claim controller; the zero value is claim.DefaultTiming.
	Timing claim.Timing
	// WorkerLease is how long a worker goes on without a call before it ends its own rental, where it can; 0 is
	// DefaultWorkerLease.
	WorkerLease time.Duration
	// BillEvery is how often providers are asked what ended rentals cost; 0 is billing.DefaultEvery.
	BillEvery time.Duration
	// Sweep are the sweep's intervals and bounds; the zero value is sweep.DefaultTiming.
	Sweep sweep.Timing
	// OrphanAge is how long a reservation waits for its claim; 0 is reserve.OrphanAge.
	OrphanAge time.Duration
	Log       logr.Logger
	// Clock is the system's where nil.
	Clock clock.WithTicker
}

// DefaultWorkerLease outlasts an upgrade or an outage of the cluster that people attend to. MinWorkerLease is the shortest
// that is taken in production: ten times what the controller may pause after an error, so that a busy hour ends nothing.
const (
	DefaultWorkerLease = time.Hour
	MinWorkerLease     = 10 * time.Minute
)

// Scheme has every kind that gpuscale reads or writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return nil, err
	}
	return s, v1alpha1.AddToScheme(s)
}

// Run runs the controllers until ctx ends, or returns why it could not start.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{} //gpuscale:clock the operator is where production's clock is made
	}
	if cfg.Timing == (claim.Timing{}) {
		cfg.Timing = claim.DefaultTiming()
	}
	cfg.WorkerLease = cmp.Or(cfg.WorkerLease, DefaultWorkerLease)
	cfg.SearchPatience = cmp.Or(cfg.SearchPatience, provisioning.DefaultSearchTimeout)
	if cfg.BillEvery == 0 {
		cfg.BillEvery = billing.DefaultEvery
	}
	if cfg.Sweep == (sweep.Timing{}) {
		cfg.Sweep = sweep.DefaultTiming()
	}
	cfg.Rest = paced(cfg.Rest)
	ctx = ctrl.LoggerInto(ctx, cfg.Log)
	led, away, err := ledger.Attach(ctx, cfg.LedgerURL)
	if err != nil {
		return err
	}
	if away != nil {
		cfg.Log.Error(away, "the ledger is away: nothing is bought until it is back")
	}
	defer func() {
		if cerr := led.Close(); cerr != nil {
			cfg.Log.Error(cerr, "ledger not closed cleanly")
		}
	}()
	mgr, err := newManager(cfg)
	if err != nil {
		return err
	}
	id, workers, err := identify(ctx, mgr, cfg)
	if err != nil {
		return err
	}
	defer workers.Close()
	if err := setUp(ctx, mgr, cfg, id, workers, led); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(cfg Config) (manager.Manager, error) {
	s, err := Scheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg.Rest, ctrl.Options{
		Scheme:                        s,
		Logger:                        cfg.Log,
		Metrics:                       server.Options{BindAddress: cfg.MetricsAddr},
		HealthProbeBindAddress:        cfg.HealthAddr,
		LeaderElection:                cfg.LeaderElection,
		LeaderElectionID:              "gpuscale-controller",
		LeaderElectionNamespace:       cfg.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 unlessZero(cfg.Lease.Duration),
		RenewDeadline:                 unlessZero(cfg.Lease.Renew),
		RetryPeriod:                   unlessZero(cfg.Lease.Retry),
		// Several stacks may run in one process, in tests.
		Controller: ctrlconfig.Controller{SkipNameValidation: ptrTo(true)},
		Cache:      cache.Options{DefaultTransform: slim},
		Client: client.Options{Cache: &client.CacheOptions{
			// Secrets are read one by one: a cache would need the right to list all of them.
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.Namespace{}},
		}},
	})
	if err != nil {
		return nil, err
	}
	if cfg.HealthAddr == "0" || cfg.HealthAddr == "" {
		return mgr, nil
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}

func ptrTo[T any](v T) *T { return &v }

// paced leaves the pace to the API server, which protects itself by priority and fairness, where nobody has said how fast
// to ask: any limit here has the purchases of a herd wait in line behind what its pods and events are told.
func paced(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	if c.QPS == 0 && c.RateLimiter == nil {
		c.QPS = -1
	}
	return c
}

func unlessZero(d time.Duration) *time.Duration {
	if d == 0 {
		return nil
	}
	return &d
}

// wrapped is v with around it what wrap makes of it; nil makes nothing.
func wrapped[T any](wrap func(T) T, v T) T {
	if wrap == nil {
		return v
	}
	return wrap(v)
}

// identify reads or makes the installation's identity before any controller starts: nothing may be bought under an
// unknown one.
func identify(ctx context.Context, mgr manager.Manager, cfg Config) (identity.Identity, *workerclient.Client, error) {
	c, err := client.New(cfg.Rest, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return identity.Identity{}, nil, err
	}
	now := cfg.Clock.Now()
	id, err := identity.Ensure(ctx, c, c, cfg.Namespace, now)
	if err != nil {
		return id, nil, err
	}
	if err := identity.EnsureGateway(ctx, c, c, cfg.Namespace, id, now); err != nil {
		return id, nil, fmt.Errorf("the gateway's certificate: %w", err)
	}
	pair, err := id.CA.Client(agentapi.RoleController, workerTTL, now)
	if err != nil {
		return id, nil, err
	}
	workers, err := workerclient.New(pair, id.CAPEM)
	return id, workers, err
}

func setUp(ctx context.Context, mgr manager.Manager, cfg Config, id identity.Identity, workers *workerclient.Client, led *ledger.Ledger) error {
	rests, strikes := &restbook.Book{}, claim.NewStrikes()
	recall := recallOnce(led, rests, strikes, cfg.Clock)
	accounts := newAccounts(ctx, mgr.GetAPIReader(), cfg, id)
	demandOpts := demand.Options{AllGPUPods: cfg.AllGPUPods}
	recorder := newRecorder(mgr.GetClient(), mgr.GetScheme(), cfg.Clock, cfg.Log.WithName("events"))
	if err := mgr.Add(recorder); err != nil {
		return err
	}
	secrets := secretReader{mgr.GetAPIReader()}
	gateways, err := watchGateways(ctx, mgr, cfg, id)
	if err != nil {
		return err
	}
	recent := recentAccounts{accounts}
	agents := wrapped[claim.Workers](cfg.WrapWorkers, workers)
	controllers := []interface{ SetupWithManager(ctrl.Manager) error }{
		&pool.Reconciler{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Accounts: accounts, Rests: rests, Events: recorder,
			Clock: cfg.Clock, Recheck: pool.DefaultRecheck},
		&provisioning.Reconciler{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Accounts: recent, Rests: rests,
			Events: recorder, Clock: cfg.Clock, Demand: demandOpts, Traffic: gateways, Replan: provisioning.DefaultReplan,
			SearchTimeout: cfg.SearchPatience, OrphanAge: cmp.Or(cfg.OrphanAge, reserve.OrphanAge),
			History: led, Recall: recall},
		&claim.Reconciler{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Accounts: recent, SearchPatience: cfg.SearchPatience,
			Workers: agents, Ledger: wrapped[claim.Ledger](cfg.WrapLedger, led),
			Rests: rests, Strikes: strikes, Memory: led, Recall: recall,
			Boot: bootMaker{id, cfg.Clock, cfg.Agent, agentfile.New(nil, cfg.Clock), cfg.WorkerLease, cfg.BaseURLs}, Lease: cfg.WorkerLease,
			HFToken: secrets.hfToken,
			Events:  recorder, Clock: cfg.Clock, Timing: cfg.Timing, Installation: id.Installation},
		&disruption.Reconciler{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Workers: agents, Events: recorder,
			Clock: cfg.Clock, Demand: demandOpts, Traffic: gateways, Uptime: uptime(), AgentTimeout: cfg.Timing.AgentTimeout},
		newSweeper(mgr, cfg, id, accounts, led, recorder),
	}
	if !cfg.WorkerMetrics.Off() {
		controllers = append(controllers, &workermetrics.Reconciler{Client: mgr.GetClient(), Workers: workers, Settings: cfg.WorkerMetrics,
			Clock: cfg.Clock, Log: cfg.Log.WithName("workermetrics")})
	}
	for _, c := range controllers {
		if err := c.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	return mgr.Add(&billing.Reader{Ledger: led, Accounts: accounts.All, Clock: cfg.Clock, Every: cfg.BillEvery,
		Log: cfg.Log.WithName("billing")})
}
