package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/localstack"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

const (
	warmModel = "acme/warm"
)

// scenarioPool is a pool that buys of the simulated market, with a short cooldown and slow engines.
func scenarioPool(name, batchWindow, models string) string {
	return fmt.Sprintf(`
apiVersion: gpuscale.io/v1alpha1
kind: GPUNodePool
metadata: {name: %s}
spec:
  providers: [{name: vast.ai, nodeType: standalone, maxPrice: 0.50, apiKeySecret: {name: gpuscale-provider-credentials, namespace: gpuscale-system}}]
  requirements: {gpuTypes: ["RTX 4090", "RTX 3090"], minVRAM: 24}
  scaling: {minNodes: 0, maxNodes: 6, batchWindow: %q, cooldownPeriod: "3s"}
  bootstrap: {image: "vllm/vllm-openai:latest", env: [{name: VLLM_SIM_TOKENS_PER_SEC, value: "20"}]}
  limits: {maxGPUs: 12, maxCostPerHour: 3.00}
  models: [%s]
`, name, batchWindow, models)
}

var warmPool = scenarioPool("warm", "100ms", "{name: acme/warm, minReplicas: 3}")

// replicas are gateways, each a process of its own, in front of a stack whose workers, Redis and API server are processes too.
type replicas struct {
	t       *testing.T
	model   string
	redis   *redistest.Server
	bin     string
	stack   *localstack.Stack
	cluster client.Client
	client  *http.Client
}

// startReplicas starts a stack with one pool, of whose models requests are for one.
func startReplicas(t *testing.T, poolText, model string, change ...func(*localstack.Options)) *replicas {
	t.Helper()
	_, bin := programs(t)
	redis := redistest.Start(t)
	o := localstack.Options{BinDir: bin, RedisURL: redis.URL()}
	for _, c := range change {
		c(&o)
	}
	s, err := localstack.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := &replicas{t: t, model: model, redis: redis, bin: bin, stack: s, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("REDIS_URL", redis.URL()) // for the gateways
	t.Setenv("POD_NAMESPACE", localstack.Namespace)
	scheme, pool := runtime.NewScheme(), &v1alpha1.GPUNodePool{}
	err = errors.Join(v1alpha1.AddToScheme(scheme), yaml.UnmarshalStrict([]byte(poolText), pool))
	if err == nil {
		r.cluster, err = client.New(s.Rest, client.Options{Scheme: scheme})
	}
	if err == nil {
		err = r.cluster.Create(t.Context(), pool)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// gateway runs one and returns when so many workers serve the model to it.
func (r *replicas) gateway(name string, workers int) (url, metrics string, process *os.Process) {
	r.t.Helper()
	w := &loadWorld{t: r.t, dir: r.t.TempDir(), client: r.client}
	listen, scrape := w.freeAddress(), w.freeAddress()
	cmd := exec.Command(filepath.Join(r.bin, "gpuscale"), "gateway", "--kubeconfig", r.stack.Kubeconfig, "--listen", listen, "--metrics-addr", scrape)
	w.process(name, cmd)
	url = "http://" + listen
	w.until("gateway "+name+" serves", func() error {
		text, err := r.get(url + "/v1/models/" + r.model)
		if err == nil && !strings.Contains(text, fmt.Sprintf(`"workers":%d`, workers)) {
			err = errors.New(text)
		}
		return err
	})
	return url, "http://" + scrape + "/metrics", cmd.Process
}

func (r *replicas) get(url string) (string, error) {
	response, err := r.client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// outcome is what a client got.
type outcome struct {
	stream bool
	// begun: a byte of the body came.
	begun bool
	text  string
	err   error
}

// whole tells a whole answer.
func (o outcome) whole() bool {
	if o.err != nil {
		return false
	}
	if o.stream {
		return strings.HasSuffix(o.text, "data: [DONE]\n\n")
	}
	return json.Valid([]byte(o.text)) && strings.Contains(o.text, `"choices"`)
}

// cut tells a stream that ended with the gateway's word that it did.
func (o outcome) cut() bool {
	last := o.text[strings.LastIndex(strings.TrimRight(o.text, "\n"), "\n")+1:]
	return o.stream && o.err == nil && o.begun && strings.HasPrefix(last, `data: {"error":`)
}

func (r *replicas) ask(url string, stream bool, tokens int) outcome {
	return r.askFor(r.model, url, stream, tokens)
}

func (r *replicas) askFor(model, url string, stream bool, tokens int) outcome {
	o := outcome{stream: stream}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"ignore_eos":true,"messages":[{"role":"user","content":"hello"}]}`,
		model, tokens, stream)
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+loadPath, strings.NewReader(body))
	if err != nil {
		o.err = err
		return o
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := r.client.Do(request)
	if err != nil {
		o.err = err
		return o
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	o.text, o.begun, o.err = string(text), len(text) > 0, err
	if err == nil && response.StatusCode != http.StatusOK {
		o.err = errors.New(response.Status)
	}
	return o
}

// mixed sends n requests, every other one a stream, spread over a time, and calls during when they are under way.
func (r *replicas) mixed(url string, n int, over time.Duration, during func()) []outcome {
	all := make([]outcome, n)
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			time.Sleep(over * time.Duration(i) / time.Duration(n))
			all[i] = r.ask(url, i%2 == 0, 20)
		})
	}
	during()
	clients.Wait()
	return all
}

// agents are the processes of workers that run.
func (r *replicas) agents() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if program, err := os.Readlink("/proc/" + e.Name() + "/exe"); err == nil && program == filepath.Join(r.bin, "gpuscale-agent") {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				r.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func (r *replicas) ready(n int) {
	r.t.Helper()
	(&loadWorld{t: r.t}).until(fmt.Sprintf("%d claims are Ready", n), func() error {
		var list v1alpha1.GPUNodeClaimList
		if err := r.cluster.List(r.t.Context(), &list); err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			if meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, v1alpha1.ConditionReady) {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d of %d are", ready, len(list.Items))
		}
		return nil
	})
}

func (r *replicas) rented() int {
	text, err := r.get(r.stack.Cloud("vast.ai").Books)
	var books struct {
		Rented int `json:"rented"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(text), &books)); err != nil {
		r.t.Fatal(err)
	}
	return books.Rented
}

// brokenStreams is the metric of streams that ended in the gateway's error event.
func brokenStreams(text string) (n int) {
	for _, m := range regexp.MustCompile(`(?m)^gpuscale_gateway_streams_broken_total\{.*\} (\d+)$`).FindAllStringSubmatch(text, -1) {
		count, _ := strconv.Atoi(m[1]) // digits
		n += count
	}
	return n
}

// TestAKilledGatewayAndKilledWorkers: of two gateways under load one is killed, and nobody but its own clients notices. Then
// two of three workers are killed while 200 requests are under way at the other: none is lost before its first byte, and a
// stream that is cut after it ends in an error event, which is counted. What was killed is replaced, once.
func TestAKilledGatewayAndKilledWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	r := startReplicas(t, warmPool, warmModel)
	r.ready(3)
	one, _, process := r.gateway("one", 3)
	two, metrics, _ := r.gateway("two", 3)

	var ofTheDead []outcome
	var other sync.WaitGroup
	other.Go(func() {
		ofTheDead = r.mixed(one, 60, time.Second, func() {
			time.Sleep(1200 * time.Millisecond)
			if err := process.Signal(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		})
	})
	for i, o := range r.mixed(two, 100, 3*time.Second, func() {}) {
		if !o.whole() {
			t.Errorf("request %d at the gateway that lives: %v, %q", i, o.err, o.text)
		}
	}
	other.Wait()
	broken := 0
	for _, o := range ofTheDead {
		if !o.whole() {
			broken++
		}
	}
	t.Logf("%d of %d were under way at the one that was killed", broken, len(ofTheDead))
	if broken == 0 {
		t.Error("nothing was under way at the one that was killed")
	}
	if n := r.rented(); n != 3 {
		t.Errorf("%d were bought by then", n)
	}

	cut, lost := 0, 0
	for i, o := range r.mixed(two, 200, 3*time.Second, func() {
		for i, pid := range r.agents()[:2] {
			time.Sleep(time.Duration(1+i) * 700 * time.Millisecond)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}) {
		switch {
		case o.whole():
		case o.cut():
			cut++
		default:
			lost++
			t.Errorf("request %d, a stream %t, begun %t: %v, %q", i, o.stream, o.begun, o.err, o.text)
		}
	}
	text, err := r.get(metrics)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("of 200 requests %d streams were cut, %d lost", cut, lost)
	if counted := brokenStreams(text); counted != cut || cut == 0 {
		t.Errorf("%d streams were cut, %d counted", cut, counted)
	}
	(&loadWorld{t: t}).until("what was killed is replaced", func() error { // It is not known at once that it is gone.
		if n := r.rented(); n < 5 {
			return fmt.Errorf("%d were bought in all", n)
		}
		return nil
	})
	r.ready(3)
	if n := r.rented(); n != 5 {
		t.Errorf("%d were bought in all", n)
	}
}
