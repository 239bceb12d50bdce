package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/wish"
)

// board is a DemandWriter that remembers.
type board struct {
	mu      sync.Mutex
	fail    error
	puts    []map[string]wish.Entry
	removed int
}

func (b *board) Put(_ context.Context, id string, entries map[string]wish.Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id != "gw" {
		return fmt.Errorf("put by %q", id)
	}
	if b.fail == nil {
		b.puts = append(b.puts, entries)
	}
	return b.fail
}

func (b *board) Remove(context.Context, string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed++
	return b.fail
}

func (b *board) failing(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// last is what was written last of a model.
func (b *board) last(model string) (wish.Entry, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.puts) == 0 {
		return wish.Entry{}, 0
	}
	return b.puts[len(b.puts)-1][model], len(b.puts)
}

// holding is a world whose gateway lets requests wait, its clock stepped, with a pool that lists the model.
func holding(t *testing.T, change func(*gateway.Config)) (*world, *testclock.FakeClock, *board) {
	t.Helper()
	now, b := testclock.NewFakeClock(time.Now()), &board{}
	w := newWorld(t, func(c *gateway.Config) {
		c.Clock, c.HoldLimit, c.Demand, c.GatewayID = now, gateway.DefaultHoldLimit, b, "gw"
		if change != nil {
			change(c)
		}
	})
	w.publish(registry.Known{Name: model})
	return w, now, b
}

// held waits until n requests wait, each at its timer.
func (w *world) held(n int) {
	w.t.Helper()
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_held{model=%q} %d`, model, n))
}

// timed waits until somebody waits for the clock.
func timed(t *testing.T, c *testclock.FakeClock) {
	t.Helper()
	eventually(t, "something waits for the clock", c.HasWaiters)
}

// asking sends a request in the background.
func (w *world) asking(path, body string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		response, err := w.post(w.t.Context(), path, body)
		if err != nil {
			got <- answer{err: err}
			return
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		got <- answer{response.StatusCode, response.Header, string(text), err}
	}()
	return got
}

func take(t *testing.T, what string, got <-chan answer) answer {
	t.Helper()
	select {
	case a := <-got:
		return a
	case <-time.After(20 * time.Second):
		t.Fatal("no answer: " + what)
	}
	return answer{}
}

const streaming = `,"stream":true,"max_tokens":3`

func TestAHundredWaitAndAreAnsweredByTheFirstWorker(t *testing.T) {
	w, _, b := holding(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.gw.WriteDemand(ctx)
	}()
	var answers []<-chan answer
	for i := range 100 {
		extra := `,"max_tokens":3`
		if i%2 == 0 {
			extra = streaming
		}
		answers = append(answers, w.asking(chatPath, chat(extra)))
	}
	w.held(100)
	// The first of them was written at once, with the clock standing still.
	eventually(t, "the demand is written", func() bool { e, _ := b.last(model); return e.Held > 0 && e.Last.IsZero() })
	w.add(nil)
	for i, got := range answers {
		a := take(t, "a request that waited", got)
		if a.err != nil || a.status != http.StatusOK {
			t.Fatalf("%d: %d %q %v", i, a.status, a.text, a.err)
		}
		if i%2 == 0 && lastEvent(t, a.text) != "[DONE]" {
			t.Errorf("%d: %q", i, a.text)
		}
	}
	w.held(0)
	w.wantMetric(`gpuscale_gateway_held_bytes 0`)
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_hold_seconds_count{model=%q,outcome="served"} 100`, model))
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_cold_starts_total{model=%q} 1`, model))
	w.wantMetric(`gpuscale_gateway_redis_up 1`)
	if n := w.workers[0].requests.Load(); n != 100 {
		t.Errorf("the worker got %d requests", n)
	}
	cancel()
	<-written
	if b.removed != 1 {
		t.Errorf("removed %d times", b.removed)
	}
}

// stream is an open answer, read by line.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
}

func (s *stream) next() string {
	s.t.Helper()
	for s.lines.Scan() {
		if line := s.lines.Text(); line != "" {
			return line
		}
	}
	s.t.Fatalf("the stream ended: %v", s.lines.Err())
	return ""
}

// beating sends a request for a stream, lets it wait for its first heartbeat and returns that.
func (w *world) beating(now *testclock.FakeClock) (*stream, *http.Response, string) {
	w.t.Helper()
	type opened struct {
		response *http.Response
		err      error
	}
	open := make(chan opened, 1)
	go func() {
		response, err := w.post(w.t.Context(), chatPath, chat(streaming))
		open <- opened{response, err}
	}()
	w.held(1)
	timed(w.t, now)
	now.Step(4 * time.Second)
	select {
	case got := <-open:
		w.t.Fatalf("answered before five seconds: %+v", got)
	default:
	}
	now.Step(time.Second)
	got := <-open
	if got.err != nil {
		w.t.Fatal(got.err)
	}
	w.t.Cleanup(func() { _ = got.response.Body.Close() })
	s := &stream{w.t, bufio.NewScanner(got.response.Body)}
	return s, got.response, s.next()
}

func TestHeartbeatsSayHowFarItIs(t *testing.T) {
	w, now, _ := holding(t, nil)
	s, response, first := w.beating(now)
	if got := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || !strings.HasPrefix(got, "text/event-stream") {
		t.Errorf("%d %q", response.StatusCode, got)
	}
	if want := `: waiting for "` + model + `": no machine yet; waited 5s, about 240s more`; first != want {
		t.Errorf("first %q, want %q", first, want)
	}
	// Another model's boots are better than none; a claim began two seconds ago.
	s0 := registry.Snapshot{Models: []registry.Known{{Name: model, Stage: "Bootstrapping on c-1", Since: now.Now().Add(-2 * time.Second)}},
		Boots: []registry.Boot{{ClaimUID: "u", Model: "other", Took: 90 * time.Second}}}
	w.reg.Apply(s0)
	timed(t, now)
	now.Step(5 * time.Second)
	if got, want := s.next(), `: waiting for "`+model+`": Bootstrapping on c-1; waited 10s, about 83s more`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	timed(t, now)
	now.Step(2 * time.Minute)
	if got := s.next(); !strings.Contains(got, "waited 130s, about 15s more") {
		t.Errorf("overdue: %q", got)
	}
	w.add(nil)
	var data int
	for {
		line := s.next()
		if line == "data: [DONE]" {
			break
		}
		if !strings.HasPrefix(line, "data: {") {
			t.Fatalf("%q", line)
		}
		data++
	}
	if data == 0 {
		t.Error("no events")
	}
}

func TestWhoWaitsInVainIsToldWhenToComeBack(t *testing.T) {
	w, now, _ := holding(t, func(c *gateway.Config) { c.HoldLimit = 10 * time.Minute })
	w.reg.Apply(registry.Snapshot{Models: []registry.Known{{Name: model, Stage: "Provisioning on c-1", Since: now.Now().Add(10 * time.Minute)}},
		Boots: []registry.Boot{{ClaimUID: "u", Model: model, Took: 100 * time.Second}}})
	got := w.asking(chatPath, chat(""))
	w.held(1)
	timed(t, now)
	now.Step(10*time.Minute - time.Millisecond)
	w.held(1)
	timed(t, now)
	now.Step(time.Millisecond)
	a := take(t, "at the hold limit", got)
	message := wantError(t, a, http.StatusServiceUnavailable, "model_not_ready")
	if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after != 100 || !strings.Contains(message, "Provisioning on c-1") {
		t.Errorf("Retry-After %q, %s", a.header.Get("Retry-After"), message)
	}
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_hold_seconds_count{model=%q,outcome="expired"} 1`, model))
	w.held(0)
}

// rest reads a stream to its end.
func (s *stream) rest() string {
	var text strings.Builder
	for s.lines.Scan() {
		text.WriteString(s.lines.Text() + "\n")
	}
	if err := s.lines.Err(); err != nil {
		s.t.Error(err)
	}
	return text.String()
}

func wantErrorEvent(t *testing.T, text, code string) {
	t.Helper()
	if strings.Contains(text, "[DONE]") || !strings.Contains(text, `data: {"error":{`) || !strings.Contains(text, code) {
		t.Errorf("%q is not an error event with %s", text, code)
	}
}

func TestFailuresAfterAHeartbeatAreEvents(t *testing.T) {
	t.Run("the hold limit", func(t *testing.T) {
		w, now, _ := holding(t, nil)
		s, _, _ := w.beating(now)
		timed(t, now)
		now.Step(10 * time.Minute)
		wantErrorEvent(t, s.rest(), `"code":"model_not_ready"`)
		eventually(t, "the log says so", func() bool { return strings.Contains(w.log.String(), `"outcome"="model_not_ready"`) })
	})
	t.Run("the engine refuses", func(t *testing.T) {
		w, now, _ := holding(t, nil)
		s, _, _ := w.beating(now)
		w.add(func(c *vllmsim.Config) { c.Faults = []vllmsim.Fault{{Failure: vllmsim.FailUnauthorized}} })
		text := s.rest()
		if strings.Contains(text, "[DONE]") || !strings.HasPrefix(strings.TrimSpace(text), `data: {`) || !strings.Contains(text, "error") {
			t.Errorf("%q", text)
		}
	})
	t.Run("the worker dies in the middle", func(t *testing.T) {
		w, now, _ := holding(t, nil)
		s, _, _ := w.beating(now)
		w.add(nil)
		w.workers[0].hook(func(rw http.ResponseWriter, _ *http.Request) bool {
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, "data: {\"id\":1}\n\n")
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		})
		wantErrorEvent(t, s.rest(), `"code":"worker_lost"`)
	})
	t.Run("the gateway ends", func(t *testing.T) {
		w, now, _ := holding(t, nil)
		s, _, _ := w.beating(now)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = w.gw.Shutdown(ctx)
		wantErrorEvent(t, s.rest(), `"code":"shutting_down"`)
	})
	t.Run("an answer that is no stream", func(t *testing.T) {
		w, now, _ := holding(t, nil)
		s, _, _ := w.beating(now)
		w.add(nil)
		w.workers[0].hook(func(rw http.ResponseWriter, _ *http.Request) bool {
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, "{\n \"id\": 1\n}")
			return true
		})
		if got := strings.TrimSpace(s.rest()); got != "data: {\"id\":1}\n\ndata: [DONE]" {
			t.Errorf("%q", got)
		}
	})
}

func TestAClientThatLeavesIsForgotten(t *testing.T) {
	w, _, b := holding(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if response, err := w.post(ctx, chatPath, chat("")); err == nil {
			_ = response.Body.Close()
		}
	}()
	w.held(1)
	leave()
	<-gone
	w.held(0)
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_hold_seconds_count{model=%q,outcome="client_gone"} 1`, model))
	w.wantMetric(`gpuscale_gateway_held_bytes 0`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.gw.WriteDemand(ctx)
	eventually(t, "the demand is written", func() bool { _, n := b.last(model); return n > 0 })
	// Nothing in it lasts: no worker ever had the request.
	if e, _ := b.last(model); e != (wish.Entry{}) {
		t.Errorf("%+v", e)
	}
}

func TestTheLastWorkerDrainsWhileRequestsArrive(t *testing.T) {
	w, _, _ := holding(t, nil)
	old := w.add(nil)
	old.refuse.Store(agentapi.RefusedDraining)
	var answers []<-chan answer
	for range 10 {
		answers = append(answers, w.asking(chatPath, chat(streaming)))
	}
	w.held(10)
	// The picture says it too, and then that nothing is left.
	w.workers = nil
	w.publish(registry.Known{Name: model})
	for range 10 {
		answers = append(answers, w.asking(chatPath, chat(streaming)))
	}
	w.held(20)
	fresh := w.add(nil)
	for _, got := range answers {
		if a := take(t, "a request of a scale-down", got); a.status != http.StatusOK || lastEvent(t, a.text) != "[DONE]" {
			t.Errorf("%d %q %v", a.status, a.text, a.err)
		}
	}
	if n := fresh.requests.Load(); n != 20 {
		t.Errorf("%d", n)
	}
}

func TestWhoWaitedWaitsForRoomToo(t *testing.T) {
	w, now, _ := holding(t, nil)
	a := w.add(nil)
	a.refuse.Store(agentapi.RefusedNotReady)
	got := w.asking(chatPath, chat(""))
	w.held(1)
	// Another request is told to come back, this one stays.
	a.refuse.Store(agentapi.RefusedFull)
	wantError(t, w.ask(chatPath, chat("")), http.StatusTooManyRequests, "worker_busy")
	eventually(t, "it is tried again and refused", func() bool {
		now.Step(50 * time.Millisecond)
		return strings.Contains(w.metrics(), fmt.Sprintf(`gpuscale_gateway_retries_total{model=%q,reason="refused"}`, model))
	})
	w.held(1)
	// Without a change of the picture, since none is due.
	a.refuse.Store("")
	eventually(t, "there is room", func() bool { now.Step(50 * time.Millisecond); return len(got) > 0 })
	if a := <-got; a.status != http.StatusOK {
		t.Errorf("%d %q", a.status, a.text)
	}
	w.held(0)
}

// TestWhoWaitsIsAnsweredInTurn as fast as there is room for one more, with the clock standing still.
func TestWhoWaitsIsAnsweredInTurn(t *testing.T) {
	w, now, _ := holding(t, nil)
	w.reg.Limit(1)
	const n = 20
	var answers []<-chan answer
	for i := range n {
		answers = append(answers, w.asking(chatPath, chat(fmt.Sprintf(`,"max_tokens":1,"seed":%d`, i))))
		w.held(i + 1)
		now.Step(time.Millisecond)
	}
	a := w.add(nil)
	for i, got := range answers {
		if a := take(t, fmt.Sprint("request ", i), got); a.status != http.StatusOK {
			t.Errorf("%d: %d %q", i, a.status, a.text)
		}
	}
	for i, body := range a.bodies {
		if want := fmt.Sprintf(`"seed":%d}`, i); !strings.HasSuffix(body, want) {
			t.Errorf("number %d was %s", i, body)
		}
	}
}

func TestOneThatKillsItsEnginesIsNotTriedForEver(t *testing.T) {
	w, now, _ := holding(t, nil)
	a := w.add(nil)
	a.hook(abort)
	got := w.asking(chatPath, chat(""))
	for range 2 {
		w.held(1)
		timed(t, now)
		now.Step(5 * time.Second)
	}
	wantError(t, take(t, "lost thrice", got), http.StatusBadGateway, "worker_lost")
	if n := a.requests.Load(); n != 3 {
		t.Errorf("sent %d times", n)
	}
}

func TestDemandIsWrittenAtOnceOrSoonAndAgainAfterAFailure(t *testing.T) {
	w, now, b := holding(t, nil)
	b.failing(errors.New("down"))
	go w.gw.WriteDemand(t.Context())
	w.wantMetric(`gpuscale_gateway_redis_up 0`)
	got := w.asking(chatPath, chat(""))
	w.held(1)
	a := w.get("/readyz")
	if a.status != http.StatusOK {
		t.Errorf("/readyz: %d", a.status)
	}
	for range 3 {
		timed(t, now)
		now.Step(time.Second)
	}
	b.failing(nil)
	eventually(t, "it is written", func() bool {
		now.Step(time.Second)
		e, _ := b.last(model)
		return e.Held == 1
	})
	w.wantMetric(`gpuscale_gateway_redis_up 1`)
	if n := strings.Count(w.log.String(), "demand cannot be written"); n != 1 {
		t.Errorf("said %d times", n)
	}
	eventually(t, "the log says so", func() bool { return strings.Contains(w.log.String(), "can be written again") })
	w.add(nil)
	if a := take(t, "released", got); a.status != http.StatusOK {
		t.Errorf("%d %q", a.status, a.text)
	}
	eventually(t, "the end is written", func() bool {
		now.Step(time.Second)
		e, _ := b.last(model)
		return e.Held == 0 && e.Outstanding == 0 && !e.Last.IsZero()
	})
	_, before := b.last(model)
	eventually(t, "it is written though nothing changes", func() bool {
		now.Step(time.Second)
		_, n := b.last(model)
		return n > before+2
	})
}

func TestUnknownModels(t *testing.T) {
	w, now, _ := holding(t, nil)
	wantError(t, w.ask(chatPath, `{"model":"gpt-9"}`), http.StatusNotFound, "model_not_found")
	// One that is forgotten while a request waits may come back within a minute.
	got := w.asking(chatPath, chat(""))
	w.held(1)
	w.reg.Apply(registry.Snapshot{})
	timed(t, now)
	now.Step(59 * time.Second)
	w.publish(registry.Known{Name: model})
	w.held(1)
	timed(t, now)
	now.Step(2 * time.Minute)
	w.held(1)
	w.reg.Apply(registry.Snapshot{})
	eventually(t, "it is told at last", func() bool { now.Step(time.Second); return len(got) > 0 })
	wantError(t, take(t, "unknown", got), http.StatusNotFound, "model_not_found")
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_hold_seconds_count{model=%q,outcome="model_gone"} 1`, model))
}

func TestBoundsOfWaiting(t *testing.T) {
	half := chat(`,"user":"` + strings.Repeat("x", 500) + `"`) // of the bytes that there may be
	long := chat(`,"user":"` + strings.Repeat("x", 1000) + `"`)
	for name, c := range map[string]struct {
		change func(*gateway.Config)
		body   string
		want   string
	}{
		"number": {func(c *gateway.Config) { c.MaxHeld = 1 }, chat(""), "1 requests are waiting"},
		"bytes":  {func(c *gateway.Config) { c.MaxHeldBytes = 1000 }, long, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _, _ := holding(t, c.change)
			first := w.asking(chatPath, half)
			w.held(1)
			a := w.ask(chatPath, c.body)
			message := wantError(t, a, http.StatusTooManyRequests, "too_many_waiting")
			if !strings.Contains(message, c.want) || a.header.Get("Retry-After") != "240" {
				t.Errorf("%q: %s", a.header.Get("Retry-After"), message)
			}
			w.wantMetric(fmt.Sprintf(`gpuscale_gateway_hold_refused_total{model=%q} 1`, model))
			w.add(nil)
			if a := take(t, "the first", first); a.status != http.StatusOK {
				t.Errorf("%d %q", a.status, a.text)
			}
			// Its place is free.
			w.reg.Apply(registry.Snapshot{Models: []registry.Known{{Name: model}}})
			again := w.asking(chatPath, half)
			w.held(1)
			w.publish(registry.Known{Name: model})
			if a := take(t, "the next", again); a.status != http.StatusOK {
				t.Errorf("%d %q", a.status, a.text)
			}
		})
	}
}

func TestWithoutRedisNobodyWaitsForNothing(t *testing.T) {
	w, _, _ := holding(t, func(c *gateway.Config) { c.Demand = nil })
	if !strings.Contains(w.log.String(), "cannot wake a model") {
		t.Error("nothing was said at the start")
	}
	message := wantError(t, w.ask(chatPath, chat("")), http.StatusServiceUnavailable, "model_not_ready")
	if !strings.Contains(message, "no Redis") {
		t.Error(message)
	}
	// What is on its way is waited for.
	w.publish(registry.Known{Name: model, Stage: "Bootstrapping on c"})
	got := w.asking(chatPath, chat(""))
	w.held(1)
	w.add(nil)
	if a := take(t, "on its way", got); a.status != http.StatusOK {
		t.Errorf("%d %q", a.status, a.text)
	}
}

// TestTheHoldLimitInRealTime has no clock to step: the limit and a second is all that a client waits.
func TestTheHoldLimitInRealTime(t *testing.T) {
	const limit = 300 * time.Millisecond
	w := newWorld(t, func(c *gateway.Config) { c.HoldLimit, c.Demand, c.GatewayID = limit, &board{}, "gw" })
	w.publish(registry.Known{Name: model})
	begun := time.Now()
	var answers []<-chan answer
	for range 50 {
		answers = append(answers, w.asking(chatPath, chat("")))
	}
	for _, got := range answers {
		wantError(t, take(t, "at the limit", got), http.StatusServiceUnavailable, "model_not_ready")
	}
	if took := time.Since(begun); took < limit || took > limit+time.Second {
		t.Errorf("%s for a limit of %s", took, limit)
	}
}

func TestAClientThatLeavesAfterAHeartbeatIsForgotten(t *testing.T) {
	w, now, _ := holding(t, nil)
	_, response, _ := w.beating(now)
	_ = response.Body.Close()
	w.held(0)
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_hold_seconds_count{model=%q,outcome="client_gone"} 1`, model))
	eventually(t, "the log says so", func() bool { return strings.Contains(w.log.String(), `"outcome"="client_gone"`) })
}
