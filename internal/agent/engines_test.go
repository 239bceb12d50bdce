package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// putEnv asks for models with an environment.
func (k *worker) putEnv(generation int64, env map[string]string, models ...agentapi.DesiredModel) {
	k.t.Helper()
	if err := k.controller.PutModels(k.t.Context(), k.endpoint, claimUID, agentapi.DesiredModels{Generation: generation,
		Models: models, Env: env}); err != nil {
		k.t.Fatal(err)
	}
}

// putOdd starts this test's own engine of a kind as the model "odd".
func (k *worker) putOdd(kind string, args ...string) {
	k.t.Helper()
	k.putEnv(k.status().DesiredGeneration+1, map[string]string{envEngine: kind,
		agentapi.EnvEngineCommand: os.Args[0] + " {host}:{port} --from {source} --share {memory} --gpus {gpus}"}, model("odd", args...))
}

const oddBody = `{"model":"odd","messages":[{"role":"user","content":"hello"}]}`

func TestAFullEngineRefusesWithoutQueueing(t *testing.T) {
	k := newWorld(t).start(nil)
	env := map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "VLLM_SIM_TOKENS_PER_SEC": "20"}
	k.putEnv(1, env, model("qwen", "--max-num-seqs", "1"))
	k.untilState("qwen", agentapi.StateReady)
	// One runs, one waits in the engine: twice --max-num-seqs.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running, _ := k.stream(ctx, "qwen", 10000)
	defer running.Body.Close()
	go func() {
		if response, err := k.send(ctx, "/v1/chat/completions", chat("qwen", 1, false)); err == nil {
			_ = response.Body.Close()
		}
	}()
	k.until("full", func(s agentapi.Status) bool { return s.InFlight == 2 })
	code, header, body := k.post("/v1/chat/completions", chat("qwen", 1, false))
	if code != http.StatusTooManyRequests || header.Get(agentapi.HeaderRefused) != agentapi.RefusedFull ||
		header.Get("Retry-After") == "" || !strings.Contains(body, `"code":429`) {
		t.Errorf("a third request: %d %v %s", code, header, body)
	}
	if s := k.status(); s.InFlight != 2 {
		t.Errorf("a refused request is counted: %d in flight", s.InFlight)
	}
	cancel()
	k.until("room", func(s agentapi.Status) bool { return s.InFlight == 0 })
	if code, _, body := k.post("/v1/chat/completions", chat("qwen", 1, false)); code != http.StatusOK {
		t.Errorf("with room again: %d %s", code, body)
	}
	// A setting of the pool's wins over the arguments, also for an engine that runs.
	env[agentapi.EnvMaxInFlight] = "1"
	k.putEnv(2, env, model("qwen", "--max-num-seqs", "1"))
	again, _ := k.stream(t.Context(), "qwen", 10000)
	defer again.Body.Close()
	if code, _, _ := k.post("/v1/chat/completions", chat("qwen", 1, false)); code != http.StatusTooManyRequests {
		t.Errorf("with a limit of 1: %d", code)
	}
}

func TestAnotherServerIsRunByItsCommand(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putOdd("foreign", "--flag", "x", "--host", "0.0.0.0", "--disable-log-stats")
	k.untilState("odd", agentapi.StateReady)
	code, _, body := k.post("/v1/chat/completions", oddBody)
	var answer struct{ Model, Args string }
	if err := json.Unmarshal([]byte(body), &answer); code != 200 || err != nil || answer.Model != "odd" {
		t.Fatalf("%d %s", code, body)
	}
	if !strings.HasPrefix(answer.Args, "[127.0.0.1:") || !strings.HasSuffix(answer.Args, " --from acme/odd --share 0.4500 --gpus 1 --flag x]") {
		t.Errorf("it was started with %s", answer.Args)
	}
	if logs := k.logs("odd"); !strings.Contains(logs, "--host --disable-log-stats") || strings.Contains(logs, "0.0.0.0") {
		t.Errorf("the log does not say what was dropped: %s", logs)
	}
}

func TestACommandOfTheMachineIsTakenWhereThePoolHasNone(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) {
		c.Machine = map[string]string{agentapi.EnvEngineCommand: fmt.Sprintf(`[%q, "{host}:{port}"]`, os.Args[0])}
	})
	k.putEnv(1, map[string]string{envEngine: "foreign"}, model("odd"))
	k.untilState("odd", agentapi.StateReady)
}

func TestSettingsThatCannotBeReadFailTheModelWithTheirName(t *testing.T) {
	k := newWorld(t).start(nil)
	for name, value := range map[string]string{agentapi.EnvEngineCommand: `vllm "serve`, agentapi.EnvMaxInFlight: "many", agentapi.EnvMaxBody: "0"} {
		k.putEnv(k.status().DesiredGeneration+1, map[string]string{name: value}, model("qwen", name))
		m := find(k.until("failed", func(s agentapi.Status) bool {
			m := find(s, "qwen")
			return m.State == agentapi.StateFailed && strings.Contains(m.Message, name)
		}), "qwen")
		if m.Failure.Exit != agentapi.ExitBadArgument || strings.Contains(m.Message, value) && name == agentapi.EnvEngineCommand {
			t.Errorf("%s: %+v", name, m.Failure)
		}
	}
}

func TestABodyOverThePoolsBoundIsRefused(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putEnv(1, map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", agentapi.EnvMaxBody: "1000"}, model("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	if code, _, body := k.post("/v1/chat/completions", chat("qwen", 1, false)); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	long := `{"model":"qwen","messages":[{"role":"user","content":"` + strings.Repeat("x", 1000) + `"}]}`
	if code, _, body := k.post("/v1/chat/completions", long); code != http.StatusRequestEntityTooLarge || !strings.Contains(body, `"error"`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestEnginesShareTheGPUsAsTheyWereGiven(t *testing.T) {
	card := agentapi.GPU{Name: "NVIDIA GeForce RTX 4090", MemoryMB: 24564}
	k := newWorld(t).start(func(c *agent.Config) {
		c.Boot.GPUs = agentapi.GPUExpectation{Name: "RTX4090", Count: 4, VRAMGB: 24}
		c.Probe = func(context.Context) (agent.Inventory, error) {
			return agent.Inventory{GPUs: []agentapi.GPU{card, card, card, card}, Driver: "570.86.15"}, nil
		}
	})
	env := map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "VLLM_SIM_GPUS": "4", "CUDA_VISIBLE_DEVICES": "7"}
	named := func(name string, gpus, share int) agentapi.DesiredModel {
		m := model(name, "--seed", "1")
		m.GPUs, m.GPUFraction = gpus, share
		return m
	}
	models := []agentapi.DesiredModel{named("gpu-a-71", 1, 600), named("gpu-b-72", 1, 400), named("gpu-wide-73", 2, 1000)}
	for i := range models {
		k.putEnv(int64(i+1), env, models[:i+1]...)
		k.untilState(models[i].Name, agentapi.StateReady)
	}
	for name, want := range map[string]struct{ gpus, args string }{
		"gpu-a-71":    {"0", "--gpu-memory-utilization 0.5400"},
		"gpu-b-72":    {"0", "--gpu-memory-utilization 0.3600"},
		"gpu-wide-73": {"1,2", "--tensor-parallel-size 2 --gpu-memory-utilization 0.9000"},
	} {
		line, gpus := "", ""
		for _, path := range must(filepath.Glob("/proc/[0-9]*/cmdline")) {
			text, err := os.ReadFile(path)
			if words := strings.ReplaceAll(string(text), "\x00", " "); err == nil && strings.Contains(words, " acme/"+name+" ") {
				environ := string(must(os.ReadFile(strings.Replace(path, "cmdline", "environ", 1))))
				_, after, _ := strings.Cut(environ, "CUDA_VISIBLE_DEVICES=")
				gpus, _, _ = strings.Cut(after, "\x00")
				line = words
			}
		}
		if gpus != want.gpus || !strings.Contains(line, want.args) {
			t.Errorf("%s has GPUs %q and runs as %q, want %s with %s", name, gpus, line, want.gpus, want.args)
		}
	}
	// What needs more than is free waits, and gets it when the wide one goes; the others serve on untouched.
	before := find(k.status(), "gpu-a-71").Since
	k.putEnv(4, env, append(models, named("gpu-late-74", 3, 1000))...)
	k.until("waiting", func(s agentapi.Status) bool {
		m := find(s, "gpu-late-74")
		return m.State == agentapi.StatePending && strings.Contains(m.Message, "waiting for GPU memory")
	})
	k.putEnv(5, env, models[0], models[1], named("gpu-late-74", 3, 1000))
	s := k.until("placed", func(s agentapi.Status) bool { return find(s, "gpu-late-74").State == agentapi.StateReady })
	if a := find(s, "gpu-a-71"); a.State != agentapi.StateReady || !a.Since.Equal(before) {
		t.Errorf("another model was touched: %+v", a)
	}
}

func TestEnginesOnOneGPUStartOneAtATime(t *testing.T) {
	k := newWorld(t).start(nil)
	var models []agentapi.DesiredModel
	for i := range 4 {
		models = append(models, model(fmt.Sprintf("m%d", i)))
		models[i].GPUFraction = 250
	}
	k.put(1, models...)
	k.until("all ready", func(s agentapi.Status) bool {
		starting, ready := 0, 0
		for _, m := range s.Models {
			switch m.State {
			case agentapi.StateDownloading, agentapi.StateLoading, agentapi.StateWarming:
				starting++
			case agentapi.StateReady:
				ready++
			}
		}
		if starting > 1 {
			t.Errorf("%d engines start at once", starting)
		}
		return ready == len(models)
	})
}

// recording is the machine's clock, which remembers what was waited for.
type recording struct {
	agent.Clock
	mu    sync.Mutex
	waits []time.Duration
}

func (r *recording) Wait(ctx context.Context, d time.Duration) error {
	r.mu.Lock()
	r.waits = append(r.waits, d)
	r.mu.Unlock()
	return r.Clock.Wait(ctx, d)
}

func TestRestartsBackOff(t *testing.T) {
	clock := &recording{Clock: agent.RealClock()}
	k := newWorld(t).start(func(c *agent.Config) { c.Clock = clock; c.Settings.BackOff = 11 * time.Millisecond })
	m := model("crashes")
	m.Source = "sim/disk-full"
	k.put(1, m)
	got := k.untilState("crashes", agentapi.StateFailed)
	clock.mu.Lock()
	defer clock.mu.Unlock()
	var backOff []time.Duration
	for _, d := range clock.waits {
		if d%(11*time.Millisecond) == 0 {
			backOff = append(backOff, d)
		}
	}
	want := []time.Duration{11 * time.Millisecond, 22 * time.Millisecond, 44 * time.Millisecond}
	if !slices.Equal(backOff, want) || got.Restarts != len(want) || len(got.LogTail) == 0 || !strings.Contains(got.Message, "No space left") {
		t.Errorf("waited %v, want %v; %+v", backOff, want, got)
	}
}
