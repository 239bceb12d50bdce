package virtual_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

var bodies = flag.Int("bodies", 20, "bodies in the test of scale")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type world struct {
	t       *testing.T
	ca      *pki.CA
	client  *workerclient.Client
	factory *virtual.Factory
}

var fast = agent.Settings{ProbeInterval: 20 * time.Millisecond, BackOff: 10 * time.Millisecond, DeathTime: time.Second}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca := must(pki.NewCA("5f2c91ab", time.Now()))
	w := &world{t: t, ca: ca, factory: virtual.New(virtual.Options{Settings: fast, Version: "test",
		Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TTFT": "1ms"}})}
	w.client = must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, time.Now())), ca.PEM()))
	t.Cleanup(w.client.Close)
	return w
}

func (w *world) env(claim string) map[string]string {
	pair := must(w.ca.Worker(claim, time.Hour, time.Now()))
	boot := agentapi.Boot{Version: 1, Installation: w.ca.Installation(), ClaimUID: claim, CertPEM: string(pair.CertPEM),
		KeyPEM: string(pair.KeyPEM), CAPEM: string(w.ca.PEM()), GPUs: agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24}}
	return map[string]string{agentapi.EnvBoot: base64.StdEncoding.EncodeToString(must(json.Marshal(boot)))}
}

var rtx4090 = body.GPU{Name: "NVIDIA GeForce RTX 4090", MemoryMB: 24564, Count: 1, Driver: "570.86.15", CUDA: "12.8"}

func (w *world) start(claim string, gpu body.GPU) (body.Body, string) {
	w.t.Helper()
	b := must(w.factory.Start(context.Background(), body.Spec{InstanceID: claim, Env: w.env(claim), Port: 9443, GPU: gpu}))
	w.t.Cleanup(func() {
		b.Kill()
		<-b.Done()
	})
	host, port := b.Address()
	return b, net.JoinHostPort(host, strconv.Itoa(port))
}

// until polls until a status pleases.
func (w *world) until(endpoint, claim string, pleases func(agentapi.Status) bool) (agentapi.Status, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for {
		s, err := w.client.Status(w.t.Context(), endpoint, claim)
		if err != nil || pleases(s) {
			return s, err
		}
		select {
		case <-tick.C:
		case <-deadline:
			return s, fmt.Errorf("never; status %+v", s)
		}
	}
}

func state(want string) func(agentapi.Status) bool {
	return func(s agentapi.Status) bool { return len(s.Models) == 1 && s.Models[0].State == want }
}

func (w *world) put(endpoint, claim, source string, args ...string) error {
	return w.client.PutModels(w.t.Context(), endpoint, claim, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{{Name: "qwen", Source: source, Args: args, GPUs: 1, GPUFraction: 1000}}})
}

func (w *world) stream(endpoint, claim string, tokens int) (*http.Response, error) {
	text := fmt.Sprintf(`{"model":"qwen","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}`, tokens)
	r := must(http.NewRequestWithContext(w.t.Context(), http.MethodPost, "https://"+endpoint+"/v1/chat/completions", strings.NewReader(text)))
	r.Header.Set("Content-Type", "application/json")
	return must(w.client.Transport(claim)).RoundTrip(r)
}

func TestAVirtualBodyServesUntilItIsKilled(t *testing.T) {
	w := newWorld(t)
	b, endpoint := w.start("claim-a", rtx4090)
	if err := w.put(endpoint, "claim-a", "acme/qwen"); err != nil {
		t.Fatal(err)
	}
	s, err := w.until(endpoint, "claim-a", state(agentapi.StateReady))
	if err != nil || len(s.GPUs) != 1 || s.Driver != "570.86.15" {
		t.Fatalf("%+v, %v", s, err)
	}
	response := must(w.stream(endpoint, "claim-a", 5))
	if text := string(must(io.ReadAll(response.Body))); !strings.HasSuffix(strings.TrimSpace(text), "data: [DONE]") {
		t.Errorf("stream is %s", text)
	}
	_ = response.Body.Close()

	response = must(w.stream(endpoint, "claim-a", 10000))
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() {
		t.Fatal("stream does not begin")
	}
	b.Kill()
	b.Kill()
	<-b.Done()
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if lines.Err() == nil || last == "data: [DONE]" {
		t.Errorf("stream ended cleanly with %q", last)
	}
	if info := b.ExitInfo(); !info.Killed || info.Code != -1 {
		t.Errorf("exit is %+v", info)
	}
	var unreachable *workerclient.UnreachableError
	if _, err := w.client.Status(t.Context(), endpoint, "claim-a"); !errors.As(err, &unreachable) {
		t.Errorf("after the end: %v", err)
	}
}

func TestFailuresAreThoseOfTheProcess(t *testing.T) {
	w := newWorld(t)
	for source, exit := range map[string]string{
		"sim/oom": agentapi.ExitOutOfMemory, "sim/gated": agentapi.ExitWeightsDenied, "sim/not-found": agentapi.ExitWeightsNotFound,
		"sim/crash": agentapi.ExitWarmupFailed, "acme/q": agentapi.ExitBadArgument,
	} {
		claim := strings.ReplaceAll(source, "/", "-")
		_, endpoint := w.start(claim, rtx4090)
		var args []string
		if source == "acme/q" {
			args = []string{"--frobnicate"}
		}
		if err := w.put(endpoint, claim, source, args...); err != nil {
			t.Fatal(err)
		}
		s, err := w.until(endpoint, claim, state(agentapi.StateFailed))
		if err != nil || s.Models[0].Failure == nil || s.Models[0].Failure.Exit != exit {
			t.Errorf("%s: %+v, %v", source, s.Models, err)
		}
	}
}

func TestBrokenHostsAreSeen(t *testing.T) {
	w := newWorld(t)
	wrong, none := rtx4090, rtx4090
	wrong.Name = "NVIDIA GeForce RTX 3090"
	none.Driver = ""
	for exit, gpu := range map[string]body.GPU{agentapi.ExitGPUMismatch: wrong, agentapi.ExitNoDriver: none} {
		claim := strings.ToLower(exit)
		_, endpoint := w.start(claim, gpu)
		s, err := w.until(endpoint, claim, func(s agentapi.Status) bool { return s.Failure != nil })
		if err != nil || s.Failure.Exit != exit {
			t.Errorf("%s: %+v, %v", exit, s, err)
		}
	}
}

func TestBadBootDataEndTheBody(t *testing.T) {
	w := newWorld(t)
	for text, code := range map[string]int{"": 1, "%%": 2, "e30=": 2} {
		b := must(w.factory.Start(t.Context(), body.Spec{Env: map[string]string{agentapi.EnvBoot: text}}))
		<-b.Done()
		b.Kill()
		logger, ok := b.(body.Logger)
		if info := b.ExitInfo(); info.Code != code || info.Killed || !ok || len(logger.Logs(1)) == 0 {
			t.Errorf("%q: %+v", text, info)
		}
	}
}

func TestTheMarketsEndEndsBodies(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	b := must(w.factory.Start(ctx, body.Spec{Env: w.env("claim-a"), GPU: rtx4090}))
	cancel()
	<-b.Done()
	if !b.ExitInfo().Killed {
		t.Errorf("exit is %+v", b.ExitInfo())
	}
}

func TestManyBodiesServeInOneProcess(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for i := range *bodies {
		claim := fmt.Sprintf("claim-%d", i)
		_, endpoint := w.start(claim, rtx4090)
		all.Go(func() {
			if err := w.put(endpoint, claim, "acme/qwen"); err != nil {
				t.Error(err)
				return
			}
			if _, err := w.until(endpoint, claim, state(agentapi.StateReady)); err != nil {
				t.Error(err)
				return
			}
			response, err := w.stream(endpoint, claim, 3)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			w.client.Forget(claim)
		})
	}
	all.Wait()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d bodies: %d goroutines, %d MiB of heap", *bodies, runtime.NumGoroutine(), m.HeapInuse>>20)
	if per := runtime.NumGoroutine() / *bodies; per > 20 {
		t.Errorf("%d goroutines for each body", per)
	}
}
