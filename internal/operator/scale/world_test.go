package scale_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/statuscheck"
	"github.com/munhq/gpuscale/pkg/money"
)

// profilesEnv names a folder for profiles of the controllers' process.
const profilesEnv = "GPUSCALE_BENCH_PROFILES"

// world is a cluster, a market with room for all, and the controllers in a process of their own.
type world struct {
	t       *testing.T
	client  client.Client
	market  *market.Market
	creates *creates
	ns      string
	pods    int
	pool    *v1alpha1.GPUNodePool
	stats   *http.Client
}

// start has a market of so many offers, and a pool with this batch window and no limit that binds.
func start(t *testing.T, offers int, window time.Duration) *world {
	t.Helper()
	m := market.New(market.Config{Seed: 1, Provider: "vast.ai", Offers: machines(offers),
		Body: virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TTFT": "1ms"}}),
		Boot: market.Boot{Create: 100 * time.Millisecond}})
	t.Cleanup(m.Close)
	w := &world{t: t, market: m, creates: &creates{next: simvast.New(m, simvast.Options{Keys: []string{simKey}, LimitScale: -1})}}
	api := httptest.NewServer(w.creates)
	t.Cleanup(api.Close)
	cluster := localkubetest.Start(t)
	scheme, err := operator.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cfg := cluster.Config()
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w.client = c
	w.ns = cluster.Namespace(t)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: secretName}, StringData: map[string]string{"VASTAI_API_KEY": simKey}},
	} {
		if err := w.client.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	w.pool = newPool("pool-"+w.ns, window)
	if err := w.client.Create(t.Context(), w.pool); err != nil {
		t.Fatal(err)
	}
	if !bench.Recording() { // It would be measured too.
		statuscheck.Watch(t, c)
	}
	w.run(cluster.Kubeconfig(), api.URL)
	return w
}

// run starts the controllers, waits until they know the pool, and has everything given back before they end.
func (w *world) run(kubeconfig, marketURL string) {
	dir := w.t.TempDir()
	o := orders{Kubeconfig: kubeconfig, Market: marketURL, Ledger: filepath.Join(dir, "ledger.db"), Stats: filepath.Join(dir, "stats")}
	settings, err := json.Marshal(o)
	if err != nil {
		w.t.Fatal(err)
	}
	process, said := exec.Command(os.Args[0]), &bytes.Buffer{}
	process.Env = append(os.Environ(), childEnv+"="+string(settings))
	process.Stderr = said
	// It ends when this pipe breaks, so that it does not outlive the test.
	hold, err := process.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.stats = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", o.Stats)
	}}}
	w.t.Cleanup(func() {
		w.giveBack()
		_ = hold.Close()
		if err := process.Wait(); err != nil || w.t.Failed() {
			w.t.Errorf("the controllers ended with %v and said:\n%s", err, said)
		}
	})
	w.until(time.Minute, "the pool is ready", func() error {
		if err := w.client.Get(context.Background(), client.ObjectKeyFromObject(w.pool), w.pool); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(w.pool.Status.Conditions, v1alpha1.ConditionReady) {
			return errors.New("it is not")
		}
		return nil
	})
}

// giveBack deletes pods and pool and insists that nothing is left.
func (w *world) giveBack() {
	w.removePods()
	if err := client.IgnoreNotFound(w.client.Delete(context.Background(), w.pool)); err != nil {
		w.t.Error(err)
	}
	w.until(5*time.Minute, "everything is given back", func() error {
		if live := len(w.market.Books().Live()); live > 0 {
			return fmt.Errorf("%d instances live", live)
		}
		err := w.client.Get(context.Background(), client.ObjectKeyFromObject(w.pool), w.pool)
		if err == nil {
			return errors.New("the pool is still there")
		}
		return client.IgnoreNotFound(err)
	})
}

func (w *world) removePods() {
	err := w.client.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace(w.ns), client.GracePeriodSeconds(0))
	if err != nil {
		w.t.Error(err)
	}
}

// ask makes so many pods, each for a model of its own, and returns when the first of them was sent.
func (w *world) ask(pods int) time.Time {
	w.t.Helper()
	const writers = 8
	var wg sync.WaitGroup
	first, next := time.Now(), make(chan int)
	for range min(writers, pods) {
		wg.Go(func() {
			for n := range next {
				if err := w.client.Create(w.t.Context(), newPod(w.ns, n)); err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	for range pods {
		w.pods++
		next <- w.pods
	}
	close(next)
	wg.Wait()
	return first
}

// until waits for a condition; the last reason why it does not hold is the failure.
func (w *world) until(patience time.Duration, what string, holds func() error) {
	w.t.Helper()
	err := errors.New("not looked at")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = holds(); err == nil {
			return
		}
	}
	w.t.Fatalf("%s: %v", what, err)
}

// ready waits until so many claims serve and every pod knows.
func (w *world) ready(patience time.Duration, claims int) {
	w.t.Helper()
	w.until(patience, fmt.Sprintf("%d claims serve", claims), func() error {
		time.Sleep(200 * time.Millisecond) // Listing a thousand is work for the API server too.
		var pods corev1.PodList
		if err := w.client.List(w.t.Context(), &pods, client.InNamespace(w.ns)); err != nil {
			return err
		}
		served, said := 0, map[string]int{}
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == v1alpha1.PodConditionServed {
					said[c.Reason]++
					if c.Status == corev1.ConditionTrue {
						served++
					}
				}
			}
		}
		if served != claims {
			return fmt.Errorf("%d pods are served; they say %v", served, said)
		}
		return nil
	})
}

// gone waits until no claim is left.
func (w *world) gone(patience time.Duration) {
	w.t.Helper()
	w.until(patience, "every claim is gone", func() error {
		time.Sleep(200 * time.Millisecond)
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUNodeClaimList"))
		if err := w.client.List(w.t.Context(), list); err != nil || len(list.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d claims", len(list.Items)))
		}
		return nil
	})
}

// look asks the controllers' process about itself.
func (w *world) look() stats {
	w.t.Helper()
	var s stats
	if err := json.Unmarshal(w.get("/stats"), &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) get(path string) []byte {
	w.t.Helper()
	resp, err := w.stats.Get("http://controllers" + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

// profile keeps a profile of the controllers' process where somebody asked for it. The function returned waits for it.
func (w *world) profile(name, path string) func() {
	dir := os.Getenv(profilesEnv)
	if dir == "" {
		return func() {}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := os.WriteFile(filepath.Join(dir, name), w.get(path), 0o600); err != nil {
			w.t.Error(err)
		}
	})
	return wg.Wait
}

// calls are those between two looks.
func (s stats) calls(since stats) int {
	n := 0
	for what, count := range s.Calls {
		n += count - since.Calls[what]
	}
	return n
}

// list is the calls between two looks, per claim, the most frequent first.
func (s stats) list(since stats, claims int) string {
	var lines []string
	for what, count := range s.Calls {
		if n := float64(count-since.Calls[what]) / float64(claims); n >= 0.01 {
			lines = append(lines, fmt.Sprintf("%8.2f %s", n, what))
		}
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// creates notes when the market is asked to create an instance.
type creates struct {
	next http.Handler

	mu      sync.Mutex
	rented  []time.Time
	refused int
}

func (c *creates) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/asks/") {
		c.next.ServeHTTP(w, r)
		return
	}
	at, status := time.Now(), &statusOf{ResponseWriter: w, code: http.StatusOK}
	c.next.ServeHTTP(status, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	if status.code == http.StatusOK {
		c.rented = append(c.rented, at)
		return
	}
	c.refused++
}

type statusOf struct {
	http.ResponseWriter
	code int
}

func (s *statusOf) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// after are the waits from a moment to the arrivals of the creates that rented something since, shortest first, and how
// many were refused in all.
func (c *creates) after(t time.Time) (waits []time.Duration, refused int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.rented {
		if at.After(t) {
			waits = append(waits, at.Sub(t))
		}
	}
	slices.Sort(waits)
	return waits, c.refused
}

// percentile is the value that so many percent of the sorted values do not exceed.
func percentile(sorted []time.Duration, p int) float64 {
	i := (len(sorted)*p + 99) / 100
	return float64(sorted[max(i, 1)-1]) / float64(time.Millisecond)
}

func newPool(name string, window time.Duration) *v1alpha1.GPUNodePool {
	d := func(t time.Duration) *v1alpha1.Duration { return &v1alpha1.Duration{Duration: t} }
	return &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUNodePoolSpec{
		Providers: []v1alpha1.ProviderSpec{{Name: "vast.ai", CapacityType: "spot", MaxPrice: money.MustParse("0.50"),
			APIKeySecret: &v1alpha1.SecretReference{Name: secretName, Namespace: system}}},
		Requirements: v1alpha1.Requirements{GPUTypes: []string{"RTX 4090"}, MinVRAM: 24, MinDisk: 50},
		Scaling: v1alpha1.Scaling{MaxNodes: 10000, BatchWindow: d(window), CooldownPeriod: d(time.Second),
			BootstrapTimeout: d(10 * time.Minute), DrainTimeout: d(5 * time.Second)},
		Limits: v1alpha1.Limits{MaxCostPerHour: money.MustParse("10000")},
	}}
}

func newPod(ns string, n int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("pod-%d", n),
		Annotations: map[string]string{v1alpha1.AnnotationModel: fmt.Sprintf("acme/m%d", n)}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.SchedulingGateCapacity}},
			Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai:latest", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}}}
}

// machines are offers of one RTX 4090 each, at prices a little apart: all are within the tenth that a reservation leaves.
func machines(n int) []market.Offer {
	var out []market.Offer
	for i := range n {
		id := fmt.Sprint(1001 + i)
		out = append(out, market.Offer{Machine: id, Host: "9" + id, GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090",
			GPUs: 1, MachineGPUs: 1, GPUMemoryMB: 24564, ComputeCap: 890, MemoryBW: 1000, Driver: "570.86.15", CUDA: 12.8,
			CPUArch: "amd64", Cores: 16, EffectiveCores: 16, RAMMB: 65536, DiskGB: 500, Region: "Oslo, NO", Ports: 100,
			DownMbps: 1000, UpMbps: 1000, OnDemand: market.USD(0.40), MinBid: market.USD(0.15 + 0.00001*float64(i)),
			StorageMonth: market.USD(0.10), Reliability: 0.99, Verification: "verified"})
	}
	return out
}
