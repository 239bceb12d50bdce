package vastai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

const key = "the-key"

// rig is a market with a hand-cranked clock behind a façade behind a real server.
type rig struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	market *market.Market
	url    string
	client *http.Client
	onWire func(*http.Request, []byte, *http.Response, []byte)
}

func newRig(t *testing.T, cfg market.Config, o vastai.Options) *rig {
	t.Helper()
	fc := testingclock.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
	cfg.Clock, cfg.Provider = fc, "vast.ai"
	m := market.New(cfg)
	t.Cleanup(m.Close)
	if o.Keys == nil {
		o.Keys = []string{key}
	}
	srv := httptest.NewServer(vastai.New(m, o))
	t.Cleanup(srv.Close)
	client := srv.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &rig{t: t, clock: fc, market: m, url: srv.URL, client: client}
}

// unlimited is a façade without call limits, for tests of something else.
var unlimited = vastai.Options{LimitScale: -1}

func offer4090() market.Offer {
	return market.Offer{
		Machine: "4411", Host: "90", GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090", GPUs: 1, MachineGPUs: 1,
		GPUMemoryMB: 24564, ComputeCap: 890, MemoryBW: 920, Driver: "570.86.15", CUDA: 12.8, CPUArch: "amd64", Cores: 32,
		EffectiveCores: 16, RAMMB: 128000, DiskGB: 400, Region: "Oslo, NO", Ports: 50, DownMbps: 900, UpMbps: 500,
		OnDemand: market.USD(0.38), MinBid: market.USD(0.21), StorageMonth: market.USD(0.15), Reliability: 0.99,
		Verification: "verified",
	}
}

type object = map[string]any

// call sends one request and decodes the answer.
func (r *rig) call(method, path string, body any) (int, object) {
	r.t.Helper()
	return r.callAs(key, method, path, body)
}

func (r *rig) callAs(key, method, path string, body any) (int, object) {
	r.t.Helper()
	res, raw := r.raw(key, method, path, body)
	var out object
	if len(raw) > 0 && strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(raw, &out); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, raw)
		}
	}
	return res.StatusCode, out
}

func (r *rig) raw(key, method, path string, body any) (*http.Response, []byte) {
	r.t.Helper()
	res, raw, err := r.try(key, method, path, body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res, raw
}

func (r *rig) try(key, method, path string, body any) (*http.Response, []byte, error) {
	r.t.Helper()
	var sent []byte
	switch b := body.(type) {
	case nil:
	case string:
		sent = []byte(b)
	default:
		var err error
		if sent, err = json.Marshal(b); err != nil {
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
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if r.onWire != nil && err == nil {
		r.onWire(req, sent, res, raw)
	}
	return res, raw, err
}

// order is the body of a create that succeeds.
func order() object {
	return object{"client_id": "me", "image": "vllm/vllm-openai:v0.10.1", "runtype": "args", "user": "root",
		"onstart": "/bin/bash", "args": []string{"-c", "curl -fsSL $BOOT_URL | bash"},
		"env":  object{"GPUSCALE_BOOT": "e30=", "-p 9443:9443": "1"},
		"disk": 80, "label": "gs-aaaaaaaa-0001", "cancel_unavail": true}
}

func with(base object, k string, v any) object {
	out := object{}
	for key, value := range base {
		out[key] = value
	}
	if v == nil {
		delete(out, k)
		return out
	}
	out[k] = v
	return out
}

// rent creates an instance and returns its id and key.
func (r *rig) rent(body object) (id, instanceKey string) {
	r.t.Helper()
	offers := r.market.Offers()
	if len(offers) == 0 {
		r.t.Fatal("nothing on sale")
	}
	status, out := r.call("PUT", "/api/v0/asks/"+offers[0].ID+"/", body)
	if status != 200 || out["success"] != true {
		r.t.Fatalf("create: %d %v", status, out)
	}
	return fmt.Sprintf("%.0f", out["new_contract"]), out["instance_api_key"].(string)
}

func (r *rig) show(id string) object {
	r.t.Helper()
	status, out := r.call("GET", "/api/v0/instances/"+id+"/", nil)
	if status != 200 {
		r.t.Fatalf("show: %d %v", status, out)
	}
	in, _ := out["instances"].(object)
	return in
}

func TestLifeOfAnInstance(t *testing.T) {
	cfg := market.Config{Offers: []market.Offer{offer4090()},
		Boot: market.Boot{Accept: 2 * time.Second, Create: 3 * time.Second, Load: time.Minute}}
	r := newRig(t, cfg, unlimited)

	status, out := r.call("POST", "/api/v0/bundles/", object{"gpu_name": object{"eq": "RTX 4090"},
		"allocated_storage": 80, "order": [][]string{{"dph_total", "asc"}}})
	offers, _ := out["offers"].([]any)
	if status != 200 || len(offers) != 1 {
		t.Fatalf("search: %d %v", status, out)
	}
	if got := offers[0].(object)["dph_total"].(float64); got < 0.3966 || got > 0.3967 {
		t.Errorf("dph_total %v, want 0.38 + 80 × 0.15 / 720", got)
	}

	id, _ := r.rent(order())
	steps := []struct {
		after time.Duration
		want  any
	}{{0, nil}, {2 * time.Second, "created"}, {3 * time.Second, "loading"}, {time.Minute, "running"}}
	for _, step := range steps {
		r.clock.Step(step.after)
		in := r.show(id)
		if in["actual_status"] != step.want {
			t.Fatalf("after %v: %v, want %v", step.after, in["actual_status"], step.want)
		}
		if hasPorts := in["ports"] != nil; hasPorts != (step.want == "running") {
			t.Errorf("ports %v while %v", in["ports"], step.want)
		}
	}
	in := r.show(id)
	port := in["ports"].(object)["9443/tcp"].([]any)[0].(object)["HostPort"]
	if _, isText := port.(string); !isText || in["public_ipaddr"] != "127.0.0.1\n" {
		t.Errorf("port %v address %q", port, in["public_ipaddr"])
	}

	if status, out := r.call("DELETE", "/api/v0/instances/"+id+"/", nil); status != 200 || out["success"] != true {
		t.Fatalf("destroy: %d %v", status, out)
	}
	if in := r.show(id); in != nil {
		t.Errorf("after the end: %v", in)
	}
	if status, out := r.call("DELETE", "/api/v0/instances/"+id+"/", nil); status != 404 || out["error"] != "no_such_instance" {
		t.Errorf("second destroy: %d %v", status, out)
	}
	if b := r.market.Books(); b.Now.Live != 0 || b.Rented != 1 || b.Spent <= 0 {
		t.Errorf("books: %+v", b.Now)
	}
}
