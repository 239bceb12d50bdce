package runpod_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/runpod"
)

const key = "rpa_the-key"

// rig is a market with a hand-cranked clock behind a façade behind a real server.
type rig struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	market *market.Market
	url    string
	client *http.Client
}

// calm is the catalogue with nothing that goes wrong by itself, and no lag.
func calm() market.Config {
	c := runpod.Config(7)
	c.Faults, c.Broken, c.ListLag, c.DestroyLag, c.Boot.Jitter = market.FaultRates{}, 0, 0, 0, 0
	return c
}

func newRig(t *testing.T, cfg market.Config, o runpod.Options) *rig {
	t.Helper()
	fc := testingclock.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
	cfg.Clock = fc
	m := market.New(cfg)
	t.Cleanup(m.Close)
	srv := httptest.NewServer(runpod.New(m, o))
	t.Cleanup(srv.Close)
	return &rig{t: t, clock: fc, market: m, url: srv.URL, client: srv.Client()}
}

type object = map[string]any

// call sends one request as the account and decodes the answer.
func (r *rig) call(method, path string, body any) (int, object) {
	r.t.Helper()
	status, _, out := r.callAs(key, method, path, body)
	return status, out
}

func (r *rig) callAs(key, method, path string, body any) (int, http.Header, object) {
	r.t.Helper()
	var sent []byte
	if body != nil {
		var err error
		if sent, err = json.Marshal(body); err != nil {
			r.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewReader(sent))
	if err != nil {
		r.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("User-Agent", "test")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var out object
	if len(raw) > 0 && strings.Contains(res.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(raw, &out); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, raw)
		}
	}
	return res.StatusCode, res.Header, out
}

// order is the body of a create that succeeds.
func order() object {
	return object{"name": "gs-aaaaaaaa-0001", "image": "vllm/vllm-openai:v0.10.1", "cloud": "SECURE",
		"gpu": object{"id": "NVIDIA L4", "count": 1, "minCudaVersion": "12.8"}, "dataCenterIds": []string{"EU-RO-1"}, "disk": 60,
		"ports": []string{"9443/tcp"}, "env": object{"GPUSCALE_BOOT": "e30="}, "args": `{"entrypoint":["/bin/sh","-c"],"cmd":["exec agent"]}`}
}

// with changes fields of a body in pairs; nil takes one away.
func with(base object, pairs ...any) object {
	out := object{}
	for k, v := range base {
		out[k] = v
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		if out[name] = pairs[i+1]; pairs[i+1] == nil {
			delete(out, name)
		}
	}
	return out
}

func (r *rig) rent(body object) string {
	r.t.Helper()
	status, out := r.call("POST", "/v2/pods", body)
	id, _ := out["id"].(string)
	if status != http.StatusCreated || id == "" {
		r.t.Fatalf("create: %d %v", status, out)
	}
	return id
}

func (r *rig) act(id, action string) int {
	r.t.Helper()
	status, _ := r.call("POST", "/v2/pods/"+id+"/action", object{"action": action})
	return status
}

// at is the value under a path of keys, nil where there is none.
func at(v any, path ...string) any {
	for _, k := range path {
		o, ok := v.(object)
		if !ok {
			return nil
		}
		v = o[k]
	}
	return v
}

func TestLifeOfAPod(t *testing.T) {
	cfg := calm()
	cfg.Boot = market.Boot{Accept: 2 * time.Second, Create: 3 * time.Second, Load: time.Minute}
	cfg.ListLag = 2 * time.Second
	r := newRig(t, cfg, runpod.Options{Keys: []string{key}, LimitScale: -1, StalePorts: true})
	id := r.rent(order())
	if status, _ := r.call("GET", "/v2/pods/"+id, nil); status != 404 {
		t.Errorf("a pod is shown at once: %d", status)
	}
	for _, step := range []struct {
		after         time.Duration
		status        string
		runtime, port bool
	}{
		{2 * time.Second, "PROVISIONING", false, false}, {3 * time.Second, "STARTING", false, false},
		{time.Minute, "RUNNING", false, false}, {2 * time.Second, "RUNNING", true, false}, {2 * time.Second, "RUNNING", true, true},
	} {
		r.clock.Step(step.after)
		_, pod := r.call("GET", "/v2/pods/"+id, nil)
		ports, _ := at(pod, "runtime", "ports").([]any)
		public := false
		for _, p := range ports {
			public = public || at(p, "type") == "tcp" && at(p, "public") != nil && at(p, "ip") == "127.0.0.1"
		}
		if pod["status"] != step.status || (pod["runtime"] != nil) != step.runtime || public != step.port {
			t.Fatalf("%v, ports %t: %v %v; want %+v", step.after, public, pod["status"], pod["runtime"], step)
		}
		if cost, _ := pod["cost"].(float64); cost < 0.3983 || cost > 0.3984 {
			t.Errorf("cost %v, want 0.39 + 60 × 0.10 / 720", cost)
		}
	}
	if code := r.act(id, "stop"); code != 200 {
		t.Fatalf("stop: %d", code)
	}
	_, pod := r.call("GET", "/v2/pods/"+id, nil)
	if pod["status"] != "EXITED" || pod["cost"] != 0.0 || at(pod, "runtime", "ports") == nil {
		t.Errorf("stopped: %v at %v with %v", pod["status"], pod["cost"], pod["runtime"])
	}
	if r.market.Books().Now.PerHour == 0 {
		t.Error("the disk of a stopped pod is not billed")
	}
	for i, want := range []int{204, 404} {
		if status, out := r.call("DELETE", "/v2/pods/"+id, nil); status != want || want == 204 && out != nil {
			t.Errorf("end %d: %d %v", i, status, out)
		}
	}
	if b := r.market.Books(); b.Now.Live != 0 || b.Spent <= 0 {
		t.Errorf("books: %+v", b.Now)
	}
}

// What is refused is refused as the vendor refuses it, and rents nothing.
func TestRefusals(t *testing.T) {
	gpu := func(pairs ...any) object { return with(object{"id": "NVIDIA L4", "count": 1}, pairs...) }
	r := newRig(t, calm(), runpod.Options{Keys: []string{key}, ReadOnlyKeys: []string{"reader"}, LimitScale: -1})
	for name, c := range map[string]struct {
		body   object
		status int
		says   string
	}{
		"an unknown field":     {with(order(), "bid", 0.2), 422, "Request validation failed."},
		"no name":              {with(order(), "name", nil), 422, "Request validation failed."},
		"no image":             {with(order(), "image", nil), 422, "Request validation failed."},
		"ports in a string":    {with(order(), "ports", "9443/tcp"), 422, "Request validation failed."},
		"a number in env":      {with(order(), "env", object{"A": 1}), 422, "Request validation failed."},
		"CUDA without a minor": {with(order(), "gpu", gpu("minCudaVersion", "12")), 422, "Request validation failed."},
		"a port of UDP":        {with(order(), "ports", []string{"9443/udp"}), 400, "tcp or http"},
		"both CUDA fields":     {with(order(), "gpu", gpu("minCudaVersion", "12.8", "allowedCudaVersions", []string{"12.8"})), 400, "mutually exclusive"},
		"no GPU":               {with(order(), "gpu", nil), 400, "exactly one of gpu or cpu"},
		"no count":             {with(order(), "gpu", gpu("count", nil)), 400, "no longer any instances available"},
		"an unknown GPU":       {with(order(), "gpu", gpu("id", "NVIDIA L5")), 400, "no longer any instances available"},
		"lower case":           {with(order(), "dataCenterIds", []string{"eu-ro-1"}), 400, "no longer any instances available"},
		"too new a CUDA":       {with(order(), "gpu", gpu("minCudaVersion", "13.1")), 400, "no longer any instances available"},
		"too large a disk":     {with(order(), "disk", 5000), 400, "enough disk space"},
		"too long":             {with(order(), "args", strings.Repeat("x", 101<<10)), 413, "too large"},
	} {
		status, _, out := r.callAs(key, "POST", "/v2/pods", c.body)
		detail, _ := out["detail"].(string)
		if status != c.status || !strings.Contains(detail, c.says) || out["status"] != float64(c.status) {
			t.Errorf("%s: %d %v; want %d %q", name, status, out, c.status, c.says)
		}
	}
	for key, want := range map[string]int{"": 401, "wrong": 401, "reader": 403} {
		if status, _, _ := r.callAs(key, "POST", "/v2/pods", order()); status != want {
			t.Errorf("key %q: %d, want %d", key, status, want)
		}
	}
	if n := r.market.Books().Rented; n != 0 {
		t.Errorf("%d were rented", n)
	}
}

// An account that has spent what it may is told so, by status or by words.
func TestAnEmptyAccount(t *testing.T) {
	cfg := calm()
	cfg.Limits = market.Limits{Instances: 1}
	r := newRig(t, cfg, runpod.Options{Keys: []string{key}, LimitScale: -1})
	id := r.rent(order())
	if status, out := r.call("POST", "/v2/pods", order()); status != 400 || !strings.Contains(out["detail"].(string), "spend limit") {
		t.Errorf("above its limit: %d %v", status, out)
	}
	r.clock.Step(time.Hour)
	r.market.SetCredit(1)
	r.clock.Step(time.Second)
	if _, pod := r.call("GET", "/v2/pods/"+id, nil); pod["status"] != "EXITED" {
		t.Errorf("its pod is %v", pod["status"])
	}
	r.call("DELETE", "/v2/pods/"+id, nil)
	if status, out := r.call("POST", "/v2/pods", order()); status != 402 || !strings.Contains(out["detail"].(string), "balance") {
		t.Errorf("empty: %d %v", status, out)
	}
}

// A pod's key opens that pod and no other, and not the account.
func TestAPodsKeyOpensThatPodOnly(t *testing.T) {
	for _, way := range []string{"DELETE", "action"} {
		t.Run(way, func(t *testing.T) {
			r := newRig(t, calm(), runpod.Options{Keys: []string{key}, LimitScale: -1})
			mine, other := r.rent(order()), r.rent(order())
			own := r.market.Books().Instances[0].Key
			end := func(id string) int {
				if way == "DELETE" {
					status, _, _ := r.callAs(own, "DELETE", "/v2/pods/"+id, nil)
					return status
				}
				status, _, _ := r.callAs(own, "POST", "/v2/pods/"+id+"/action", object{"action": "terminate"})
				return status
			}
			for _, path := range []string{"/v2/pods", "/v2/pods/" + other, "/v2/billing/pods"} {
				if status, _, _ := r.callAs(own, "GET", path, nil); status != 403 {
					t.Errorf("GET %s: %d", path, status)
				}
			}
			if status, _, _ := r.callAs(own, "POST", "/v2/pods", order()); status != 403 {
				t.Errorf("create: %d", status)
			}
			if status := end(other); status != 403 || r.market.Books().Now.Live != 2 {
				t.Errorf("another pod: %d", status)
			}
			if status := end(mine); status != 204 {
				t.Errorf("its own: %d", status)
			}
			if in := r.market.Books().Instances[0]; in.State != market.Gone || in.EndedBy != "instance" {
				t.Errorf("%s by %q", in.State, in.EndedBy)
			}
			if status := end(mine); status != 401 {
				t.Errorf("the key of a pod that is gone: %d", status)
			}
		})
	}
}

// All calls count together, and what is left is on every answer.
func TestTheQuota(t *testing.T) {
	r := newRig(t, calm(), runpod.Options{Keys: []string{key}})
	for i := range 61 {
		path := []string{"/v2/pods", "/v2/catalog/gpus"}[i%2]
		status, header, _ := r.callAs(key, "GET", path, nil)
		if i < 60 && (status != 200 || !strings.HasPrefix(header.Get("RateLimit"), `"minute";r=`)) {
			t.Fatalf("call %d: %d %q", i, status, header.Get("RateLimit"))
		}
		if i == 60 && (status != 429 || header.Get("Retry-After") != "60" || !strings.Contains(header.Get("RateLimit"), `"minute";r=0;t=60`)) {
			t.Errorf("call %d: %d %v", i, status, header)
		}
	}
	r.clock.Step(time.Minute)
	if status, _ := r.call("GET", "/v2/pods", nil); status != 200 {
		t.Errorf("a minute later: %d", status)
	}
}

// The catalogue tells prices for one GPU whether or not any is free, and what is free by number, cloud and place.
func TestCatalogue(t *testing.T) {
	r := newRig(t, calm(), runpod.Options{Keys: []string{key}, LimitScale: -1})
	l4 := func() object {
		_, out := r.call("GET", "/v2/catalog/gpus?include=AVAILABILITY&product=POD&count=2", nil)
		rows, _ := out["gpus"].([]any)
		for _, row := range rows {
			if at(row, "id") == "NVIDIA L4" {
				o, _ := row.(object)
				return o
			}
		}
		t.Fatal("no L4")
		return nil
	}
	row := l4()
	if at(row, "price", "secure") != 0.39 || row["community"] != false || at(row, "maxCount", "secure") != 8.0 || row["availability"] != "MEDIUM" {
		t.Errorf("%v", row)
	}
	if places, _ := row["dataCenters"].([]any); len(places) != 2 || at(places[0], "id") != "EU-RO-1" {
		t.Errorf("places %v", places)
	}
	for _, place := range []string{"EU-RO-1", "US-TX-3"} {
		for {
			status, _ := r.call("POST", "/v2/pods", with(order(), "gpu", object{"id": "NVIDIA L4", "count": 2}, "dataCenterIds", []string{place}))
			if status != 201 {
				break
			}
		}
	}
	row = l4()
	if _, listed := row["dataCenters"]; listed || row["availability"] != "NONE" || at(row, "price", "secure") != 0.39 {
		t.Errorf("sold out: %v", row)
	}
}
