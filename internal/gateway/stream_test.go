package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
)

// lastEvent is the data of a stream's last event.
func lastEvent(t *testing.T, text string) string {
	t.Helper()
	if !strings.HasSuffix(text, "\n\n") {
		t.Fatalf("the stream ends within an event: %q", text)
	}
	events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	data, ok := strings.CutPrefix(events[len(events)-1], "data: ")
	if !ok {
		t.Fatalf("last event is %q", events[len(events)-1])
	}
	return data
}

func wantBroken(t *testing.T, a answer, code string) {
	t.Helper()
	if a.status != http.StatusOK || a.err != nil {
		t.Fatalf("status %d, %v", a.status, a.err)
	}
	wantError(t, answer{status: 0, text: lastEvent(t, a.text)}, 0, code)
	if strings.Contains(a.text, "[DONE]") {
		t.Errorf("a broken stream has [DONE]: %q", a.text)
	}
}

func TestStreamsPassByteForByte(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	for _, c := range []struct{ path, body string }{
		{chatPath, chat(`,"stream":true,"max_tokens":40,"n":2,"stream_options":{"include_usage":true}`)},
		{"/v1/completions", `{"model":"` + model + `","prompt":"x","stream":true,"max_tokens":20}`},
		{chatPath, chat(`,"max_tokens":5`)},
	} {
		before := len(a.answers())
		got := w.ask(c.path, c.body)
		if got.status != http.StatusOK || got.err != nil {
			t.Fatalf("%s: %d %q %v", c.path, got.status, got.text, got.err)
		}
		if want := a.answers()[before:]; got.text != want {
			t.Errorf("%s: client got\n%q\nworker sent\n%q", c.path, got.text, want)
		}
	}
	if got := w.ask(chatPath, chat(`,"stream":true`)); got.header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", got.header.Get("Content-Type"))
	}
}

func TestEmbeddings(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(func(c *vllmsim.Config) { c.Pooling = true })
	got := w.ask("/v1/embeddings", `{"model":"`+model+`","input":"x"}`)
	if got.status != http.StatusOK || got.text != a.answers() {
		t.Errorf("got %d %q", got.status, got.text)
	}
}

// An event reaches the client before the next one exists.
func TestStreamsAreNotBuffered(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	next := make(chan struct{}, 1)
	a.hook(func(rw http.ResponseWriter, r *http.Request) bool {
		rw.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			<-next
			_, _ = io.WriteString(rw, "data: {}\n\n")
			_ = http.NewResponseController(rw).Flush()
		}
		<-next
		_, _ = io.WriteString(rw, "data: [DONE]\n\n")
		return true
	})
	next <- struct{}{}
	response := must(w.post(t.Context(), chatPath, chat(`,"stream":true`)))
	defer response.Body.Close()
	reader := bufio.NewReader(response.Body)
	for i := range 4 {
		line := must(reader.ReadString('\n'))
		_ = must(reader.ReadString('\n'))
		if i < 3 {
			next <- struct{}{}
		} else if line != "data: [DONE]\n" {
			t.Errorf("last line %q", line)
		}
	}
	if rest := must(io.ReadAll(reader)); len(rest) != 0 {
		t.Errorf("after the end: %q", rest)
	}
}

func TestWorkerLostMidStreamEndsInAnError(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(func(c *vllmsim.Config) {
		c.Faults = []vllmsim.Fault{{Failure: vllmsim.FailStreamHang}}
	})
	other := w.add(nil)
	other.refuse.Store("draining") // The request goes to a; after its first byte nothing goes to other.
	response := must(w.post(t.Context(), chatPath, chat(`,"stream":true,"max_tokens":40`)))
	defer response.Body.Close()
	reader, got := bufio.NewReader(response.Body), ""
	for range 4 { // The role and three tokens are all that comes.
		got += must(reader.ReadString('\n')) + must(reader.ReadString('\n'))
	}
	other.refuse.Store("")
	a.kill()
	rest, err := io.ReadAll(reader)
	wantBroken(t, answer{status: response.StatusCode, text: got + string(rest), err: err}, "worker_lost")
	if got != a.answers() {
		t.Errorf("client got\n%q\nworker sent\n%q", got, a.answers())
	}
	if n := other.requests.Load(); n != 0 {
		t.Errorf("sent again after the first byte, %d times", n)
	}
	w.wantMetric(`gpuscale_gateway_streams_broken_total{model="` + model + `",reason="worker_lost"} 1`)
}

func TestStreamsThatEndEarlyOrWithAnErrorOfTheirOwn(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(func(c *vllmsim.Config) {
		c.Faults = []vllmsim.Fault{{Failure: vllmsim.FailStreamEOF, After: 1}, {Failure: vllmsim.FailStreamError}}
	})
	own := w.ask(chatPath, chat(`,"stream":true,"max_tokens":40`))
	if own.text != a.answers() || !strings.Contains(own.text, `"error"`) || !strings.HasSuffix(own.text, "[DONE]\n\n") {
		t.Errorf("the engine's own error event was changed: %q", own.text)
	}
	eof := newWorld(t, nil)
	eof.add(func(c *vllmsim.Config) { c.Faults = []vllmsim.Fault{{Failure: vllmsim.FailStreamEOF}} })
	wantBroken(t, eof.ask(chatPath, chat(`,"stream":true,"max_tokens":40`)), "stream_cut")
}

func TestHowBrokenStreamsAreClosed(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	var text string
	a.hook(func(rw http.ResponseWriter, r *http.Request) bool {
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, text)
		return true
	})
	for sent, want := range map[string]string{
		"data: {\"a\":1}\n\n":               "data: {\"a\":1}\n\ndata: {\"error\"",
		"data: {\"a\":1}\n":                 "data: {\"a\":1}\n\ndata: {\"error\"",
		"data: {\"a\"":                      "data: {\"a\"\n\ndata: {\"error\"",
		"data: x\r\n\r\n":                   "data: x\r\n\r\ndata: {\"error\"",
		"data: a [DONE]\n\n":                "data: a [DONE]\n\ndata: {\"error\"",
		"data: {}\n\ndata: [DONE]\n\n":      "",
		"data: {}\n\ndata:[DONE]\r\n\r\n":   "",
		"data: {}\n\ndata: [DONE]":          "",
		": a comment\n\ndata: [DONE]\n\n\n": "",
	} {
		text = sent
		got := w.ask(chatPath, chat(`,"stream":true`))
		if want == "" && got.text != sent {
			t.Errorf("%q became %q", sent, got.text)
		}
		if want != "" && !strings.HasPrefix(got.text, want) {
			t.Errorf("%q became %q", sent, got.text)
		}
	}
}

func TestClientThatLeavesCancelsTheEngine(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(func(c *vllmsim.Config) { c.TokensPerSecond = 1 })
	for _, body := range []string{chat(`,"stream":true,"max_tokens":1000`), chat(`,"max_tokens":1000`)} {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			response, err := w.post(ctx, chatPath, body)
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			left <- err
		}()
		eventually(t, "the engine runs it", func() bool { return a.engine.InFlight() == 1 })
		cancel()
		eventually(t, "the engine stops it", func() bool { return a.engine.InFlight() == 0 })
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	// The stream may have begun before its client left; the other answer cannot have.
	eventually(t, "counted as 499", func() bool { return strings.Contains(w.metrics(), `_requests_total{code="499",model="`+model+`"}`) })
	w.wantMetric(`gpuscale_gateway_in_flight{model="` + model + `"} 0`)
	eventually(t, "both are logged", func() bool { return strings.Count(w.log.String(), `"outcome"="client_gone"`) == 2 })
	if n := a.requests.Load(); n != 2 {
		t.Errorf("%d requests reached the worker: one was sent again for nobody", n)
	}
}

func TestAnswerCutShortBreaksTheConnection(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	a.hook(func(rw http.ResponseWriter, r *http.Request) bool {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"half":`)
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	})
	if got := w.ask(chatPath, chat("")); got.err == nil {
		t.Errorf("half an answer looks whole: %q", got.text)
	}
	w.wantMetric(`gpuscale_gateway_in_flight{model="` + model + `"} 0`)
}

func TestShutdownLetsStreamsFinish(t *testing.T) {
	w := newWorld(t, nil)
	w.add(func(c *vllmsim.Config) { c.TokensPerSecond = 100 })
	response := must(w.post(t.Context(), chatPath, chat(`,"stream":true,"max_tokens":30,"ignore_eos":true`)))
	defer response.Body.Close()
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ended <- w.gw.Shutdown(ctx)
	}()
	text, err := io.ReadAll(response.Body)
	if err != nil || lastEvent(t, string(text)) != "[DONE]" {
		t.Errorf("%q %v", text, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShutdownEndsWhatIsLeft(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(func(c *vllmsim.Config) { c.Faults = []vllmsim.Fault{{Failure: vllmsim.FailStreamHang}} })
	response := must(w.post(t.Context(), chatPath, chat(`,"stream":true,"max_tokens":30`)))
	defer response.Body.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.gw.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	text, err := io.ReadAll(response.Body)
	wantBroken(t, answer{status: response.StatusCode, text: string(text), err: err}, "shutting_down")
	eventually(t, "the engine stops it", func() bool { return a.engine.InFlight() == 0 })
}
