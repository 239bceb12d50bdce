package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// bin has the real programs: gpuscale-agent, and vllm-sim under the name vllm.
var bin string

func TestMain(m *testing.M) {
	if kind := os.Getenv(envEngine); kind != "" {
		engineMain(kind, os.Args[1])
	}
	log.SetOutput(io.Discard) // As the program does.
	dir, err := os.MkdirTemp("", "agent-test")
	if err != nil {
		panic(err)
	}
	bin = dir
	for name, pkg := range map[string]string{"vllm": "vllm-sim", "gpuscale-agent": "gpuscale-agent"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "github.com/munhq/gpuscale/cmd/"+pkg)
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, out)
			os.Exit(1)
		}
	}
	if err := os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
		panic(err)
	}
	// Models of tests are on no Hub.
	if err := os.Setenv("HF_HUB_OFFLINE", "1"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

const claimUID = "0b8f3e52-6f0d-4b54-9c62-1f0a6c1de3aa"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is an installation: a CA, and its two callers.
type world struct {
	t                   *testing.T
	ca                  *pki.CA
	controller, gateway *workerclient.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, ca: must(pki.NewCA("5f2c91ab", time.Now()))}
	caller := func(role string) *workerclient.Client {
		c := must(workerclient.New(must(w.ca.Client(role, time.Hour, time.Now())), w.ca.PEM()))
		t.Cleanup(c.Close)
		return c
	}
	w.controller, w.gateway = caller(agentapi.RoleController), caller(agentapi.RoleGateway)
	return w
}

func (w *world) boot() agentapi.Boot {
	pair := must(w.ca.Worker(claimUID, time.Hour, time.Now()))
	return agentapi.Boot{Version: 1, Installation: w.ca.Installation(), ClaimUID: claimUID, ClaimName: "test",
		CertPEM: string(pair.CertPEM), KeyPEM: string(pair.KeyPEM), CAPEM: string(w.ca.PEM())}
}

// worker is one agent in this process.
type worker struct {
	*world
	agent    *agent.Agent
	endpoint string
	stop     context.CancelFunc
	ended    chan error
}

// fast are settings under which tests do not wait.
var fast = agent.Settings{
	ProbeInterval: 10 * time.Millisecond, HealthInterval: 30 * time.Millisecond, DeathTime: time.Second,
	BackOff: 10 * time.Millisecond, StopGrace: 5 * time.Second, ShutdownDrain: 10 * time.Second,
}

// start runs an agent until the test ends. change may be nil.
func (w *world) start(change func(*agent.Config)) *worker {
	w.t.Helper()
	cfg := agent.Config{Boot: w.boot(), Runner: agent.ProcessRunner{}, Settings: fast, Version: "test",
		Probe: func(context.Context) (agent.Inventory, error) { return agent.Inventory{}, agent.ErrNoDriver }}
	if change != nil {
		change(&cfg)
	}
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	ctx, cancel := context.WithCancel(context.Background())
	k := &worker{world: w, agent: must(agent.New(cfg)), endpoint: listener.Addr().String(), stop: cancel, ended: make(chan error, 1)}
	go func() { k.ended <- k.agent.Serve(ctx, listener) }()
	w.t.Cleanup(func() {
		cancel()
		w.controller.Close()
		w.gateway.Close()
		k.agent.Kill()
		if err := <-k.ended; err != nil {
			w.t.Errorf("agent ended with %v", err)
		}
	})
	return k
}

func (k *worker) status() agentapi.Status {
	k.t.Helper()
	s, err := k.controller.Status(k.t.Context(), k.endpoint, claimUID)
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

// put asks for models, one engine each; the sim's load is quick.
func (k *worker) put(generation int64, models ...agentapi.DesiredModel) {
	k.t.Helper()
	err := k.controller.PutModels(k.t.Context(), k.endpoint, claimUID, agentapi.DesiredModels{
		Generation: generation, Models: models, Env: map[string]string{
			"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TTFT": "1ms", "HF_TOKEN": "hf_verysecret",
		}})
	if err != nil {
		k.t.Fatal(err)
	}
}

func model(name string, args ...string) agentapi.DesiredModel {
	return agentapi.DesiredModel{Name: name, Source: "acme/" + name, Args: args, GPUs: 1, GPUFraction: 500}
}

// until polls until the status pleases, and fails with the last one if it never does.
func (k *worker) until(what string, pleases func(agentapi.Status) bool) agentapi.Status {
	k.t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s := k.status()
		if pleases(s) {
			return s
		}
		select {
		case <-tick.C:
		case <-deadline:
			k.t.Fatalf("never %s; status is %s", what, must(json.MarshalIndent(s, "", " ")))
		}
	}
}

func find(s agentapi.Status, name string) agentapi.ModelInfo {
	for _, m := range s.Models {
		if m.Name == name {
			return m
		}
	}
	return agentapi.ModelInfo{}
}

func (k *worker) untilState(name, state string) agentapi.ModelInfo {
	k.t.Helper()
	return find(k.until(name+" "+state, func(s agentapi.Status) bool { return find(s, name).State == state }), name)
}

// send posts to an engine as the gateway.
func (k *worker) send(ctx context.Context, path, body string) (*http.Response, error) {
	request := must(http.NewRequestWithContext(ctx, http.MethodPost, "https://"+k.endpoint+path, bytes.NewBufferString(body)))
	request.Header.Set("Content-Type", "application/json")
	return must(k.gateway.Transport(claimUID)).RoundTrip(request)
}

func (k *worker) post(path, body string) (int, http.Header, string) {
	k.t.Helper()
	response, err := k.send(k.t.Context(), path, body)
	if err != nil {
		k.t.Fatal(err)
	}
	defer response.Body.Close()
	text := must(io.ReadAll(response.Body))
	return response.StatusCode, response.Header, string(text)
}

func chat(model string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"messages":[{"role":"user","content":"hello"}]}`, model, tokens, stream)
}

func (k *worker) logs(name string) string {
	k.t.Helper()
	logs, err := k.controller.Logs(k.t.Context(), k.endpoint, claimUID, name, 1<<20)
	if err != nil {
		k.t.Fatal(err)
	}
	defer logs.Close()
	return string(must(io.ReadAll(logs)))
}

func names(s agentapi.Status) string {
	var out []string
	for _, step := range s.Steps {
		out = append(out, step.Name)
	}
	return strings.Join(out, " ")
}
