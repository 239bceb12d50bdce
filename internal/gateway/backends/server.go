package backends

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/upstream"
)

const (
	// idleTimeout is below the 5 s after which vLLM closes a connection that it keeps (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).
	idleTimeout    = 4 * time.Second
	idleConns      = 256
	sessions       = 8
	maxHeaderBytes = 64 << 10
	maxList        = 1 << 20
)

// server is one URL. Its state belongs to Run's goroutine between looks and to its own look.
type server struct {
	base *url.URL
	uid  string
	// want are the models that it was given for; "" is all.
	want      []string
	transport *transport

	listed []string
	state  registry.State
	misses int
}

func (v *server) worker() registry.Worker {
	w := registry.Worker{Claim: v.base.String(), ClaimUID: v.uid, Endpoint: v.base.Host, Models: map[string]registry.State{}}
	models := slices.Clone(v.want)
	if slices.Contains(models, "") {
		models = append(models, v.listed...)
	}
	for _, model := range models {
		switch {
		case model == "":
		case v.state == registry.Ready && !slices.Contains(v.listed, model):
			w.Models[model] = stateNotListed
		default:
			w.Models[model] = v.state
		}
	}
	return w
}

// look asks the server how it is.
func (v *server) look(ctx context.Context, log logr.Logger) {
	before := v.state
	listed, state, err := v.ask(ctx)
	switch {
	case state == registry.Ready:
		v.listed, v.state, v.misses = listed, state, 0
	case state == stateUnreachable && before == registry.Ready && v.misses+1 < missed:
		v.misses++
		return
	default:
		v.state = state
	}
	if v.state != before {
		why := ""
		if err != nil {
			why = err.Error()
		}
		log.Info("a backend changed", "url", v.base.String(), "state", v.state, "models", v.listed, "error", why)
	}
}

func (v *server) ask(ctx context.Context) ([]string, registry.State, error) {
	status, _, err := v.get(ctx, "/health")
	switch {
	case err != nil:
		return nil, stateUnreachable, err
	case status/100 != 2 && status != http.StatusNotFound: // Not every server has the path.
		return nil, stateUnhealthy, fmt.Errorf("/health answers %d", status)
	}
	status, text, err := v.get(ctx, "/v1/models")
	switch {
	case err != nil:
		return nil, stateUnreachable, err
	case status == http.StatusUnauthorized:
		return nil, stateUnhealthy, errors.New("/v1/models wants another key; give it by VLLM_API_KEY")
	case status != http.StatusOK:
		return nil, stateUnhealthy, fmt.Errorf("/v1/models answers %d", status)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, stateUnhealthy, fmt.Errorf("/v1/models: %w", err)
	}
	var names []string
	for _, m := range list.Data {
		if m.ID != "" && !slices.Contains(names, m.ID) {
			names = append(names, m.ID)
		}
	}
	return names, registry.Ready, nil
}

func (v *server) get(ctx context.Context, path string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "http", Host: v.base.Host, Path: path}).String(), nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := v.transport.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }() // It was read.
	text, err := io.ReadAll(io.LimitReader(response.Body, maxList))
	return response.StatusCode, text, err
}

// transport sends requests to one URL, whatever their own says but for the path below it.
type transport struct {
	to   *url.URL
	key  string
	base *upstream.Transport
}

func newTransport(to *url.URL, key string) *transport {
	return &transport{to: to, key: key, base: upstream.New(&http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         upstream.Dialer(upstream.ConnectTimeout, upstream.SilenceTimeout).DialContext,
		TLSHandshakeTimeout: upstream.HandshakeTimeout,
		// Kept connections are few after a quiet time; new ones need not begin from nothing.
		TLSClientConfig:        &tls.Config{ClientSessionCache: tls.NewLRUClientSessionCache(sessions), MinVersion: tls.VersionTLS12},
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    idleConns,
		DisableCompression:     true, // It would buffer a stream, and hide what the engine sent.
		MaxResponseHeaderBytes: maxHeaderBytes,
	})}
}

// RoundTrip leaves r as it is.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := *r
	to := *r.URL
	to.Scheme, to.Host, to.Path = t.to.Scheme, t.to.Host, t.to.Path+r.URL.Path
	sent.URL = &to
	if t.key != "" {
		sent.Header = r.Header.Clone()
		if sent.Header == nil {
			sent.Header = http.Header{}
		}
		sent.Header.Set("Authorization", "Bearer "+t.key)
	}
	return t.base.RoundTrip(&sent)
}
