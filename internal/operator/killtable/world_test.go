package killtable_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/statuscheck"
	"github.com/munhq/gpuscale/pkg/money"
)

// Ceilings of the pool in every run.
const maxNodes = 2

var maxPerHour = market.USD(0.60)

// scenario is a life that a claim can have. Each is killed at the points that no earlier one has.
type scenario struct {
	name string
	// first ends the first process at the first point of this name, so that the second one's points are of a recovery.
	first string
	// offers and spoil set the market up.
	offers []market.Offer
	spoil  func(*market.Market)
	// refuse answers the first create as a provider does whose offer was taken.
	refuse bool
	// edit changes the pool; whenServed runs when its pod is served. Env is the controllers' environment, and panics ends
	// them at the point by a panic.
	edit       func(*v1alpha1.GPUNodePool)
	whenServed func(*life) error
	env        map[string]string
	panics     bool
	// most is how many instances the market may have rented out in the end.
	most int
}

// run is one life with at most one end of the process at a point.
type run struct {
	scenario scenario
	habits   habits
	killAt   string
	// unsure: not every life passes the point.
	unsure bool
}

// outcome is what became of a run.
type outcome struct {
	run     run
	reached bool
	rented  int
	points  []string
	unsure  map[string]bool // of the points
	took    time.Duration
	err     error
}

// bench is a Kubernetes to run lives on, one after the other.
type bench struct {
	cluster *localkubetest.Cluster
	client  client.Client
	ns      string
	dir     string
	lives   int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	cluster := localkubetest.Start(t, localkubetest.Private())
	scheme, err := operator.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(cluster.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	statuscheck.Watch(t, c)
	b := &bench{cluster: cluster, client: c, ns: cluster.Namespace(t), dir: t.TempDir()}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: secretName}, StringData: map[string]string{"VASTAI_API_KEY": simKey}},
	} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// life is a run under way.
type life struct {
	*bench
	run    run
	market *market.Market
	orders orders
	pool   *v1alpha1.GPUNodePool
	pod    *corev1.Pod

	child   *exec.Cmd
	hold    io.WriteCloser
	stderr  *bytes.Buffer
	ended   chan error
	reached bool
	said    string // what the processes that crashed have printed
}

// live leads one life from the pod to the empty market.
func (b *bench) live(ctx context.Context, r run) (out outcome) {
	b.lives++
	began := time.Now()
	out.run = r
	l := &life{bench: b, run: r}
	stop, err := l.setUp()
	defer stop()
	if err == nil {
		err = l.lead(ctx)
	}
	out.took = time.Since(began)
	out.rented = l.market.Books().Rented
	// A process that ends at the last point of a life may do so when the life is over.
	out.reached = l.reached || passed(l.orders.Trace, r.killAt)
	out.points, out.err = points(l.orders.Trace), errors.Join(err, l.audit(ctx))
	if out.err != nil {
		out.err = fmt.Errorf("%w\n%s%s", out.err, l.dump(ctx), l.stderr)
	}
	return out
}

func (l *life) setUp() (stop func(), err error) {
	m := market.New(market.Config{Seed: 1, Provider: "vast.ai", Offers: l.run.scenario.offers, ListLag: l.run.habits.Lag,
		Body: virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "20ms", "VLLM_SIM_TTFT": "1ms"}}),
		Boot: market.Boot{Create: 20 * time.Millisecond}})
	if l.run.scenario.spoil != nil {
		l.run.scenario.spoil(m)
	}
	api := httptest.NewServer(l.refusing(simvast.New(m, simvast.Options{Keys: []string{simKey, environmentKey}, LimitScale: -1, LabelIsKey: l.run.habits.Key})))
	l.market, l.stderr = m, &bytes.Buffer{}
	base := filepath.Join(l.dir, fmt.Sprint(l.lives))
	l.orders = orders{Kubeconfig: l.cluster.Kubeconfig(), Market: api.URL, Ledger: base + ".db", KillAt: l.run.killAt,
		Trace: base + ".trace", Habits: l.run.habits, Env: l.run.scenario.env, Panics: l.run.scenario.panics}
	stop = func() { l.endChild(); api.Close(); m.Close() }
	if strings.Contains(l.run.killAt, "secrets") { // written at the first start of an installation only
		for _, name := range []string{identity.SecretCA, identity.SecretGateway} {
			o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
			if err := l.client.Delete(context.Background(), o); client.IgnoreNotFound(err) != nil {
				return stop, err
			}
		}
	}
	if l.run.scenario.first != "" {
		l.orders.KillAt = l.run.scenario.first
	}
	return stop, l.startChild()
}

// refusing answers the first create as one for an offer that somebody else took, where the scenario says so.
func (l *life) refusing(next http.Handler) http.Handler {
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := false
		if l.run.scenario.refuse && strings.Contains(r.URL.Path, "/asks/") {
			once.Do(func() { refuse = true })
		}
		if !refuse {
			next.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte(`{"success": false, "error": "no_such_ask", "msg": "error 410/3907: no_such_ask"}`))
	})
}

func (l *life) startChild() error {
	settings, err := json.Marshal(l.orders)
	if err != nil {
		return err
	}
	l.child = exec.Command(os.Args[0])
	l.child.Env = append(os.Environ(), childEnv+"="+string(settings))
	l.child.Stderr = l.stderr
	// The child ends when this pipe breaks, so that none outlives the test.
	if l.hold, err = l.child.StdinPipe(); err != nil {
		return err
	}
	if err := l.child.Start(); err != nil {
		return err
	}
	l.ended = make(chan error, 1)
	go func(c *exec.Cmd, ended chan<- error) { ended <- c.Wait() }(l.child, l.ended)
	return nil
}

func (l *life) endChild() {
	if l.child == nil {
		return
	}
	_ = l.child.Process.Kill()
	<-l.ended
	l.child = nil
}

// keepRunning starts the controllers again when the trap has ended them.
func (l *life) keepRunning() error {
	select {
	case err := <-l.ended:
		var exit *exec.ExitError
		const byPanic = 2
		planned := killed
		if l.run.scenario.panics {
			planned = byPanic
		}
		if !errors.As(err, &exit) || exit.ExitCode() != planned {
			l.child = nil
			return fmt.Errorf("the controllers ended by themselves: %w", err)
		}
	default:
		return nil
	}
	if l.orders.KillAt == l.run.killAt {
		l.reached = true
		l.orders.KillAt = ""
	} else {
		l.orders.KillAt = l.run.killAt
		l.orders.Trace += ".second"
	}
	return l.startChild()
}

// lead walks from the pod to its service, from there to its end, and to the end of the pool.
func (l *life) lead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	l.pool, l.pod = newPool(fmt.Sprintf("pool-%d", l.lives)), newPod(l.ns, fmt.Sprintf("acme/m%d", l.lives))
	if l.run.scenario.edit != nil {
		l.run.scenario.edit(l.pool)
	}
	for _, o := range []client.Object{l.pool, l.pod} {
		if err := l.client.Create(ctx, o); err != nil {
			return err
		}
	}
	return errors.Join(
		l.until(ctx, "the pod is served by one instance", l.served),
		l.whenServed(),
		client.IgnoreNotFound(l.client.Delete(ctx, l.pod, client.GracePeriodSeconds(0))),
		l.until(ctx, "everything is given back", l.givenBack),
		client.IgnoreNotFound(l.client.Delete(ctx, l.pool)),
		l.until(ctx, "the pool is gone", func(ctx context.Context) error {
			err := l.client.Get(ctx, client.ObjectKeyFromObject(l.pool), &v1alpha1.GPUNodePool{})
			if err == nil {
				return errors.New("it is there")
			}
			return client.IgnoreNotFound(err)
		}))
}

func (l *life) whenServed() error {
	if l.run.scenario.whenServed == nil {
		return nil
	}
	return l.run.scenario.whenServed(l)
}

func (l *life) until(ctx context.Context, what string, holds func(context.Context) error) error {
	for {
		if err := l.keepRunning(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		err := holds(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *life) served(ctx context.Context) error {
	pod := &corev1.Pod{}
	if err := l.client.Get(ctx, client.ObjectKeyFromObject(l.pod), pod); err != nil {
		return err
	}
	said := "nothing"
	for _, c := range pod.Status.Conditions {
		if c.Type == v1alpha1.PodConditionServed {
			if said = c.Reason + ": " + c.Message; c.Status == corev1.ConditionTrue {
				said = ""
			}
		}
	}
	if said != "" {
		return fmt.Errorf("it says %s", said)
	}
	if n := len(l.market.Books().Live()); n != 1 {
		return fmt.Errorf("%d instances live", n)
	}
	return nil
}

func (l *life) givenBack(ctx context.Context) error {
	var claims v1alpha1.GPUNodeClaimList
	if err := l.client.List(ctx, &claims); err != nil {
		return err
	}
	if err := l.client.Get(ctx, client.ObjectKeyFromObject(l.pool), l.pool); err != nil {
		return err
	}
	if a, b := len(claims.Items), len(l.pool.Status.Reservations); a+b > 0 {
		return fmt.Errorf("%d claims, %d reservations", a, b)
	}
	return nil
}

// audit asks the market's books and the ledger, in the end and of every instant.
func (l *life) audit(ctx context.Context) error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	books := l.market.Books()
	if n := len(books.Live()); n > 0 {
		say("%d instances live on", n)
	}
	most := l.run.scenario.most
	if l.run.twice() {
		most++
	}
	if books.Rented == 0 || books.Rented > most {
		say("%d instances were rented, at most %d may have been", books.Rented, most)
	}
	var doubled time.Duration
	for i, s := range books.Series {
		if i > 0 && books.Series[i-1].Live > 1 {
			doubled += s.At.Sub(books.Series[i-1].At)
		}
		if s.Live > maxNodes || s.CommittedPerHour > maxPerHour {
			say("at %s: %d nodes at %s $/h, over the ceilings", s.At.Format(time.StampMicro), s.Live, s.CommittedPerHour)
		}
		if s.Live > 1 && !l.run.twice() {
			say("at %s: %d instances for one demand", s.At.Format(time.StampMicro), s.Live)
		}
	}
	if bound := l.run.habits.doubledFor(); doubled > bound {
		say("two instances for one demand for %s, a sweep ends the second within %s", doubled, bound)
	}
	led, err := ledger.Open(ctx, "sqlite://"+l.orders.Ledger)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer led.Close() // it was only read
	for _, in := range books.Instances {
		row, err := led.Get(ctx, in.Label)
		switch {
		case err != nil:
			say("instance %s is not in the ledger: %w", in.ID, err)
		case row.IntendedAt.After(in.CreatedAt):
			say("instance %s was rented %s before it was written down", in.ID, row.IntendedAt.Sub(in.CreatedAt))
		case row.GoneAt == nil:
			say("the ledger does not know that instance %s is gone", in.ID)
		}
	}
	open, err := led.Live(ctx)
	if err != nil || len(open) > 0 {
		say("the ledger has %d open instances (error %v): %+v", len(open), err, open)
	}
	return errors.Join(errs...)
}

// twice reports that a second instance cannot be avoided: the provider hides the first for longer than it declares, and
// what became of its create is unknown. It is bought under the same token or, where its offer is taken by the hidden one,
// by the next claim; with a key only the latter can be. The sweep ends what no claim accounts for. Where nobody was
// killed and every create was answered there is no second one, whatever is hidden.
func (r run) twice() bool {
	return r.habits.Lag > r.habits.ListLag && (r.killAt != "" || r.scenario.first != "" || r.scenario.spoil != nil)
}

// doubledFor is how long two instances for one demand may live side by side: until the hidden one is shown, is old enough,
// was unknown on two lists a list lag apart, and the process that has to notice is there again.
func (h habits) doubledFor() time.Duration {
	const slack = 15 * time.Second // a start of the process, and every call, on a busy machine
	return h.Lag + h.ListLag + sweeps.MinAge + 3*sweeps.Period + slack
}

func (l *life) dump(ctx context.Context) string {
	ctx = context.WithoutCancel(ctx)
	var b strings.Builder
	var claims v1alpha1.GPUNodeClaimList
	_ = l.client.List(ctx, &claims)
	for _, c := range claims.Items {
		fmt.Fprintf(&b, "claim %s: %s failure %+v attempt %+v instance %s\n", c.Name, c.Status.Phase, c.Status.Failure, c.Status.Attempt, c.Status.InstanceID)
		for _, o := range c.Status.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s: %s\n", o.Type, o.Status, o.Reason, o.Message)
		}
	}
	fmt.Fprintf(&b, "pool: %+v\n", l.pool.Status.Reservations)
	for _, i := range l.market.Books().Instances {
		fmt.Fprintf(&b, "instance %s %s %s machine %s gone %v\n", i.ID, i.Label, i.State, i.Offer.Machine, i.GoneAt)
	}
	return b.String()
}

// clear removes what a failed life has left, so that the next one starts alone.
func (b *bench) clear(ctx context.Context) error {
	var errs []error
	var claims v1alpha1.GPUNodeClaimList
	var pools v1alpha1.GPUNodePoolList
	var pods corev1.PodList
	errs = append(errs, b.client.List(ctx, &claims), b.client.List(ctx, &pools), b.client.List(ctx, &pods, client.InNamespace(b.ns)))
	var all []client.Object
	for i := range claims.Items {
		all = append(all, &claims.Items[i])
	}
	for i := range pools.Items {
		all = append(all, &pools.Items[i])
	}
	for i := range pods.Items {
		all = append(all, &pods.Items[i])
	}
	for _, o := range all {
		if len(o.GetFinalizers()) > 0 {
			o.SetFinalizers(nil)
			errs = append(errs, client.IgnoreNotFound(b.client.Update(ctx, o)))
		}
		if err := b.client.Delete(ctx, o, client.GracePeriodSeconds(0)); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// passed reports whether a trace has a point, under whichever of its names.
func passed(trace, point string) bool {
	return slices.ContainsFunc(lines(trace), func(line string) bool { return slices.Contains(strings.Split(line, "\t"), point) })
}

func points(trace string) []string {
	out := lines(trace)
	for i, line := range out {
		out[i] = pointOf(line)
	}
	return out
}

func lines(trace string) (out []string) {
	f, err := os.Open(trace)
	if err != nil {
		return nil
	}
	defer f.Close() // it was only read
	for s := bufio.NewScanner(f); s.Scan(); {
		out = append(out, s.Text())
	}
	return out
}

func newPool(name string) *v1alpha1.GPUNodePool {
	d := func(t time.Duration) *v1alpha1.Duration { return &v1alpha1.Duration{Duration: t} }
	return &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUNodePoolSpec{
		Providers: []v1alpha1.ProviderSpec{{Name: "vast.ai", CapacityType: "spot", MaxPrice: money.MustParse("0.30"),
			APIKeySecret: &v1alpha1.SecretReference{Name: secretName, Namespace: system}}},
		Requirements: v1alpha1.Requirements{GPUTypes: []string{"RTX 4090"}, MinVRAM: 24, MinDisk: 50},
		Scaling: v1alpha1.Scaling{MaxNodes: maxNodes, BatchWindow: d(20 * time.Millisecond), CooldownPeriod: d(100 * time.Millisecond),
			BootstrapTimeout: d(60 * time.Second), DrainTimeout: d(5 * time.Second)},
		Limits: v1alpha1.Limits{MaxCostPerHour: money.MustParse("0.60")},
	}}
}

func newPod(ns, model string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "pod-", Annotations: map[string]string{v1alpha1.AnnotationModel: model}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.SchedulingGateCapacity}},
			Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai:latest", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}}}
}

func offer(machine string, floor float64) market.Offer {
	return market.Offer{Machine: machine, Host: "9" + machine, GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090",
		GPUs: 1, MachineGPUs: 1, GPUMemoryMB: 24564, ComputeCap: 890, MemoryBW: 1000, Driver: "570.86.15", CUDA: 12.8,
		CPUArch: "amd64", Cores: 16, EffectiveCores: 16, RAMMB: 65536, DiskGB: 500, Region: "Oslo, NO", Ports: 100,
		DownMbps: 1000, UpMbps: 1000, OnDemand: market.USD(0.30), MinBid: market.USD(floor), StorageMonth: market.USD(0.10),
		Reliability: 0.99, Verification: "verified"}
}
