package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// generate answers what engines answer: it reads the request, finds its model and sends it to a worker.
func (g *Gateway) generate(w http.ResponseWriter, r *http.Request) {
	record := recordOf(w)
	body, problem := g.readBody(w, r)
	if problem != nil {
		write(w, problem)
		return
	}
	asked, problem := read(body)
	if problem == nil {
		asked, problem = g.named(asked)
	}
	if problem != nil {
		write(w, problem)
		return
	}
	model, problem := g.known(asked.model)
	if problem != nil {
		write(w, problem)
		return
	}
	record.model = model.Name
	inFlight := g.metrics.inFlight.WithLabelValues(model.Name)
	inFlight.Inc()
	defer inFlight.Dec()
	client := &heldWriter{ResponseWriter: w, record: record, stream: asked.stream && strings.HasSuffix(r.URL.Path, "/completions")}
	e := &exchange{g: g, ctx: r.Context(), record: record, model: model.Name, path: r.URL.Path, header: r.Header, body: asked.body,
		wait: wait{client: client}}
	defer e.done()
	//nolint:contextcheck // It has the request's.
	e.answer(client)
	client.finish()
}

// readBody reads the whole body, so that it can be sent more than once.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	if r.ContentLength > g.cfg.MaxBody {
		// The body is not read, so the connection cannot be used again.
		w.Header().Set("Connection", "close")
		return nil, tooLarge(g.cfg.MaxBody)
	}
	control := http.NewResponseController(w)
	// A writer without deadlines belongs to a server with limits of its own.
	_ = control.SetReadDeadline(g.cfg.Clock.Now().Add(readBodyTimeout))
	body, err := g.wholeBody(w, r)
	if err == nil {
		// The connection is now watched for the client's leaving, without limit. After a failure the limit stays: the
		// server reads some of what is left before it closes the connection.
		_ = control.SetReadDeadline(time.Time{})
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(g.cfg.MaxBody)
	case err != nil:
		w.Header().Set("Connection", "close")
		return nil, invalid(http.StatusBadRequest, "incomplete_body", "The request's body did not arrive whole.")
	}
	return body, nil
}

// wholeBody is the body, however long it says that it is.
func (g *Gateway) wholeBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// One allocation for honest lengths; a dishonest one costs no more than it sends.
	const most = 1 << 20
	if r.ContentLength >= 0 && r.ContentLength <= most {
		body := make([]byte, r.ContentLength)
		_, err := io.ReadFull(r.Body, body)
		return body, err
	}
	var buffer bytes.Buffer
	_, err := io.Copy(&buffer, http.MaxBytesReader(w, r.Body, g.cfg.MaxBody))
	return buffer.Bytes(), err
}

// asked is what of a request's body matters here.
type asked struct {
	body []byte
	// model is empty where the body names none.
	model  string
	stream bool
}

// read finds it. Of a name that is there twice the last counts, as it does for engines.
func read(body []byte) (asked, *apiError) {
	a := asked{body: body}
	var model []byte
	if !json.Valid(body) || !members(body, func(name, value []byte) {
		switch {
		case isName(name, "model"):
			model = value
		case isName(name, "stream"):
			a.stream = string(value) == "true"
		}
	}) {
		return a, invalid(http.StatusBadRequest, "invalid_json", "The request's body is not a JSON object.")
	}
	if model == nil || string(model) == "null" {
		return a, nil
	}
	var ok bool
	if a.model, ok = text(model); !ok {
		e := invalid(http.StatusBadRequest, "invalid_type", "\"model\" is not a string.")
		e.Param = &modelParam
		return a, e
	}
	return a, nil
}

// named is a with a model, in its body too: the agent goes by the name as well. A body that names one is not touched.
func (g *Gateway) named(a asked) (asked, *apiError) {
	if a.model != "" {
		return a, nil
	}
	a.model = g.cfg.DefaultModel
	if a.model == "" {
		if !g.cfg.Registry.Synced() {
			return a, starting()
		}
		only, ok := g.cfg.Registry.Only()
		if !ok {
			return a, noModelNamed()
		}
		a.model = only
	}
	var fields map[string]json.RawMessage
	err := json.Unmarshal(a.body, &fields)
	if err == nil {
		fields["model"], err = json.Marshal(a.model)
	}
	if err == nil {
		a.body, err = json.Marshal(fields)
	}
	if err != nil { // It was read before.
		return a, invalid(http.StatusBadRequest, "invalid_json", "The request's body is not a JSON object.")
	}
	return a, nil
}
