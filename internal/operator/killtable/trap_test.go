package killtable_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/ledger"
)

// trap ends the process at one named point. A point is a place in the code and the how-manieth time it is passed.
type trap struct {
	at    string
	mu    sync.Mutex
	seen  map[string]int
	trace *os.File
}

func newTrap(at, trace string) (*trap, error) {
	f, err := os.OpenFile(trace, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &trap{at: at, seen: map[string]int{}, trace: f}, err
}

func (t *trap) pass(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[name]++
	point := fmt.Sprintf("%s #%d", name, t.seen[name])
	if _, err := fmt.Fprintln(t.trace, point); err != nil {
		panic(err)
	}
	if point == t.at {
		os.Exit(killed)
	}
}

// around passes the two sides of a call.
func (t *trap) around(name string, call func() error) error {
	t.pass(name + ", before")
	err := call()
	t.pass(name + ", after")
	return err
}

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// kubernetes has a point on both sides of every write to the API server but events and leases.
func (t *trap) kubernetes(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (resp *http.Response, err error) {
		name := nameOfWrite(r)
		if name == "" {
			return next.RoundTrip(r)
		}
		err = t.around("kubernetes "+name, func() error {
			resp, err = next.RoundTrip(r)
			return err
		})
		return resp, err
	})
}

// nameOfWrite reads "PATCH gpunodeclaims/status: attempt instanceID", with what the write changes; "" for a read.
func nameOfWrite(r *http.Request) string {
	if r.Method == http.MethodGet {
		return ""
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := 2 // api/v1
	if parts[0] == "apis" {
		skip = 3
	}
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	what := parts[0]
	if what == "events" || what == "leases" {
		return ""
	}
	if len(parts) > 2 {
		what += "/" + parts[2]
	}
	name := r.Method + " " + what
	if r.Body == nil || r.Method == http.MethodDelete {
		return name
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return name
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if changes := changesIn(what, body); changes != "" {
		name += ": " + changes
	}
	return name
}

// changesIn names what a JSON body changes, the same in every run.
func changesIn(what string, body []byte) string {
	var o struct {
		Metadata map[string]any
		Status   map[string]any
	}
	if json.Unmarshal(body, &o) != nil || what == "pods/status" {
		return ""
	}
	if what == "gpunodepools/status" {
		list, _ := o.Status["reservations"].([]any)
		return fmt.Sprintf("%d reserved", len(list))
	}
	var keys []string
	for k := range o.Status {
		keys = append(keys, k)
	}
	for _, k := range []string{"finalizers", "annotations"} {
		if _, ok := o.Metadata[k]; ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return strings.Join(slices.DeleteFunc(keys, func(k string) bool { return k == "conditions" || k == "observedGeneration" }), " ")
}

// provider has a point before every call to the provider, one between the request that is sent and the answer that is
// read, and one after.
func (t *trap) provider() http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		name := "provider " + nameOfCall(r)
		t.pass(name + ", before")
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { t.pass(name + ", sent") },
		})
		resp, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
		t.pass(name + ", answered")
		return resp, err
	})
}

func nameOfCall(r *http.Request) string {
	one := strings.Contains(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/api/v0/instances"), "/"), "/") &&
		strings.HasPrefix(r.URL.Path, "/api/v0/instances")
	switch {
	case strings.Contains(r.URL.Path, "/asks/"):
		return "create"
	case one && r.Method == http.MethodDelete:
		return "destroy"
	case one:
		return "get"
	case strings.Contains(r.URL.Path, "/instances"):
		return "list"
	case strings.Contains(r.URL.Path, "/bundles"):
		return "search"
	}
	return "account"
}

type tracedLedger struct {
	claim.Ledger
	trap *trap
}

func (l tracedLedger) Intend(ctx context.Context, in ledger.Instance) error {
	return l.trap.around("ledger intend", func() error { return l.Ledger.Intend(ctx, in) })
}

func (l tracedLedger) Update(ctx context.Context, in ledger.Instance) error {
	what := "known"
	switch {
	case in.Refused:
		what = "refused"
	case in.GoneAt != nil:
		what = "gone"
	case in.RateFrom != nil:
		what = "rate"
	case in.InstanceID != "":
		what = "created"
	}
	return l.trap.around("ledger update "+what, func() error { return l.Ledger.Update(ctx, in) })
}

type tracedWorkers struct {
	claim.Workers
	trap *trap
}

func (w tracedWorkers) Status(ctx context.Context, endpoint, uid string) (s agentapi.Status, err error) {
	err = w.trap.around("agent status", func() error {
		s, err = w.Workers.Status(ctx, endpoint, uid)
		return err
	})
	return s, err
}

func (w tracedWorkers) PutModels(ctx context.Context, endpoint, uid string, d agentapi.DesiredModels) error {
	return w.trap.around("agent models", func() error { return w.Workers.PutModels(ctx, endpoint, uid, d) })
}

func (w tracedWorkers) Drain(ctx context.Context, endpoint, uid, model string) error {
	return w.trap.around("agent drain", func() error { return w.Workers.Drain(ctx, endpoint, uid, model) })
}
