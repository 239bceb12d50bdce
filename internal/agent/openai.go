package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const maxModelName = 512

// generates are the paths that reach an engine. Everything else that an engine serves stays on loopback.
var generates = []string{
	"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank",
}

// generate passes a request to the engine of the model that its body names, and counts it until it has ended.
func (a *Agent) generate(w http.ResponseWriter, r *http.Request) {
	held := a.hold(r.ContentLength)
	if held < 0 {
		refuse(w, agentapi.RefusedFull)
		return
	}
	defer func() { a.held.Add(-held) }()
	body, err := a.readBody(w, r)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			openAIError(w, http.StatusRequestEntityTooLarge, "request body is too large")
			return
		}
		openAIError(w, http.StatusBadRequest, "request body cannot be read")
		return
	}
	model, err := modelOf(body)
	if err != nil {
		openAIError(w, http.StatusBadRequest, err.Error())
		return
	}
	u, proxy, refusal := a.admit(model)
	if refusal != "" {
		refuse(w, refusal)
		return
	}
	// Also when the proxy panics, which is how it breaks a stream off.
	defer a.dismiss(u)
	r.Body = io.NopCloser(bytes.NewReader(body))
	// With it the transport can send the request again when the engine closed an idle connection under it.
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	answer := &answer{ResponseWriter: w, control: http.NewResponseController(w), unit: u}
	defer answer.done()
	proxy.ServeHTTP(answer, r)
}

// mostHeld bounds the bodies of all requests in flight together. The memory that they take is the engines'.
const mostHeld = 1 << 30

// hold makes room for a body of n bytes, of unknown length where n is negative, and returns what is to be given back, or
// -1 if there is no room now.
func (a *Agent) hold(n int64) int64 {
	a.mu.Lock()
	most := a.maxBody
	a.mu.Unlock()
	if n < 0 || n > most {
		n = most
	}
	if a.held.Add(n) > max(mostHeld, most) {
		a.held.Add(-n)
		return -1
	}
	return n
}

// answer passes an engine's answer on, and notes that it goes on. A caller who takes nothing of it is given up after a
// while, since a request in flight keeps a machine rented.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	unit    *unit
}

// Write passes a piece on.
func (a *answer) Write(p []byte) (int, error) {
	if len(p) > 0 && p[0] != ':' { // A comment is some server's way of keeping a stream open, and no work of its engine.
		a.unit.heard.Add(1)
	}
	// A writer without deadlines is a test's.
	_ = a.control.SetWriteDeadline(soon(a.unit.agent.cfg.Settings.WriteTimeout))
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// done gives the connection back without a limit.
func (a *answer) done() { _ = a.control.SetWriteDeadline(time.Time{}) }

// readBody reads the whole body within its limits of size and time, so that the request can be sent more than once and a
// slow caller holds nothing of the engine's.
func (a *Agent) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	a.mu.Lock()
	most := a.maxBody
	a.mu.Unlock()
	control := http.NewResponseController(w)
	// A writer without deadlines is a test's.
	_ = control.SetReadDeadline(soon(a.cfg.Settings.BodyTimeout))
	if r.ContentLength > most {
		w.Header().Set("Connection", "close")
		return nil, &http.MaxBytesError{Limit: most}
	}
	var body bytes.Buffer
	if r.ContentLength > 0 {
		// One allocation for most; a caller who promises much and sends little costs little.
		body.Grow(int(min(r.ContentLength, 1<<20)) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, most)); err != nil {
		// The deadline stays: the server reads some of what is left before it closes the connection.
		w.Header().Set("Connection", "close")
		return nil, err
	}
	_ = control.SetReadDeadline(time.Time{}) // From now on the connection is only watched for the caller's leaving.
	return body.Bytes(), nil
}

// text is a short JSON string; other values are passed over without being copied.
type text struct{ value string }

// UnmarshalJSON never fails on valid JSON.
func (t *text) UnmarshalJSON(raw []byte) error {
	if raw[0] != '"' || len(raw) > 6*maxModelName {
		t.value = ""
		return nil
	}
	return json.Unmarshal(raw, &t.value)
}

// modelOf reads "model" from a body as an engine would: the key exactly so, and of two the last. A struct would also
// take "Model", so that the agent could count one model and the engine serve another.
func modelOf(body []byte) (string, error) {
	var fields map[string]text
	if json.Unmarshal(body, &fields) != nil {
		return "", errors.New("request body is not a JSON object")
	}
	model := fields["model"].value
	if model == "" {
		return "", errors.New("request body names no model")
	}
	return model, nil
}

// listModels is GET /v1/models: what is Ready here.
func (a *Agent) listModels(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []entry `json:"data"`
	}{Object: "list", Data: []entry{}}
	a.mu.Lock()
	for _, u := range a.units {
		if u.state == agentapi.StateReady && !u.retiring && !a.closed() {
			list.Data = append(list.Data, entry{ID: u.spec.Name, Object: "model", Created: u.since.Unix(), OwnedBy: "gpuscale"})
		}
	}
	a.mu.Unlock()
	writeJSON(w, http.StatusOK, list)
}

// exchange sends requests to an engine for the proxy.
type exchange struct{ engine http.RoundTripper }

// RoundTrip sends a copy of r with its body from memory: the proxy wraps bodies, and of one that it does not know the
// transport sends the headers in a packet of their own, and wakes the engine twice. The answer has no trailers, which
// would come past whatever looks at its headers.
func (e exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := *r
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		sent.Body = body
	}
	response, err := e.engine.RoundTrip(&sent)
	if err != nil {
		return nil, err
	}
	answer := *response // What reads the body sets the trailers of the original.
	answer.Trailer = nil
	return &answer, nil
}

// buffers are those that answers are copied through.
type buffers struct{ pool sync.Pool }

var shared = &buffers{sync.Pool{New: func() any { return new([copyBytes]byte) }}}

// copyBytes is more than an event of a stream, and less than a TLS record.
const copyBytes = 8 << 10

// Get takes a buffer.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[copyBytes]byte); ok {
		return buffer[:]
	}
	return make([]byte, copyBytes)
}

// Put gives one back.
func (b *buffers) Put(buffer []byte) {
	if len(buffer) == copyBytes {
		b.pool.Put((*[copyBytes]byte)(buffer))
	}
}

// newProxy passes requests to one engine. What it streams, or gives no length of, is passed on as it comes.
func newProxy(engine Engine, logger *slog.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:  exchange{engine.Transport()},
		BufferPool: shared,
		ErrorLog:   log.New(logLines{logger}, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "engine", "engine"
			// A key of the gateway's clients is nothing for the engine, which would log or refuse it.
			r.Out.Header.Del("Authorization")
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode < http.StatusOK || r.StatusCode > 599 {
				return fmt.Errorf("status %d", r.StatusCode) // No answer can have it, and no request asks for another protocol.
			}
			r.Header.Del(agentapi.HeaderRefused) // It is the agent's word alone.
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var op *net.OpError
			switch {
			case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
				// The client left: nobody reads an answer.
			case errors.As(err, &op) && op.Op == "dial":
				// The engine has just gone. The request never reached it and can be sent elsewhere.
				refuse(w, agentapi.RefusedNotReady)
			default:
				openAIError(w, http.StatusBadGateway, "the engine broke off: "+shorten(err.Error(), 120))
			}
		},
	}
}

var refusals = map[string]string{
	agentapi.RefusedDraining: "this worker is draining",
	agentapi.RefusedNotReady: "the model is not ready on this worker",
	agentapi.RefusedNoModel:  "the model is not served by this worker",
	agentapi.RefusedFull:     "the model has as many requests as it takes on this worker; try again shortly",
}

// retryAfter is the Retry-After of a full engine, in seconds. A place is free with the next answer that ends.
const retryAfter = "1"

// refuse answers with the marked 503, or 429 for want of room, which says that the request was not started.
func refuse(w http.ResponseWriter, refusal string) {
	w.Header().Set(agentapi.HeaderRefused, refusal)
	code := http.StatusServiceUnavailable
	if refusal == agentapi.RefusedFull {
		code = http.StatusTooManyRequests
		w.Header().Set("Retry-After", retryAfter)
	}
	openAIError(w, code, refusals[refusal])
}

// openAIError answers as vLLM does.
func openAIError(w http.ResponseWriter, code int, message string) {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	kind := strings.ReplaceAll(http.StatusText(code), " ", "") + "Error"
	writeJSON(w, code, map[string]body{"error": {Message: message, Type: kind, Code: code}})
}
