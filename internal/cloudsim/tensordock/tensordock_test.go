package tensordock_test

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
	"github.com/munhq/gpuscale/internal/cloudsim/tensordock"
)

const token = "the-token"

type object = map[string]any

// rig is a market with a hand-cranked clock behind a façade behind a real server.
type rig struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	market *market.Market
	server *tensordock.Server
	url    string
	client *http.Client
}

func newRig(t *testing.T, cfg market.Config, o tensordock.Options) *rig {
	t.Helper()
	fc := testingclock.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
	cfg.Clock, cfg.Provider, cfg.InstanceID = fc, "tensordock", tensordock.InstanceID
	if cfg.Offers == nil {
		cfg.Offers = machine("4411")
	}
	m := market.New(cfg)
	t.Cleanup(m.Close)
	o.Tokens = []string{token}
	server := tensordock.New(m, o)
	srv := httptest.NewServer(server)
	t.Cleanup(srv.Close)
	return &rig{t: t, clock: fc, market: m, server: server, url: srv.URL, client: srv.Client()}
}

// machine has two GPUs, sold alone or together, and an address to give away.
func machine(name string) []market.Offer {
	o := market.Offer{Machine: name, Host: "90", GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090", MachineGPUs: 2,
		GPUMemoryMB: 24564, ComputeCap: 890, Driver: "570.86.15", CUDA: 12.8, CPUArch: "amd64", Cores: 64, RAMMB: 256_000, DiskGB: 400,
		Region: "Oslo, NO", Ports: 50, StorageMonth: market.USD(0.036), Reliability: 0.99, Verification: "verified", StaticIP: true}
	out := []market.Offer{o, o}
	for i := range out {
		out[i].GPUs, out[i].EffectiveCores, out[i].OnDemand = i+1, float64(32*(i+1)), market.USD(0.35)*market.Nano(i+1)
	}
	return out
}

func (r *rig) raw(key, method, path string, body any) (*http.Response, []byte) {
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
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res, raw
}

// call sends one request and decodes the answer: an object, or a bare array under "".
func (r *rig) call(method, path string, body any) (int, object) {
	r.t.Helper()
	res, raw := r.raw(token, method, path, body)
	var out any
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, raw)
		}
	}
	if o, ok := out.(object); ok {
		return res.StatusCode, o
	}
	return res.StatusCode, object{"": out}
}

const (
	slug      = "geforcertx4090-pcie-24gb"
	instances = "/api/v2/instances"
)

// order is the body of a create that succeeds, with changes made to its attributes.
func order(changes ...func(object)) object {
	a := object{"name": "gs-aaaaaaaa-0001", "type": "virtualmachine", "image": "ubuntu2404_ml_everything",
		"resources":   object{"vcpu_count": 4, "ram_gb": 32, "storage_gb": 150, "gpus": object{slug: object{"count": 1}}},
		"hostnode_id": tensordock.NodeID("4411"), "ssh_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDaZoVXP1MEdGB5dcAIMEgFpB/ec7O1fUvajWdmirC8X ops",
		"port_forwards": []object{{"protocol": "tcp", "internal_port": 22, "external_port": 0}, {"internal_port": 9443, "external_port": 0}},
		"cloud_init": object{"package_update": false, "write_files": []object{{"path": "/run/x.sh", "content": "#!/bin/bash\n",
			"owner": "root:root", "permissions": "0600"}}, "runcmd": []string{"bash /run/x.sh"}}}
	for _, change := range changes {
		change(a)
	}
	return object{"data": object{"type": "virtualmachine", "attributes": a}}
}

func set(key string, v any) func(object) {
	return func(a object) {
		if a[key] = v; v == nil {
			delete(a, key)
		}
	}
}

func resource(key string, v any) func(object) {
	return func(a object) { a["resources"].(object)[key] = v }
}

// rent orders and returns the id.
func (r *rig) rent(changes ...func(object)) string {
	r.t.Helper()
	status, out := r.call("POST", instances, order(changes...))
	data, _ := out["data"].(object)
	id, ok := data["id"].(string)
	if !ok || status != 200 || data["status"] != "creating" {
		r.t.Fatalf("create: %d %v", status, out)
	}
	return id
}

func (r *rig) show(id string) object {
	r.t.Helper()
	status, out := r.call("GET", instances+"/"+id, nil)
	if status != 200 {
		r.t.Fatalf("show: %d %v", status, out)
	}
	return out
}

func TestTokens(t *testing.T) {
	for form, want := range map[string]int{"": 401, "403": 403, "200": 200} {
		r := newRig(t, market.Config{}, tensordock.Options{BadToken: form})
		for _, k := range []string{"", "wrong"} {
			for _, path := range []string{instances, instances + "/x", "/api/v2/hostnodes"} {
				res, raw := r.raw(k, "GET", path+"?api_token="+token, nil)
				if res.StatusCode != want || !strings.Contains(string(raw), `"error"`) {
					t.Errorf("%q %s: %d %s", k, path, res.StatusCode, raw)
				}
			}
		}
		if res, _ := r.raw("", "GET", "/api/v2/locations", nil); res.StatusCode != http.StatusOK {
			t.Errorf("locations without a token: %d", res.StatusCode)
		}
	}
}

func TestAHundredCallsAMinute(t *testing.T) {
	r := newRig(t, market.Config{}, tensordock.Options{RetryAfter: 30})
	paths := []string{instances, "/api/v2/hostnodes", "/api/v2/locations", instances + "/x"}
	for i := range 120 {
		res, _ := r.raw(token, "GET", paths[i%len(paths)], nil)
		if refused := res.StatusCode == http.StatusTooManyRequests; refused != (i >= 100) || refused && res.Header.Get("Retry-After") != "30" {
			t.Fatalf("call %d: %d", i+1, res.StatusCode)
		}
	}
	r.clock.Step(time.Minute)
	if status, _ := r.call("GET", instances, nil); status != 200 {
		t.Errorf("a minute later: %d", status)
	}
}

func TestAnOrderThatIsNotUnderstood(t *testing.T) {
	r := newRig(t, market.Config{}, tensordock.Options{})
	for name, body := range map[string]any{
		"no JSON": `{`, "a list": []any{}, "no data": object{}, "no type": object{"data": object{"attributes": order()["data"].(object)["attributes"]}},
		"another key": order(set("startup_script", "x")), "snake case": order(set("use_dedicated_ip", true)),
		"no name": order(set("name", nil)), "a number for a name": order(set("name", 7)), "no image": order(set("image", nil)),
		"Docker image": order(set("image", "vllm/vllm-openai")), "no SSH key": order(set("ssh_key", nil)), "odd SSH key": order(set("ssh_key", "ssh-ed25519 AAAA ops")),
		"both places": order(set("location_id", tensordock.LocationID("Oslo, NO"))), "no place": order(set("hostnode_id", nil)),
		"odd vCPUs": order(resource("vcpu_count", 5)), "vCPUs as text": order(resource("vcpu_count", "4")), "RAM between steps": order(resource("ram_gb", 33)),
		"a small disk": order(resource("storage_gb", 99)), "a disk between steps": order(resource("storage_gb", 120)),
		"no GPU": order(resource("gpus", object{})), "two models": order(resource("gpus", object{slug: object{"count": 1}, "l4-pcie-24gb": object{"count": 1}})),
		"GPUs as a number": order(resource("gpus", object{slug: 1})), "no GPUs of it": order(resource("gpus", object{slug: object{"count": 0}})),
		"forwards beside an address": order(set("useDedicatedIp", true)), "an odd protocol": order(set("port_forwards", []object{{"protocol": "sctp", "internal_port": 22, "external_port": 0}})),
		"a port too high": order(set("port_forwards", []object{{"internal_port": 70000, "external_port": 0}})),
		"a port as text":  order(set("port_forwards", []object{{"internal_port": "22", "external_port": 0}})),
		"user data":       order(set("cloud_init", "#cloud-config")), "encoding": order(set("cloud_init", object{"write_files": []object{{"path": "/x", "content": "", "encoding": "b64"}}})),
		"authorized keys": order(set("cloud_init", object{"ssh_authorized_keys": []string{"x"}})), "runcmd of lists": order(set("cloud_init", object{"runcmd": [][]string{{"x"}}})),
		"a long script": order(set("cloud_init", object{"runcmd": []string{strings.Repeat("x", 17000)}})),
	} {
		status, out := r.call("POST", instances, body)
		list, _ := out[""].([]any)
		if status != 400 || len(list) == 0 || list[0].(object)["code"] == nil || list[0].(object)["path"] == nil {
			t.Errorf("%s: %d %v; want an array of complaints", name, status, out)
		}
	}
	if n := r.market.Books().Rented; n != 0 {
		t.Errorf("%d rented", n)
	}
}

func TestAnOrderThatIsRefused(t *testing.T) {
	for _, plain := range []bool{false, true} {
		r := newRig(t, market.Config{Offers: append(machine("4411"), machine("4412")...)}, tensordock.Options{PlainErrors: plain})
		for name, c := range map[string]struct {
			change func(object)
			want   string
		}{
			"no SSH":        {set("port_forwards", []object{{"internal_port": 9443, "external_port": 0}}), "SSH port (22) must be forwarded"},
			"no host":       {set("hostnode_id", tensordock.NodeID("1")), "No available nodes found"},
			"no model":      {resource("gpus", object{"l4-pcie-24gb": object{"count": 1}}), "No available nodes found"},
			"too many GPUs": {resource("gpus", object{slug: object{"count": 3}}), "No available nodes found"},
			"too much RAM":  {resource("ram_gb", 144), "No available nodes found"},
			"a port taken":  {set("port_forwards", []object{{"internal_port": 22, "external_port": 19999}}), "Port 19999 is not available"},
			"much disk":     {resource("storage_gb", 450), "No available nodes found"},
		} {
			status, out := r.call("POST", instances, order(c.change))
			if want := map[bool]int{false: 200, true: 400}[plain]; status != want || out["status"] != 400.0 || !strings.Contains(fmt.Sprint(out["error"]), c.want) {
				t.Errorf("%s: %d %v; want %d and %q", name, status, out, want, c.want)
			}
		}
		r.market.SetCredit(1)
		r.rent()
		r.clock.Step(time.Hour)
		if _, out := r.call("POST", instances, order()); !strings.Contains(fmt.Sprint(out["error"]), "need at least $") {
			t.Errorf("without credit: %v", out)
		}
	}
}

func TestAddresses(t *testing.T) {
	own := func(a object) { a["useDedicatedIp"] = true; delete(a, "port_forwards") }
	r := newRig(t, market.Config{}, tensordock.Options{})
	id := r.rent(own)
	r.clock.Step(time.Second)
	if in := r.show(id); in["ipAddress"] == nil || len(in["portForwards"].([]any)) != 0 {
		t.Errorf("an address of its own: %v", in)
	}
	for _, o := range []tensordock.Options{{NoPublicIPs: true}, {StaleIPs: true}} {
		offers := machine("4411")
		for i := range offers {
			offers[i].StaticIP = false
		}
		r := newRig(t, market.Config{Offers: offers}, o)
		_, nodes := r.call("GET", "/api/v2/hostnodes", nil)
		free := nodes["data"].(object)["hostnodes"].([]any)[0].(object)["available_resources"].(object)
		if free["has_public_ip_available"] != o.StaleIPs {
			t.Errorf("%+v: lists an address: %v", o, free["has_public_ip_available"])
		}
		if _, out := r.call("POST", instances, order(own)); !strings.Contains(fmt.Sprint(out["error"]), "No available public IPs") {
			t.Errorf("%+v: %v", o, out)
		}
	}
}
