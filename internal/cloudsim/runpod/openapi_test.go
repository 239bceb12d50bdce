package runpod_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// description is the vendor's own, which is kept beside the repository and not in it.
const description = "../../../../shared/reference/openapi/runpod-v2.json"

// TestRepliesAreAsTheVendorDescribesThem makes every call in most of the ways that it can end, and holds each reply against
// the description; and the requests, which the façade must not accept where the description does not.
func TestRepliesAreAsTheVendorDescribesThem(t *testing.T) {
	spec, err := providertest.LoadOpenAPI(description)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("the vendor's description is not here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	spec.Replies = true
	spec.Exceptions = []providertest.Exception{
		{Finding: "POST /v2/pods: request: ", Contains: "bogus", Reason: "a mistake of the test's own, to see it refused"},
		{Finding: "POST /v2/pods: request: ", Contains: "false schema", Reason: "the validator's words for the same, at every field beside it"},
		{Finding: "POST /v2/pods: request: ", Contains: "minimum", Reason: "likewise"},
		{Finding: "POST /v2/pods/{id}/action: request: ", Reason: "likewise"},
		{Finding: "GET /v2/catalog/gpus: request: ", Contains: "does not match pattern", Reason: "likewise"},
	}
	r := newRig(t, calm(), runpod.Options{Keys: []string{key}, LimitScale: -1})
	r.client.Transport = spec.Transport(r.client.Transport)
	exercise(r)
	for _, f := range spec.Findings() {
		t.Error(f)
	}
	for _, e := range spec.Unused() {
		t.Errorf("nothing needs the exception %q %q", e.Finding, e.Contains)
	}
	for _, call := range []string{"GET /v2/catalog/gpus", "GET /v2/catalog/gpus/{id}", "POST /v2/pods", "GET /v2/pods", "GET /v2/pods/{id}",
		"DELETE /v2/pods/{id}", "POST /v2/pods/{id}/action", "GET /v2/billing/pods"} {
		if spec.Checked()[call] == 0 {
			t.Errorf("%s was not exercised", call)
		}
	}
}

func exercise(r *rig) {
	for _, query := range []string{"", "?include=AVAILABILITY&product=POD", "?include=AVAILABILITY&product=POD&cloud=COMMUNITY&count=2",
		"?include=AVAILABILITY&product=POD&countryCodes=US,IS&minCudaVersion=12.6", "?include=AVAILABILITY", "?count=2",
		"?include=AVAILABILITY&product=POD&minCudaVersion=new"} {
		r.call("GET", "/v2/catalog/gpus"+query, nil)
	}
	r.call("GET", "/v2/catalog/gpus/NVIDIA%20L4?include=AVAILABILITY&product=POD", nil)
	r.call("GET", "/v2/catalog/gpus/NVIDIA%20L5", nil)
	r.callAs("wrong", "GET", "/v2/pods", nil)

	a := r.rent(order())
	b := r.rent(with(order(), "cloud", "COMMUNITY", "gpu", object{"id": "NVIDIA GeForce RTX 3090", "count": 2}, "dataCenterIds", nil))
	r.call("POST", "/v2/pods", with(order(), "bogus", 1))
	r.call("POST", "/v2/pods", with(order(), "disk", 0))
	r.call("POST", "/v2/pods", with(order(), "gpu", nil))
	r.call("POST", "/v2/pods", with(order(), "gpu", object{"id": "NVIDIA L4"}))
	r.call("POST", "/v2/pods", with(order(), "gpu", object{"id": "NVIDIA L4", "count": 3}))
	for range 4 {
		r.call("GET", "/v2/pods/"+a, nil)
		r.call("GET", "/v2/pods?includeClusterPods=false", nil)
		r.clock.Step(time.Minute)
	}
	r.act(a, "stop")
	r.call("GET", "/v2/pods/"+a, nil)
	r.act(a, "stop")
	r.act(a, "start")
	r.clock.Step(10 * time.Minute)
	r.act(a, "restart")
	r.act(a, "freeze")
	r.call("GET", "/v2/billing/pods?bucketSize=hour&startTime=2026-08-01T00:00:00Z", nil)
	r.call("GET", "/v2/billing/pods?podId="+a, nil)
	r.market.FailNext(market.OpGet, market.TooMany)
	r.call("GET", "/v2/pods/"+a, nil)
	r.act(b, "terminate")
	r.call("DELETE", "/v2/pods/"+a, nil)
	r.call("DELETE", "/v2/pods/"+a, nil)
	r.call("GET", "/v2/pods/"+a, nil)
}
