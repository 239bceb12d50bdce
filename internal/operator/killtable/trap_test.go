package killtable_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/ledger"
)

// trap ends the process at one named point. A point is a place in the code and the how-manieth time it is passed.
type trap struct {
	at     string
	panics bool // ends with a panic that nobody recovers, not with os.Exit
	mu     sync.Mutex
	seen   map[string]int
	trace  *os.File
}

func newTrap(o orders) (*trap, error) {
	f, err := os.OpenFile(o.Trace, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &trap{at: o.KillAt, panics: o.Panics, seen: map[string]int{}, trace: f}, err
}

// pass notes a point under each of its names, as one line of the trace, and ends the process if it is to end at one of
// them.
func (t *trap) pass(side string, names ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var line []string
	for _, name := range names {
		name += ", " + side
		t.seen[name]++
		line = append(line, fmt.Sprintf("%s #%d", name, t.seen[name]))
	}
	if _, err := fmt.Fprintln(t.trace, strings.Join(line, "\t")); err != nil {
		panic(err)
	}
	if slices.Contains(line, t.at) {
		if t.panics {
			panic("planted: the controllers break")
		}
		os.Exit(killed)
	}
}

// pointOf is the name by which a line of a trace is known: that which was seen least often before. A write has one for
// each thing that it changes, so that it is met again when another run joins it with a write before or after it.
func pointOf(line string) string {
	nth := func(point string) int {
		n, _ := strconv.Atoi(point[strings.LastIndex(point, "#")+1:])
		return n
	}
	return slices.MinFunc(strings.Split(line, "\t"), func(a, b string) int {
		return cmp.Or(nth(a)-nth(b), strings.Compare(a, b))
	})
}

func TestAWriteIsKnownByWhatIsNewInIt(t *testing.T) {
	for line, want := range map[string]string{
		"provider create, sent #1": "provider create, sent #1",
		"PATCH c: attempt, before #2\tPATCH c: instanceID, before #1\tPATCH c: step Created, before #1": "PATCH c: instanceID, before #1",
		"PATCH c: models, after #10\tPATCH c: step A, after #9":                                         "PATCH c: step A, after #9",
	} {
		if got := pointOf(line); got != want {
			t.Errorf("%q is %q, want %q", line, got, want)
		}
	}
	body := `{"status":{"phase":"Ready","lastContactAt":"x","steps":[{"name":"A"},{"name":"B"}],"conditions":[],"models":[]},"metadata":{"finalizers":null}}`
	got := namesOfChanges("gpunodeclaims/status", []byte(body))
	if want := []string{"finalizers off", "models", "phase Ready", "step A", "step B"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// around passes the two sides of a call.
func (t *trap) around(call func() error, names ...string) error {
	t.pass("before", names...)
	err := call()
	t.pass("after", names...)
	return err
}

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// kubernetes has a point on both sides of every write to the API server but events and leases.
func (t *trap) kubernetes(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (resp *http.Response, err error) {
		names := namesOfWrite(r)
		if names == nil {
			return next.RoundTrip(r)
		}
		err = t.around(func() error {
			resp, err = next.RoundTrip(r)
			return err
		}, names...)
		return resp, err
	})
}

// namesOfWrite are like "kubernetes PATCH gpunodeclaims/status: instanceID", one for each thing that the write changes; nil
// for a read.
func namesOfWrite(r *http.Request) []string {
	if r.Method == http.MethodGet {
		return nil
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
		return nil
	}
	if len(parts) > 2 {
		what += "/" + parts[2]
	}
	name := "kubernetes " + r.Method + " " + what
	if r.Body == nil || r.Method == http.MethodDelete {
		return []string{name}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return []string{name}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var names []string
	for _, change := range namesOfChanges(what, body) {
		names = append(names, name+": "+change)
	}
	if names == nil {
		names = []string{name}
	}
	return names
}

// namesOfChanges are what a JSON body changes, the same in every run: of a list of steps each step, of a phase its value.
// When an agent was last heard is no change of its own: it goes with whatever is written next.
func namesOfChanges(what string, body []byte) (names []string) {
	var o struct {
		Metadata map[string]any
		Status   map[string]any
	}
	if json.Unmarshal(body, &o) != nil || what == "pods/status" {
		return nil
	}
	if what == "gpunodepools/status" {
		list, _ := o.Status["reservations"].([]any)
		return []string{fmt.Sprintf("%d reserved", len(list))}
	}
	for k, v := range o.Status {
		switch k {
		case "conditions", "observedGeneration", "lastContactAt":
		case "phase":
			names = append(names, fmt.Sprint(k, " ", v))
		case "steps":
			list, _ := v.([]any)
			for _, step := range list {
				of, _ := step.(map[string]any)
				names = append(names, fmt.Sprint("step ", of["name"]))
			}
		default:
			names = append(names, k)
		}
	}
	for _, k := range []string{"finalizers", "annotations"} {
		switch v, ok := o.Metadata[k]; {
		case ok && v == nil:
			names = append(names, k+" off")
		case ok:
			names = append(names, k)
		}
	}
	slices.Sort(names)
	return names
}

// provider has a point before every call to the provider, one between the request that is sent and the answer that is
// read, and one after.
func (t *trap) provider() http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		name := "provider " + nameOfCall(r)
		t.pass("before", name)
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { t.pass("sent", name) },
		})
		resp, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
		t.pass("answered", name)
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
	return l.trap.around(func() error { return l.Ledger.Intend(ctx, in) }, "ledger intend")
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
	return l.trap.around(func() error { return l.Ledger.Update(ctx, in) }, "ledger update "+what)
}

type tracedWorkers struct {
	claim.Workers
	trap *trap
}

func (w tracedWorkers) Status(ctx context.Context, endpoint, uid string) (s agentapi.Status, err error) {
	err = w.trap.around(func() error {
		s, err = w.Workers.Status(ctx, endpoint, uid)
		return err
	}, "agent status")
	return s, err
}

func (w tracedWorkers) PutModels(ctx context.Context, endpoint, uid string, d agentapi.DesiredModels) error {
	return w.trap.around(func() error { return w.Workers.PutModels(ctx, endpoint, uid, d) }, "agent models")
}

func (w tracedWorkers) Drain(ctx context.Context, endpoint, uid, model string) error {
	return w.trap.around(func() error { return w.Workers.Drain(ctx, endpoint, uid, model) }, "agent drain")
}
