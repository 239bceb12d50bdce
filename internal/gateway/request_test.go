package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

func TestBadRequests(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) { c.MaxBody = 1000 })
	w.add(nil)
	w.publish(registry.Known{Name: "cold"}, registry.Known{Name: "booting", Stage: "Bootstrapping on claim-7"})
	for name, c := range map[string]struct {
		path, body string
		status     int
		code       string
	}{
		"not JSON":          {chatPath, `{"model":`, 400, "invalid_json"},
		"no object":         {chatPath, `["x"]`, 400, "invalid_json"},
		"null":              {chatPath, `null`, 400, "invalid_json"},
		"empty":             {chatPath, ``, 400, "invalid_json"},
		"trailing":          {chatPath, `{"model":"cold"} x`, 400, "invalid_json"},
		"model is a number": {chatPath, `{"model":7}`, 400, "invalid_type"},
		"no model":          {chatPath, `{"messages":[]}`, 400, "missing_model"},
		"another case":      {chatPath, `{"Model":"cold"}`, 400, "missing_model"},
		"unknown model":     {chatPath, `{"model":"gpt-9"}`, 404, "model_not_found"},
		"model at zero":     {chatPath, `{"model":"cold"}`, 503, "model_not_ready"},
		"model on its way":  {"/v1/embeddings", `{"model":"booting"}`, 503, "model_not_ready"},
		"too large":         {"/v1/completions", `{"model":"cold","prompt":"` + strings.Repeat("x", 1000) + `"}`, 413, "request_too_large"},
		"unknown path":      {"/v1/images", `{}`, 404, "not_found"},
		"the agent's path":  {"/drain", `{}`, 404, "not_found"},
		"method":            {"/v1/models", `{}`, 405, "method_not_allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.ask(c.path, c.body)
			message := wantError(t, got, c.status, c.code)
			if c.status == 503 && got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			if c.code == "model_not_ready" && !strings.Contains(message, "at zero") && !strings.Contains(message, "claim-7") {
				t.Errorf("it does not say why: %s", message)
			}
		})
	}
	wantError(t, w.get(chatPath), 405, "method_not_allowed")
	// A body whose length is not told is bounded too.
	r := must(http.NewRequest(http.MethodPost, w.url+chatPath, struct{ *strings.Reader }{strings.NewReader(strings.Repeat(" ", 5000))}))
	r.ContentLength = -1
	if response := must(w.client.Do(r)); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked: %d", response.StatusCode)
	}
	if n := w.workers[0].requests.Load(); n != 0 {
		t.Errorf("%d of them reached the worker", n)
	}
	// Made-up names are no label values, nor in the log.
	if text := w.metrics() + w.log.String(); strings.Contains(text, "gpt-9") {
		t.Error("an unknown model's name is kept")
	}
	w.wantMetric(`gpuscale_gateway_requests_total{code="404",model=""} 1`)
}

func TestMissingModelIsTheOnlyOne(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	for _, body := range []string{`{"prompt":"<x> & 1.50"}`, `{"model":null,"prompt":"<x> & 1.50"}`, `{"model":"","prompt":"<x> & 1.50"}`} {
		if got := w.ask("/v1/completions", body); got.status != http.StatusOK {
			t.Errorf("%s: %d %q", body, got.status, got.text)
		}
		var sent map[string]string
		if err := json.Unmarshal([]byte(a.bodies[len(a.bodies)-1]), &sent); err != nil || sent["model"] != model || sent["prompt"] != "<x> & 1.50" {
			t.Errorf("%s was sent as %q", body, sent)
		}
	}
}

func TestMissingModelIsTheDefault(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) { c.DefaultModel = model })
	w.add(nil)
	w.publish(registry.Known{Name: "other"})
	if got := w.ask("/v1/completions", `{"prompt":"x"}`); got.status != http.StatusOK {
		t.Errorf("%d %q", got.status, got.text)
	}
}

func TestModels(t *testing.T) {
	w := newWorld(t, nil)
	wantError(t, w.get("/v1/models"), 503, "starting")
	wantError(t, w.ask(chatPath, chat("")), 503, "starting")
	if got := w.get("/readyz"); got.status != 503 {
		t.Errorf("ready before the first list: %d", got.status)
	}
	w.add(nil)
	w.publish(registry.Known{Name: "cold"}, registry.Known{Name: "next", Stage: "Provisioning on c"})
	var list struct {
		Object string
		Data   []map[string]any
	}
	if err := json.Unmarshal([]byte(w.get("/v1/models").text), &list); err != nil || list.Object != "list" {
		t.Fatal(err, list)
	}
	var got []string
	for _, m := range list.Data {
		if m["object"] != "model" || m["created"].(float64) < 1e9 {
			t.Errorf("%v", m)
		}
		got = append(got, fmt.Sprint(m["id"], m["warm"], m["workers"], m["stage"]))
	}
	want := []string{model + " true 1 <nil>", "cold false 0 <nil>", "next false 0 Provisioning on c"}
	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}
	if strings.ReplaceAll(fmt.Sprint(got), " ", "") != strings.ReplaceAll(fmt.Sprint(want), " ", "") {
		t.Errorf("got %q, want %q", got, want)
	}
	if one := w.get("/v1/models/" + model); one.status != 200 || !strings.Contains(one.text, `"warm":true`) {
		t.Errorf("%d %s", one.status, one.text)
	}
	wantError(t, w.get("/v1/models/none"), 404, "model_not_found")
	for _, path := range []string{"/health", "/healthz", "/readyz"} {
		if got := w.get(path); got.status != 200 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
}

func TestKeys(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) {
		c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice"}, "bob": {Secret: "sk-bob\n"}}
	})
	w.add(nil)
	for header, status := range map[string]int{"": 401, "Bearer ": 401, "Bearer sk": 401, "sk-alice": 401, "Basic sk-alice": 401,
		"Bearer sk-alice": 200, "bearer sk-bob": 200} {
		got := w.get("/v1/models", "Authorization", header)
		if got.status != status {
			t.Errorf("%q: %d, want %d", header, got.status, status)
		}
		if status == 401 {
			wantError(t, got, 401, "invalid_api_key")
		}
	}
	if got := w.get("/health"); got.status != 200 {
		t.Errorf("health asks for a key: %d", got.status)
	}
	if strings.Contains(w.log.String(), "no API keys") {
		t.Error("it says that there are no keys")
	}
	if open := newWorld(t, nil); strings.Count(open.log.String(), "no API keys") != 1 {
		t.Error("without keys it does not say so, once")
	}
	reg := registry.New(clock.RealClock{}, nil)
	for _, keys := range []map[string]gateway.Key{{"a": {}}, {"a": {Secret: " \n"}}, {"": {Secret: "x"}}, {"a": {Secret: "x", Concurrency: -1}}} {
		if _, err := gateway.New(gateway.Config{Registry: reg, Workers: noWorkers{}, Clock: clock.RealClock{}, Keys: keys}); err == nil {
			t.Errorf("%v: no error", keys)
		}
	}
	if _, err := gateway.New(gateway.Config{}); err == nil {
		t.Error("nothing given: no error")
	}
}

type noWorkers struct{}

func (noWorkers) Transport(string) (http.RoundTripper, error) { return nil, http.ErrNotSupported }

func TestMetricsOfAnAnswer(t *testing.T) {
	w := newWorld(t, nil)
	w.add(nil)
	w.ask(chatPath, chat(`,"stream":true`))
	w.wantMetric(`gpuscale_gateway_requests_total{code="200",model="` + model + `"} 1`)
	w.wantMetric(`gpuscale_gateway_request_duration_seconds_count{model="` + model + `"} 1`)
	w.wantMetric(`gpuscale_gateway_ttft_seconds_count{model="` + model + `"} 1`)
	eventually(t, "logged", func() bool { return strings.Contains(w.log.String(), `"worker"="claim-uid-0" "key"="" "status"=200`) })
}
