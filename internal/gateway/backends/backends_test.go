package backends_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	testclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway/backends"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

const model = "Qwen/Qwen3-0.6B"

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"m=http://a:8000":                        "m http://a:8000",
		"org/m:tag=http://a:8000,https://b/v1":   "org/m:tag http://a:8000 https://b",
		"http://a:8000/":                         " http://a:8000",
		"http://a/prefix/v1/, http://b:1":        " http://a/prefix http://b:1",
		"m=a:8000":                               "",
		"a:8000":                                 "",
		"=http://a":                              "",
		"m=http://":                              "",
		"m=ftp://a":                              "",
		"m=http://a?x=1":                         "",
		"m=http://user:very-secret@a":            "",
		"m=http://a:very-secret":                 "",
		"m=http://a,":                            "",
		"":                                       "",
		"m=http://a#x":                           "",
		"http://a,m=http://b:8000":               "",
		"m=http://a,http://user:very-secret@b:1": "",
	} {
		b, err := backends.Parse(text)
		if (err == nil) != (want != "") {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if err != nil {
			if strings.Contains(err.Error(), "very-secret") {
				t.Errorf("the error repeats a password: %v", err)
			}
			continue
		}
		got := b.Model
		for _, u := range b.URLs {
			got += " " + u.String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// vllm is a server whose health a test decides.
type vllm struct {
	*httptest.Server

	health atomic.Int64
	silent atomic.Bool
	keys   sync.Map
}

func start(t *testing.T, name string) *vllm {
	t.Helper()
	v := &vllm{}
	v.health.Store(http.StatusOK)
	engine := vllmsim.New(vllmsim.Config{Model: name})
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.keys.Store(r.Header.Get("Authorization"), true)
		switch {
		case v.silent.Load():
			panic(http.ErrAbortHandler)
		case r.URL.Path == "/health":
			w.WriteHeader(int(v.health.Load()))
		default:
			engine.Handler().ServeHTTP(w, r)
		}
	}))
	t.Cleanup(v.Close)
	t.Cleanup(engine.Abort)
	return v
}

// looks is a source that looks when the test steps its clock.
type looks struct {
	t       *testing.T
	source  *backends.Source
	clock   *testclock.FakeClock
	reg     *registry.Registry
	applied atomic.Int64
}

func follow(t *testing.T, key string, list ...string) *looks {
	t.Helper()
	l := &looks{t: t, clock: testclock.NewFakeClock(time.Unix(1000, 0))}
	var parsed []backends.Backend
	for _, text := range list {
		b, err := backends.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, b)
	}
	l.source = backends.New(parsed, backends.Options{Key: key, Clock: l.clock, Log: logr.Discard()})
	l.reg = registry.New(l.clock, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.source.Run(ctx, func(s registry.Snapshot) { l.reg.Apply(s); l.applied.Add(1) }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	l.waits()
	return l
}

// waits returns when a look is over.
func (l *looks) waits() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !l.clock.HasWaiters() {
		select {
		case <-ctx.Done():
			l.t.Fatal("the look does not end")
		case <-tick.C:
		}
	}
}

func (l *looks) look() {
	l.t.Helper()
	l.clock.Step(backends.DefaultInterval)
	l.waits()
}

func (l *looks) workers(name string) int {
	m, _ := l.reg.Model(name)
	return m.Workers
}

func TestAServerServesWhileItIsWellAndListsTheModel(t *testing.T) {
	a, b := start(t, model), start(t, "another")
	l := follow(t, "", model+"="+a.URL+","+b.URL)
	if l.workers(model) != 1 || l.workers("another") != 0 {
		t.Fatalf("models %v", l.reg.Models())
	}
	for _, code := range []int64{http.StatusServiceUnavailable, http.StatusNotFound} {
		a.health.Store(code)
		l.look()
		if want := map[bool]int{true: 1}[code == http.StatusNotFound]; l.workers(model) != want {
			t.Errorf("with %d at /health: %d workers, want %d", code, l.workers(model), want)
		}
	}
	a.silent.Store(true)
	for i, want := range []int{1, 1, 0, 0} {
		l.look()
		if l.workers(model) != want {
			t.Errorf("silent at %d looks: %d workers, want %d", i+1, l.workers(model), want)
		}
	}
	if m, ok := l.reg.Model(model); !ok || m.Stage == "" {
		t.Errorf("without a worker: %+v, %t", m, ok)
	}
	a.silent.Store(false)
	before := l.applied.Load()
	l.look()
	l.look()
	if l.workers(model) != 1 || l.applied.Load() != before+1 {
		t.Errorf("back: %d workers, applied %d times", l.workers(model), l.applied.Load()-before)
	}
}

func TestAURLAloneServesAllThatItLists(t *testing.T) {
	a := start(t, model)
	l := follow(t, "sk-backend", a.URL+"/v1")
	if l.workers(model) != 1 {
		t.Fatalf("models %v", l.reg.Models())
	}
	lease := l.reg.Acquire(model, nil)
	defer lease.Release()
	transport, ok := l.source.Transport(lease.Worker.ClaimUID)
	if _, other := l.source.Transport("uid-7"); !ok || other {
		t.Fatal("transports")
	}
	// As the gateway makes it, for a worker over TLS.
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "https", Host: lease.Worker.Endpoint, Path: "/v1/completions"},
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"model":"` + model + `","prompt":"x","max_tokens":3}`))}
	response, err := transport.RoundTrip(r.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || r.URL.Scheme != "https" || r.Header.Get("Authorization") != "" {
		t.Errorf("%d; the request was changed: %v %v", response.StatusCode, r.URL, r.Header)
	}
	a.keys.Range(func(key, _ any) bool {
		if key != "Bearer sk-backend" {
			t.Errorf("the server got the key %q", key)
		}
		return true
	})
}
