package tensordock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/internal/bootstrap/boottest"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// script answers requests in order and keeps them.
type script struct {
	t       *testing.T
	answers []answerAs
	got     []sent
}

type answerAs struct {
	status int
	body   string
	header http.Header
}

type sent struct {
	method, path, query, body string
	header                    http.Header
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	s.got = append(s.got, sent{r.Method, r.URL.Path, r.URL.RawQuery, string(body), r.Header})
	if len(s.answers) == 0 {
		s.t.Errorf("an unexpected %s %s", r.Method, r.URL)
		return nil, errors.New("no more answers")
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	header := a.header
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: a.status, Header: header, Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

func scripted(t *testing.T, answers ...answerAs) (*Provider, *script) {
	t.Helper()
	s := &script{t: t, answers: answers}
	p, err := New(Config{Token: "t0ken", Transport: s, PaceFactor: -1, RetryMin: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

func ok(body string) answerAs { return answerAs{status: 200, body: body} }

func failed(status int, body string) answerAs { return answerAs{status: status, body: body} }

func to[T any](v T) *T { return &v }

const (
	nodeID     = "2b110000-0000-4000-8000-000000000009"
	locationID = "1a770000-0000-4000-8000-000000000001"
	vmID       = "468b0000-0000-4000-8000-000000000002"
	slug       = "geforcertx4090-pcie-24gb"
)

// node is a hostnode as the reference describes it, with one value replaced.
func node(old, new string) string {
	return strings.Replace(`{"id":"`+nodeID+`","location_id":"`+locationID+`","engine":"kvm","uptime_percentage":99.5,
	 "available_resources":{"gpus":[{"v0Name":"`+slug+`","availableCount":1,"price_per_hr":0.35}],"vcpu_count":32,"ram_gb":40,
	  "storage_gb":777,"available_ports":[20001,20002],"has_public_ip_available":true},
	 "pricing":{"per_vcpu_hr":0.003,"per_gb_ram_hr":0.002,"per_gb_storage_hr":0.00005},
	 "location":{"uuid":"`+locationID+`","city":"Chicago","stateprovince":"Illinois","country":"United States","tier":3}}`, old, new, 1)
}

func nodes(rows ...string) answerAs {
	return ok(`{"data":{"hostnodes":[` + strings.Join(rows, ",") + `]}}`)
}

// market is the example of the reference.
const market = `{"data":{"locations":[{"id":"` + locationID + `","city":"Chicago","stateprovince":"Illinois",
 "country":"United States","tier":3,"gpus":[{"v0Name":"geforcertx4090-pcie-24gb",
  "displayName":"NVIDIA GeForce RTX 4090 PCIe 24GB","max_count":1,"price_per_hr":0.35,
  "resources":{"max_vcpus":32,"max_ram_gb":40,"max_storage_gb":1000},
  "pricing":{"per_vcpu_hr":0.003,"per_gb_ram_hr":0.002,"per_gb_storage_hr":0.00005},
  "network_features":{"dedicated_ip_available":true,"port_forwarding_available":true,"network_storage_available":false}}]}]}}`

func query() provider.OfferQuery {
	return provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 120, Regions: []string{"Norway"}}
}

func search(t *testing.T, answers ...answerAs) ([]provider.Offer, error) {
	t.Helper()
	p, s := scripted(t, answers...)
	offers, err := p.SearchOffers(t.Context(), query())
	if len(s.answers) > 0 {
		t.Errorf("%d answers were not asked for", len(s.answers))
	}
	return offers, err
}

func TestAHostnodeAsAnOffer(t *testing.T) {
	p, s := scripted(t, nodes(node("", "")))
	got, err := p.SearchOffers(t.Context(), query())
	want := []provider.Offer{{
		Provider: provider.TensorDock, ID: "hostnode/" + nodeID + "/" + slug + "/1/4/32/ip+forward/20001/20002", CapacityType: provider.OnDemand,
		GPU: "RTX4090", GPUCount: 1, VRAMGB: 24, VCPU: 4, RAMGB: to(32), DiskGB: 150, MaxDiskGB: 750, Region: "United States",
		// 0.35 + 4 × 0.003 + 32 × 0.002 + 150 × 0.00005
		CPUArch: "amd64", Price: money.MustParse("0.4335"), Reliability: to(0.995), ComputeCapability: &[2]int{8, 9},
		RestKeys: []provider.RestKey{"machine/" + nodeID, "location/" + locationID + "/" + slug, "gpu/" + slug},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	g := s.got[0]
	if g.method != "GET" || g.path != "/api/v2/hostnodes" || g.query != "" || g.body != "" ||
		g.header.Get("Authorization") != "Bearer t0ken" || g.header.Get("Accept") != "application/json" {
		t.Errorf("sent %+v", g)
	}
}

func TestALocationAsAnOffer(t *testing.T) {
	for _, missing := range []answerAs{failed(404, "<pre>Cannot GET</pre>"), failed(404, `{"error":"Not found"}`), failed(405, ""), failed(410, ""), failed(501, "")} {
		got, err := search(t, missing, ok(market))
		want := []provider.Offer{{
			Provider: provider.TensorDock, ID: "location/" + locationID + "/" + slug + "/1/4/32/ip+forward", CapacityType: provider.OnDemand,
			GPU: "RTX4090", GPUCount: 1, VRAMGB: 24, VCPU: 4, RAMGB: to(32), DiskGB: 150, MaxDiskGB: 1000, Region: "United States",
			CPUArch: "amd64", Price: money.MustParse("0.4335"), Reliability: to(1.0), ComputeCapability: &[2]int{8, 9},
			RestKeys: []provider.RestKey{"location/" + locationID + "/" + slug, "gpu/" + slug},
		}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: got  %+v, %v\nwant %+v", missing, got, err, want)
		}
	}
	for _, c := range []struct {
		kind    provider.Kind
		answers []answerAs
	}{
		{provider.Unauthorized, []answerAs{failed(401, "")}}, {provider.Unauthorized, []answerAs{failed(403, "")}},
		{provider.RateLimited, []answerAs{failed(429, "")}}, {provider.Unavailable, []answerAs{failed(500, "")}},
		{provider.Unknown, []answerAs{ok(`{"data":{}}`)}}, {provider.Unknown, []answerAs{ok(`{"data":{"hostnodes":null}}`)}},
		{provider.Unknown, []answerAs{ok(`{"data":[]}`)}}, {provider.Unknown, []answerAs{ok(`<html>`)}},
		{provider.Unknown, []answerAs{failed(404, ""), ok(`{"data":{}}`)}}, {provider.Unknown, []answerAs{failed(404, ""), failed(404, "")}},
		{provider.Unavailable, []answerAs{failed(404, ""), failed(500, "")}},
	} {
		if got, err := search(t, c.answers...); provider.KindOf(err) != c.kind || got != nil {
			t.Errorf("%v: %v, %v; want kind %s", c.answers, got, err, c.kind)
		}
	}
}

func TestRowsThatAreNoOffer(t *testing.T) {
	for old, new := range map[string]string{
		`"price_per_hr":0.35`: `"price_per_hr":null`, `"price_per_hr":0.35}`: `"price_per_hr":0}`,
		`"availableCount":1,"price_per_hr":0.35`: `"availableCount":1`, `"price_per_hr":0.3`: `"price_per_hr":-0.3`,
		`0.35}],"v`: `"free"}],"v`, `"availableCount":1`: `"availableCount":0`, `-24gb`: ``,
		`"per_vcpu_hr":0.003,`: ``, `"per_gb_ram_hr":0.002`: `"per_gb_ram_hr":null`, `"per_gb_storage_hr":0.00005`: `"per_gb_storage_hr":"?"`,
		`"storage_gb":777`: `"storage_gb":149`, `"vcpu_count":32`: `"vcpu_count":1`, `"ram_gb":40`: `"ram_gb":31`,
		`"available_ports":[20001,20002],"has_public_ip_available":true`: `"available_ports":[20001]`,
		`"id":"` + nodeID: `"id":"a/b`, `"storage_gb":777,`: `"storage_gb":777,"max_storage_gb":100,`,
	} {
		if got, err := search(t, nodes(node(old, new))); err != nil || len(got) != 0 {
			t.Errorf("%s: %+v, %v; want no offer", new, got, err)
		}
		if got, err := search(t, nodes(node(old, new), node("", ""))); err != nil || len(got) != 1 {
			t.Errorf("%s beside another: %+v, %v; want one offer", new, got, err)
		}
	}
	for _, odd := range []string{`7`, `{"id":1,"available_resources":"none"}`} {
		if got, err := search(t, nodes(odd)); provider.KindOf(err) != provider.Unknown {
			t.Errorf("%s alone: %+v, %v", odd, got, err)
		}
		if got, err := search(t, nodes(odd, node("", ""))); err != nil || len(got) != 1 {
			t.Errorf("%s beside another: %+v, %v; want one offer", odd, got, err)
		}
	}
}

func TestRowsThatAreOffersAllTheSame(t *testing.T) {
	for _, c := range []struct{ old, new, id, price string }{
		{`0.35`, `"0.35"`, "ip+forward/20001/20002", "0.4335"}, {`0.35`, `"$0.35"`, "ip+forward/20001/20002", "0.4335"},
		{`"per_vcpu_hr":0.003`, `"per_vcpu_hr":0`, "ip+forward/20001/20002", "0.4215"}, {`"per_gb_ram_hr":0.002`, `"per_gb_ram_hr":"0.002"`, "ip+forward/20001/20002", "0.4335"},
		{`"available_ports":[20001,20002],`, ``, "ip+forward", "0.4335"}, {`[20001,20002]`, `[]`, "ip", "0.4335"}, {`[20001,20002]`, `["20001",0,70000,null,20009]`, "ip+forward/20001/20009", "0.4335"},
		{`"has_public_ip_available":true`, `"has_public_ip_available":null`, "forward/20001/20002", "0.4335"},
		{`0.35`, `0.3500001`, "ip+forward/20001/20002", "0.433501"},
	} {
		got, err := search(t, nodes(node(c.old, c.new)))
		if err != nil || len(got) != 1 || !strings.HasSuffix(got[0].ID, "/"+c.id) || got[0].Price != money.MustParse(c.price) {
			t.Errorf("%s: %+v, %v; want %s at $%s", c.new, got, err, c.id, c.price)
		}
	}
	for score, want := range map[string]*float64{`99.5`: to(0.995), `0`: to(0.0), `null`: to(1.0), `101`: to(1.0)} {
		got, err := search(t, nodes(node(`99.5`, score)))
		if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Reliability, want) {
			t.Errorf("uptime %s: %v, %v; want %v", score, got, err, *want)
		}
	}
	for tier, want := range map[string]*float64{"0": to(0.0), "2": to(2.0 / 3), "3": to(1.0), "4": to(1.0), "null": nil} {
		if got := reliability(number{}, *readNumber(t, tier)); !reflect.DeepEqual(got, want) {
			t.Errorf("tier %s: %v; want %v", tier, got, want)
		}
	}
}

func readNumber(t *testing.T, s string) *number {
	t.Helper()
	var n number
	if err := json.Unmarshal([]byte(s), &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

func TestShapes(t *testing.T) {
	roomy := supply{vcpus: 1000, ramGB: 10_000, storageGB: 1000}
	with := func(change func(*supply)) supply {
		s := roomy
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		s          supply
		gpus, vram int
		want       string
	}{
		"one 4090":               {roomy, 1, 24, "4/32 4/64 4/128"},
		"eight 4090s":            {roomy, 8, 24, "32/192 32/256 32/512"},
		"eight H100s":            {roomy, 8, 80, "32/512"},
		"a small card":           {roomy, 1, 8, "4/8 4/16 4/32 4/64"},
		"no RAM for more":        {with(func(s *supply) { s.ramGB = 64 }), 1, 24, "4/32 4/64"},
		"RAM for each GPU":       {with(func(s *supply) { s.perGPURAMGB = 40 }), 2, 24, "8/48 8/64"},
		"too little for each":    {with(func(s *supply) { s.perGPURAMGB = 20 }), 2, 24, ""},
		"few vCPUs for each":     {with(func(s *supply) { s.perGPUVCPUs = 3 }), 1, 24, "2/32 2/64 2/128"},
		"an odd number of vCPUs": {with(func(s *supply) { s.vcpus = 7 }), 2, 24, "6/48 6/64 6/128 6/256"},
		"one vCPU":               {with(func(s *supply) { s.vcpus = 1 }), 1, 24, ""},
		"no disk":                {with(func(s *supply) { s.storageGB = 99 }), 1, 24, ""},
	} {
		var got []string
		for _, sh := range c.s.shapes(c.gpus, c.vram, 100) {
			got = append(got, fmt.Sprintf("%d/%d", sh.vcpus, sh.ramGB))
			if sh.gpus != c.gpus || sh.storageGB != 100 || sh.vcpus%2 != 0 || !slices.Contains(ramSteps(), sh.ramGB) {
				t.Errorf("%s: %+v", name, sh)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q; want %q", name, strings.Join(got, " "), c.want)
		}
	}
	for n, want := range map[int][]int{0: nil, 1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 4: {1, 2, 4}, 7: {1, 2, 4, 7}, 8: {1, 2, 4, 8}} {
		if got := counts(n); !slices.Equal(got, want) {
			t.Errorf("%d GPUs are offered as %v; want %v", n, got, want)
		}
	}
	s := supply{ports: []int{1, 2, 3, 4, 5}}
	for nth, want := range [][2]int{{1, 2}, {3, 4}, {1, 2}} {
		if got := s.twoPorts(nth); got != want {
			t.Errorf("offer %d asks for %v; want %v", nth, got, want)
		}
	}
	for gb, want := range map[int]int{1: 100, 100: 100, 101: 150, 150: 150, 151: 200} {
		if got := storageFor(gb); got != want {
			t.Errorf("a disk of %d GB is %d; want %d", gb, got, want)
		}
	}
}

func order(network string) provider.CreateRequest {
	return provider.CreateRequest{
		Offer: provider.Offer{ID: "hostnode/" + nodeID + "/" + slug + "/2/8/48/" + network, CapacityType: provider.OnDemand, GPU: "RTX4090",
			GPUCount: 2, DiskGB: 150, Region: "United States", Price: money.MustParse("0.9"), RestKeys: []provider.RestKey{"machine/x"}},
		Tag: "gs-0a1b2c3d-0011223344556677", MaxPrice: money.MustParse("0.9"), DiskGB: 120,
		Boot: provider.Boot{UserData: "#!/bin/bash\necho '<&>' \"$x\"\n", Port: 9443},
	}
}

const created = `{"data":{"type":"virtualmachine","id":"` + vmID + `","name":"gs-0a1b2c3d-0011223344556677-p9443","status":"creating"}}`

func TestCreateRequest(t *testing.T) {
	for network, attributes := range map[string]string{
		"forward/20001/20002": `"name":"gs-0a1b2c3d-0011223344556677",NETWORK"port_forwards":[{"protocol":"tcp","internal_port":22,"external_port":20001},{"protocol":"tcp","internal_port":9443,"external_port":20002}],`,
		"ip":                  `"name":"gs-0a1b2c3d-0011223344556677-p9443",NETWORK"useDedicatedIp":true,`,
		"forward":             `"name":"gs-0a1b2c3d-0011223344556677",NETWORK"port_forwards":[{"protocol":"tcp","internal_port":22,"external_port":0},{"protocol":"tcp","internal_port":9443,"external_port":0}],`,
	} {
		p, s := scripted(t, ok(created))
		got, err := p.CreateInstance(t.Context(), order(network))
		want := provider.Instance{Provider: provider.TensorDock, ID: vmID, Tag: "gs-0a1b2c3d-0011223344556677", State: provider.StatePending,
			Message: "creating", CapacityType: provider.OnDemand, GPU: "RTX4090", GPUCount: 2, Region: "United States", RestKeys: []provider.RestKey{"machine/x"}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
		g := s.got[0]
		body := regexp.MustCompile(`"ssh_key":"ssh-ed25519 [A-Za-z0-9+/]{68} gpuscale"`).ReplaceAllString(g.body, `"ssh_key":"KEY"`)
		wantBody := `{"data":{"type":"virtualmachine","attributes":{` + strings.Replace(attributes, "NETWORK",
			`"type":"virtualmachine","image":"ubuntu2404_ml_everything",`+
				`"resources":{"vcpu_count":8,"ram_gb":48,"storage_gb":150,"gpus":{"`+slug+`":{"count":2}}},`+
				`"hostnode_id":"`+nodeID+`","ssh_key":"KEY",`, 1) +
			`"cloud_init":{"package_update":false,"write_files":[{"path":"/run/gpuscale-boot.sh","content":"#!/bin/bash\necho '<&>' \"$x\"\n",` +
			`"owner":"root:root","permissions":"0600"}],"runcmd":["bash /run/gpuscale-boot.sh"]}}}}`
		if g.method != "POST" || g.path != "/api/v2/instances" || body != wantBody || g.header.Get("Content-Type") != "application/json" {
			t.Errorf("sent %s %s\n%s\nwant\n%s", g.method, g.path, body, wantBody)
		}
	}
	r := order("forward")
	r.Offer.ID = "location/" + locationID + "/" + slug + "/2/8/48/forward"
	p, s := scripted(t, ok(created))
	if _, err := p.CreateInstance(t.Context(), r); err != nil || !strings.Contains(s.got[0].body, `"location_id":"`+locationID+`"`) ||
		strings.Contains(s.got[0].body, "hostnode_id") {
		t.Errorf("by location: %v, sent %s", err, s.got[0].body)
	}
}

// TestCloudInit: what is asked for is a #cloud-config by cloud-init's own schema, however the vendor writes it down, and
// holds the script to the byte.
func TestCloudInit(t *testing.T) {
	golden, err := os.ReadFile("../../../internal/bootstrap/testdata/vm.golden.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a VM's": string(golden), "odd": "#!/bin/bash\n# \t{{ x }} ünï\\n\n\n  : \"'\n%\n--- \n"} {
		asJSON, err := json.Marshal(cloudInitFor(text))
		if err != nil {
			t.Fatal(err)
		}
		asYAML, err := yaml.JSONToYAML(asJSON)
		if err != nil {
			t.Fatal(err)
		}
		for form, document := range map[string][]byte{"JSON": asJSON, "YAML": asYAML} {
			var back cloudInit
			if err := yaml.Unmarshal(document, &back); err != nil || back.WriteFiles[0].Content != text {
				t.Errorf("%s script as %s comes back as %q, %v", name, form, back.WriteFiles[0].Content, err)
			}
			if err := boottest.CloudConfig(t.Context(), "#cloud-config\n"+string(document)+"\n"); err != nil {
				t.Errorf("%s script as %s: %v", name, form, err)
			}
		}
	}
}

func TestCreateRefusesBeforehand(t *testing.T) {
	for name, change := range map[string]func(*provider.CreateRequest){
		"another driver's offer": func(r *provider.CreateRequest) { r.Offer.ID = "28000001" },
		"an odd shape":           func(r *provider.CreateRequest) { r.Offer.ID = strings.Replace(r.Offer.ID, "/8/", "/7/", 1) },
		"RAM between steps":      func(r *provider.CreateRequest) { r.Offer.ID = strings.Replace(r.Offer.ID, "/48/", "/47/", 1) },
		"no network":             func(r *provider.CreateRequest) { r.Offer.ID = strings.Replace(r.Offer.ID, "/ip", "/", 1) },
		"a path":                 func(r *provider.CreateRequest) { r.Offer.ID = strings.Replace(r.Offer.ID, nodeID, "..", 1) },
		"one port":               func(r *provider.CreateRequest) { r.Offer.ID += "/20001" },
		"a port too high":        func(r *provider.CreateRequest) { r.Offer.ID += "/20001/70000" },
		"no GPUs":                func(r *provider.CreateRequest) { r.Offer.ID = strings.Replace(r.Offer.ID, "/2/", "/0/", 1) },
		"too large a disk":       func(r *provider.CreateRequest) { r.DiskGB = 151 },
		"too high a price":       func(r *provider.CreateRequest) { r.MaxPrice = money.MustParse("0.899999") },
		"a tag in capitals":      func(r *provider.CreateRequest) { r.Tag = "GS-1" },
		"a tag like a port":      func(r *provider.CreateRequest) { r.Tag = "gs-a-p80" },
		"a long tag":             func(r *provider.CreateRequest) { r.Tag = strings.Repeat("a", 57) },
		"no script":              func(r *provider.CreateRequest) { r.Boot.UserData = "" },
		"SSH's port":             func(r *provider.CreateRequest) { r.Boot.Port = 22 },
	} {
		r := order("ip")
		change(&r)
		p, _ := scripted(t)
		if _, err := p.CreateInstance(t.Context(), r); provider.KindOf(err) != provider.Invalid {
			t.Errorf("%s: %v; want %s", name, err, provider.Invalid)
		}
	}
	r := order("ip")
	r.Offer.CapacityType = provider.Spot
	p, _ := scripted(t)
	if _, err := p.CreateInstance(t.Context(), r); provider.KindOf(err) != provider.Unsupported {
		t.Errorf("spot: %v", err)
	}
}

func TestCreateAnswers(t *testing.T) {
	for _, c := range []struct {
		status   int
		body     string
		kind     provider.Kind
		instance string
	}{
		{200, created, "", ""}, {201, created, "", ""}, {200, `{"id":"` + vmID + `","status":"creating"}`, "", ""},
		{200, `{"data":{"type":"virtualmachine","id":"` + vmID + `","attributes":{"status":"queued"}}}`, "", ""},
		{200, `{"error":"No available nodes found","status":400}`, provider.NoCapacity, ""},
		{400, `{"error":"No available nodes found"}`, provider.NoCapacity, ""},
		{200, `{"error":"Hostnode unavailable"}`, provider.NoCapacity, ""},
		{200, `{"message":"insufficient capacity on hostnode","status":400}`, provider.NoCapacity, ""},
		{400, `{"error":"GPU is not available on this hostnode"}`, provider.NoCapacity, ""},
		{503, `{"error":"Service unavailable"}`, provider.Unavailable, ""}, {200, `{"error":"Service unavailable","status":503}`, provider.Unavailable, ""},
		{400, `{"error":"Not enough balance"}`, provider.NoBalance, ""},
		{200, `{"data":{"error":"No available public IPs on this hostnode"}}`, provider.NoCapacity, ""},
		{200, `{"error":"You need at least $4.20 in your account","status":400}`, provider.NoBalance, ""},
		{400, `{"error":"Insufficient funds"}`, provider.NoBalance, ""}, {402, `{}`, provider.NoBalance, ""},
		{200, `{"error":"SSH port (22) must be forwarded for Ubuntu VMs","status":400}`, provider.Invalid, ""},
		{400, `[{"code":"invalid_type","message":"Expected object","path":["data",0]}]`, provider.Invalid, ""},
		{200, `[{"code":"invalid_type","message":"Expected object","path":["data"]}]`, provider.Invalid, ""},
		{200, `{"error":"Unauthorized","status":401}`, provider.Unauthorized, ""}, {403, `{"error":"Forbidden"}`, provider.Unauthorized, ""},
		{404, `{"error":"Invalid API token"}`, provider.Unauthorized, ""},
		{404, `{"error":"Hostnode not found"}`, provider.NoCapacity, ""}, {404, `{"error":"Not found"}`, provider.Unknown, ""},
		{429, ``, provider.RateLimited, ""}, {200, `{"error":"Too many requests","status":429}`, provider.RateLimited, ""},
		{400, `{"error":"Something else"}`, provider.Unknown, ""}, {200, `{"success":false}`, provider.Unknown, ""},
		{200, `{"success":"false","error":"x"}`, provider.Unknown, ""}, {200, `{}`, provider.Unknown, ""},
		{200, `{"data":{"name":"x","status":"creating"}}`, provider.Unknown, ""}, {200, `<html>`, provider.Unknown, ""}, {200, ``, provider.Unknown, ""},
		{500, `{"error":"No available nodes found"}`, provider.Unknown, ""}, {500, ``, provider.Unknown, ""},
		{502, `<html>`, provider.Unavailable, ""}, {504, ``, provider.Unavailable, ""}, {302, ``, provider.Unknown, ""},
		// A failure that leaves an instance behind, and a success under an error's status.
		{200, `{"error":"Failed to start","status":500,"data":{"id":"` + vmID + `"}}`, provider.Unknown, vmID},
		{500, created, provider.Unknown, vmID}, {400, created, provider.Unknown, vmID},
	} {
		p, s := scripted(t, answerAs{status: c.status, body: c.body})
		inst, err := p.CreateInstance(t.Context(), order("ip"))
		var e *provider.Error
		named := ""
		if errors.As(err, &e) {
			named = e.InstanceID
		}
		if provider.KindOf(err) != c.kind || named != c.instance || len(s.got) != 1 || err == nil && inst.ID != vmID {
			t.Errorf("%d %s: %+v, %v naming %q after %d calls; want kind %q naming %q", c.status, c.body, inst, err, named, len(s.got), c.kind, c.instance)
		}
	}
}

func TestAForwardWhereNoAddressIsLeft(t *testing.T) {
	none := ok(`{"error":"No available public IPs found","status":400}`)
	p, s := scripted(t, none, ok(created))
	if inst, err := p.CreateInstance(t.Context(), order("ip+forward")); err != nil || inst.ID != vmID ||
		!strings.Contains(s.got[0].body, `"useDedicatedIp":true`) || !strings.Contains(s.got[1].body, `"port_forwards"`) {
		t.Errorf("%+v, %v after %d calls", inst, err, len(s.got))
	}
	for _, answers := range [][]answerAs{
		{none, none}, {none, ok(`{"error":"No available nodes found","status":400}`)}, {ok(`{"error":"No available nodes found","status":400}`)},
		{failed(500, `{"error":"No available public IPs"}`)}, {failed(429, `{"error":"No available public IPs"}`)},
		{ok(`{"error":"No available public IPs","data":{"id":"` + vmID + `"}}`)}, {ok(`{}`)},
	} {
		p, s := scripted(t, answers...)
		if _, err := p.CreateInstance(t.Context(), order("ip+forward")); err == nil || len(s.answers) > 0 {
			t.Errorf("%v: %v after %d calls", answers, err, len(s.got))
		}
	}
}

// TestASlowReplyIsWaitedFor: calls have run into 60 s (§1), and are given twice that where nobody says otherwise.
func TestASlowReplyIsWaitedFor(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 2 * time.Minute, time.Second: time.Second} {
		var left time.Duration
		p, err := New(Config{Token: "t", Timeout: given, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			deadline, _ := r.Context().Deadline()
			left = time.Until(deadline)
			return nil, errors.New("enough")
		})})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.DestroyInstance(t.Context(), "vm-1"); err == nil || left > want || left < want-time.Minute/2 {
			t.Errorf("with a time-out of %s a call is waited for for %s: %v", given, left, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestThrowawayKeys(t *testing.T) {
	one, err := throwawayKey()
	two, err2 := throwawayKey()
	if err != nil || err2 != nil || one == two {
		t.Fatalf("%q, %q, %v, %v", one, two, err, err2)
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(one))
	if err != nil || key.Type() != ssh.KeyAlgoED25519 || comment != "gpuscale" || len(options)+len(rest) > 0 || strings.Contains(one, "\n") {
		t.Errorf("%q is %v, %q, %q, %q, %v", one, key, comment, options, rest, err)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]struct {
		tag  string
		port int
	}{
		"gs-a-1": {"gs-a-1", 0}, "gs-a-1-p9443": {"gs-a-1", 9443}, "web-p70000": {"web-p70000", 0}, "p9443": {"p9443", 0}, "x-p09": {"x-p09", 0}, "": {"", 0},
	} {
		if tag, port := fromName(name); tag != want.tag || port != want.port {
			t.Errorf("%q is %q at %d; want %q at %d", name, tag, port, want.tag, want.port)
		}
	}
}
