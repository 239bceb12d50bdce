// Package backends makes OpenAI-compatible servers at plain URLs, such as vLLM in the cluster, the gateway's registry:
// each is a worker that serves a model while its /health is well and its /v1/models lists the model.
package backends

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// Backend is a model and the servers that have it.
type Backend struct {
	// Model as the servers call it. Empty means every model that they list.
	Model string
	URLs  []*url.URL
}

// Parse reads "model=http://host:port[,http://…]", or only the URLs for all models that they list. A URL may end in the
// /v1 that clients are given.
func Parse(text string) (Backend, error) {
	var b Backend
	rest := text
	if model, after, ok := strings.Cut(text, "=http"); ok && !strings.Contains(model, "://") {
		b.Model, rest = strings.TrimSpace(model), "http"+after
		if b.Model == "" {
			return b, fmt.Errorf("backend %q has no model before the =", text)
		}
	}
	for part := range strings.SplitSeq(rest, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		switch {
		case err != nil: // Its text repeats the URL, which may hold a password.
			return b, errors.New("a backend's URL cannot be read; it is model=http://host:port")
		case u.User != nil:
			return b, errors.New("a backend's URL has a user in it; give a key by VLLM_API_KEY")
		case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "":
			return b, fmt.Errorf("backend %q is not model=http://host:port[,http://host:port]", text)
		}
		b.URLs = append(b.URLs, &url.URL{Scheme: u.Scheme, Host: u.Host,
			Path: strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")})
	}
	return b, nil
}

const (
	// DefaultInterval is how often each server is looked at.
	DefaultInterval = 5 * time.Second
	checkTimeout    = 4 * time.Second
	// missed checks in a row end a server's readiness: a busy one may answer late. What it says counts at once.
	missed = 3

	// UIDPrefix begins the ClaimUID of every worker of this package; the URL follows.
	UIDPrefix = "url:"
)

// Why a server is not ready for a model, as registry states.
const (
	stateUnreachable registry.State = "Unreachable"
	stateUnhealthy   registry.State = "Unhealthy"
	stateNotListed   registry.State = "NotListed"
)

// Options of a Source. Clock is required.
type Options struct {
	// Key is sent to every server as the bearer token; empty means none.
	Key string
	// Interval between two looks; 0 means DefaultInterval.
	Interval time.Duration
	Clock    clock.Clock
	Log      logr.Logger
}

// Source is a registry.Source and carries the requests to its servers.
type Source struct {
	options Options
	servers []*server
}

var _ registry.Source = (*Source)(nil)

// New makes a Source. A URL may come up for several models.
func New(list []Backend, o Options) *Source {
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	s := &Source{options: o}
	for _, b := range list {
		for _, u := range b.URLs {
			s.add(b.Model, u)
		}
	}
	return s
}

func (s *Source) add(model string, u *url.URL) {
	for _, known := range s.servers {
		if known.base.String() == u.String() {
			known.want = append(known.want, model)
			return
		}
	}
	s.servers = append(s.servers, &server{base: u, uid: UIDPrefix + u.String(), want: []string{model}, transport: newTransport(u, s.options.Key)})
}

// Transport carries requests to the server with that UID; false means that it has none such.
func (s *Source) Transport(uid string) (http.RoundTripper, bool) {
	for _, v := range s.servers {
		if uid == v.uid {
			return v.transport, true
		}
	}
	return nil, false
}

// Run looks at every server now and every interval, until ctx ends.
func (s *Source) Run(ctx context.Context, apply func(registry.Snapshot)) error {
	defer func() {
		for _, v := range s.servers {
			v.transport.base.CloseIdleConnections()
		}
	}()
	var last *registry.Snapshot
	for {
		s.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if now := s.snapshot(); last == nil || !reflect.DeepEqual(*last, now) {
			apply(now)
			last = &now
		}
		timer := s.options.Clock.NewTimer(s.options.Interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// look asks all servers at once, so that a hung one delays the news of the others by its time-out at most.
func (s *Source) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, v := range s.servers {
		wg.Go(func() { v.look(ctx, s.options.Log) })
	}
	wg.Wait()
}

func (s *Source) snapshot() registry.Snapshot {
	var out registry.Snapshot
	known := map[string]bool{}
	for _, v := range s.servers {
		out.Workers = append(out.Workers, v.worker())
		for _, model := range v.want {
			if model != "" && !known[model] {
				known[model] = true
				out.Models = append(out.Models, registry.Known{Name: model})
			}
		}
	}
	return out
}
