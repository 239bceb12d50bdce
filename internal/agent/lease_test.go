package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

const instanceKey = "vast-instance-key-777"

// landlord is a provider's API as an instance sees it: it answers DELETE as the test says and writes down each one.
type landlord struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string
	answer func(n int, w http.ResponseWriter)
}

func newLandlord(t *testing.T, answer func(n int, w http.ResponseWriter)) *landlord {
	l := &landlord{answer: answer}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.asked = append(l.asked, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, r.Header.Get("Authorization")))
		n := len(l.asked)
		l.mu.Unlock()
		l.answer(n, w)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *landlord) requests() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.asked...)
}

func granted(_ int, w http.ResponseWriter) { _, _ = w.Write([]byte(`{"success":true}`)) }

func refused(_ int, w http.ResponseWriter) {
	w.WriteHeader(http.StatusForbidden)
	_, _ = w.Write([]byte(`{"success":false,"error":"not_authorized"}`))
}

// leased is an agent with a lease of a second, in a container of Vast.ai's.
func (l *landlord) leased(change func(*agent.Config)) func(*agent.Config) {
	return func(c *agent.Config) {
		c.Boot.LeaseSeconds = 1
		c.Boot.SelfEnd = &agentapi.SelfEnd{By: agentapi.SelfEndVastAI, URL: l.URL}
		c.Settings.SelfEndBackOff = 50 * time.Millisecond
		env := map[string]string{"CONTAINER_ID": "31000001", "CONTAINER_API_KEY": instanceKey}
		c.Getenv = func(name string) string { return env[name] }
		if change != nil {
			change(c)
		}
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never %s", what)
		}
	}
}

func TestAWorkerThatNobodyCallsEndsItsRental(t *testing.T) {
	l := newLandlord(t, granted)
	k := newWorld(t).start(l.leased(nil))
	k.put(1, model("tiny"))
	k.untilState("tiny", agentapi.StateReady)
	eventually(t, "asked for the end", func() bool { return len(l.requests()) > 0 })
	if got, want := l.requests()[0], "DELETE /api/v0/instances/31000001/ Bearer "+instanceKey; got != want {
		t.Errorf("asked %q, want %q", got, want)
	}
	// It was granted: a caller that comes now learns of it and changes nothing.
	s := k.until("granted", func(s agentapi.Status) bool { return s.Lease.Granted })
	if s.Lease.State != agentapi.LeaseEnding || !s.Draining || s.Lease.SelfEnd != agentapi.SelfEndVastAI || s.Lease.LastTry == nil {
		t.Errorf("lease %+v, draining %t", s.Lease, s.Draining)
	}
	if code, header, _ := k.post("/v1/chat/completions", chat("tiny", 1, false)); code != 503 || header.Get(agentapi.HeaderRefused) != agentapi.RefusedDraining {
		t.Errorf("work is answered with %d %q", code, header.Get(agentapi.HeaderRefused))
	}
	before := len(l.requests())
	eventually(t, "asked again", func() bool { return len(l.requests()) > before })
}

// TestCallsHoldTheLease: by the controller, by the gateway, and by a stream that outlasts it.
func TestCallsHoldTheLease(t *testing.T) {
	for name, call := range map[string]func(k *worker){
		"controller": func(k *worker) { _ = k.status() },
		"gateway": func(k *worker) {
			if _, err := k.gateway.Status(k.t.Context(), k.endpoint, claimUID); err != nil {
				k.t.Error(err)
			}
		},
		"a request": func(k *worker) { k.post("/v1/chat/completions", chat("tiny", 1, false)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLandlord(t, granted)
			k := newWorld(t).start(l.leased(nil))
			k.put(1, model("tiny"))
			k.untilState("tiny", agentapi.StateReady)
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for range 15 { // three leases
				<-tick.C
				call(k)
			}
			if n := len(l.requests()); n > 0 {
				t.Errorf("it asked %d times for its end", n)
			}
		})
	}
	t.Run("a stream", func(t *testing.T) {
		l := newLandlord(t, granted)
		k := newWorld(t).start(l.leased(nil))
		if err := k.controller.PutModels(t.Context(), k.endpoint, claimUID, agentapi.DesiredModels{Generation: 1,
			Models: []agentapi.DesiredModel{model("tiny")},
			Env:    map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TOKENS_PER_SEC": "20"}}); err != nil {
			t.Fatal(err)
		}
		k.untilState("tiny", agentapi.StateReady)
		began := time.Now()
		code, _, text := k.post("/v1/chat/completions", chat("tiny", 50, true))
		took := time.Since(began)
		if code != 200 || !strings.Contains(text, "[DONE]") {
			t.Fatalf("answered %d, complete %t", code, strings.Contains(text, "[DONE]"))
		}
		if took < 1500*time.Millisecond {
			t.Fatalf("the stream took %s, which proves nothing", took)
		}
		if n := len(l.requests()); n > 0 {
			t.Errorf("it asked %d times for its end during a stream of %s", n, took)
		}
		eventually(t, "asked once the stream was over", func() bool { return len(l.requests()) > 0 })
	})
}

// TestARefusedEndIsTriedForEverAndACallCancelsIt, since nothing was ended.
func TestARefusedEndIsTriedForEverAndACallCancelsIt(t *testing.T) {
	l := newLandlord(t, refused)
	k := newWorld(t).start(l.leased(nil))
	k.put(1, model("tiny"))
	k.untilState("tiny", agentapi.StateReady)
	eventually(t, "asked three times", func() bool { return len(l.requests()) >= 3 })
	s := k.until("held", func(s agentapi.Status) bool { return s.Lease.State == agentapi.LeaseHeld })
	if s.Draining || s.Lease.Tries < 3 || !strings.Contains(s.Lease.LastError, "403") || strings.Contains(s.Lease.LastError, instanceKey) {
		t.Errorf("draining %t, lease %+v", s.Draining, s.Lease)
	}
	if code, _, _ := k.post("/v1/chat/completions", chat("tiny", 1, false)); code != 200 {
		t.Errorf("work is answered with %d", code)
	}
}

func TestALeaseThatCannotBeActedOnSaysWhy(t *testing.T) {
	for want, change := range map[string]func(*agent.Config){
		"gave this worker no lease":                    func(c *agent.Config) { c.Boot.LeaseSeconds = 0 },
		"no way to end their own rental":               func(c *agent.Config) { c.Boot.SelfEnd = nil },
		"has not set CONTAINER_ID":                     func(c *agent.Config) { c.Getenv = func(string) string { return "" } },
		`does not know how to end a rental by "magic"`: func(c *agent.Config) { c.Boot.SelfEnd.By = "magic" },
	} {
		l := newLandlord(t, granted)
		s := newWorld(t).start(l.leased(change)).status()
		if s.Lease.State != agentapi.LeaseNone || s.Lease.SelfEnd != "" || !strings.Contains(s.Lease.Message, want) {
			t.Errorf("lease %+v, want %q", s.Lease, want)
		}
	}
}

// TestWhatAnAnswerMeans: whether work is taken again after it.
func TestWhatAnAnswerMeans(t *testing.T) {
	answer := func(code int, body string) func(int, http.ResponseWriter) {
		return func(_ int, w http.ResponseWriter) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, tt := range map[string]struct {
		by      string
		answer  func(int, http.ResponseWriter)
		granted bool
		path    string
	}{
		"vast.ai grants":           {agentapi.SelfEndVastAI, answer(200, `{"success":true}`), true, "/api/v0/instances/31000001/"},
		"vast.ai says no with 200": {agentapi.SelfEndVastAI, answer(200, `{"success":false,"error":"x"}`), false, ""},
		"vast.ai is gone":          {agentapi.SelfEndVastAI, answer(404, `{"success":false,"error":"no_such_instance"}`), true, ""},
		"vast.ai, bad key":         {agentapi.SelfEndVastAI, answer(404, `{"success":false,"error":"auth_error"}`), false, ""},
		"vast.ai, too often":       {agentapi.SelfEndVastAI, answer(429, `API requests too frequent`), false, ""},
		"vast.ai, its proxy":       {agentapi.SelfEndVastAI, answer(502, `<html>`), true, ""},
		"a redirect":               {agentapi.SelfEndVastAI, answer(301, ``), false, ""},
		"runpod grants":            {agentapi.SelfEndRunPod, answer(204, ``), true, "/v2/pods/k3x9ab"},
		"runpod, no right":         {agentapi.SelfEndRunPod, answer(403, `{"title":"Forbidden","status":403}`), false, ""},
		"runpod is gone":           {agentapi.SelfEndRunPod, answer(404, `{"title":"Not Found","status":404}`), true, ""},
		"the answer is lost": {agentapi.SelfEndVastAI, func(int, http.ResponseWriter) {
			panic(http.ErrAbortHandler)
		}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLandlord(t, tt.answer)
			k := newWorld(t).start(l.leased(func(c *agent.Config) {
				c.Boot.SelfEnd.By = tt.by
				env := map[string]string{"CONTAINER_ID": "31000001", "CONTAINER_API_KEY": instanceKey,
					"RUNPOD_POD_ID": "k3x9ab", "RUNPOD_API_KEY": instanceKey}
				c.Getenv = func(name string) string { return env[name] }
				c.Settings.SelfEndBackOff = time.Hour
			}))
			eventually(t, "asked", func() bool { return len(l.requests()) > 0 })
			if got := l.requests()[0]; tt.path != "" && !strings.HasPrefix(got, "DELETE "+tt.path+" ") {
				t.Errorf("asked %q", got)
			}
			s := k.until("decided", func(s agentapi.Status) bool { return s.Lease.Granted || s.Lease.LastError != "" })
			if s.Lease.Granted != tt.granted {
				t.Errorf("lease %+v, want granted %t", s.Lease, tt.granted)
			}
		})
	}
}

func TestPowerOff(t *testing.T) {
	for name, fails := range map[string]error{"works": nil, "not allowed": errors.New("interactive authentication required")} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			times := 0
			k := newWorld(t).start(func(c *agent.Config) {
				c.Boot.LeaseSeconds, c.Boot.SelfEnd = 1, &agentapi.SelfEnd{By: agentapi.SelfEndPowerOff}
				c.Settings.SelfEndBackOff = time.Hour
				c.PowerOff = func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					times++
					return fails
				}
			})
			eventually(t, "powered off", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return times == 1
			})
			s := k.until("decided", func(s agentapi.Status) bool { return s.Lease.Granted || s.Lease.LastError != "" })
			if s.Lease.Granted != (fails == nil) || fails != nil && !strings.Contains(s.Lease.LastError, fails.Error()) {
				t.Errorf("lease %+v", s.Lease)
			}
		})
	}
}
