package agent_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// do sends any request as a caller and returns status and body.
func do(t *testing.T, c *workerclient.Client, method, url, body string) (int, string) {
	t.Helper()
	request := must(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))
	request.Header.Set("Content-Type", "application/json")
	response, err := must(c.Transport(claimUID)).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode, string(must(io.ReadAll(response.Body)))
}

func TestEachRouteIsForItsCallersOnly(t *testing.T) {
	k := newWorld(t).start(nil)
	for _, c := range []struct {
		method, path, body  string
		controller, gateway int
	}{
		{"PUT", "/models", `{"generation":1}`, 204, 403},
		{"POST", "/drain", `{"model":"none"}`, 404, 403},
		{"GET", "/logs?model=none", "", 404, 403},
		{"GET", "/status", "", 200, 200},
		{"GET", "/metrics", "", 200, 200},
		{"GET", "/metrics?model=none", "", 503, 503},
		{"GET", "/healthz", "", 200, 200},
		{"GET", "/v1/models", "", 200, 200},
		{"POST", "/v1/chat/completions", `{"model":"none"}`, 503, 503},
		{"POST", "/v1/completions", `[]`, 400, 400},
		{"POST", "/v1/completions", `{"prompt":"x"}`, 400, 400},
		// What an engine also serves, and spellings of what the agent does.
		{"POST", "/invocations", `{"model":"none"}`, 404, 404},
		{"POST", "/v1/load_lora_adapter", `{"model":"none"}`, 404, 404},
		{"GET", "/v1/../metrics", "", 404, 404},
		{"GET", "/v1//models", "", 404, 404},
		{"GET", "/%73tatus", "", 404, 404},
		{"POST", "/v1/models", "", 405, 405},
		{"GET", "/models", "", 405, 405},
		{"PUT", "/models/", `{"generation":1}`, 404, 404},
	} {
		url := "https://" + k.endpoint + c.path
		if code, body := do(t, k.controller, c.method, url, c.body); code != c.controller {
			t.Errorf("controller: %s %s: %d, want %d: %s", c.method, c.path, code, c.controller, body)
		}
		if code, body := do(t, k.gateway, c.method, url, c.body); code != c.gateway {
			t.Errorf("gateway: %s %s: %d, want %d: %s", c.method, c.path, code, c.gateway, body)
		}
	}
}

func TestStrangersGetNoAnswer(t *testing.T) {
	k := newWorld(t).start(nil)
	if response, err := http.Get("http://" + k.endpoint + "/status"); err == nil {
		defer response.Body.Close()
		if body := must(io.ReadAll(response.Body)); response.StatusCode != http.StatusBadRequest || strings.Contains(string(body), claimUID) {
			t.Errorf("plain HTTP: %d %s", response.StatusCode, body)
		}
		http.DefaultClient.CloseIdleConnections()
	}
	other := must(pki.NewCA("aaaaaaaa", time.Now()))
	stranger := must(workerclient.New(must(other.Client(agentapi.RoleController, time.Hour, time.Now())), k.ca.PEM()))
	defer stranger.Close()
	var identity *workerclient.IdentityError
	if _, err := stranger.Status(t.Context(), k.endpoint, claimUID); !errors.As(err, &identity) || !identity.Ours {
		t.Errorf("other installation: %v", err)
	}
	if _, err := k.controller.Status(t.Context(), k.endpoint, "another-claim"); !errors.As(err, &identity) || identity.Ours {
		t.Errorf("other claim's name: %v", err)
	}
}

// TestNoOtherPairOpensTheAgent: not even a worker's, this one's own included.
func TestNoOtherPairOpensTheAgent(t *testing.T) {
	k := newWorld(t).start(nil)
	good := must(k.ca.Client(agentapi.RoleController, time.Hour, time.Now()))
	ask := func(certificates ...tls.Certificate) (int, error) {
		config := must(pki.ClientTLS(good, k.ca.PEM(), claimUID))
		config.Certificates = certificates
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Get("https://" + k.endpoint + "/status")
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	if code, err := ask(must(good.Certificate())); code != http.StatusOK || err != nil {
		t.Fatalf("the controller's: %d, %v", code, err)
	}
	own := k.boot()
	for name, pair := range map[string]pki.Pair{
		"expired":                must(k.ca.Client(agentapi.RoleController, time.Hour, time.Now().Add(-2*time.Hour))),
		"not valid yet":          must(k.ca.Client(agentapi.RoleController, time.Hour, time.Now().Add(2*time.Hour))),
		"another worker's":       must(k.ca.Worker("another-claim", time.Hour, time.Now())),
		"the worker's own":       {CertPEM: []byte(own.CertPEM), KeyPEM: []byte(own.KeyPEM)},
		"another installation's": must(must(pki.NewCA(k.ca.Installation(), time.Now())).Client(agentapi.RoleController, time.Hour, time.Now())),
	} {
		if code, err := ask(must(pair.Certificate())); err == nil {
			t.Errorf("%s: got in with %d", name, code)
		}
	}
	if code, err := ask(); err == nil {
		t.Errorf("without a certificate: got in with %d", code)
	}
}

func TestDesiredSetsAreCheckedAndOrdered(t *testing.T) {
	k := newWorld(t).start(nil)
	url := "https://" + k.endpoint + "/models"
	for body, want := range map[string]int{
		`{"generation":0}`:                                                                400,
		`{"generation":1,"models":[{"name":"a"}]}`:                                        400,
		`{"generation":1,"models":[{"name":"a","source":"--port"}]}`:                      400,
		`{"generation":1,"models":[{"name":"a","source":"s"},{"name":"a","source":"s"}]}`: 400,
		`{"generation":1,"models":[{"name":"a","source":"s","gpus":-1}]}`:                 400,
		`nonsense`: 400,
		`{"generation":1,"env":{"A":"` + strings.Repeat("x", 2<<20) + `"}}`: 413,
	} {
		code, answer := do(t, k.controller, "PUT", url, body)
		if code != want || strings.Contains(answer, "nonsense") {
			t.Errorf("%.60s: %d %s", body, code, answer)
		}
	}
	if s := k.status(); s.DesiredGeneration != 0 || len(s.Models) != 0 {
		t.Errorf("a refused set was taken: %+v", s)
	}
	for _, c := range []struct{ generation, code int }{{5, 204}, {5, 204}, {4, 409}, {6, 204}} {
		if code, _ := do(t, k.controller, "PUT", url, fmt.Sprintf(`{"generation":%d}`, c.generation)); code != c.code {
			t.Errorf("generation %d: %d, want %d", c.generation, code, c.code)
		}
	}
}

func TestTheModelInTheBodyIsTheOneTheEngineSees(t *testing.T) {
	k := newWorld(t).start(nil)
	k.put(1, model("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	const messages = `"messages":[{"role":"user","content":"hello"}],"max_tokens":1`
	for body, want := range map[string]int{
		`{"model":"other","model":"qwen",` + messages + `}`: 200, // Of two the last, as in Python.
		`{"model":"qwen","model":"other",` + messages + `}`: 503,
		`{"MODEL":"qwen",` + messages + `}`:                 400,
		`{"model":7,` + messages + `}`:                      400,
		`{"model":"","messages":[]}`:                        400,
		`{"nested":{"model":"qwen"}}`:                       400,
		`{"model":"q\u0077en",` + messages + `}`:            200,
	} {
		if code, _, answer := k.post("/v1/chat/completions", body); code != want {
			t.Errorf("%s: %d, want %d: %s", body, code, want, answer)
		}
	}
	code, _, answer := k.post("/v1/chat/completions", `{"model":"qwen","x":"`+strings.Repeat("x", 33<<20)+`"}`)
	if code != http.StatusRequestEntityTooLarge || !strings.Contains(answer, `"error"`) {
		t.Errorf("33 MiB: %d %.100s", code, answer)
	}
	if s := k.status(); s.InFlight != 0 {
		t.Errorf("in flight: %d", s.InFlight)
	}
}

func TestRequestsAreCountedExactly(t *testing.T) {
	k := newWorld(t).start(nil)
	k.put(1, model("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	// A mix of answers, refusals, bad requests and clients that leave, at once.
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := []string{chat("qwen", 3, true), chat("none", 3, true), "{}", chat("qwen", 3, false)}[i%4]
			response, err := k.send(ctx, "/v1/chat/completions", body)
			if err != nil {
				return
			}
			if i%8 < 4 {
				cancel()
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		})
	}
	all.Wait()
	s := k.until("idle", func(s agentapi.Status) bool { return s.InFlight == 0 })
	if find(s, "qwen").InFlight != 0 {
		t.Errorf("in flight: %+v", s)
	}
	code, metrics := do(t, k.gateway, "GET", "https://"+k.endpoint+"/metrics", "")
	if code != 200 || !strings.Contains(metrics, "gpuscale_agent_requests_total{model=\"qwen\"} 30\n") {
		t.Errorf("30 requests were for the model: %s", metrics)
	}
	code, metrics = do(t, k.gateway, "GET", "https://"+k.endpoint+"/metrics?model=qwen", "")
	if code != 200 || !strings.Contains(metrics, "vllm:num_requests_running") {
		t.Errorf("engine's metrics: %d %.200s", code, metrics)
	}
}

func TestModelsListsWhatIsReady(t *testing.T) {
	k := newWorld(t).start(nil)
	k.put(1, model("qwen"), agentapi.DesiredModel{Name: "bad", Source: "sim/gated", GPUs: 1, GPUFraction: 100})
	k.untilState("qwen", agentapi.StateReady)
	k.untilState("bad", agentapi.StateFailed)
	_, body := do(t, k.gateway, "GET", "https://"+k.endpoint+"/v1/models", "")
	if !strings.Contains(body, `"id":"qwen"`) || strings.Contains(body, "bad") {
		t.Errorf("models: %s", body)
	}
}

func probe(inventory agent.Inventory, err error) func(*agent.Config) {
	return func(c *agent.Config) {
		c.Boot.GPUs = agentapi.GPUExpectation{Name: "RTX4090", Count: 2, VRAMGB: 24}
		c.Probe = func(context.Context) (agent.Inventory, error) { return inventory, err }
	}
}

func TestGPUsThatWereNotBoughtFailTheWorker(t *testing.T) {
	good := agentapi.GPU{Name: "NVIDIA GeForce RTX 4090", MemoryMB: 24564}
	for name, c := range map[string]struct {
		inventory agent.Inventory
		err       error
		exit      string
	}{
		"as bought":   {agent.Inventory{GPUs: []agentapi.GPU{good, good}, Driver: "570.86.15"}, nil, ""},
		"one missing": {agent.Inventory{GPUs: []agentapi.GPU{good}}, nil, agentapi.ExitGPUMismatch},
		"another": {agent.Inventory{GPUs: []agentapi.GPU{good, {Name: "NVIDIA GeForce RTX 3090", MemoryMB: 24576}}}, nil,
			agentapi.ExitGPUMismatch},
		"no driver":  {agent.Inventory{}, agent.ErrNoDriver, agentapi.ExitNoDriver},
		"a bad read": {agent.Inventory{}, errors.New("broken"), agentapi.ExitNoDriver},
	} {
		t.Run(name, func(t *testing.T) {
			k := newWorld(t).start(probe(c.inventory, c.err))
			k.put(1, model("qwen"))
			if c.exit == "" {
				k.untilState("qwen", agentapi.StateReady)
				s := k.status()
				if s.Failure != nil || len(s.GPUs) != 2 || s.Driver != "570.86.15" {
					t.Errorf("status %+v", s)
				}
				return
			}
			s := k.until("failed", func(s agentapi.Status) bool { return s.Failure != nil })
			if s.Failure.Exit != c.exit || s.Failure.Step != agentapi.StepGPUsFound || find(s, "qwen").State != agentapi.StatePending {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestKillBreaksStreamsAndEndsAtOnce(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putSlow(1, slow("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	response, lines := k.stream(t.Context(), "qwen", 10000)
	defer response.Body.Close()
	k.agent.Kill()
	if last := rest(lines); last == "data: [DONE]" || lines.Err() == nil {
		t.Errorf("stream ended cleanly: %q, %v", last, lines.Err())
	}
	err := <-k.ended
	if err != nil {
		t.Error(err)
	}
	k.ended <- nil
	var unreachable *workerclient.UnreachableError
	if _, err := k.controller.Status(t.Context(), k.endpoint, claimUID); !errors.As(err, &unreachable) {
		t.Errorf("status of a killed agent: %v", err)
	}
}

func TestNewRefusesWhatCannotServe(t *testing.T) {
	w := newWorld(t)
	if _, err := agent.New(agent.Config{Boot: w.boot()}); err == nil {
		t.Error("no runner: no error")
	}
	boot := w.boot()
	boot.KeyPEM = string(bytes.Repeat([]byte("x"), 10))
	if _, err := agent.New(agent.Config{Boot: boot, Runner: agent.ProcessRunner{}}); err == nil {
		t.Error("bad key: no error")
	}
}
