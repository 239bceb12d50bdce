package agent_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
)

// impatient makes an agent suspect a hang soon.
func impatient(c *agent.Config) {
	c.Settings.HangAfter, c.Settings.HangProbe = 200*time.Millisecond, 200*time.Millisecond
}

// quietly posts, and returns how it ended without failing the test.
func (k *worker) quietly(ctx context.Context, body string) (<-chan string, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan string, 1)
	go func() {
		response, err := k.send(ctx, "/v1/chat/completions", body)
		if err != nil {
			ended <- err.Error()
			return
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		ended <- fmt.Sprintf("%d %v %s", response.StatusCode, err, text)
	}()
	return ended, cancel
}

func TestAnEngineThatHangsIsStartedAgain(t *testing.T) {
	k := newWorld(t).start(impatient)
	m := model("wedged")
	m.Source = "sim/freeze-after-1" // The warm-up passes.
	k.put(1, m)
	k.untilState("wedged", agentapi.StateReady)
	ended, cancel := k.quietly(t.Context(), chat("wedged", 5, false))
	defer cancel()
	k.until("restarted", func(s agentapi.Status) bool {
		m := find(s, "wedged")
		return m.State == agentapi.StateReady && m.Restarts == 1
	})
	if got := <-ended; !strings.HasPrefix(got, "502 ") {
		t.Errorf("the request ended with %s", got)
	}
}

func TestWhyAnEngineIsTakenForOneThatHangsIsSaid(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) { impatient(c); c.Settings.BackOff = time.Hour })
	k.putOdd("hang")
	k.untilState("odd", agentapi.StateReady)
	response, lines := k.scripted(`data: {"n":1}`+"\n\n", "hang")
	defer response.Body.Close()
	k.until("found out", func(s agentapi.Status) bool { return find(s, "odd").State == agentapi.StatePending })
	if rest := must(io.ReadAll(lines.partial)); string(rest) != "data: {\"n\":1}\n\n" || lines.err == nil {
		t.Errorf("the stream gave %q and ended with %v", rest, lines.err)
	}
}

func TestAnEngineThatIsBusyIsLeftAlone(t *testing.T) {
	k := newWorld(t).start(impatient)
	// One request at a time, three seconds without a byte, and the agent's own question waits behind it.
	k.putEnv(1, map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "VLLM_SIM_TOKENS_PER_SEC": "20"}, model("qwen", "--max-num-seqs", "1"))
	k.untilState("qwen", agentapi.StateReady)
	ended, cancel := k.quietly(t.Context(), chat("qwen", 60, false))
	defer cancel()
	if got := <-ended; !strings.HasPrefix(got, "200 ") {
		t.Errorf("a long answer: %s", got)
	}
	if m := find(k.status(), "qwen"); m.State != agentapi.StateReady || m.Restarts != 0 {
		t.Errorf("%+v", m)
	}
}

func TestAnEngineThatStreamsSlowlyOrIsIdleIsNeverAsked(t *testing.T) {
	k := newWorld(t).start(impatient)
	k.putEnv(1, map[string]string{"VLLM_SIM_LOAD_TIME": "50ms", "VLLM_SIM_TOKENS_PER_SEC": "8"}, model("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	response, lines := k.stream(t.Context(), "qwen", 12) // A byte each 125 ms, for longer than the agent waits.
	defer response.Body.Close()
	if last := rest(lines); last != "data: [DONE]" {
		t.Errorf("ended with %q", last)
	}
	_, metrics := do(t, k.gateway, "GET", "https://"+k.endpoint+"/metrics?model=qwen", "")
	if !strings.Contains(metrics, `vllm:request_params_max_tokens_count{engine="0",model_name="qwen"} 2.0`) {
		t.Error("the engine had other requests than the warm-up and the stream")
	}
}

func TestAHangInTheFirstCompletionTimesOut(t *testing.T) {
	k := newWorld(t).start(nil)
	m := model("wedged")
	m.Source, m.LoadTimeoutSeconds = "sim/freeze", 1
	k.put(1, m)
	got := k.untilState("wedged", agentapi.StateFailed)
	if got.Failure.Exit != agentapi.ExitTimeout || got.Failure.Step != agentapi.StepWarmed || got.Restarts != 0 {
		t.Errorf("%+v", got)
	}
}

// answerOf reads an answer as it comes.
type answerOf struct {
	partial io.Reader
	err     error
}

type remembering struct {
	from io.Reader
	into *answerOf
}

func (r remembering) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.into.err, err = err, io.EOF
	}
	return n, err
}

// scripted has the odd engine stream exactly text and then end in a way.
func (k *worker) scripted(text, end string) (*http.Response, *answerOf) {
	k.t.Helper()
	response, err := k.send(k.t.Context(), "/v1/chat/completions",
		fmt.Sprintf(`{"model":"odd","messages":[{}],"script":%s,"end":%q}`, must(json.Marshal(text)), end))
	if err != nil {
		k.t.Fatal(err)
	}
	a := &answerOf{}
	a.partial = remembering{response.Body, a}
	return response, a
}

func TestAStreamIsPassedOnByteForByte(t *testing.T) {
	k := newWorld(t).start(nil)
	k.putOdd("plain")
	k.untilState("odd", agentapi.StateReady)
	const begin = "data: {\"n\": 1 }\r\n\r\n: a comment\n\ndata:{\"z\":\"\\u00e9é\"}\n\n"
	for name, c := range map[string]struct {
		text, end string
		broken    bool
	}{
		"whole":               {begin + "data: [DONE]\n\n", "", false},
		"error within":        {begin + "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\ndata: [DONE]\n\n", "", false},
		"end without [DONE]":  {begin, "", false}, // What is not there is not made up.
		"broken off":          {begin, "break", true},
		"half an event":       {begin + "data: {\"ha", "break", true},
		"the engine has died": {begin, "die", true},
	} {
		k.untilState("odd", agentapi.StateReady)
		response, answer := k.scripted(c.text, c.end)
		got := string(must(io.ReadAll(answer.partial)))
		_ = response.Body.Close()
		if got != c.text || (answer.err != nil) != c.broken || response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %q, then %v", name, response.StatusCode, got, answer.err)
		}
		if c.end == "die" {
			k.until("restarted", func(s agentapi.Status) bool { return find(s, "odd").Restarts == 1 })
		}
	}
	k.untilState("odd", agentapi.StateReady)
}

func TestAnEngineThatAnswersGarbage(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) { c.Settings.LoadTimeout = time.Second })
	k.putOdd("garbage")
	if m := k.untilState("odd", agentapi.StateFailed); m.Failure.Exit != agentapi.ExitTimeout || !strings.Contains(m.Failure.Message, "not ready in time: ") {
		t.Errorf("from the start: %+v", m.Failure)
	}
	for i, kind := range []string{"garbage-later", "headers"} {
		k.putOdd(kind, fmt.Sprint("--kind=", i))
		k.until("another", func(s agentapi.Status) bool { return find(s, "odd").State == agentapi.StateReady })
		for range 3 {
			code, header, body := k.post("/v1/chat/completions", oddBody)
			if code != http.StatusBadGateway || header.Get(agentapi.HeaderRefused) != "" || !strings.Contains(body, `"error"`) || len(body) > 500 {
				t.Errorf("%s: %d %s", kind, code, body)
			}
		}
		if s := k.status(); s.InFlight != 0 || find(s, "odd").State != agentapi.StateReady {
			t.Errorf("%s: %+v", kind, s)
		}
	}
}

func TestAnEnginesChildrenGoWithItEvenFromAnotherSession(t *testing.T) {
	k := newWorld(t).start(nil)
	const mark = "forked-away-3d90"
	k.putEnv(1, map[string]string{envEngine: "forks", "ENGINE_MARK": mark,
		agentapi.EnvEngineCommand: os.Args[0] + " {host}:{port}"}, model("odd"))
	k.untilState("odd", agentapi.StateReady)
	if n := len(marked(t, mark)); n != 2 {
		t.Fatalf("%d processes, want the engine and its child", n)
	}
	k.putEnv(2, nil)
	k.until("gone", func(s agentapi.Status) bool { return len(s.Models) == 0 })
	untilGone(t, mark) // The one that left is the system's to reap.
}

func TestAModelThatMustGoBreaksItsStreamsAtTheDeadline(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) { c.Settings.DrainTimeout = 300 * time.Millisecond })
	k.putSlow(1, slow("qwen"))
	k.untilState("qwen", agentapi.StateReady)
	response, lines := k.stream(t.Context(), "qwen", 10000)
	defer response.Body.Close()
	k.putSlow(2)
	if last := rest(lines); last == "data: [DONE]" || lines.Err() == nil {
		t.Errorf("it ended as if it were whole: %q, %v", last, lines.Err())
	}
	k.until("gone", func(s agentapi.Status) bool { return len(s.Models) == 0 && s.InFlight == 0 })
}

// dial opens a connection with the gateway's certificate.
func (k *worker) dial() *tls.Conn {
	k.t.Helper()
	pair := must(k.ca.Client(agentapi.RoleGateway, time.Hour, time.Now()))
	c, err := tls.Dial("tcp", k.endpoint, must(pki.ClientTLS(pair, k.ca.PEM(), claimUID)))
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func TestSlowCallersAreGivenUp(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) {
		c.Settings.HeaderTimeout, c.Settings.BodyTimeout = 300*time.Millisecond, 300*time.Millisecond
		c.Settings.WriteTimeout = 300 * time.Millisecond
	})
	k.putOdd("endless")
	k.untilState("odd", agentapi.StateReady)
	stranger := must(net.Dial("tcp", k.endpoint))
	defer stranger.Close()
	_ = stranger.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := stranger.Read(make([]byte, 100)); n > 7 || errors.Is(err, os.ErrDeadlineExceeded) { // An alert at most.
		t.Errorf("a connection that says nothing is kept: %d %v", n, err)
	}
	for name, c := range map[string]struct{ sends, want string }{
		"headers": {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: ", ""},
		"body":    {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "HTTP/1.1 400"},
		"chunks":  {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "HTTP/1.1 400"},
		"too long a header": {"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + strings.Repeat("a", 80<<10) + "\r\n\r\n",
			"HTTP/1.1 431"},
		"too long a body": {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{", "HTTP/1.1 413"},
	} {
		conn := k.dial()
		_, _ = io.WriteString(conn, c.sends)
		answer, err := io.ReadAll(conn)
		if !strings.HasPrefix(string(answer), c.want) || errors.Is(err, os.ErrDeadlineExceeded) || c.want == "" && len(answer) > 0 {
			t.Errorf("%s: %.60q, %v", name, answer, err)
		}
	}
	// A caller who asks for a long stream and takes none of it.
	conn := k.dial()
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(oddBody), oddBody)
	k.until("asked", func(s agentapi.Status) bool { return s.InFlight == 1 })
	k.until("given up", func(s agentapi.Status) bool { return s.InFlight == 0 })
}

func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	k := newWorld(t).start(nil)
	var conns []net.Conn
	for range 1000 {
		c := must(net.Dial("tcp", k.endpoint))
		conns = append(conns, c)
		t.Cleanup(func() { _ = c.Close() })
	}
	if s := k.status(); s.BootID == "" { // On a new connection, behind all of those.
		t.Error("no status")
	}
	// Each that was closed is seen to be once its goroutine has run.
	const most = 128
	open := len(conns)
	for deadline := time.Now().Add(20 * time.Second); open > most && time.Now().Before(deadline); {
		open = 0
		for _, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				open++
			}
		}
	}
	if open > most {
		t.Errorf("%d connections that say nothing are kept", open)
	}
}

// jumping is the machine's clock with a wall clock that somebody sets.
type jumping struct {
	agent.Clock
	by atomic.Int64
}

func (j *jumping) Now() time.Time { return j.Clock.Now().Round(0).Add(time.Duration(j.by.Load())) }

func TestAWallClockThatJumpsEndsNothing(t *testing.T) {
	clock := &jumping{Clock: agent.RealClock()}
	k := newWorld(t).start(func(c *agent.Config) { c.Clock = clock; c.Settings.HangAfter = time.Second })
	k.putSlow(1, slow("qwen"))
	before := k.untilState("qwen", agentapi.StateReady)
	response, lines := k.stream(t.Context(), "qwen", 30)
	defer response.Body.Close()
	for _, by := range []time.Duration{40 * time.Minute, -4 * time.Minute, 40 * time.Minute, 0} {
		clock.by.Store(int64(by))
		k.gateway.Close() // A new handshake each time.
		if code, _, body := k.post("/v1/chat/completions", chat("qwen", 1, false)); code != http.StatusOK {
			t.Errorf("the clock is off by %s: %d %s", by, code, body)
		}
		if m := find(k.status(), "qwen"); m.State != agentapi.StateReady || m.Restarts != 0 || m.InFlight != 1 {
			t.Errorf("the clock is off by %s: %+v", by, m)
		}
	}
	if last := rest(lines); last != "data: [DONE]" {
		t.Errorf("the stream ended with %q", last)
	}
	if m := find(k.status(), "qwen"); !m.Since.Equal(before.Since) || m.State != agentapi.StateReady {
		t.Errorf("was %+v, is %+v", before, m)
	}
}

func TestAMachineWhoseClockIsWrongFromTheStartServes(t *testing.T) {
	for _, by := range []time.Duration{-20 * 365 * 24 * time.Hour, 20 * 365 * 24 * time.Hour} {
		clock := &jumping{Clock: agent.RealClock()}
		clock.by.Store(int64(by))
		k := newWorld(t).start(func(c *agent.Config) { c.Clock = clock })
		if s := k.status(); s.ClaimUID != claimUID {
			t.Errorf("%+v", s)
		}
	}
}
