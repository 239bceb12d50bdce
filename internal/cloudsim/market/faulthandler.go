package market

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"time"
)

// WithFaults puts the market's faults in front of a façade. The operation of a request is opOf's; render answers in the
// provider's words for ServerError, ErrorAfter and TooMany. It must be served by a real server, whose connections it
// cuts.
func (m *Market) WithFaults(next http.Handler, opOf func(*http.Request) Op,
	render func(http.ResponseWriter, *http.Request, Fault)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := m.NextFault(opOf(r))
		switch f {
		case NoFault:
			next.ServeHTTP(w, r)
		case ServerError, TooMany:
			render(w, r, f)
		case ErrorAfter:
			next.ServeHTTP(newHeld(), r)
			render(w, r, f)
		case Timeout:
			m.wait(r, m.faultTimes().Hold)
			panic(http.ErrAbortHandler)
		case LostAnswer:
			next.ServeHTTP(newHeld(), r)
			panic(http.ErrAbortHandler)
		case Truncated:
			answer := newHeld()
			next.ServeHTTP(answer, r)
			answer.sendHalf(w)
			panic(http.ErrAbortHandler)
		case Slow:
			answer := newHeld()
			next.ServeHTTP(answer, r)
			m.wait(r, m.faultTimes().Delay)
			answer.send(w)
		case Late:
			m.late(w, r, next)
		default:
			render(w, r, f)
		}
	})
}

// late reads the request while it can be read, and performs it when the client may long have given up.
func (m *Market) late(w http.ResponseWriter, r *http.Request, next http.Handler) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	t := m.cfg.Clock.NewTimer(m.faultTimes().Delay)
	defer t.Stop()
	select {
	case <-t.C():
	case <-m.ctx.Done():
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(sent))
	next.ServeHTTP(w, r)
}

func (m *Market) faultTimes() FaultRates {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cfg.Faults
}

// wait ends early when the client has left, which a server notices only once the request has been read.
func (m *Market) wait(r *http.Request, d time.Duration) {
	_, _ = io.Copy(io.Discard, r.Body)
	t := m.cfg.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-r.Context().Done():
	case <-m.ctx.Done():
	}
}

// held is an answer that has been made and not sent.
type held struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newHeld() *held { return &held{header: http.Header{}, status: http.StatusOK} }

// Header is what will be sent.
func (h *held) Header() http.Header { return h.header }

// WriteHeader keeps the status.
func (h *held) WriteHeader(status int) { h.status = status }

// Write keeps the body.
func (h *held) Write(b []byte) (int, error) { return h.body.Write(b) }

func (h *held) head(w http.ResponseWriter) {
	for k, v := range h.header {
		w.Header()[k] = v
	}
	// The whole length, so that a client can tell that half an answer is half.
	w.Header().Set("Content-Length", strconv.Itoa(h.body.Len()))
	w.WriteHeader(h.status)
}

func (h *held) send(w http.ResponseWriter) {
	h.head(w)
	_, _ = w.Write(h.body.Bytes()) // A client that has left is its own affair.
}

func (h *held) sendHalf(w http.ResponseWriter) {
	h.head(w)
	_, _ = w.Write(h.body.Bytes()[:h.body.Len()/2])
	_ = http.NewResponseController(w).Flush()
}
