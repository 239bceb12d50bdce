package vastai_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

func TestCreateRefusesWhatTheVendorWould(t *testing.T) {
	r := newRig(t, one(), unlimited)
	long := strings.Repeat("x", 2100)
	ports := object{"A": "1"}
	for i := range 65 {
		ports[fmt.Sprintf("-p %d:%d", 2000+i, 2000+i)] = "1"
	}
	for name, tt := range map[string]struct {
		body   any
		status int
		slug   string
	}{
		"no image":         {with(order(), "image", nil), 400, "invalid_args"},
		"no tag":           {with(order(), "image", "ghcr.io:443/org/vllm"), 500, "server_error"},
		"env as flags":     {with(order(), "env", "-e A=b -p 9443:9443"), 400, "invalid_args"},
		"env number":       {with(order(), "env", object{"A": 1}), 400, "invalid_args"},
		"env name":         {with(order(), "env", object{"A B": "1"}), 400, "invalid_args"},
		"env port":         {with(order(), "env", object{"-p 9443": "1"}), 400, "invalid_args"},
		"env too long":     {with(order(), "env", object{"A": strings.Repeat("x", 32768)}), 400, "invalid_args"},
		"too many ports":   {with(order(), "env", ports), 400, "invalid_args"},
		"command too long": {with(with(order(), "args", []string{long}), "onstart", long), 400, "invalid_args"},
		"args as text":     {with(order(), "args", "-c"), 400, "invalid_args"},
		"args with ssh":    {with(order(), "runtype", "ssh"), 400, "invalid_args"},
		"runtype":          {with(order(), "runtype", "docker"), 400, "invalid_args"},
		"small disk":       {with(order(), "disk", 7), 400, "invalid_args"},
		"disk as text":     {with(order(), "disk", "80"), 400, "invalid_args"},
		"large disk":       {with(order(), "disk", 401), 400, "invalid_args"},
		"no price":         {with(order(), "price", 0), 400, "invalid_price"},
		"high price":       {with(order(), "price", 128.5), 400, "invalid_price"},
		"label":            {with(order(), "label", strings.Repeat("x", 257)), 400, "invalid_args"},
		"unknown field":    {with(order(), "bid_price", 0.3), 400, "invalid_args"},
		"client":           {with(order(), "client_id", "you"), 400, "invalid_args"},
		"vm":               {with(order(), "vm", true), 400, "no_ssh_key_for_vm"},
		"login":            {with(order(), "image_login", "user:pass"), 400, "invalid_args"},
		"not JSON":         {"{", 400, "invalid_args"},
	} {
		status, out := r.call("PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", tt.body)
		if status != tt.status || out["error"] != tt.slug || out["success"] != false {
			t.Errorf("%s: %d %v", name, status, out)
		}
	}
	if n := r.market.Books().Rented; n != 0 {
		t.Errorf("%d rented by refused orders", n)
	}
	for _, image := range []string{"vllm/vllm-openai:v0.10.1", "ghcr.io:443/a/b@sha256:00"} {
		id, _ := r.rent(with(order(), "image", image))
		r.call("DELETE", "/api/v0/instances/"+id+"/", nil)
	}
}

func TestGoneOffers(t *testing.T) {
	for _, tt := range []struct {
		opts   vastai.Options
		status int
		slug   string
		number string
	}{
		{vastai.Options{}, 404, "invalid_args", "404/3603"}, {vastai.Options{GoneStatus: 400}, 400, "invalid_args", "400/3603"},
		{vastai.Options{GoneStatus: 410}, 410, "no_such_ask", "410/3907"},
		{vastai.Options{FailWith200: true}, 200, "invalid_args", "404/3603"},
	} {
		tt.opts.LimitScale = -1
		r := newRig(t, one(), tt.opts)
		ask := r.market.Offers()[0].ID
		r.rent(order())
		for _, id := range []string{ask, "77"} {
			status, out := r.call("PUT", "/api/v0/asks/"+id+"/", order())
			msg, _ := out["msg"].(string)
			if status != tt.status || out["error"] != tt.slug || out["success"] != false ||
				!strings.Contains(msg, "error "+tt.number+": no_such_ask Instance type") || fmt.Sprint(int(out["ask_id"].(float64))) != id {
				t.Errorf("%+v: %d %v", tt.opts, status, out)
			}
		}
	}
}

func TestCancelUnavailable(t *testing.T) {
	whole, half := offer4090(), offer4090()
	whole.GPUs, whole.MachineGPUs, half.GPUs, half.MachineGPUs = 2, 2, 1, 2
	r := newRig(t, market.Config{Offers: []market.Offer{whole, half}}, unlimited)
	both := r.market.Offers()
	if status, _ := r.call("PUT", "/api/v0/asks/"+both[1].ID+"/", order()); status != 200 {
		t.Fatal(status)
	}
	status, out := r.call("PUT", "/api/v0/asks/"+both[0].ID+"/", order())
	if status != 410 || out["error"] != "no_such_ask" {
		t.Errorf("cancelled: %d %v", status, out)
	}
	if status, out = r.call("PUT", "/api/v0/asks/"+both[0].ID+"/", with(order(), "cancel_unavail", nil)); status != 410 {
		t.Errorf("on-demand by default: %d %v", status, out)
	}
	status, out = r.call("PUT", "/api/v0/asks/"+both[0].ID+"/", with(with(order(), "cancel_unavail", nil), "price", 1.5))
	if status != 200 {
		t.Fatalf("a bid by default: %d %v", status, out)
	}
	if in := r.show(fmt.Sprintf("%.0f", out["new_contract"])); in["actual_status"] != nil || in["status_msg"] != "scheduling" {
		t.Errorf("waits as %v %v", in["actual_status"], in["status_msg"])
	}
}

func TestPriceDecidesTheKind(t *testing.T) {
	r := newRig(t, one(), unlimited)
	id, _ := r.rent(order())
	if in := r.show(id); in["is_bid"] != false || in["dph_base"] != 0.38 {
		t.Errorf("without a price: bid %v at %v", in["is_bid"], in["dph_base"])
	}
	r.call("DELETE", "/api/v0/instances/"+id+"/", nil)
	id, _ = r.rent(with(order(), "price", 0.25))
	if in := r.show(id); in["is_bid"] != true || in["dph_base"] != 0.25 {
		t.Errorf("with a price: bid %v at %v", in["is_bid"], in["dph_base"])
	}
}

func TestLowBidLeavesAnInstance(t *testing.T) {
	cfg := one()
	cfg.LowBidStays = true
	for _, quiet := range []bool{false, true} {
		r := newRig(t, cfg, vastai.Options{LimitScale: -1, LowBidWith200: quiet})
		status, out := r.call("PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", with(order(), "price", 0.1))
		if (status == 200) != quiet || out["new_contract"] == nil || out["success"] != quiet {
			t.Errorf("quiet %v: %d %v", quiet, status, out)
		}
		if in := r.show(fmt.Sprintf("%.0f", out["new_contract"])); in["actual_status"] != "stopped" || in["label"] != "gs-aaaaaaaa-0001" {
			t.Errorf("left behind: %v", in)
		}
	}
}

func TestAccountRefusals(t *testing.T) {
	cfg := one()
	cfg.Limits.GPUs = 1
	cfg.Offers = append(cfg.Offers, offer4090())
	cfg.Offers[1].Machine = "4412"
	r := newRig(t, cfg, unlimited)
	r.rent(order())
	if status, out := r.call("PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", order()); status != 400 || out["error"] != "spend_rate_limit" {
		t.Errorf("over quota: %d %v", status, out)
	}
	cfg = one()
	cfg.Limits.Credit = 1
	r = newRig(t, cfg, unlimited)
	id, _ := r.rent(order())
	r.clock.Step(3600e9)
	r.call("DELETE", "/api/v0/instances/"+id+"/", nil)
	status, out := r.call("PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", order())
	if msg, _ := out["msg"].(string); status != 400 || !strings.Contains(msg, "credit") {
		t.Errorf("no credit: %d %v", status, out)
	}
}

func TestContainersAreToldWhatTheVendorTells(t *testing.T) {
	var spec body.Spec
	cfg := one()
	cfg.Body = body.FactoryFunc(func(_ ctx, s body.Spec) (body.Body, error) { spec = s; return body.NewInert(), nil })
	r := newRig(t, cfg, unlimited)
	id, k := r.rent(order())
	r.market.Tick()
	if spec.Env["CONTAINER_ID"] != id || spec.Env["CONTAINER_API_KEY"] != k || spec.Env["GPUSCALE_BOOT"] != "e30=" {
		t.Errorf("env %v", spec.Env)
	}
	if len(spec.PortEnv) != 1 || spec.PortEnv[0] != "VAST_TCP_PORT_9443" || spec.HostEnv[0] != "PUBLIC_IPADDR" || spec.Port != 9443 {
		t.Errorf("port %d %v %v", spec.Port, spec.PortEnv, spec.HostEnv)
	}
	if _, leaked := spec.Env["-p 9443:9443"]; leaked {
		t.Error("a docker option became a variable")
	}
	if want := "/bin/bash -c curl -fsSL $BOOT_URL | bash"; strings.Join(spec.Command, " ") != want {
		t.Errorf("command %v", spec.Command)
	}
	if spec.GPU.Name != "NVIDIA GeForce RTX 4090" || spec.GPU.MemoryMB != 24564 || spec.GPU.Count != 1 {
		t.Errorf("GPU %+v", spec.GPU)
	}
}
