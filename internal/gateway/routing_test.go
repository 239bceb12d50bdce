package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/upstream"
)

// abort is a worker that breaks the connection in place of an answer.
func abort(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

func TestRetriesBeforeTheFirstByte(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*worker)
		reason string
	}{
		"nobody listens":   {func(a *worker) { a.kill() }, "unreachable"},
		"draining":         {func(a *worker) { a.refuse.Store(agentapi.RefusedDraining) }, "refused"},
		"full":             {func(a *worker) { a.refuse.Store(agentapi.RefusedFull) }, "refused"},
		"connection broke": {func(a *worker) { a.hook(abort) }, "lost"},
		"engine broke off": {func(a *worker) {
			a.hook(func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(http.StatusBadGateway); return true })
		}, "lost"},
		"stream broke before its first event": {func(a *worker) {
			a.hook(func(rw http.ResponseWriter, _ *http.Request) bool {
				rw.Header().Set("Content-Type", "text/event-stream")
				_ = http.NewResponseController(rw).Flush()
				panic(http.ErrAbortHandler)
			})
		}, "lost"},
		"stream ended before its first event": {func(a *worker) {
			a.hook(func(rw http.ResponseWriter, _ *http.Request) bool {
				rw.Header().Set("Content-Type", "text/event-stream")
				return true
			})
		}, "lost"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			bad, good := w.add(nil), w.add(nil)
			c.spoil(bad)
			for range 2 { // One of the two goes to the bad one first.
				got := w.ask(chatPath, chat(`,"stream":true,"max_tokens":5`))
				if got.status != http.StatusOK || lastEvent(t, got.text) != "[DONE]" {
					t.Fatalf("%d %q", got.status, got.text)
				}
			}
			if got := good.bodies[0]; got != chat(`,"stream":true,"max_tokens":5`) {
				t.Errorf("the other worker got %q", got)
			}
			if !strings.Contains(w.metrics(), `gpuscale_gateway_retries_total{model="`+model+`",reason="`+c.reason+`"}`) {
				t.Errorf("no retry for %s:\n%s", c.reason, w.metrics())
			}
		})
	}
}

// TestAWorkerThatSwallowsConnectionsDelaysHardlyAnybody: who is sent there is answered elsewhere after a short time, in which
// the others are answered at once, and the next are not sent there.
func TestAWorkerThatSwallowsConnectionsDelaysHardlyAnybody(t *testing.T) {
	w := newWorld(t, nil)
	gone, _ := w.add(nil), w.add(nil)
	gone.vanish(t)
	ask := func(who string, most time.Duration) {
		began := time.Now()
		got := w.ask(chatPath, chat(""))
		if took := time.Since(began); got.status != http.StatusOK || took > most {
			t.Errorf("%s: %d %q after %s", who, got.status, got.text, took)
		}
	}
	var sentThere sync.WaitGroup
	sentThere.Go(func() { ask("the one that was sent there", 2*upstream.ConnectTimeout) })
	eventually(t, "one is sent there", func() bool { return w.reg.Outstanding()[gone.uid] == 1 })
	for range 5 {
		ask("one beside it", upstream.ConnectTimeout/2)
	}
	if w.reg.Outstanding()[gone.uid] != 1 {
		t.Error("the others are not beside it")
	}
	sentThere.Wait()
	if h := w.reg.Health()[model]; h.SetAside != 1 {
		t.Errorf("health %v", h)
	}
	for range 3 {
		ask("one after it", upstream.ConnectTimeout/2)
	}
	w.wantMetric(`gpuscale_gateway_retries_total{model="` + model + `",reason="unreachable"} 1`)
}

func TestAWorkerThatIsSomebodyElseGetsNothing(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.add(nil), w.add(nil)
	// a's address now belongs to b's machine.
	w.reg.Apply(registry.Snapshot{Workers: []registry.Worker{{Claim: "c", ClaimUID: a.uid, Endpoint: b.endpoint,
		Models: map[string]registry.State{model: registry.Ready}}}})
	wantError(t, w.ask(chatPath, chat("")), http.StatusServiceUnavailable, "worker_unreachable")
	if n := b.requests.Load(); n != 0 {
		t.Errorf("%d requests reached a worker under another's name", n)
	}
}

func TestWhatAnEngineRefusedIsNotSentAgain(t *testing.T) {
	for name, fault := range map[string]vllmsim.Failure{"unhealthy": vllmsim.FailUnhealthy, "key": vllmsim.FailUnauthorized} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			spoilt := func(c *vllmsim.Config) { c.Faults = []vllmsim.Fault{{Failure: fault}} }
			a, b := w.add(spoilt), w.add(spoilt)
			got := w.ask(chatPath, chat(""))
			if got.status < 400 || got.text != a.answers()+b.answers() {
				t.Errorf("%d %q", got.status, got.text)
			}
			if n := a.requests.Load() + b.requests.Load(); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
	w := newWorld(t, nil)
	a, b := w.add(nil), w.add(nil)
	for _, x := range []*worker{a, b} {
		x.engine.Drain() // vLLM's own 503, without the agent's mark
	}
	if got := w.ask(chatPath, chat("")); got.status != http.StatusServiceUnavailable || got.text != a.answers()+b.answers() {
		t.Errorf("%d %q", got.status, got.text)
	}
	if n := a.requests.Load() + b.requests.Load(); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

func TestNoWorkerLeft(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.add(nil), w.add(nil)
	a.refuse.Store(agentapi.RefusedDraining)
	b.refuse.Store("<script>")
	got := w.ask(chatPath, chat(""))
	message := wantError(t, got, http.StatusServiceUnavailable, "worker_busy")
	if got.header.Get("Retry-After") == "" || strings.Contains(message, "script") {
		t.Errorf("%q %q", got.header, message)
	}
	a.kill()
	b.kill()
	wantError(t, w.ask(chatPath, chat("")), http.StatusServiceUnavailable, "worker_unreachable")
}

func TestWhenNoWorkerHasRoomTheClientIsToldToComeBack(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.add(nil), w.add(nil)
	a.refuse.Store(agentapi.RefusedFull)
	for _, other := range []string{agentapi.RefusedFull, agentapi.RefusedDraining} {
		b.refuse.Store(other)
		got := w.ask(chatPath, chat(""))
		wantError(t, got, http.StatusTooManyRequests, "worker_busy")
		if got.header.Get("Retry-After") == "" || got.header.Get(agentapi.HeaderRefused) != "" {
			t.Errorf("other is %s: %q", other, got.header)
		}
	}
	if n := a.requests.Load() + b.requests.Load(); n != 0 {
		t.Errorf("%d requests got past a refusal", n)
	}
}

func TestAnEnginesOwn429IsItsAnswer(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.add(nil), w.add(nil)
	for _, x := range []*worker{a, b} {
		x.hook(func(rw http.ResponseWriter, _ *http.Request) bool {
			rw.Header().Set("Retry-After", "7")
			http.Error(rw, "slow down", http.StatusTooManyRequests)
			return true
		})
	}
	got := w.ask(chatPath, chat(""))
	if got.status != http.StatusTooManyRequests || got.text != "slow down\n" || got.header.Get("Retry-After") != "7" {
		t.Errorf("%d %q %q", got.status, got.text, got.header)
	}
	if n := a.requests.Load() + b.requests.Load(); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

func TestARequestThatBreaksWorkersDoesNotVisitAll(t *testing.T) {
	w := newWorld(t, nil)
	for range 5 {
		w.add(nil).hook(abort)
	}
	wantError(t, w.ask(chatPath, chat("")), http.StatusBadGateway, "worker_lost")
	var n int64
	for _, a := range w.workers {
		n += a.requests.Load()
	}
	if n != 3 {
		t.Errorf("sent to %d workers", n)
	}
}

// The one worker restarted: the kept connection is dead, the worker is not.
func TestAStaleConnectionIsNoReasonToFail(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	var once sync.Once
	a.hook(func(rw http.ResponseWriter, r *http.Request) (done bool) {
		if r.Header.Get("X-Request-Id") == "second" {
			once.Do(func() { panic(http.ErrAbortHandler) })
		}
		return false
	})
	for _, id := range []string{"first", "second"} {
		if got := w.ask(chatPath, chat(""), "X-Request-Id", id); got.status != http.StatusOK {
			t.Errorf("%s: %d %q", id, got.status, got.text)
		}
	}
}

func TestLeastOutstanding(t *testing.T) {
	w := newWorld(t, nil)
	held := make(chan struct{})
	for range 3 {
		w.add(nil).hook(func(http.ResponseWriter, *http.Request) bool { <-held; return false })
	}
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if got := w.ask(chatPath, chat("")); got.status != http.StatusOK {
				t.Errorf("%d %q", got.status, got.text)
			}
		})
		eventually(t, "request arrived", func() bool {
			return w.workers[0].requests.Load()+w.workers[1].requests.Load()+w.workers[2].requests.Load() == int64(i+1)
		})
	}
	for uid, n := range w.reg.Outstanding() {
		if n != 10 {
			t.Errorf("%d outstanding at %s, want 10", n, uid)
		}
	}
	w.wantMetric(`gpuscale_gateway_in_flight{model="` + model + `"} 30`)
	close(held)
	wg.Wait()
	w.wantMetric(`gpuscale_gateway_in_flight{model="` + model + `"} 0`)
}

// Workers die one after another under mixed requests: whatever has a first byte may break, but says so; nothing else is
// lost while a worker is left; and no count stays (newWorld looks).
func TestNothingIsLostWhileWorkersDie(t *testing.T) {
	w := newWorld(t, nil)
	for range 4 {
		w.add(func(c *vllmsim.Config) { c.TokensPerSecond = 2000 })
	}
	var wg sync.WaitGroup
	start := make(chan int, 200)
	for i := range 200 {
		wg.Go(func() {
			<-start
			stream := i%2 == 0
			got := w.tryAsk(chat(fmt.Sprintf(`,"stream":%t,"max_tokens":%d,"ignore_eos":true`, stream, 5+i%40)))
			switch {
			case got.status != http.StatusOK:
				t.Errorf("request %d: %d %q %v", i, got.status, got.text, got.err)
			case stream && got.err != nil:
				t.Errorf("stream %d broke without a word: %v", i, got.err)
			case stream && lastEvent(t, got.text) != "[DONE]" && !strings.Contains(lastEvent(t, got.text), "worker_lost"):
				t.Errorf("stream %d ends in %q", i, lastEvent(t, got.text))
			}
		})
	}
	for i := range 200 {
		start <- i
		if i%50 == 49 && i < 150 {
			w.workers[i/50].kill()
		}
	}
	wg.Wait()
}

func (w *world) tryAsk(body string) answer {
	response, err := w.post(w.t.Context(), chatPath, body)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text), err}
}

func TestWorkersSeeNoSecretsAndSetNone(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) { c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice"}} })
	a := w.add(nil)
	a.hook(func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Set("Link", "</>; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("X-Request-Id", "7")
		rw.Header().Set("Trailer", "X-Late")
		_, _ = io.WriteString(rw, "{}")
		rw.Header().Set("X-Late", "x")
		return true
	})
	got := w.ask(chatPath, chat(""), "Authorization", "Bearer sk-alice", "Cookie", "c=d", "X-Request-Id", "7",
		"Connection", "Upgrade", "Upgrade", "websocket")
	if got.status != http.StatusOK || got.header.Get("X-Request-Id") != "7" {
		t.Errorf("%d %v %q", got.status, got.header, got.text)
	}
	for _, name := range []string{"Set-Cookie", "Link", "Trailer", "X-Late"} {
		if got.header.Get(name) != "" {
			t.Errorf("the client got the worker's %s", name)
		}
	}
	sent := a.asked[0]
	for _, name := range []string{"Authorization", "Cookie", "Upgrade", "X-Forwarded-For", "Accept-Encoding"} {
		if sent.Get(name) != "" {
			t.Errorf("the worker got %s: %q", name, sent.Get(name))
		}
	}
	if sent.Get("X-Request-Id") != "7" || sent.Get("Content-Type") != "application/json" {
		t.Errorf("the worker got %v", sent)
	}
	eventually(t, "logged", func() bool { return strings.Contains(w.log.String(), `"key"="alice"`) })
	for _, secret := range []string{"sk-alice", "secret prompt"} {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}
