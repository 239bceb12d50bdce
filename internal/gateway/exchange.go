package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/workerclient"
)

const (
	// maxLost is how many workers one request may lose after it was sent: one that kills its engine must not visit all.
	maxLost = 3
	// drainBytes of a refusal are read, so that its connection can be used again.
	drainBytes = 4 << 10
)

// What of a request goes to a worker and what of an answer to the client. Hosts are not trusted with keys and cookies,
// nor answers with the client's browser. Accept-Encoding is not among them: a compressed stream could not be watched.
var (
	requestHeaders  = []string{"Content-Type", "Accept", "User-Agent", "X-Request-Id", "Traceparent", "Tracestate"}
	responseHeaders = []string{"Content-Type", "Content-Length", "Content-Encoding", "Cache-Control", "Retry-After", "X-Request-Id"}
)

// exchange is one request on its way to an answer. Only its handler's goroutine touches it.
type exchange struct {
	g      *Gateway
	ctx    context.Context // of the client's request
	record *record
	model  string
	path   string
	header http.Header
	body   []byte

	lease *registry.Lease
	span  trace.Span // of the attempt at the lease's worker; nil without tracing
	wait  wait
	// buffer is what the answer is read with; nil before there is one.
	buffer *[]byte
}

func (e *exchange) release() {
	if e.lease != nil {
		e.attemptOver()
		e.lease.Release()
		e.lease = nil
	}
}

// giveBack ends an attempt that was not answered.
func (e *exchange) giveBack() {
	e.attemptOver()
	e.lease.Return()
	e.lease = nil
}

// attempts remembers where a request has been.
type attempts struct {
	skip map[string]bool
	// stale is a worker whose kept connection had died, once: it is worth another try, on a new connection.
	stale     string
	staleUsed bool
	lost      int
	// full: some worker has no room, so that one has as soon as an answer ends.
	full bool
	last *failure
}

// failure is why an attempt gave no answer.
type failure struct {
	// kind is "unreachable", "refused" or "lost", where lost means that the worker may have begun.
	kind string
	// refused is the agent's reason.
	refused string
	// reused: the connection had been used before, so its end may be old news.
	reused bool
	err    error
}

func (a *attempts) failed(uid string, f *failure) {
	a.last = f
	if a.skip == nil {
		a.skip = map[string]bool{}
	}
	a.skip[uid] = true
	a.full = a.full || f.refused == agentapi.RefusedFull
	if f.kind == "lost" {
		a.lost++
	}
	if f.reused && f.kind != "refused" && !a.staleUsed {
		a.stale = uid
	}
}

// send tries workers until one answers.
func (e *exchange) send() (*http.Response, error) {
	var tried attempts
	for {
		if !e.acquire(&tried) {
			if err := e.held(&tried); err != nil {
				return nil, err
			}
		}
		e.routed()
		if tried.last != nil {
			e.record.retries++
			e.g.metrics.retries.WithLabelValues(e.model, tried.last.kind).Inc()
		}
		response, f := e.try()
		e.attempted(response, f)
		if f == nil {
			return response, nil
		}
		tried.failed(e.lease.Worker.ClaimUID, f)
		if err := e.ended(); err != nil {
			e.release()
			return nil, err
		}
		e.reportFailure(f)
		e.giveBack()
		e.g.cfg.Log.V(1).Info("a worker did not answer", "model", e.model, "worker", e.record.worker, "kind", f.kind,
			"refused", f.refused, "error", fmt.Sprint(f.err))
		if tried.lost >= maxLost {
			return nil, workerLost()
		}
	}
}

// ended is set when nobody waits for an answer any more.
func (e *exchange) ended() error {
	switch {
	case e.ctx.Err() == nil:
		return nil
	case errors.Is(context.Cause(e.ctx), errEnding):
		return cutOff()
	}
	return e.ctx.Err()
}

func (e *exchange) acquire(tried *attempts) bool {
	e.lease = e.g.cfg.Registry.Acquire(e.model, tried.skip)
	if e.lease == nil && tried.stale != "" {
		delete(tried.skip, tried.stale)
		tried.stale, tried.staleUsed = "", true
		e.lease = e.g.cfg.Registry.Acquire(e.model, tried.skip)
	}
	if e.lease == nil {
		return false
	}
	e.record.worker = e.lease.Worker.Claim
	return true
}

// exhausted says why no worker is left to try.
func (e *exchange) exhausted(tried *attempts) *apiError {
	switch last := tried.last; {
	case tried.full && last.kind != "lost":
		return tooMany(retrySoon, "Every worker of the model %q has as many requests as it takes.", e.model)
	case last == nil && e.g.cfg.Registry.Full(e.model):
		return tooMany(retrySoon, "Every worker of the model %q has as many requests as it takes.", e.model)
	case last == nil: // The last worker left between the look-up and the choice.
		model, problem := e.g.known(e.model)
		if problem != nil {
			return problem
		}
		return notReady(model, expectedWait(model, e.g.cfg.Clock.Now()), e.g.cfg.HoldLimit > 0)
	case last.kind == "refused":
		return unavailable(retrySoon, "worker_busy", "Every worker of the model %q refused the request (%s).", e.model, last.refused)
	case last.kind == "unreachable":
		return unavailable(retrySoon, "worker_unreachable", "No worker of the model %q can be reached.", e.model)
	}
	return workerLost()
}

// try sends the request to the worker of the lease. It returns once the first byte of the answer is there.
func (e *exchange) try() (*http.Response, *failure) {
	span := e.attempt()
	transport, err := e.g.cfg.Workers.Transport(e.lease.Worker.ClaimUID)
	if err != nil {
		return nil, &failure{kind: "unreachable", err: err}
	}
	var reused, sent atomic.Bool
	ctx := httptrace.WithClientTrace(span, &httptrace.ClientTrace{
		GotConn:      func(c httptrace.GotConnInfo) { reused.Store(c.Reused) },
		WroteHeaders: func() { sent.Store(true) },
	})
	lost := func(err error) *failure {
		f := &failure{kind: "unreachable", reused: reused.Load(), err: err}
		var identity *workerclient.IdentityError
		if sent.Load() && !errors.As(err, &identity) { // Under TLS 1.3 a server refuses a certificate after it was sent to.
			f.kind = "lost"
		}
		return f
	}
	response, err := transport.RoundTrip(e.request(ctx))
	if err != nil {
		return nil, lost(err)
	}
	if f := unanswered(response); f != nil {
		_, _ = io.CopyN(io.Discard, response.Body, drainBytes) // Whatever comes of it, this answer is done with.
		_ = response.Body.Close()                              // As above.
		return nil, f
	}
	answer, err := e.open(response)
	if err != nil {
		_ = response.Body.Close() // The reason why is in err.
		return nil, lost(err)
	}
	return answer, nil
}

// unanswered tells the agent's word that its engine gave no answer from an answer.
func unanswered(response *http.Response) *failure {
	mark := response.Header.Get(agentapi.HeaderRefused)
	switch {
	case mark != "" && (response.StatusCode == http.StatusServiceUnavailable || response.StatusCode == http.StatusTooManyRequests):
		return &failure{kind: "refused", refused: reason(mark)}
	case response.StatusCode == http.StatusBadGateway:
		// Engines are no gateways: the agent says that its engine broke off before it answered.
		return &failure{kind: "lost", err: errors.New("the engine broke off")}
	}
	return nil
}

func (e *exchange) request(ctx context.Context) *http.Request {
	r := &http.Request{
		Method:        http.MethodPost,
		URL:           &url.URL{Scheme: "https", Host: e.lease.Worker.Endpoint, Path: e.path},
		Header:        pick(e.header, requestHeaders),
		Body:          io.NopCloser(bytes.NewReader(e.body)),
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(e.body)), nil },
		ContentLength: int64(len(e.body)),
	}
	e.g.tracing.inject(ctx, r.Header)
	return r.WithContext(ctx)
}

// open waits for the first byte and gives the client's form of an answer: a copy, so that nothing of the worker's that
// arrives later, like trailers, gets into it. Of its header the client gets the responseHeaders.
func (e *exchange) open(response *http.Response) (*http.Response, error) {
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil, errors.New("the worker switched protocols unasked")
	}
	stream := isStream(response)
	body := response.Body
	if response.StatusCode == http.StatusOK {
		e.takeBuffer(stream)
		n, err := first(body, *e.buffer)
		// An answer may be empty, a stream cannot: vLLM sends a stream's headers before it even queues the request.
		if n == 0 && err != nil && (stream || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		body = &begun{ReadCloser: body, first: (*e.buffer)[:n], err: err}
	}
	answer := &http.Response{
		StatusCode: response.StatusCode, ProtoMajor: 1, ProtoMinor: 1,
		Header: response.Header, Body: body, ContentLength: response.ContentLength,
	}
	switch {
	case stream:
		answer.Header.Del("Content-Length") // A stream that breaks gets longer.
		answer.ContentLength = -1
		answer.Body = e.stream(body)
	case response.StatusCode == http.StatusOK:
		answer.Body = e.whole(body)
	case response.StatusCode >= http.StatusInternalServerError:
		e.report(registry.Failed)
	default:
		e.report(registry.Answered)
	}
	return answer, nil
}

func isStream(response *http.Response) bool {
	return response.StatusCode == http.StatusOK && isEventStream(response.Header) && response.Header.Get("Content-Encoding") == ""
}

// isEventStream tells whether an answer with these headers is a stream of server-sent events.
func isEventStream(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// reason is the agent's mark if it is one of the known ones: it goes into an answer, and a worker's words do not.
func reason(mark string) string {
	switch mark {
	case agentapi.RefusedDraining, agentapi.RefusedNotReady, agentapi.RefusedNoModel, agentapi.RefusedFull:
		return mark
	}
	return "unknown reason"
}

func pick(from http.Header, names []string) http.Header {
	to := make(http.Header, len(names))
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			to[name] = values
		}
	}
	return to
}
