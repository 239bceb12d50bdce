package vastai_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// description is the vendor's own, which is kept beside the repository and not in it.
const description = "../../../../shared/reference/openapi/vastai.yaml"

// knownErrors are where the description is wrong about requests, by the provider reference.
func knownErrors() []providertest.Exception {
	create := "PUT /api/v0/asks/{id}: request: "
	return []providertest.Exception{
		{Finding: create + "env: ", Reason: "the flag string is for templates; the server and every client use an object (§3)"},
		{Finding: create + "field client_id", Reason: "every official client sends it (§3)"},
	}
}

// described reads the description, and skips the test where it is not there.
func described(t *testing.T) *providertest.OpenAPI {
	t.Helper()
	o, err := providertest.LoadOpenAPI(description)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("the vendor's description is not here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestRequestsAreAsTheVendorDescribesThem checks every request of the whole suite.
func TestRequestsAreAsTheVendorDescribesThem(t *testing.T) {
	spec := described(t)
	spec.Exceptions = knownErrors()
	for _, c := range providertest.Cases() {
		got := providertest.Try(t.Context(), c, func(ct providertest.T, c providertest.Case) providertest.Harness {
			return newHarness(ct, c, sim.Options{}, spec.Transport)
		})
		if c.Needs == nil && len(got) > 0 {
			t.Errorf("%s: %q", c.Name, got)
		}
	}
	for _, f := range spec.Findings() {
		t.Error(f)
	}
	for _, call := range []string{"POST /api/v0/bundles", "PUT /api/v0/asks/{id}", "GET /api/v0/instances/{id}",
		"GET /api/v1/instances", "DELETE /api/v0/instances/{id}", "GET /api/v0/users/current"} {
		if spec.Checked()[call] == 0 {
			t.Errorf("%s was never checked", call)
		}
	}
	for _, e := range spec.Unused() {
		t.Errorf("the exception %q is needed no more", e.Finding)
	}
	t.Logf("checked: %v", spec.Checked())
}

// answering is a transport that answers everything alike.
type answering string

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(a))),
	}, nil
}

// TestTheDescriptionCatches what a driver could get wrong, so that silence above means something.
func TestTheDescriptionCatches(t *testing.T) {
	for _, c := range []struct{ method, url, body, reply, want string }{
		{"POST", "/api/v0/bundles/", `{"limit":"many"}`, `{}`, "request: limit: "},
		{"POST", "/api/v0/bundles/", `{"type":"spot"}`, `{}`, "request: type: "},
		{"POST", "/api/v0/bundles/", `{"min_gpu_totalram":24}`, `{}`, "request: field min_gpu_totalram is not described"},
		{"PUT", "/api/v0/asks/7/", `{"disk":40}`, `{}`, "request: "},
		{"PUT", "/api/v0/asks/7/", `{"image":"a:b","price":200}`, `{}`, "request: price: "},
		{"PUT", "/api/v0/asks/7/", `{"image":"a:b","runtype":"docker"}`, `{}`, "request: runtype: "},
		{"PUT", "/api/v0/asks/seven/", `{"image":"a:b"}`, `{}`, "request: "},
		{"GET", "/api/v1/instances/?limit=100", "", `{}`, "request: "},
		{"GET", "/api/v1/instances/?page=2", "", `{}`, "request: query parameter page is not described"},
		{"GET", "/api/v0/instances/", "", `{}`, "the description has no such call"},
		{"DELETE", "/api/v0/instances/7/", `{"now":true}`, `{}`, "request: a body is not described"},
		{"GET", "/api/v1/instances/", "", `{"instances":[{"id":"7"}]}`, "reply 200: instances.0.id: "},
		{"PUT", "/api/v0/asks/7/", `{"image":"a:b"}`, `{"new_contract":"7"}`, "reply 200: new_contract: "},
	} {
		o := described(t)
		o.Replies = true
		r, err := http.NewRequestWithContext(t.Context(), c.method, "https://console.vast.ai"+c.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := o.Transport(answering(c.reply)).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != c.reply {
			t.Errorf("the reply became %q, %v", body, err)
		}
		if got := o.Findings(); !slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, c.want) }) {
			t.Errorf("%s %s %s: found %q; want %q", c.method, c.url, c.body, got, c.want)
		}
	}
}
