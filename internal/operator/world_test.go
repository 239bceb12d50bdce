package operator_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	simverda "github.com/munhq/gpuscale/internal/cloudsim/verda"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/statuscheck"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

func TestMain(m *testing.M) { localkubetest.Main(m) }

const (
	simKey    = "sim-key-0123456789"
	secretNS  = "gpuscale-system"
	secretRef = "gpuscale-provider-credentials"
)

// world is a whole gpuscale over a real API server and a simulated Vast.ai with in-process workers.
type world struct {
	t      *testing.T
	ctx    context.Context
	client client.Client
	market *market.Market
	ns     string
	// phases are all phases that were seen of each claim, in order.
	watch *statuscheck.Watcher
	// beforeCreate runs between the claim's choice of an offer and the call that rents it.
	beforeCreate func(*world)
	// api is another provider's in front of the market, nil for Vast.ai's.
	api func(*market.Market) http.Handler
	// kube and configure change the cluster and the controllers' configuration before they start.
	kube      []localkubetest.Option
	configure func(*operator.Config)
	// cluster is started for the test where no option has set it.
	cluster *localkubetest.Cluster
	// supervised starts controllers that end by themselves again, as a kubelet does; ended counts those.
	supervised bool
	ended      atomic.Int32
	// admin is the cluster with all rights, which the controllers do not have; log is theirs where a test reads it.
	admin *rest.Config
	log   *logr.Logger
	// requests are what was asked of the API server under the chart's rules.
	requests requests
}

// lags shortens a cloud's lags, so that what takes minutes by contract takes seconds here.
type lags struct {
	provider.Provider
	beforeCreate func()
}

func (l lags) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	l.beforeCreate()
	return l.Provider.CreateInstance(ctx, r)
}

func (l lags) Capabilities() provider.Capabilities {
	c := l.Provider.Capabilities()
	c.ListLag, c.CreateTimeout, c.MinPollInterval, c.SearchInterval = 300*time.Millisecond, 2*time.Second, 50*time.Millisecond, 50*time.Millisecond
	return c
}

type option func(*world, *market.Config, *simvast.Options)

// offer is a sound RTX 4090 at 0.30 $/h on demand with a floor of 0.15, on the numbered machine.
func offer(machine string) market.Offer {
	return market.Offer{Machine: machine, Host: "9" + machine, GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090",
		GPUs: 1, MachineGPUs: 1, GPUMemoryMB: 24564, ComputeCap: 890, MemoryBW: 1000, Driver: "570.86.15", CUDA: 12.8,
		CPUArch: "amd64", Cores: 16, EffectiveCores: 16, RAMMB: 65536, DiskGB: 500, Region: "Oslo, NO", Ports: 100,
		DownMbps: 1000, UpMbps: 1000, OnDemand: market.USD(0.30), MinBid: market.USD(0.15), StorageMonth: market.USD(0.10),
		Reliability: 0.99, Verification: "verified"}
}

func start(t *testing.T, offers []market.Offer, opts ...option) *world {
	t.Helper()
	cfg := market.Config{Seed: 1, Provider: "vast.ai", Offers: offers, Body: virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TTFT": "1ms"}}),
		Boot: market.Boot{Accept: 20 * time.Millisecond, Create: 20 * time.Millisecond, Load: 50 * time.Millisecond}}
	facade := simvast.Options{Keys: []string{simKey}, LimitScale: -1}
	w := &world{t: t, ctx: t.Context(), beforeCreate: func(*world) {}, configure: func(*operator.Config) {}}
	for _, o := range opts {
		o(w, &cfg, &facade)
	}
	m := market.New(cfg)
	t.Cleanup(m.Close)
	var facadeOf http.Handler = simvast.New(m, facade)
	if w.api != nil {
		facadeOf = w.api(m)
	}
	api := httptest.NewServer(facadeOf)
	t.Cleanup(api.Close)

	if w.cluster == nil {
		w.cluster = localkubetest.Start(t, w.kube...)
	}
	cluster := w.cluster
	scheme, err := operator.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(cluster.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w.client, w.market, w.ns, w.admin = c, m, cluster.Namespace(t), cluster.Config()
	w.ensure(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretNS}})
	w.secret(simKey)
	if !bench.Recording() { // It would be measured too.
		w.watch = statuscheck.Watch(t, c)
	}
	w.run(cluster, api.URL)
	return w
}

// run starts the controllers and ends them with the test, after everything bought was given back.
func (w *world) run(cluster *localkubetest.Cluster, url string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cfg := operator.Config{
		Rest: w.asController(cluster.Config()), Namespace: secretNS, LedgerURL: "sqlite://" + filepath.Join(w.t.TempDir(), "ledger.db"),
		Getenv: func(string) string { return "" }, BaseURLs: map[provider.Name]string{provider.VastAI: url, provider.Verda: url, provider.TensorDock: url}, PaceFactor: -1,
		Wrap: func(p provider.Provider) provider.Provider { return lags{p, func() { w.beforeCreate(w) }} }, MetricsAddr: "0", HealthAddr: "0",
		Agent: bootstrap.Agent{URL: "http://127.0.0.1:1/gpuscale-agent", SHA256: strings.Repeat("0", 64)},
		Timing: claim.Timing{BootPoll: 100 * time.Millisecond, ReadyPoll: 200 * time.Millisecond, AgentTimeout: 2 * time.Second,
			Skew: 200 * time.Millisecond, LicenceWait: 3 * time.Second, DestroyRetry: 300 * time.Millisecond},
		Log: testLogger(w.t),
	}
	w.configure(&cfg)
	go func() { done <- w.operate(ctx, cfg) }()
	w.t.Cleanup(func() {
		// Also when clean gives up: controllers that outlive their test would act in the next one.
		defer func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("operator: %v", err)
			}
			w.requests.check(w.t)
		}()
		w.clean()
	})
}

// operate runs the controllers until ctx ends, or once unless they are supervised.
func (w *world) operate(ctx context.Context, cfg operator.Config) error {
	for {
		err := operator.Run(ctx, cfg)
		if !w.supervised || ctx.Err() != nil {
			return err
		}
		w.ended.Add(1)
		select { // a kubelet waits longer
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// clean deletes everything and insists that the market is empty afterwards.
func (w *world) clean() {
	w.ctx = context.Background()
	w.market.ClearFaults()
	w.market.DestroyRefused(0)
	for _, list := range []client.ObjectList{&corev1.PodList{}, &v1alpha1.GPUNodePoolList{}} {
		if err := w.client.List(w.ctx, list); err != nil {
			w.t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, o := range items {
			obj := o.(client.Object)
			if err := w.client.Delete(w.ctx, obj, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
				w.t.Fatal(err)
			}
		}
	}
	w.eventually("everything is given back", func() error {
		var pools v1alpha1.GPUNodePoolList
		var claims v1alpha1.GPUNodeClaimList
		if err := w.client.List(w.ctx, &pools); err != nil {
			return err
		}
		if err := w.client.List(w.ctx, &claims); err != nil {
			return err
		}
		if live := w.live(); len(pools.Items)+len(claims.Items)+len(live) > 0 {
			return fmt.Errorf("%d pools, %d claims, %d live instances", len(pools.Items), len(claims.Items), len(live))
		}
		return nil
	})
}

func (w *world) ensure(o client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.ctx, o); err != nil {
		w.t.Fatal(err)
	}
}

// secret writes the provider's Secret, or removes it when key is empty.
func (w *world) secret(key string) {
	w.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNS, Name: secretRef}}
	if err := w.client.Delete(w.ctx, s); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if key != "" {
		data := simverda.Credentials(key)
		data["VASTAI_API_KEY"], data["TENSORDOCK_API_TOKEN"] = key, key
		w.create(&corev1.Secret{ObjectMeta: s.ObjectMeta, StringData: data})
	}
}

// pool is one that buys RTX 4090 spot up to 0.50 $/h, with short times.
func (w *world) pool(edit ...func(*v1alpha1.GPUNodePool)) *v1alpha1.GPUNodePool {
	w.t.Helper()
	d := func(t time.Duration) *v1alpha1.Duration { return &v1alpha1.Duration{Duration: t} }
	p := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool-" + w.ns}}
	p.Spec = v1alpha1.GPUNodePoolSpec{
		Providers: []v1alpha1.ProviderSpec{{Name: "vast.ai", CapacityType: "spot", MaxPrice: money.MustParse("0.50"),
			APIKeySecret: &v1alpha1.SecretReference{Name: secretRef, Namespace: secretNS}}},
		Requirements: v1alpha1.Requirements{GPUTypes: []string{"RTX 4090"}, MinVRAM: 24, MinDisk: 50},
		Scaling: v1alpha1.Scaling{MaxNodes: 6, BatchWindow: d(100 * time.Millisecond), CooldownPeriod: d(2 * time.Second),
			InterruptionPollInterval: d(500 * time.Millisecond),
			BootstrapTimeout:         d(60 * time.Second), DrainTimeout: d(5 * time.Second)},
		Limits: v1alpha1.Limits{MaxCostPerHour: money.MustParse("3.00")},
	}
	for _, e := range edit {
		e(p)
	}
	w.create(p)
	return p
}

// pod asks for a model, behind the gate that stands in for a scheduler that finds no GPU.
func (w *world) pod(model string, annotations ...string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "pod-", Annotations: map[string]string{
		v1alpha1.AnnotationModel: model}}}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	p.Spec = corev1.PodSpec{
		SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.SchedulingGateCapacity}},
		Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai:latest", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}},
	}
	w.create(p)
	return p
}

func (w *world) remove(o client.Object) {
	w.t.Helper()
	if err := w.client.Delete(w.ctx, o, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits for a condition; the last reason why it does not hold is the failure.
func (w *world) eventually(what string, holds func() error) {
	w.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %v\n%s", what, err, w.dump())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// served waits for the pod's condition to have a status and one of these reasons.
func (w *world) podSays(pod *corev1.Pod, status corev1.ConditionStatus, reason string, parts ...string) {
	w.t.Helper()
	w.eventually("pod says "+reason, func() error {
		got := &corev1.Pod{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pod), got); err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type != v1alpha1.PodConditionServed {
				continue
			}
			if c.Status != status || c.Reason != reason {
				return fmt.Errorf("it says %s %s: %s", c.Status, c.Reason, c.Message)
			}
			for _, part := range parts {
				if !strings.Contains(c.Message, part) {
					return fmt.Errorf("its message %q lacks %q", c.Message, part)
				}
			}
			return nil
		}
		return fmt.Errorf("it says nothing")
	})
}

// event waits for an event with a reason about an object of a kind.
func (w *world) event(kind, reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("event %s on a %s", reason, kind), func() error {
		var list eventsv1.EventList
		if err := w.client.List(w.ctx, &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == reason && e.Regarding.Kind == kind && w.watch.Saw(e.Regarding.Name) || e.Reason == reason && e.Regarding.Namespace == w.ns {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
}

func (w *world) dump() string {
	var (
		b      strings.Builder
		claims v1alpha1.GPUNodeClaimList
		pools  v1alpha1.GPUNodePoolList
	)
	_ = w.client.List(w.ctx, &claims)
	_ = w.client.List(w.ctx, &pools)
	for _, p := range pools.Items {
		fmt.Fprintf(&b, "pool %s: %d nodes, %s $/h\n", p.Name, p.Status.Nodes, p.Status.DollarsPerHour)
		for _, c := range p.Status.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, c := range claims.Items {
		fmt.Fprintf(&b, "claim %s: %s failure %+v attempt %+v\n", c.Name, c.Status.Phase, c.Status.Failure, c.Status.Attempt)
		for _, cond := range c.Status.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s: %s\n", cond.Type, cond.Status, cond.Reason, cond.Message)
		}
	}
	for _, i := range w.market.Books().Instances {
		fmt.Fprintf(&b, "instance %s %s %s machine %s gone %v\n", i.ID, i.Label, i.State, i.Offer.Machine, i.GoneAt)
	}
	return b.String()
}
