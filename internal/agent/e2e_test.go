package agent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/workerclient"
)

func TestAModelBootsServesAndStreams(t *testing.T) {
	k := newWorld(t).start(nil)
	if s := k.status(); s.Version != "test" || s.ClaimUID != claimUID || s.BootID == "" || s.DesiredGeneration != 0 || s.LastRequest != nil {
		t.Errorf("first status is %+v", s)
	}
	k.put(1, model("qwen"))
	m := k.untilState("qwen", agentapi.StateReady)
	if m.Failure != nil || m.Restarts != 0 || m.LastRequest != nil {
		t.Errorf("warm-up counts as a request, or failed: %+v", m)
	}
	s := k.status()
	if got := names(s); got != "Booted GPUsFound Downloading Loading Warmed Ready" {
		t.Errorf("steps are %s", got)
	}
	for i := 1; i < len(s.Steps); i++ {
		if s.Steps[i].At.Before(s.Steps[i-1].At) {
			t.Errorf("step %s is before %s", s.Steps[i].Name, s.Steps[i-1].Name)
		}
	}

	code, _, body := k.post("/v1/chat/completions", chat("qwen", 5, false))
	if code != http.StatusOK || !strings.Contains(body, `"choices"`) {
		t.Errorf("answer is %d %s", code, body)
	}
	code, header, body := k.post("/v1/chat/completions", chat("qwen", 5, true))
	if code != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") ||
		!strings.HasSuffix(strings.TrimSpace(body), "data: [DONE]") {
		t.Errorf("stream is %d %s", code, body)
	}
	s = k.until("idle again", func(s agentapi.Status) bool { return s.InFlight == 0 })
	if s.LastRequest == nil || find(s, "qwen").LastRequest == nil {
		t.Errorf("last request is not known: %+v", s)
	}
}

func TestTwoModelsAreServedBesideEachOther(t *testing.T) {
	k := newWorld(t).start(nil)
	k.put(1, model("a"), model("b"))
	k.untilState("a", agentapi.StateReady)
	k.untilState("b", agentapi.StateReady)
	for _, name := range []string{"a", "b"} {
		if code, _, body := k.post("/v1/chat/completions", chat(name, 1, false)); code != 200 || !strings.Contains(body, `"model":"`+name+`"`) {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	// The set without a: its engine goes, b's is the same as before.
	before := find(k.status(), "b")
	k.put(2, model("b"))
	s := k.until("a gone", func(s agentapi.Status) bool { return find(s, "a").Name == "" })
	if after := find(s, "b"); after.State != agentapi.StateReady || !after.Since.Equal(before.Since) {
		t.Errorf("b was %+v, is %+v", before, after)
	}
	code, header, _ := k.post("/v1/chat/completions", chat("a", 1, false))
	if code != http.StatusServiceUnavailable || header.Get(agentapi.HeaderRefused) != agentapi.RefusedNoModel {
		t.Errorf("gone model: %d %v", code, header)
	}
}

func TestEmbeddingsAreWarmedUpToo(t *testing.T) {
	k := newWorld(t).start(nil)
	k.put(1, model("bge-small"))
	k.untilState("bge-small", agentapi.StateReady)
	if code, _, body := k.post("/v1/embeddings", `{"model":"bge-small","input":"hello"}`); code != 200 {
		t.Errorf("%d %s", code, body)
	}
}

// stream starts a stream and returns once its first token is there.
func (k *worker) stream(ctx context.Context, model string, tokens int) (*http.Response, *bufio.Scanner) {
	k.t.Helper()
	response, err := k.send(ctx, "/v1/chat/completions", chat(model, tokens, true))
	if err != nil {
		k.t.Fatal(err)
	}
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "data: ") {
		k.t.Fatalf("stream begins with %q, %v", lines.Text(), lines.Err())
	}
	return response, lines
}

func rest(lines *bufio.Scanner) string {
	last := ""
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	return last
}

func slow(name string) agentapi.DesiredModel { return model(name) }

func (k *worker) putSlow(generation int64, models ...agentapi.DesiredModel) {
	k.t.Helper()
	if err := k.controller.PutModels(k.t.Context(), k.endpoint, claimUID, agentapi.DesiredModels{Generation: generation,
		Models: models, Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TOKENS_PER_SEC": "20"}}); err != nil {
		k.t.Fatal(err)
	}
}

func TestDrainRefusesNewWorkWhileAStreamFinishes(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putSlow(1, slow("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	response, lines := k.stream(t.Context(), "qwen", 20)
	defer response.Body.Close()
	if s := k.status(); s.InFlight != 1 || find(s, "qwen").InFlight != 1 {
		t.Errorf("in flight: %+v", s)
	}
	if err := k.controller.Drain(t.Context(), k.endpoint, claimUID, ""); err != nil {
		t.Fatal(err)
	}
	code, header, body := k.post("/v1/chat/completions", chat("qwen", 1, false))
	if code != http.StatusServiceUnavailable || header.Get(agentapi.HeaderRefused) != agentapi.RefusedDraining || !strings.Contains(body, `"code":503`) {
		t.Errorf("new work: %d %v %s", code, header, body)
	}
	if s := k.status(); !s.Draining || find(s, "qwen").State != agentapi.StateDraining || s.InFlight != 1 {
		t.Errorf("status while draining: %+v", s)
	}
	if last := rest(lines); last != "data: [DONE]" {
		t.Errorf("stream ended with %q", last)
	}
	k.until("idle", func(s agentapi.Status) bool { return s.InFlight == 0 })
}

func TestOneModelIsDrainedAndComesBack(t *testing.T) {
	k := newWorld(t).start(nil)
	k.put(1, model("a"), model("b"))
	k.untilState("a", agentapi.StateReady)
	k.untilState("b", agentapi.StateReady)
	if err := k.controller.Drain(t.Context(), k.endpoint, claimUID, "a"); err != nil {
		t.Fatal(err)
	}
	k.put(1, model("a"), model("b")) // The same again changes nothing.
	if _, header, _ := k.post("/v1/chat/completions", chat("a", 1, false)); header.Get(agentapi.HeaderRefused) != agentapi.RefusedDraining {
		t.Errorf("a: %v", header)
	}
	if code, _, _ := k.post("/v1/chat/completions", chat("b", 1, false)); code != 200 {
		t.Errorf("b: %d", code)
	}
	k.put(2, model("a"), model("b"))
	k.untilState("a", agentapi.StateReady)
	if code, _, _ := k.post("/v1/chat/completions", chat("a", 1, false)); code != 200 {
		t.Errorf("a: %d", code)
	}
	var status *workerclient.StatusError
	if err := k.controller.Drain(t.Context(), k.endpoint, claimUID, "c"); !errors.As(err, &status) || status.Code != 404 {
		t.Errorf("c: %v", err)
	}
}

func TestAModelThatIsNoLongerAskedForFinishesItsStream(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putSlow(1, slow("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	response, lines := k.stream(t.Context(), "qwen", 15)
	defer response.Body.Close()
	k.putSlow(2)
	if m := find(k.status(), "qwen"); m.State != agentapi.StateDraining {
		t.Errorf("state is %+v", m)
	}
	if _, header, _ := k.post("/v1/chat/completions", chat("qwen", 1, false)); header.Get(agentapi.HeaderRefused) != agentapi.RefusedDraining {
		t.Errorf("new work: %v", header)
	}
	if last := rest(lines); last != "data: [DONE]" {
		t.Errorf("stream ended with %q", last)
	}
	k.until("gone", func(s agentapi.Status) bool { return len(s.Models) == 0 })
}

func TestAClientThatLeavesEndsItsRequest(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putSlow(1, slow("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	ctx, cancel := context.WithCancel(t.Context())
	response, _ := k.stream(ctx, "qwen", 10000)
	cancel()
	_ = response.Body.Close()
	k.until("idle", func(s agentapi.Status) bool { return s.InFlight == 0 })
	logs := must(k.controller.Metrics(t.Context(), k.endpoint, claimUID, 1<<20))
	defer logs.Close()
	scanner := bufio.NewScanner(logs)
	found := false
	for scanner.Scan() {
		found = found || scanner.Text() == `gpuscale_agent_requests_in_flight{model="qwen"} 0`
	}
	if !found {
		t.Error("metrics do not say that nothing is in flight")
	}
}

func TestFailuresAreToldApart(t *testing.T) {
	k := newWorld(t).start(nil)
	for _, c := range []struct {
		source   string
		args     []string
		step     string
		exit     string
		message  string
		restarts int
	}{
		{"sim/oom", nil, agentapi.StepLoading, agentapi.ExitOutOfMemory, "CUDA out of memory", 3},
		{"sim/kv-cache", nil, agentapi.StepLoading, agentapi.ExitOutOfMemory, "KV cache", 3},
		{"sim/not-found", nil, agentapi.StepDownloading, agentapi.ExitWeightsNotFound, "model identifier", 0},
		{"sim/gated", nil, agentapi.StepDownloading, agentapi.ExitWeightsDenied, "gated repo", 0},
		{"sim/load-error", nil, agentapi.StepDownloading, agentapi.ExitBadArgument, "not supported", 0},
		{"sim/gpus", nil, agentapi.StepDownloading, agentapi.ExitBadArgument, "World size", 0},
		{"sim/disk-full", nil, agentapi.StepDownloading, agentapi.ExitCrashed, "No space left", 3},
		{"sim/crash", nil, agentapi.StepWarmed, agentapi.ExitWarmupFailed, "", 3},
		{"acme/plain", []string{"--no-such-flag"}, agentapi.StepDownloading, agentapi.ExitBadArgument, "unrecognized arguments", 0},
	} {
		name := strings.ReplaceAll(c.source, "/", "-") + strings.Join(c.args, "")
		k.put(k.status().DesiredGeneration+1, agentapi.DesiredModel{Name: name, Source: c.source, Args: c.args, GPUs: 1, GPUFraction: 900})
		m := k.untilState(name, agentapi.StateFailed)
		if m.Failure == nil || m.Failure.Exit != c.exit || m.Failure.Step != c.step ||
			!strings.Contains(m.Failure.Message, c.message) || m.Restarts != c.restarts {
			t.Errorf("%s: %+v after %d restarts, want %s at %s after %d", c.source, m.Failure, m.Restarts, c.exit, c.step, c.restarts)
		}
		if len(m.LogTail) == 0 {
			t.Errorf("%s: no log tail", c.source)
		}
	}
	if s := k.status(); s.Failure != nil {
		t.Errorf("the worker itself failed: %+v", s.Failure)
	}
}

func TestALoadThatHangsTimesOut(t *testing.T) {
	k := newWorld(t).start(nil)
	m := model("hangs")
	m.Source, m.LoadTimeoutSeconds = "sim/hang", 1
	k.put(1, m)
	got := k.untilState("hangs", agentapi.StateFailed)
	if got.Failure.Exit != agentapi.ExitTimeout || got.Failure.Step != agentapi.StepDownloading || got.Restarts != 0 {
		t.Errorf("%+v", got)
	}
}

func TestAnEngineThatCrashesIsRestartedAndThenGivenUp(t *testing.T) {
	k := newWorld(t).start(nil)
	m := model("shaky")
	m.Source = "sim/crash-after-1" // The warm-up passes, the first request kills it.
	k.put(1, m)
	for i := range 4 {
		k.until("ready", func(s agentapi.Status) bool {
			m := find(s, "shaky")
			return m.State == agentapi.StateReady && m.Restarts == i
		})
		if code, _, body := k.post("/v1/chat/completions", chat("shaky", 5, false)); code < 500 {
			t.Errorf("crash answers %d %s", code, body)
		}
	}
	got := k.untilState("shaky", agentapi.StateFailed)
	if got.Restarts != 3 || got.Failure.Exit != agentapi.ExitCrashed || got.Failure.Step != agentapi.StepReady || got.InFlight != 0 {
		t.Errorf("%+v", got)
	}
}

func TestAnUnhealthyEngineIsReplaced(t *testing.T) {
	k := newWorld(t).start(nil)
	m := model("sick")
	m.Source = "sim/unhealthy-after-2"
	k.put(1, m)
	k.untilState("sick", agentapi.StateReady)
	k.post("/v1/chat/completions", chat("sick", 1, false))
	k.until("restarted", func(s agentapi.Status) bool { return find(s, "sick").Restarts > 0 })
}

func TestWithoutAnEngineTheWorkerFails(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) { c.Command = []string{"no-such-engine", "{source}"} })
	k.put(1, model("qwen"))
	m := k.untilState("qwen", agentapi.StateFailed)
	if s := k.status(); m.Failure.Exit != agentapi.ExitNoEngine || s.Failure == nil || s.Failure.Exit != agentapi.ExitNoEngine {
		t.Errorf("model %+v, worker %+v", m.Failure, s.Failure)
	}
}

func TestAFailedModelIsTriedAgainWithANewToken(t *testing.T) {
	k := newWorld(t).start(nil)
	m := model("private")
	m.Source = "sim/needs-token"
	if err := k.controller.PutModels(t.Context(), k.endpoint, claimUID, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{m}, Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms"}}); err != nil {
		t.Fatal(err)
	}
	if got := k.untilState("private", agentapi.StateFailed); got.Failure.Exit != agentapi.ExitWeightsDenied {
		t.Errorf("%+v", got.Failure)
	}
	k.put(2, m)
	k.untilState("private", agentapi.StateReady)
}

func TestSecretsAreNotShown(t *testing.T) {
	// An engine that writes all its environment and arguments into its log.
	dir := t.TempDir()
	script := "#!/bin/sh\nenv\necho \"args: $*\"\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "chatty"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(agentapi.EnvBoot, "bootdatawithkey")
	k := newWorld(t).start(func(c *agent.Config) { c.Command = []string{filepath.Join(dir, "chatty"), "{source}"} })
	k.put(1, model("qwen"))
	k.untilState("qwen", agentapi.StateFailed)
	logs := k.logs("qwen")
	status := string(must(json.Marshal(k.status())))
	if !strings.Contains(logs, "HF_TOKEN=***") || !strings.Contains(logs, "args: acme/qwen") {
		t.Errorf("log is %s", logs)
	}
	for _, text := range []string{logs, status} {
		for _, secret := range []string{"hf_verysecret", "bootdatawithkey"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s is shown in %s", secret, text)
			}
		}
	}
}
