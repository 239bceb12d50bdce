package agent_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"debug/elf"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/pki"
)

// What the agent may take of a machine and of a request. Each is an aim of the project's.
const (
	mostBinary   = 20_000_000
	mostResident = 40_000_000 / 1024 // kB
	mostAdded    = 200 * time.Microsecond
)

// TestAgentFigures measures what the agent takes: the size of its program, its memory, and its part of a request's time.
func TestAgentFigures(t *testing.T) {
	t.Run("program", theProgramIsStaticAndSmall)
	t.Run("memory", memoryStaysSmallWhileItServesStreamsBehindIdleConnections)
	t.Run("latency", theAgentAddsLittleToARequest)
}

func theProgramIsStaticAndSmall(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		file := filepath.Join(t.TempDir(), "agent-"+arch)
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "github.com/munhq/gpuscale/cmd/gpuscale-agent")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, out)
		}
		size := must(os.Stat(file)).Size()
		bench.Record(t, "agent.binary."+arch, float64(size)/1e6)
		if size >= mostBinary {
			t.Errorf("%s: %d bytes, at most %d", arch, size, mostBinary)
		}
		program := must(elf.Open(file))
		if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
			t.Errorf("%s needs %v (%v)", arch, libraries, err)
		}
		if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Errorf("%s needs a dynamic loader", arch)
		}
		_ = program.Close()
	}
}

// memory is the most that the kernel says a process has held, in kB.
func memory(t *testing.T, pid int) int {
	t.Helper()
	for line := range strings.Lines(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))))) {
		if fields := strings.Fields(line); fields[0] == "VmHWM:" {
			return must(strconv.Atoi(fields[1]))
		}
	}
	t.Fatal("the kernel does not say")
	return 0
}

func memoryStaysSmallWhileItServesStreamsBehindIdleConnections(t *testing.T) {
	k, c, _ := newWorld(t).program(plainCommand)
	k.putEnv(1, map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "VLLM_SIM_TTFT": "1ms", "VLLM_SIM_TOKENS_PER_SEC": "50"}, model("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	for range 1000 {
		conn := must(net.Dial("tcp", k.endpoint))
		t.Cleanup(func() { _ = conn.Close() })
	}
	config := must(pki.ClientTLS(must(k.ca.Client(agentapi.RoleGateway, time.Hour, time.Now())), k.ca.PEM(), claimUID))
	for range 500 { // Known callers, who asked once and then say nothing.
		conn := must(tls.Dial("tcp", k.endpoint, config))
		t.Cleanup(func() { _ = conn.Close() })
		must(io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
	}
	const streams, lines = 100, 100                                                     // Each lasts until it is cancelled.
	endless := strings.Replace(chat("qwen", 3000, true), "{", `{"ignore_eos":true,`, 1) // a minute
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var flowing atomic.Int64
	for range streams {
		all.Go(func() {
			response, err := k.send(ctx, "/v1/chat/completions", endless)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			text := bufio.NewScanner(response.Body)
			for n := 0; text.Scan(); n++ {
				if n == lines {
					flowing.Add(1)
				}
			}
			if ctx.Err() == nil {
				t.Errorf("a stream ended with %v", text.Err())
			}
		})
	}
	eventually(t, "all flow", func() bool { return flowing.Load() == streams })
	k.until("serving", func(s agentapi.Status) bool { return s.InFlight == streams })
	cancel()
	all.Wait()
	peak := memory(t, c.Process.Pid)
	bench.Record(t, "agent.memory", float64(peak)*1024/1e6)
	if peak >= mostResident {
		t.Errorf("%d kB were resident, at most %d", peak, mostResident)
	}
}

func TestAnEngineThatLogsWithoutEndFillsNothing(t *testing.T) {
	k, c, output := newWorld(t).program(plainCommand)
	const mark = "flood-88b2"
	k.putEnv(1, map[string]string{envEngine: "floods", "ENGINE_MARK": mark, agentapi.EnvEngineCommand: os.Args[0] + " {host}:{port}"}, model("odd"))
	k.untilState("odd", agentapi.StateReady) // It has logged 64 MB by then.
	if logs := k.logs("odd"); len(logs) > 256<<10 || len(logs) < 100<<10 {
		t.Errorf("%d bytes of its log are kept", len(logs))
	}
	if peak := memory(t, c.Process.Pid); peak >= mostResident {
		t.Errorf("%d kB were resident, at most %d", peak, mostResident)
	}
	if limits := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/limits", marked(t, mark)[0])))); !regexp.MustCompile(`Max core file size +0 +0 `).MatchString(limits) {
		t.Errorf("it may write an image of its memory: %s", limits)
	}
	for _, file := range must(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Process.Pid))) {
		if target, err := os.Readlink(file); err == nil && regexp.MustCompile(`^/`).MatchString(target) && !regexp.MustCompile(`^/(dev|sys|proc)/`).MatchString(target) {
			t.Errorf("the agent has %s open", target)
		}
	}
	k.putEnv(2, nil)
	k.until("gone", func(s agentapi.Status) bool { return len(s.Models) == 0 })
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
	if n := output.Len(); n > 4<<10 {
		t.Errorf("the agent's own log has %d bytes", n)
	}
}

// medianOf asks n times each way in turn, so that what else the machine does falls on both, and returns how long each took
// at the median.
func medianOf(t testing.TB, n int, ways ...func() error) []time.Duration {
	t.Helper()
	took := make([][]time.Duration, len(ways))
	for range n {
		for i, way := range ways {
			start := time.Now()
			if err := way(); err != nil {
				t.Fatal(err)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	out := make([]time.Duration, len(ways))
	for i := range took {
		slices.Sort(took[i])
		out[i] = took[i][n/2]
	}
	return out
}

// raceDetector: this test's own side of TLS is then many times slower than a caller's.
var raceDetector bool

// calm is what the engine itself answers in, at the median, where nothing else keeps the machine from it.
const calm = 100 * time.Microsecond

// rounds are as many as a machine may need to have a quiet moment in: some twenty seconds' worth.
const rounds = 500

// theAgentAddsLittleToARequest compares requests over kept connections, mutual TLS in and plain HTTP out, with the
// same to the engine itself. What else the machine does adds to both ways and more to the longer one, so the best of some
// short rounds counts, and only where the engine's own answers show that the machine was free.
func theAgentAddsLittleToARequest(t *testing.T) {
	if raceDetector {
		t.Skip("not with the race detector")
	}
	direct, through := twoWays(t)
	medianOf(t, 200, direct, through) // Connections are made, and code is warm.
	if bench.Recording() {
		m := medianOf(t, 5000, direct, through)
		bench.Record(t, "agent.latency.direct", float64(m[0].Nanoseconds())/1e3)
		bench.Record(t, "agent.latency.added", float64((m[1]-m[0]).Nanoseconds())/1e3)
		return
	}
	least, quiet := time.Hour, false
	for range rounds {
		m := medianOf(t, 100, direct, through)
		quiet = quiet || m[0] < calm
		if added := m[1] - m[0]; added < least {
			least = added
			t.Logf("median: %s directly, %s through the agent, %s more", m[0], m[1], added)
		}
		if least < mostAdded {
			return
		}
	}
	if !quiet {
		t.Skipf("the machine is too busy to tell: %s are added at the median", least)
	}
	t.Errorf("%s are added at the median, at most %s", least, mostAdded)
}

// twoWays are one request to an engine, directly and through the agent.
func twoWays(t *testing.T) (direct, through func() error) {
	t.Helper()
	k, _, _ := newWorld(t).program(plainCommand)
	const mark = "latency-61fa"
	k.putEnv(1, map[string]string{envEngine: "plain", "ENGINE_MARK": mark, agentapi.EnvEngineCommand: os.Args[0] + " {host}:{port}"}, model("odd"))
	k.untilState("odd", agentapi.StateReady)
	line := strings.Split(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", marked(t, mark)[0])))), "\x00")
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	ask := func(transport http.RoundTripper, url string) func() error {
		return func() error {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(oddBody))
			if err != nil {
				return err
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
				return fmt.Errorf("%d, %w", response.StatusCode, err)
			}
			return nil
		}
	}
	return ask(plain, "http://"+line[1]), ask(must(k.gateway.Transport(claimUID)), "https://"+k.endpoint)
}
