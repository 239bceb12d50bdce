package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// program runs the real gpuscale-agent with one model that is ready, and returns its process and its engine's id.
func (w *world) program(command func(name string) *exec.Cmd, env ...string) (*worker, *exec.Cmd, *bytes.Buffer) {
	w.t.Helper()
	return w.programOf(w.boot(), command, env...)
}

// programOf is program with boot data of the test's own.
func (w *world) programOf(boot agentapi.Boot, command func(name string) *exec.Cmd, env ...string) (*worker, *exec.Cmd, *bytes.Buffer) {
	w.t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	endpoint := l.Addr().String()
	_ = l.Close()
	c := command(filepath.Join(bin, "gpuscale-agent"))
	data := base64.StdEncoding.EncodeToString(must(json.Marshal(boot)))
	c.Env = append(os.Environ(), agentapi.EnvBoot+"="+data, agentapi.EnvListen+"="+endpoint)
	c.Env = append(c.Env, env...)
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Process.Kill() })
	k := &worker{world: w, endpoint: endpoint}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); ; {
		if _, err := w.controller.Status(w.t.Context(), endpoint, claimUID); err == nil {
			return k, c, &output
		}
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("agent does not answer: %s", output.String())
		}
	}
}

// children are the processes in whose environment a mark stands.
func marked(t *testing.T, mark string) []int {
	t.Helper()
	var out []int
	for _, path := range must(filepath.Glob("/proc/[0-9]*/environ")) {
		text, err := os.ReadFile(path)
		if err == nil && bytes.Contains(text, []byte(mark)) {
			pid := must(strconv.Atoi(strings.Split(path, "/")[2]))
			out = append(out, pid)
		}
	}
	return out
}

func untilGone(t *testing.T, mark string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); len(marked(t, mark)) > 0; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("processes %v are still there", marked(t, mark))
		}
	}
}

func (k *worker) putMarked(mark string) {
	k.t.Helper()
	err := k.controller.PutModels(k.t.Context(), k.endpoint, claimUID, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{model("qwen")}, Env: map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "ENGINE_MARK": mark}})
	if err != nil {
		k.t.Fatal(err)
	}
	k.untilState("qwen", agentapi.StateReady)
	if len(marked(k.t, mark)) != 1 {
		k.t.Fatalf("engines are %v", marked(k.t, mark))
	}
}

func plainCommand(name string) *exec.Cmd { return exec.Command(name) }

func TestAKilledAgentTakesItsEngineAlong(t *testing.T) {
	k, c, _ := newWorld(t).program(plainCommand)
	const mark = "killed-agent-5b1c"
	k.putMarked(mark)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	untilGone(t, mark)
}

func TestSIGTERMLetsAStreamFinishAndStopsTheEngine(t *testing.T) {
	k, c, output := newWorld(t).program(plainCommand, "VLLM_SIM_TOKENS_PER_SEC=20")
	const mark = "ended-agent-77e0"
	k.putMarked(mark)
	response, lines := k.stream(t.Context(), "qwen", 20)
	defer response.Body.Close()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	k.until("draining", func(s agentapi.Status) bool { return s.Draining })
	if last := rest(lines); last != "data: [DONE]" {
		t.Errorf("stream ended with %q", last)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("agent ended with %v: %s", err, output)
	}
	if left := marked(t, mark); len(left) > 0 {
		t.Errorf("engines %v are still there", left)
	}
	if text := output.String(); strings.Contains(text, "PRIVATE") || strings.Contains(text, mark) {
		t.Errorf("agent's log shows too much: %s", text)
	}
}

func TestAsFirstProcessOrphansAreReaped(t *testing.T) {
	if err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").Run(); err != nil {
		t.Skipf("no process namespaces here: %v", err)
	}
	// Inside, the agent is the first process. The engine leaves an orphan that ends at once.
	dir := t.TempDir()
	script := "#!/bin/sh\n(setsid sh -c 'exit 0' &)\nexec " + filepath.Join(bin, "vllm") + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "vllm"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	k, c, output := newWorld(t).program(func(name string) *exec.Cmd {
		return exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", name)
	}, "PATH="+dir+":"+os.Getenv("PATH"))
	const mark = "first-process-9a41"
	k.putMarked(mark)
	// unshare's child is the namespace's first process, and the agent proper is that one's child.
	first := childrenOf(t, c.Process.Pid)
	if len(first) != 1 {
		t.Fatalf("first processes are %v", first)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); len(childrenOf(t, first[0])) != 1; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the first process has children %v", childrenOf(t, first[0]))
		}
	}
	if err := syscall.Kill(first[0], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("agent ended with %v: %s", err, output)
	}
	untilGone(t, mark)
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	var out []int
	for _, path := range must(filepath.Glob("/proc/[0-9]*/stat")) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid …
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			out = append(out, must(strconv.Atoi(strings.Split(path, "/")[2])))
		}
	}
	return out
}

func TestBadBootDataEndTheAgentWithOneLine(t *testing.T) {
	w := newWorld(t)
	encode := func(b agentapi.Boot) string { return base64.StdEncoding.EncodeToString(must(json.Marshal(b))) }
	other := w.boot()
	other.Installation = "aaaaaaaa"
	future := w.boot()
	future.Version = 2
	file := filepath.Join(t.TempDir(), "boot")
	if err := os.WriteFile(file, []byte("nonsense!"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  string
		args []string
		want string
	}{
		"none":               {"", nil, "no boot data"},
		"not base64":         {"%%%", nil, "not base64"},
		"not JSON":           {base64.StdEncoding.EncodeToString([]byte("{")), nil, "JSON"},
		"too long":           {strings.Repeat("A", agentapi.MaxBootBytes+4), nil, "bytes"},
		"empty object":       {base64.StdEncoding.EncodeToString([]byte("{}")), nil, "version 0"},
		"of a later version": {encode(future), nil, "version 2"},
		"other installation": {encode(other), nil, "installation"},
		"missing file":       {"", []string{"--boot-file", "/nowhere"}, "/nowhere"},
		"garbled file":       {"", []string{"--boot-file", file}, "not base64"},
		"unknown flag":       {"", []string{"--frobnicate"}, "usage"},
	} {
		command := exec.Command(filepath.Join(bin, "gpuscale-agent"), c.args...)
		command.Env = []string{agentapi.EnvBoot + "=" + c.env}
		out, err := command.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, %q", name, err, out)
		}
		if strings.Contains(string(out), "PRIVATE") {
			t.Errorf("%s shows a key", name)
		}
	}
}

// buffer is a log that several may write.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func shell(t *testing.T, script string) (agent.Engine, *buffer) {
	t.Helper()
	log := &buffer{}
	engine, err := agent.ProcessRunner{}.Start(agent.EngineSpec{Name: "x", Command: []string{"sh", "-c", script, agent.PortWord},
		Env: map[string]string{"A": "b"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Stop(context.Background(), 0) })
	return engine, log
}

func untilLogged(t *testing.T, log fmt.Stringer, text string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); !strings.Contains(log.String(), text); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("log is %q", log)
		}
	}
}

func TestStopAsksFirstAndThenKillsTheWholeGroup(t *testing.T) {
	polite, log := shell(t, "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done")
	untilLogged(t, log, "up")
	polite.Stop(t.Context(), 10*time.Second)
	if exit := polite.Exit(); exit.Code != 3 || !strings.Contains(log.String(), "bye") {
		t.Errorf("polite: %v, %q", exit, log)
	}

	// One that does not listen, with a worker that would outlive it.
	t.Setenv("STUBBORN_MARK", "stubborn-e413")
	stubborn, log := shell(t, "trap '' TERM; sleep 1000 & echo up; wait; wait; sleep 1000")
	untilLogged(t, log, "up")
	stubborn.Stop(t.Context(), 50*time.Millisecond)
	if exit := stubborn.Exit(); exit.Signal != "killed" {
		t.Errorf("stubborn: %v", exit)
	}
	if left := marked(t, "stubborn-e413"); len(left) > 0 {
		// This process has the mark too, in its Go environment but not in /proc.
		t.Errorf("left %v", left)
	}
}

func TestAnEngineThatEndsTakesItsWorkersAlong(t *testing.T) {
	t.Setenv("ORPHAN_MARK", "orphan-0c2d")
	engine, _ := shell(t, "sleep 1000 & exit 7")
	<-engine.Done()
	if exit := engine.Exit(); exit.Code != 7 {
		t.Errorf("exit is %v", exit)
	}
	untilGone(t, "orphan-0c2d")
}

func TestTheLogOfAnEngineIsComplete(t *testing.T) {
	engine, log := shell(t, "for i in $(seq 2000); do echo line $i; done; echo $A >&2; exit 0")
	<-engine.Done()
	if text := log.String(); !strings.Contains(text, "line 2000\nb\n") || strings.Count(text, "\n") != 2001 {
		t.Errorf("%d lines, ending in %q", strings.Count(text, "\n"), text[max(0, len(text)-40):])
	}
}

func TestAnEngineThatCannotBeRunIsNoEngine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(file, []byte("no program\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"no-such-program", "/nowhere/engine", t.TempDir(), file} {
		if _, err := (agent.ProcessRunner{}).Start(agent.EngineSpec{Command: []string{program}, Log: io.Discard}); !errors.Is(err, agent.ErrNoEngine) {
			t.Errorf("%s: %v", program, err)
		}
	}
}
