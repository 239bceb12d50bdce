package vastai_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// descriptionPath is the vendor's own description of its API, which is not part of the project.
const descriptionPath = "../../../../shared/reference/openapi/vastai.yaml"

// excuse is a place where the description is known to be wrong.
type excuse struct {
	method, path string // as in the description; "" is any
	response     bool
	contains     string // in the validator's words
	why          string
}

func excuses() []excuse {
	return []excuse{
		{"PUT", "/api/v0/asks/{id}", false, `'/env': got object, want string`,
			"env is described as a flag string, which is the form of templates; the CLI and every client send an object"},
		{"POST", "/api/v0/bundles", false, `'/order': minItems: got 1, want 2`,
			"minItems and maxItems of the pair are written at the list of pairs, so the common single pair is refused"},
		{"GET", "/api/v0/instances/{id}", true, `"/instances": Value is not nullable`,
			"an instance that is gone is null with status 200; clients depend on it"},
		{"GET", "/api/v0/instances/{id}", true, `"/instances/extra_env/`,
			"extra_env is described as a list of strings here and as a list of pairs in the list; the latter is real"},
		{"GET", "/api/v0/instances/{id}", true, `"/instances/ports`,
			"ports is described as a list of numbers here and as an object of bindings in the list; the latter is real"},
	}
}

// description finds operations in the vendor's description and validates against them.
type description struct {
	doc    *openapi3.T
	seen   map[string]int
	needed map[string]bool // excuses, by their text
}

func readDescription(t *testing.T) *description {
	t.Helper()
	raw, err := os.ReadFile(descriptionPath)
	if err != nil {
		t.Skipf("the vendor's API description is not here: %v", err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &description{doc: doc, seen: map[string]int{}, needed: map[string]bool{}}
}

// route finds a described operation; paths are described without their last slash.
func (d *description) route(r *http.Request) (*routers.Route, map[string]string) {
	have := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for path, item := range d.doc.Paths.Map() {
		want := strings.Split(strings.Trim(path, "/"), "/")
		params, ok := match(want, have)
		op := item.GetOperation(r.Method)
		if ok && op != nil {
			return &routers.Route{Spec: d.doc, Path: path, PathItem: item, Method: r.Method, Operation: op}, params
		}
	}
	return nil, nil
}

func match(want, have []string) (map[string]string, bool) {
	if len(want) != len(have) {
		return nil, false
	}
	params := map[string]string{}
	for i, w := range want {
		switch {
		case strings.HasPrefix(w, "{"):
			if strings.ContainsAny(have[i], "abcdefghijklmnopqrstuvwxyz") {
				return nil, false
			}
			params[strings.Trim(w, "{}")] = have[i]
		case w != have[i]:
			return nil, false
		}
	}
	return params, true
}

// check validates one exchange; it returns what is wrong with each half, excuses left out.
func (d *description) check(r *http.Request, sent []byte, res *http.Response, got []byte) (request, response error) {
	route, params := d.route(r)
	if route == nil {
		return nil, nil
	}
	d.seen[r.Method+" "+route.Path]++
	clone := r.Clone(context.Background())
	clone.Body = io.NopCloser(bytes.NewReader(sent))
	clone.ContentLength = int64(len(sent))
	in := &openapi3filter.RequestValidationInput{Request: clone, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, MultiError: true}}
	request = d.excused(route, false, openapi3filter.ValidateRequest(context.Background(), in))
	if route.Operation.Responses.Status(res.StatusCode) == nil {
		return request, nil // The vendor answers with more statuses than it describes.
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: res.StatusCode, Header: res.Header,
		Body: io.NopCloser(bytes.NewReader(got)), Options: &openapi3filter.Options{MultiError: true}}
	return request, d.excused(route, true, openapi3filter.ValidateResponse(context.Background(), out))
}

// excused leaves the errors that no excuse explains.
func (d *description) excused(route *routers.Route, response bool, err error) error {
	var left []error
	for _, leaf := range leaves(err) {
		explained := slices.ContainsFunc(excuses(), func(e excuse) bool {
			fits := e.method == route.Method && e.path == route.Path && e.response == response &&
				strings.Contains(leaf.Error(), e.contains)
			if fits {
				d.needed[e.contains] = true
			}
			return fits
		})
		if !explained {
			left = append(left, leaf)
		}
	}
	return errors.Join(left...)
}

// leaves are the single mistakes in a validator's error.
func leaves(err error) []error {
	var many openapi3.MultiError
	if !errors.As(err, &many) {
		if err == nil {
			return nil
		}
		return []error{err}
	}
	var out []error
	for _, e := range many {
		out = append(out, leaves(e)...)
	}
	return out
}

func TestAgainstTheVendorsDescription(t *testing.T) {
	d := readDescription(t)
	r := newRig(t, realistic(), unlimited)
	r.onWire = func(req *http.Request, sent []byte, res *http.Response, got []byte) {
		request, response := d.check(req, sent, res, got)
		if request != nil && res.StatusCode < 300 {
			t.Errorf("%s %s: accepted, though by the description: %v", req.Method, req.URL.Path, request)
		}
		if response != nil {
			t.Errorf("%s %s: the answer %s\nis not as described: %v", req.Method, req.URL.Path, got, response)
		}
	}
	exercise(r)
	for _, op := range []string{"POST /api/v0/bundles", "PUT /api/v0/asks/{id}", "GET /api/v0/instances/{id}",
		"DELETE /api/v0/instances/{id}", "PUT /api/v0/instances/{id}", "GET /api/v1/instances", "GET /api/v0/users/current",
		"PUT /api/v0/instances/request_logs/{id}", "PUT /api/v0/instances/reboot/{id}", "PUT /api/v0/instances/bid_price/{id}"} {
		if d.seen[op] == 0 {
			t.Errorf("%s was not exercised", op)
		}
	}
	for _, e := range excuses() {
		if !d.needed[e.contains] {
			t.Errorf("nothing needs the excuse %q: %s", e.contains, e.why)
		}
	}
}
