package runpod_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	sim "github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// description is the vendor's own, which is kept beside the repository and not in it.
const description = "../../../../shared/reference/openapi/runpod-v2.json"

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

// TestRequestsAreAsTheVendorDescribesThem checks every request of the whole suite. The façade's replies are checked beside
// it, where the suite's faults are not among them.
func TestRequestsAreAsTheVendorDescribesThem(t *testing.T) {
	spec := described(t)
	spec.Exceptions = []providertest.Exception{{Finding: "GET /v2/openapi.json: ", Reason: "it is the description itself (§0)"}}
	for _, c := range providertest.Cases() {
		got := providertest.Try(t.Context(), c, func(ct providertest.T, c providertest.Case) providertest.Harness {
			return newHarness(ct, c, sim.Options{}, spec.Transport)
		})
		if c.Needs == nil && len(got) > 0 {
			t.Errorf("%s: %q", c.Name, got)
		}
	}
	h := newHarness(t, providertest.Case{}, sim.Options{}, spec.Transport)
	if _, err := h.good.Charges(t.Context(), h.Clock.Now().Add(-time.Hour), h.Clock.Now()); err != nil {
		t.Error(err)
	}
	for _, f := range spec.Findings() {
		t.Error(f)
	}
	for _, call := range []string{"GET /v2/catalog/gpus", "POST /v2/pods", "GET /v2/pods/{id}", "GET /v2/pods",
		"DELETE /v2/pods/{id}", "GET /v2/billing/pods"} {
		if spec.Checked()[call] == 0 {
			t.Errorf("%s was never checked", call)
		}
	}
	for _, e := range spec.Unused() {
		t.Errorf("the exception %q is needed no more", e.Finding)
	}
	t.Logf("checked: %v", spec.Checked())
}

// TestWhatIsNewerThanTheDescription is all that the driver sends to a newer server beyond the description.
func TestWhatIsNewerThanTheDescription(t *testing.T) {
	spec := described(t)
	spec.Exceptions = []providertest.Exception{
		{Finding: "GET /v2/openapi.json: ", Reason: "it is the description itself (§0)"},
		{Finding: "GET /v2/pods: request: query parameter cursor is not described", Reason: "newer servers have pages (§4)"},
		{Finding: "POST /v2/pods: request: gpu", Reason: "newer servers take minRamPerGpu (§3)"},
		{Finding: "POST /v2/pods: request: ", Contains: "false schema", Reason: "the validator's words for the same, at every field beside it"},
	}
	for _, name := range []string{"ListReadsEveryPage", "CreateTagsTheInstance"} {
		i := slices.IndexFunc(providertest.Cases(), func(c providertest.Case) bool { return c.Name == name })
		got := providertest.Try(t.Context(), providertest.Cases()[i], func(ct providertest.T, c providertest.Case) providertest.Harness {
			h := newHarness(ct, c, sim.Options{PageSize: 25, MinRAM: true}, spec.Transport)
			h.stock = 2 // for the two offers that each host then is
			return h
		})
		if len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, f := range spec.Findings() {
		t.Error(f)
	}
	for _, e := range spec.Unused() {
		t.Errorf("the exception %q is needed no more", e.Finding)
	}
}

// answering is a transport that answers everything alike.
type answering struct {
	status int
	body   string
}

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

// TestTheDescriptionCatches what a driver could get wrong, so that silence above means something.
func TestTheDescriptionCatches(t *testing.T) {
	pod := func(change string) string {
		return `{"name":"a","image":"b:c","gpu":{"id":"NVIDIA L4","count":1}` + change + `}`
	}
	for _, c := range []struct{ method, url, body, want string }{
		{"GET", "/v2/catalog/gpus?count=0&include=AVAILABILITY&product=POD", "", "request: "},
		{"GET", "/v2/catalog/gpus?cloud=ALL", "", "request: "},
		{"GET", "/v2/catalog/gpus?spot=true", "", "request: query parameter spot is not described"},
		{"GET", "/v1/pods", "", "the description has no such call"},
		{"POST", "/v2/pods", `{"image":"b:c"}`, "request: "},
		{"POST", "/v2/pods", pod(`,"disk":0`), "request: disk: "},
		{"POST", "/v2/pods", pod(`,"cloud":"ALL"`), "request: cloud: "},
		{"POST", "/v2/pods", pod(`,"ports":"9443/tcp"`), "request: ports: "},
		{"POST", "/v2/pods", pod(`,"env":{"A":1}`), "request: env.A: "},
		{"POST", "/v2/pods", pod(`,"bid":0.2`), "request: field bid is not described"},
		{"POST", "/v2/pods", `{"name":"a","image":"b:c","gpu":{"id":"NVIDIA L4","count":"1"}}`, "request: gpu.count: "},
		{"POST", "/v2/pods", `{"name":"a","image":"b:c","gpu":{"id":"NVIDIA L4","minCudaVersion":"12"}}`, "request: gpu.minCudaVersion: "},
		{"DELETE", "/v2/pods/k3x9ab", `{"now":true}`, "request: a body is not described"},
		{"PUT", "/v2/pods/k3x9ab", `{}`, "the description has no such call"},
	} {
		o := described(t)
		r, err := http.NewRequestWithContext(t.Context(), c.method, "https://api.runpod.io"+c.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if _, err := o.Transport(answering{http.StatusOK, "{}"}).RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if got := o.Findings(); !slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, c.want) }) {
			t.Errorf("%s %s %s: found %q; want %q", c.method, c.url, c.body, got, c.want)
		}
	}
}
