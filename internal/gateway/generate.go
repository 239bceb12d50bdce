package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"
)

// generate answers what engines answer: it reads the request, finds its model and hands both to the proxy.
func (g *Gateway) generate(w http.ResponseWriter, r *http.Request) {
	record := recordOf(w)
	body, problem := g.readBody(w, r)
	if problem != nil {
		write(w, problem)
		return
	}
	name, body, problem := g.modelOf(body)
	if problem != nil {
		write(w, problem)
		return
	}
	model, problem := g.known(name)
	if problem != nil {
		write(w, problem)
		return
	}
	record.model = model.Name
	inFlight := g.metrics.inFlight.WithLabelValues(model.Name)
	inFlight.Inc()
	defer inFlight.Dec()
	client := &heldWriter{ResponseWriter: w, record: record, stream: wantsStream(r.URL.Path, body)}
	e := &exchange{g: g, ctx: r.Context(), record: record, model: model.Name, path: r.URL.Path, header: r.Header, body: body,
		wait: wait{client: client}}
	defer e.done()
	g.proxy.ServeHTTP(client, e.attach(r))
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
	var buffer bytes.Buffer
	if r.ContentLength > 0 {
		// One allocation for honest lengths; a dishonest one costs no more than it sends.
		const most = 1 << 20
		buffer.Grow(int(min(r.ContentLength, most)) + bytes.MinRead)
	}
	_, err := io.Copy(&buffer, http.MaxBytesReader(w, r.Body, g.cfg.MaxBody))
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
	return buffer.Bytes(), nil
}

// modelOf is the model that a body means, and the body with it named: the agent goes by the name too. A body that names
// one is not touched.
func (g *Gateway) modelOf(body []byte) (string, []byte, *apiError) {
	// A map and not a struct, whose fields would match in any case while the engine's do not.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return "", nil, invalid(http.StatusBadRequest, "invalid_json", "The request's body is not a JSON object.")
	}
	var name *string
	if raw, ok := fields["model"]; ok {
		if json.Unmarshal(raw, &name) != nil {
			e := invalid(http.StatusBadRequest, "invalid_type", "\"model\" is not a string.")
			e.Param = &modelParam
			return "", nil, e
		}
	}
	if name != nil && *name != "" {
		return *name, body, nil
	}
	chosen := g.cfg.DefaultModel
	if chosen == "" {
		if !g.cfg.Registry.Synced() {
			return "", nil, starting()
		}
		only, ok := g.cfg.Registry.Only()
		if !ok {
			return "", nil, noModelNamed()
		}
		chosen = only
	}
	var err error
	if fields["model"], err = json.Marshal(chosen); err == nil {
		body, err = json.Marshal(fields)
	}
	if err != nil { // Neither can fail: both are made of what was just parsed.
		return "", nil, invalid(http.StatusBadRequest, "invalid_json", "The request's body is not a JSON object.")
	}
	return chosen, body, nil
}
