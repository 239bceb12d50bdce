package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// host is a machine with a simulated Docker, whose containers are real processes.
type host struct {
	t     *testing.T
	state string // the daemon's
}

const image = "vllm/vllm-openai:v0.33.0"

func newHost(t *testing.T) host {
	t.Helper()
	path, h := t.TempDir(), host{t, t.TempDir()}
	if err := os.Symlink(filepath.Join(bin, "vllm"), filepath.Join(path, "docker")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_SIM_DIR", h.state)
	t.Cleanup(func() {
		for _, name := range h.containers() {
			t.Errorf("container %s is left", name)
			_ = exec.Command("docker", "rm", "--force", "--volumes", name).Run()
		}
	})
	return h
}

// is makes the daemon what a file in its state stands for.
func (h host) is(file string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.state, file), nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) containers() (out []string) {
	entries, err := os.ReadDir(filepath.Join(h.state, "containers"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (h host) runner() agent.DockerRunner {
	return agent.DockerRunner{Image: image, GPUs: true, Claim: claimUID, Cache: h.t.TempDir(),
		Patience: time.Second, PullWait: 10 * time.Millisecond}
}

func (h host) start(change func(*agent.DockerRunner)) *worker {
	h.t.Helper()
	r := h.runner()
	if change != nil {
		change(&r)
	}
	return newWorld(h.t).start(func(c *agent.Config) { c.Runner = r })
}

func TestAModelIsServedFromAContainer(t *testing.T) {
	h := newHost(t)
	k := h.start(nil)
	k.put(1, model("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	if got := names(k.status()); got != "Booted GPUsFound RuntimeFound ImagePulled Downloading Loading Warmed Ready" {
		t.Errorf("steps are %s", got)
	}
	if code, _, body := k.post("/v1/chat/completions", chat("qwen", 5, true)); code != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(body), "data: [DONE]") {
		t.Errorf("answer is %d %s", code, body)
	}
	if got := h.containers(); len(got) != 1 || !strings.HasPrefix(got[0], "gpuscale-"+claimUID+"-") {
		t.Errorf("containers are %v", got)
	}
	for _, path := range must(filepath.Glob("/proc/[0-9]*/cmdline")) {
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("hf_verysecret")) {
			t.Errorf("everyone can read %q", text)
		}
	}
	if log := k.logs("qwen"); !strings.Contains(log, "Starting vLLM") && !strings.Contains(log, "vLLM API server") {
		t.Errorf("log is %q", log)
	}
	// Without the model its container is stopped and removed.
	k.put(2)
	k.until("model gone", func(s agentapi.Status) bool { return len(s.Models) == 0 })
	if got := h.containers(); len(got) != 0 {
		t.Errorf("containers %v are left", got)
	}
}

func TestAnAgentThatIsKilledIsFollowedByOneThatClearsUp(t *testing.T) {
	h := newHost(t)
	w := newWorld(t)
	boot := func() agentapi.Boot {
		b := w.boot()
		b.Image = image
		return b
	}
	k, c, _ := w.programOf(boot(), plainCommand)
	const mark = "left-by-an-agent-77af"
	serve := func() {
		k.putWith(1, map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "ENGINE_MARK": mark}, model("qwen"))
		k.untilState("qwen", agentapi.StateReady)
	}
	serve()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if len(marked(t, mark)) == 0 || len(h.containers()) != 1 {
		t.Fatal("the container ended with the agent, as Docker's do not")
	}
	k, c, _ = w.programOf(boot(), plainCommand)
	untilGone(t, mark)
	k.until("prepared", func(s agentapi.Status) bool { return strings.Contains(names(s), "ImagePulled") })
	serve()
	// Told to end, it takes its container along.
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("agent ended with %v", err)
	}
	if got := h.containers(); len(got) != 0 || len(marked(t, mark)) != 0 {
		t.Errorf("containers %v are left", got)
	}
}

func TestAMachineThatCannotRunContainersSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(host, *agent.DockerRunner)
		step, exit string
		message    string
	}{
		"no docker": {func(host, *agent.DockerRunner) { t.Setenv("PATH", t.TempDir()) },
			agentapi.StepRuntimeFound, agentapi.ExitNoRuntime, "docker is not on this machine"},
		"no daemon": {func(h host, r *agent.DockerRunner) { h.is("away"); r.Patience = 500 * time.Millisecond },
			agentapi.StepRuntimeFound, agentapi.ExitNoRuntime, "Cannot connect to the Docker daemon"},
		"no toolkit": {func(h host, _ *agent.DockerRunner) { h.is("bare") },
			agentapi.StepRuntimeFound, agentapi.ExitNoRuntime, "docker 28.5.1 has no NVIDIA Container Toolkit"},
		"no image": {func(_ host, r *agent.DockerRunner) { r.Image = "acme/no-such:1" },
			agentapi.StepImagePulled, agentapi.ExitNoEngine, "manifest unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			k := h.start(func(r *agent.DockerRunner) { c.change(h, r) })
			k.put(1, model("qwen"))
			s := k.until("failed", func(s agentapi.Status) bool { return s.Failure != nil })
			if f := *s.Failure; f.Step != c.step || f.Exit != c.exit || !strings.Contains(f.Message, c.message) {
				t.Errorf("%+v", f)
			}
			if m := find(s, "qwen"); m.State != agentapi.StatePending || len(h.containers()) > 0 {
				t.Errorf("the engine was started: %+v", m)
			}
		})
	}
}

func TestAPullIsSeenAndTriedAgain(t *testing.T) {
	h := newHost(t)
	h.is("pull-gate")
	k := h.start(func(r *agent.DockerRunner) { r.Image = "acme/flaky:1" })
	k.put(1, model("qwen"))
	k.until("half pulled", func(s agentapi.Status) bool {
		return find(s, "qwen").Message == "pulling acme/flaky:1: 1 of 2 layers"
	})
	if err := os.Remove(filepath.Join(h.state, "pull-gate")); err != nil {
		t.Fatal(err)
	}
	k.untilState("qwen", agentapi.StateReady)
	if !strings.Contains(names(k.status()), "ImagePulled") {
		t.Errorf("steps are %s", names(k.status()))
	}
}

func TestWhatDockerSaysIsToldFromWhatAnEngineSays(t *testing.T) {
	for name, c := range map[string]struct {
		change func(host, map[string]string)
		exit   string
	}{
		"no GPUs for containers": {func(h host, _ map[string]string) { h.is("broken") }, agentapi.ExitNoRuntime},
		"no engine in the image": {func(_ host, env map[string]string) { env[agentapi.EnvEngineCommand] = "no-such-engine {source}" }, agentapi.ExitNoEngine},
		"a bad argument":         {func(host, map[string]string) {}, agentapi.ExitBadArgument},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			k := h.start(nil)
			env := map[string]string{"VLLM_SIM_LOAD_TIME": "50ms"}
			c.change(h, env)
			k.putWith(1, env, model("qwen", "--no-such-argument"))
			if m := k.untilState("qwen", agentapi.StateFailed); m.Failure.Exit != c.exit {
				t.Errorf("%+v", m.Failure)
			}
		})
	}
}

func TestAContainerThatDoesNotListenIsRemoved(t *testing.T) {
	h := newHost(t)
	run := func(script string) (agent.Engine, *buffer) {
		log := &buffer{}
		engine, err := h.runner().Start(agent.EngineSpec{Name: "x", Command: []string{"sh", "-c", script, agent.PortWord},
			Env: map[string]string{"CONTAINER_MARK": "contained-19d2", "DOCKER_HOST": "tcp://elsewhere"}, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		return engine, log
	}
	polite, log := run("trap 'echo bye; exit 3' TERM; echo up $DOCKER_HOST; while :; do sleep 0.01; done")
	untilLogged(t, log, "up\n")
	polite.Stop(t.Context(), 10*time.Second)
	if exit := polite.Exit(); exit.Code != 3 || !strings.Contains(log.String(), "bye") {
		t.Errorf("polite: %v, %q", exit, log)
	}
	stubborn, log := run("trap '' TERM; sleep 1000 & echo up; wait; wait; sleep 1000")
	untilLogged(t, log, "up")
	stubborn.Stop(t.Context(), 50*time.Millisecond)
	if exit := stubborn.Exit(); exit.Signal != "killed" {
		t.Errorf("stubborn: %v", exit)
	}
	killed, log := run("echo up; kill -SEGV $$")
	<-killed.Done()
	if exit := killed.Exit(); exit.Signal != "segmentation fault" || !strings.Contains(log.String(), "up") {
		t.Errorf("killed: %v", exit)
	}
	if left := marked(t, "contained-19d2"); len(left) > 0 || len(h.containers()) > 0 {
		t.Errorf("left %v, %v", left, h.containers())
	}
}

func TestWithoutDockerNothingIsStarted(t *testing.T) {
	h := newHost(t)
	t.Setenv("PATH", t.TempDir())
	_, err := h.runner().Start(agent.EngineSpec{Command: []string{"vllm"}, Log: io.Discard})
	if !errors.Is(err, agent.ErrNoRuntime) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f := h.runner().Prepare(ctx, agent.Progress{Step: func(string, string) {}, Doing: func(string) {}}); f == nil {
		t.Error("prepared")
	}
}

func TestCheckLooksForDockerOnAVirtualMachine(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct {
		state   string
		verdict agent.Verdict
		says    string
	}{
		{"", agent.OK, "Docker 28.5.1, for engines of " + image},
		{"bare", agent.Bad, "docker 28.5.1 has no NVIDIA Container Toolkit"},
		{"away", agent.Bad, "docker does not answer: docker info: "},
	} {
		if c.state != "" {
			h.is(c.state)
		}
		config := sound(t)
		config.Boot = &agentapi.Boot{ClaimName: "tiny-0", ClaimUID: claimUID, Image: image,
			GPUs: agentapi.GPUExpectation{Name: "L4", Count: 1, VRAMGB: 24}}
		for _, f := range agent.Check(t.Context(), config).Findings {
			if f.Name == "engine" && (f.Verdict != c.verdict || !strings.Contains(f.Detail, c.says)) {
				t.Errorf("%s: %+v", c.state, f)
			}
		}
	}
}
