package vastai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/gpu"
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
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

func scripted(t *testing.T, answers ...answerAs) (*Provider, *script) {
	t.Helper()
	s := &script{t: t, answers: answers}
	p, err := New(Config{APIKey: "k3y", Transport: s, PaceFactor: -1, RetryMin: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

func ok(body string) answerAs { return answerAs{200, body} }

func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !reflect.DeepEqual(g, w) {
		t.Errorf("sent  %s\nwant %s", got, want)
	}
}

func TestSearchRequest(t *testing.T) {
	for _, c := range []struct {
		q    provider.OfferQuery
		want string
	}{
		{provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 80}, `{"allocated_storage":80,"disk_space":{"gte":80},"type":"ondemand"}`},
		{provider.OfferQuery{CapacityType: provider.Spot, DiskGB: 1, Regions: []string{"US", "CA"}},
			`{"allocated_storage":8,"disk_space":{"gte":8},"type":"bid","geolocation":{"in":["US","CA"]}}`},
	} {
		p, s := scripted(t, ok(`{"offers":[]}`))
		if offers, err := p.SearchOffers(t.Context(), c.q); err != nil || len(offers) != 0 {
			t.Errorf("%v, %v", offers, err)
		}
		always := `{"verified":{"eq":true},"rentable":{"eq":true},"rented":{"eq":false},"external":{"eq":false},
			"direct_port_count":{"gte":1},"order":[["dph_total","asc"],["id","asc"]],"limit":10000,`
		sameJSON(t, s.got[0].body, always+c.want[1:])
		if g := s.got[0]; g.method != "POST" || g.path != "/api/v0/bundles/" || g.header.Get("Authorization") != "Bearer k3y" || g.query != "" {
			t.Errorf("sent %+v", g)
		}
	}
}

// row is an offer of the provider reference with some fields changed; null takes one away.
func row(changes string) string {
	fields := map[string]json.RawMessage{}
	base := `{"id":77,"ask_contract_id":77,"machine_id":4411,"host_id":90,"gpu_name":"RTX 4090","num_gpus":2,"gpu_frac":0.5,
		"gpu_ram":24564,"gpu_total_ram":49128,"cpu_ram":128000,"cpu_cores":64,"cpu_cores_effective":16.0,"cpu_arch":"amd64",
		"disk_space":250.7,"inet_down_cost":0.01,"inet_up_cost":0.02,"storage_cost":0.15,"storage_total_cost":9,"dph_base":0.38,
		"dph_total":9,"min_bid":0.21,"compute_cap":890,"cuda_max_good":12.8,"reliability2":0.98,"reliability":0.5,
		"geolocation":"Oslo, NO","direct_port_count":12,"duration":86400.5,"external":null,"verification":"verified"}`
	if json.Unmarshal([]byte(base), &fields) != nil {
		panic("the base row is no JSON")
	}
	changed := map[string]json.RawMessage{}
	if changes != "" && json.Unmarshal([]byte(changes), &changed) != nil {
		panic("no JSON: " + changes)
	}
	maps.Copy(fields, changed)
	out, _ := json.Marshal(fields)
	return string(out)
}

func searchOne(t *testing.T, kind provider.CapacityType, row string) (provider.Offer, bool) {
	t.Helper()
	p, _ := scripted(t, ok(`{"offers":[`+row+`]}`))
	offers, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: 80})
	if err != nil {
		t.Fatal(err)
	}
	if len(offers) == 0 {
		return provider.Offer{}, false
	}
	return offers[0], true
}

func to[T any](v T) *T { return &v }

func TestSearchRow(t *testing.T) {
	got, _ := searchOne(t, provider.OnDemand, row(""))
	want := provider.Offer{
		Provider: provider.VastAI, ID: "77", CapacityType: provider.OnDemand, GPU: "RTX4090", GPUCount: 2, VRAMGB: 24, VCPU: 16,
		RAMGB: to(32), DiskGB: 80, MaxDiskGB: 250, Region: "NO", CPUArch: "amd64",
		Price:        money.MustParse("0.396667"), // 0.38 + 80×0.15/720 = 0.39666…
		TrafficPerGB: 15000, Reliability: to(0.98), MaxCUDA: &[2]int{12, 8}, ComputeCapability: &[2]int{8, 9},
		AvailableFor: to(86400*time.Second + 500*time.Millisecond), RestKeys: []provider.RestKey{"machine/4411", "host/90"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	spot, _ := searchOne(t, provider.Spot, row(""))
	want.CapacityType, want.Bid, want.Price = provider.Spot, money.MustParse("0.2415"), money.MustParse("0.258167")
	if !reflect.DeepEqual(spot, want) {
		t.Errorf("spot: got  %+v\nwant %+v", spot, want)
	}
}

func TestSearchRowOddities(t *testing.T) {
	show := func(v any) string {
		b, _ := json.Marshal(v)
		return string(b)
	}
	for _, c := range []struct {
		changes string
		read    func(provider.Offer) any
		want    string
	}{
		{`{"cpu_cores":null}`, func(o provider.Offer) any { return o.RAMGB }, `null`},
		{`{"cpu_cores":null,"gpu_frac":1}`, func(o provider.Offer) any { return o.RAMGB }, `128`},
		{`{"cpu_cores":0}`, func(o provider.Offer) any { return o.RAMGB }, `null`},
		{`{"cpu_cores_effective":128}`, func(o provider.Offer) any { return o.RAMGB }, `128`},
		{`{"cpu_ram":null}`, func(o provider.Offer) any { return o.RAMGB }, `null`},
		{`{"gpu_name":"Imaginary 9999"}`, func(o provider.Offer) any { return o.GPU }, `"unknown:Imaginary 9999"`},
		{`{"gpu_name":"A100 SXM4","gpu_ram":81920}`, func(o provider.Offer) any { return []any{o.GPU, o.VRAMGB} }, `["A100-80GB-SXM",80]`},
		{`{"gpu_name":"A100 SXM4","gpu_ram":40960}`, func(o provider.Offer) any { return []any{o.GPU, o.VRAMGB} }, `["A100-40GB-SXM",40]`},
		{`{"gpu_ram":5500}`, func(o provider.Offer) any { return o.VRAMGB }, `5`},
		{`{"gpu_ram":null}`, func(o provider.Offer) any { return o.VRAMGB }, `0`},
		{`{"gpu_name":"GH200 SXM","gpu_ram":97871,"cpu_arch":"arm64"}`, func(o provider.Offer) any { return o.CPUArch }, `"arm64"`},
		{`{"cpu_arch":"aarch64"}`, func(o provider.Offer) any { return o.CPUArch }, `"arm64"`},
		{`{"cpu_arch":null}`, func(o provider.Offer) any { return o.CPUArch }, `""`},
		{`{"geolocation":", US"}`, func(o provider.Offer) any { return o.Region }, `"US"`},
		{`{"geolocation":"US"}`, func(o provider.Offer) any { return o.Region }, `"US"`},
		{`{"geolocation":null}`, func(o provider.Offer) any { return o.Region }, `""`},
		{`{"cuda_max_good":12.10}`, func(o provider.Offer) any { return o.MaxCUDA }, `[12,10]`},
		{`{"cuda_max_good":13}`, func(o provider.Offer) any { return o.MaxCUDA }, `[13,0]`},
		{`{"cuda_max_good":null}`, func(o provider.Offer) any { return o.MaxCUDA }, `null`},
		{`{"compute_cap":1200}`, func(o provider.Offer) any { return o.ComputeCapability }, `[12,0]`},
		{`{"compute_cap":null}`, func(o provider.Offer) any { return o.ComputeCapability }, `[8,9]`},
		{`{"reliability2":null}`, func(o provider.Offer) any { return o.Reliability }, `0.5`},
		{`{"reliability2":null,"reliability":null}`, func(o provider.Offer) any { return o.Reliability }, `null`},
		{`{"duration":null}`, func(o provider.Offer) any { return o.AvailableFor }, `null`},
		{`{"duration":-5}`, func(o provider.Offer) any { return o.AvailableFor }, `0`},
		{`{"duration":1e300}`, func(o provider.Offer) any { return o.AvailableFor }, `9223372036854775807`},
		{`{"inet_up_cost":null,"inet_down_cost":0.0000001}`, func(o provider.Offer) any { return o.TrafficPerGB }, `1`},
		{`{"machine_id":null}`, func(o provider.Offer) any { return o.RestKeys }, `["host/90"]`},
		{`{"dph_base":0.0000001,"storage_cost":0}`, func(o provider.Offer) any { return o.Price }, `0.000001`},
		{`{"surprise":{"nested":[1]}}`, func(o provider.Offer) any { return o.ID }, `"77"`},
	} {
		o, found := searchOne(t, provider.OnDemand, row(c.changes))
		if got := show(c.read(o)); !found || got != c.want {
			t.Errorf("%s is read as %s (an offer: %v); want %s", c.changes, got, found, c.want)
		}
	}
}

func TestSearchLeavesOutWhatCannotBeRented(t *testing.T) {
	for _, c := range []struct {
		kind    provider.CapacityType
		changes string
	}{
		{provider.OnDemand, `{"direct_port_count":0}`}, {provider.OnDemand, `{"direct_port_count":null}`},
		{provider.OnDemand, `{"disk_space":79.9}`}, {provider.OnDemand, `{"disk_space":null}`},
		{provider.OnDemand, `{"dph_base":null}`}, {provider.OnDemand, `{"dph_base":0}`}, {provider.OnDemand, `{"dph_base":-1}`},
		{provider.OnDemand, `{"storage_cost":null}`}, {provider.OnDemand, `{"storage_cost":-1}`},
		{provider.OnDemand, `{"num_gpus":0}`}, {provider.OnDemand, `{"id":null}`}, {provider.OnDemand, `{"id":0}`},
		{provider.Spot, `{"min_bid":null}`}, {provider.Spot, `{"min_bid":0}`}, {provider.Spot, `{"min_bid":112}`},
	} {
		if o, found := searchOne(t, c.kind, row(c.changes)); found {
			t.Errorf("%s with %s is an offer: %+v", c.kind, c.changes, o)
		}
	}
	if o, found := searchOne(t, provider.Spot, row(`{"dph_base":null,"min_bid":0.0001}`)); !found || o.Bid != minPrice {
		t.Errorf("a floor below the least bid: %v, %+v; want the least bid", found, o)
	}
}

func TestSearchIsWholeOrAnError(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want int // offers; -1 is an error
	}{
		"none":                        {`{"offers":[]}`, 0},
		"no key":                      {`{}`, -1},
		"null":                        {`{"offers":null}`, -1},
		"an object":                   {`{"offers":{"id":1}}`, -1},
		"one odd row":                 {`{"offers":[{"id":"x"},` + row("") + `]}`, 1},
		"odd rows only":               {`{"offers":[{"id":"x"},{"id":"y"}]}`, -1},
		"as many as were asked for":   {`{"offers":[` + strings.Repeat("{},", searchLimit-1) + `{}]}`, -1},
		"an error with status 200":    {`{"success":false,"error":"invalid_request","msg":"x is not a valid search key"}`, -1},
		"an error besides its offers": {`{"error":"server_error","offers":[]}`, -1},
	} {
		p, _ := scripted(t, ok(c.body))
		offers, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 80})
		if c.want < 0 && (err == nil || offers != nil) || c.want >= 0 && (err != nil || len(offers) != c.want) {
			t.Errorf("%s: %d offers, %v; want %d", name, len(offers), err, c.want)
		}
	}
}

func TestCreateRequest(t *testing.T) {
	r := provider.CreateRequest{
		Offer: provider.Offer{ID: "77", CapacityType: provider.OnDemand, DiskGB: 80, Price: money.MustParse("0.4"),
			GPU: "RTX4090", GPUCount: 2, Region: "NO", RestKeys: []provider.RestKey{"machine/1"}, Bid: money.MustParse("0.3")},
		Tag: "gs-abcdefgh-0123456789abcdef", MaxPrice: money.MustParse("0.4"), DiskGB: 80,
		Boot: provider.Boot{Image: "vllm/vllm-openai:v0.10.1", Command: []string{"/bin/bash", "-c", "a <b> & c"},
			Env: map[string]string{"GPUSCALE_BOOT": "e30="}, Port: 9443, UserData: "not for containers"},
	}
	want := `{"client_id":"me","image":"vllm/vllm-openai:v0.10.1","runtype":"args","user":"root","onstart":"/bin/bash",
		"args":["-c","a <b> & c"],"env":{"GPUSCALE_BOOT":"e30=","GPUSCALE_PORT":"9443","-p 9443:9443":"1"},"disk":80,
		"label":"gs-abcdefgh-0123456789abcdef","cancel_unavail":true`
	p, s := scripted(t, ok(`{"success":true,"new_contract":31000001,"instance_api_key":"x"}`),
		ok(`{"success":true,"new_contract":31000002}`))
	got, err := p.CreateInstance(t.Context(), r)
	sameJSON(t, s.got[0].body, want+"}")
	if g := s.got[0]; g.method != "PUT" || g.path != "/api/v0/asks/77/" {
		t.Errorf("sent %s %s", g.method, g.path)
	}
	wantInst := provider.Instance{Provider: provider.VastAI, ID: "31000001", Tag: r.Tag, State: provider.StatePending,
		CapacityType: provider.OnDemand, GPU: "RTX4090", GPUCount: 2, Region: "NO", RestKeys: []provider.RestKey{"machine/1"}}
	if err != nil || !reflect.DeepEqual(got, wantInst) {
		t.Errorf("%+v, %v; want %+v", got, err, wantInst)
	}
	r.Offer.CapacityType, r.Offer.Bid, r.DiskGB, r.Boot.Command = provider.Spot, money.MustParse("0.241501"), 3, []string{"/a"}
	r.Boot.Env = nil
	if _, err := p.CreateInstance(t.Context(), r); err != nil {
		t.Error(err)
	}
	sameJSON(t, s.got[1].body, `{"client_id":"me","image":"vllm/vllm-openai:v0.10.1","runtype":"args","user":"root","onstart":"/a",
		"env":{"GPUSCALE_PORT":"9443","-p 9443:9443":"1"},"disk":8,"label":"gs-abcdefgh-0123456789abcdef","cancel_unavail":true,"price":0.241501}`)
}

func TestCreateRefusesBeforeItAsks(t *testing.T) {
	good := provider.CreateRequest{
		Offer: provider.Offer{ID: "77", CapacityType: provider.Spot, DiskGB: 80, Price: money.MustParse("0.4"), Bid: money.MustParse("0.3")},
		Tag:   "gs-a-b", MaxPrice: money.MustParse("0.4"), DiskGB: 80,
		Boot: provider.Boot{Image: "a/b:c", Command: []string{"/x"}, Port: 9443},
	}
	for name, c := range map[string]struct {
		change func(*provider.CreateRequest)
		says   string
	}{
		"spot without a bid":   {func(r *provider.CreateRequest) { r.Offer.Bid = money.Dollars{} }, "bid of $0.00/h"},
		"a bid out of range":   {func(r *provider.CreateRequest) { r.Offer.Bid = money.MustParse("128.01") }, "0.001 to 128.00"},
		"a path for an id":     {func(r *provider.CreateRequest) { r.Offer.ID = "7/../8" }, "not a number"},
		"a negative id":        {func(r *provider.CreateRequest) { r.Offer.ID = "-7" }, "not a number"},
		"a long tag":           {func(r *provider.CreateRequest) { r.Tag = strings.Repeat("a", 257) }, "257 bytes"},
		"a larger disk":        {func(r *provider.CreateRequest) { r.DiskGB = 81 }, "priced with 80 GB"},
		"too dear":             {func(r *provider.CreateRequest) { r.MaxPrice = money.MustParse("0.399999") }, "0.399999"},
		"no maximum":           {func(r *provider.CreateRequest) { r.MaxPrice = money.Dollars{} }, "at most $0.00/h"},
		"no image tag":         {func(r *provider.CreateRequest) { r.Boot.Image = "host:5000/b" }, "no tag"},
		"a long image":         {func(r *provider.CreateRequest) { r.Boot.Image = strings.Repeat("a", 1024) + ":b" }, "1026 bytes"},
		"no command":           {func(r *provider.CreateRequest) { r.Boot.Command = nil }, "no command"},
		"a long command":       {func(r *provider.CreateRequest) { r.Boot.Command = []string{"/x", strings.Repeat("a", 4095)} }, "4098 bytes; at most 4096"},
		"no port":              {func(r *provider.CreateRequest) { r.Boot.Port = 0 }, "port 0"},
		"a port out of range":  {func(r *provider.CreateRequest) { r.Boot.Port = 70000 }, "port 70000"},
		"a flag for a name":    {func(r *provider.CreateRequest) { r.Boot.Env = map[string]string{"-p 1:1": "1"} }, "environment name"},
		"a long name":          {func(r *provider.CreateRequest) { r.Boot.Env = map[string]string{strings.Repeat("A", 257): ""} }, "environment name"},
		"a large environment":  {func(r *provider.CreateRequest) { r.Boot.Env = map[string]string{"A": strings.Repeat("a", 32768)} }, "32769 bytes"},
		"no such capacity":     {func(r *provider.CreateRequest) { r.Offer.CapacityType = "" }, "neither"},
		"an image with a port": {func(r *provider.CreateRequest) { r.Boot.Image = "host:5000/b:" + strings.Repeat("c", 1024) }, "image name"},
	} {
		p, s := scripted(t)
		r := good
		c.change(&r)
		_, err := p.CreateInstance(t.Context(), r)
		if provider.KindOf(err) != provider.Invalid || !strings.Contains(fmt.Sprint(err), c.says) || len(s.got) > 0 {
			t.Errorf("%s: %v with %d sent; want Invalid saying %q", name, err, len(s.got), c.says)
		}
	}
	p, _ := scripted(t, ok(`{"success":true,"new_contract":1}`))
	good.Boot.Image = "host:5000/b@sha256:" + strings.Repeat("0", 64)
	if _, err := p.CreateInstance(t.Context(), good); err != nil {
		t.Errorf("a digest in place of a tag: %v", err)
	}
}

func TestCreateAnswers(t *testing.T) {
	askGone := `{"success":false,"error":"invalid_args","msg":"error 404/3603: no_such_ask Instance type by id 77 is not available.","ask_id":77}`
	for _, c := range []struct {
		status   int
		body     string
		kind     provider.Kind
		instance string
	}{
		{400, askGone, provider.OfferGone, ""}, {404, askGone, provider.OfferGone, ""}, {410, askGone, provider.OfferGone, ""},
		{200, askGone, provider.OfferGone, ""},
		{410, `{"error":"no_such_ask"}`, provider.OfferGone, ""},
		{404, `Instance type 7 is no longer available`, provider.OfferGone, ""},
		{403, `{"error":"invalid_args","msg":"error 403/3586: Offer 1 is not your own. Hosts can only rent their own machines."}`, provider.OfferGone, ""},
		{403, `{"error":"forbidden","msg":"scope"}`, provider.Unauthorized, ""},
		{401, ``, provider.Unauthorized, ""},
		{404, `{"success":false,"error":"auth_error","msg":"Invalid user key"}`, provider.Unauthorized, ""},
		{404, `{"msg":"Invalid user key"}`, provider.Unauthorized, ""},
		{400, `{"error":"invalid_args","msg":"error 400/3467: Invalid args: 'disk'"}`, provider.Invalid, ""},
		{400, `{"error":"invalid_price","msg":"Please set a bid price"}`, provider.Invalid, ""},
		{400, `{"error":"no_ssh_key_for_vm"}`, provider.Invalid, ""},
		{200, `{"success":false,"error":"invalid_price","new_contract":31}`, provider.OfferGone, "31"},
		{400, `{"success":false,"error":"invalid_price","new_contract":31}`, provider.OfferGone, "31"},
		{500, `{"success":false,"error":"server_error","new_contract":31}`, provider.Unknown, "31"},
		{400, `{"error":"missing_billing"}`, provider.NoBalance, ""},
		{400, `{"error":"spend_rate_limit"}`, provider.NoBalance, ""},
		{400, `{"error":"insufficient_credit","msg":"x"}`, provider.NoBalance, ""},
		{400, `Your account lacks credit; see the billing page.`, provider.NoBalance, ""},
		{402, ``, provider.NoBalance, ""},
		{429, ``, provider.RateLimited, ""},
		{500, `{"success":false,"error":"server_error"}`, provider.Unknown, ""},
		{501, ``, provider.Unknown, ""},
		{502, `<html>`, provider.Unavailable, ""}, {503, ``, provider.Unavailable, ""}, {504, ``, provider.Unavailable, ""},
		{400, `{"error":"something_new","msg":"words"}`, provider.Unknown, ""},
		{404, `<html>not here</html>`, provider.Unknown, ""},
		{410, `{"error":"deprecated_endpoint"}`, provider.Unknown, ""},
		{301, ``, provider.Unknown, ""}, {201, `{"success":true,"new_contract":31}`, provider.Unknown, "31"},
		{200, ``, provider.Unknown, ""}, {200, `{`, provider.Unknown, ""}, {200, `[]`, provider.Unknown, ""}, {200, `{}`, provider.Unknown, ""},
		{200, `{"success":true}`, provider.Unknown, ""}, {200, `{"success":true,"new_contract":null}`, provider.Unknown, ""},
		{200, `{"success":true,"new_contract":0}`, provider.Unknown, ""},
		{200, `{"new_contract":31}`, provider.Unknown, "31"},
	} {
		p, _ := scripted(t, answerAs{c.status, c.body})
		_, err := p.CreateInstance(t.Context(), provider.CreateRequest{
			Offer: provider.Offer{ID: "77", CapacityType: provider.OnDemand}, Tag: "t", MaxPrice: money.MustParse("1"), DiskGB: 8,
			Boot: provider.Boot{Image: "a:b", Command: []string{"/x"}, Port: 1},
		})
		var e *provider.Error
		if !errors.As(err, &e) || e.Kind != c.kind || e.InstanceID != c.instance || e.Op != "create" || e.Provider != provider.VastAI {
			t.Errorf("%d %s: %v with instance %q; want %s with %q", c.status, c.body, err, e.InstanceID, c.kind, c.instance)
		}
	}
}

func TestRateLimitWait(t *testing.T) {
	for _, c := range []struct {
		op, text string
		header   time.Duration
		want     time.Duration
	}{
		{opList, "API requests too frequent endpoint threshold=1.0", 0, 5 * time.Second},
		{opSearch, "API requests too frequent: endpoint threshold=6.0", 0, 6500 * time.Millisecond},
		{opDestroy, "too frequent, threshold = 7", 0, 7500 * time.Millisecond},
		{opCreate, "API requests too frequent endpoint threshold=4.5", 0, 12 * time.Second},
		{opCreate, "API requests too frequent endpoint threshold=20", 0, 20500 * time.Millisecond},
		{opGet, "", 0, 5 * time.Second},
		{opGet, "", time.Minute, time.Minute},
		{opGet, "threshold=1e99 threshold=99999999999", 0, 5 * time.Second},
	} {
		if got := wait(c.op, c.text, c.header); got != c.want {
			t.Errorf("%s %q after %s: %s; want %s", c.op, c.text, c.header, got, c.want)
		}
	}
	for _, body := range []string{
		`{"detail":"API requests too frequent endpoint threshold=6.0"}`, `{"message":"API requests too frequent endpoint threshold=6.0","code":429}`,
		`API requests too frequent: endpoint threshold=6.0`, `{"success":false,"error":"rate_limit_exceeded","msg":"… threshold=6.0"}`,
	} {
		p, _ := scripted(t, answerAs{429, body})
		_, err := p.ListInstances(t.Context(), provider.InstanceFilter{})
		var e *provider.Error
		if !errors.As(err, &e) || e.Kind != provider.RateLimited || e.RetryAfter != 6500*time.Millisecond {
			t.Errorf("%s: %v after %s", body, err, e.RetryAfter)
		}
	}
}

func TestGetForms(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		kind   provider.Kind // "" is success
	}{
		{200, `{"instances":{"id":31}}`, ""},
		{200, `{"instances":[{"id":31}]}`, ""},
		{200, `{"instances":[{"id":30},{"id":31}]}`, ""},
		{200, `{"instances":null}`, provider.NotFound},
		{200, `{"instances":[]}`, provider.NotFound},
		{200, `{"instances":[{"id":30}]}`, provider.NotFound},
		{200, `{"instances":{"id":30}}`, provider.Unknown},
		{200, `{"instances":{}}`, provider.Unknown},
		{200, `{"instances":7}`, provider.Unknown},
		{200, `{"instances":[7]}`, provider.Unknown},
		{200, `{}`, provider.Unknown}, {200, `null`, provider.Unknown}, {200, ``, provider.Unknown}, {200, `{"instances":{"id":3`, provider.Unknown},
		{200, `{"success":false,"error":"auth_error","instances":null}`, provider.Unauthorized},
		{200, `{"success":false,"instances":null}`, provider.Unknown},
		{404, `{"success":false,"error":"auth_error","msg":"Invalid user key"}`, provider.Unauthorized},
		{404, `{"success":false,"error":"no_such_instance","msg":"Instance 31 not found"}`, provider.NotFound},
		{404, `{"success":false,"error":"not_found"}`, provider.NotFound},
		{404, `{}`, provider.Unknown}, {404, `404 page`, provider.Unknown}, {410, `{"error":"deprecated_endpoint"}`, provider.Unknown},
		{400, `{"error":"invalid_args"}`, provider.Invalid}, {401, ``, provider.Unauthorized}, {403, ``, provider.Unauthorized},
		{500, ``, provider.Unavailable},
	} {
		p, s := scripted(t, answerAs{c.status, c.body})
		got, err := p.GetInstance(t.Context(), "31")
		if provider.KindOf(err) != c.kind || c.kind == "" && got.ID != "31" || c.kind != "" && got.ID != "" {
			t.Errorf("%d %s: %+v, %v; want kind %q", c.status, c.body, got, err, c.kind)
		}
		if g := s.got[0]; g.method != "GET" || g.path != "/api/v0/instances/31/" || g.body != "" {
			t.Errorf("sent %+v", g)
		}
	}
	for _, id := range []string{"", "0", "-1", "x", "31/", "../asks/1", "31?x", "99999999999999999999"} {
		p, s := scripted(t)
		_, err := p.GetInstance(t.Context(), id)
		derr := p.DestroyInstance(t.Context(), id)
		if provider.KindOf(err) != provider.Invalid || provider.KindOf(derr) != provider.Invalid || len(s.got) > 0 {
			t.Errorf("id %q: %v, %v with %d sent", id, err, derr, len(s.got))
		}
	}
}

func TestInstanceFields(t *testing.T) {
	p, _ := scripted(t, ok(`{"instances":{"id":31000001,"machine_id":4411,"host_id":90,"label":"pool-a-7f3c","actual_status":"running",
	 "intended_status":"running","cur_state":"running","next_state":"running","status_msg":"success, running vllm/vllm-openai\n",
	 "is_bid":false,"min_bid":0.21,"dph_base":0.38,"dph_total":0.4100001,"gpu_name":"RTX 4090","num_gpus":1,"gpu_ram":24564,
	 "public_ipaddr":"203.0.113.9\n","ports":{"22/tcp":[{"HostIp":"0.0.0.0","HostPort":"41876"}],"9443/tcp":[{"HostIp":"0.0.0.0","HostPort":"41877"}]},
	 "geolocation":"Oslo, NO","start_date":1786000000.5,"end_date":1790000000,"extra_env":[["BOOT_URL","…"],["-p 9443:9443","1"]]}}`))
	got, err := p.GetInstance(t.Context(), "31000001")
	want := provider.Instance{
		Provider: provider.VastAI, ID: "31000001", Tag: "pool-a-7f3c", State: provider.StateRunning,
		Message: "success, running vllm/vllm-openai", CapacityType: provider.OnDemand, GPU: "RTX4090", GPUCount: 1, Region: "NO",
		Price: to(money.MustParse("0.410001")), Address: "203.0.113.9", Port: 41877,
		CreatedAt: time.Unix(1786000000, 5e8).UTC(), EndsAt: time.Unix(1790000000, 0).UTC(),
		RestKeys: []provider.RestKey{"machine/4411", "host/90"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	p, _ = scripted(t, ok(`{"instances":{"id":5,"label":null,"actual_status":null,"gpu_name":null,"ports":null,"public_ipaddr":null}}`))
	got, err = p.GetInstance(t.Context(), "5")
	want = provider.Instance{Provider: provider.VastAI, ID: "5", State: provider.StatePending, CapacityType: provider.OnDemand, GPU: gpu.Unknown("")}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}

func TestInstanceStates(t *testing.T) {
	spot, owned := `"is_bid":true,`, `"is_bid":false,`
	outbid := `"cur_state":"stopped","next_state":"stopped","intended_status":"stopped",`
	for _, c := range []struct {
		fields      string
		state       provider.State
		interrupted bool
	}{
		{`"actual_status":null`, provider.StatePending, false},
		{`"id":31`, provider.StatePending, false},
		{`"actual_status":"created"`, provider.StatePending, false},
		{`"actual_status":"loading"`, provider.StatePending, false},
		{`"actual_status":"running"`, provider.StateRunning, false},
		{`"actual_status":"rebooting"`, provider.StatePending, false},
		{`"actual_status":"restarting"`, provider.StatePending, false},
		{`"actual_status":"stopped"`, provider.StateStopped, false},
		{`"actual_status":"frozen"`, provider.StateStopped, false},
		{`"actual_status":"exited"`, provider.StateFailed, false},
		{`"actual_status":"unknown"`, provider.StateLost, false},
		{`"actual_status":"offline"`, provider.StateLost, false},
		{`"actual_status":"scheduling"`, provider.StateUnknown, false},
		{`"actual_status":"Running"`, provider.StateUnknown, false},
		{`"actual_status":"created","status_msg":"Error: OCI runtime create failed: nvidia"`, provider.StateFailed, false},
		{`"actual_status":"loading","status_msg":"write: no space left on device"`, provider.StateFailed, false},
		{`"actual_status":"running","status_msg":"OCI runtime create failed before"`, provider.StateRunning, false},
		// Outbid, in both forms of intended_status, and before the host ever reported.
		{spot + `"actual_status":"stopped","intended_status":"running"`, provider.StateStopped, true},
		{spot + `"actual_status":"stopped","intended_status":"stopped"`, provider.StateStopped, true},
		{spot + `"actual_status":"exited","intended_status":"running"`, provider.StateFailed, true},
		{spot + outbid + `"actual_status":null`, provider.StateStopped, true},
		{spot + outbid + `"actual_status":"loading"`, provider.StateStopped, true},
		{spot + `"actual_status":"running","cur_state":"running"`, provider.StateRunning, false},
		{spot + `"actual_status":"loading","cur_state":"stopped","intended_status":"running","next_state":"running"`, provider.StatePending, false},
		{spot + `"actual_status":"frozen"`, provider.StateStopped, false},
		{spot + `"actual_status":"offline"`, provider.StateLost, false},
		{spot + `"actual_status":"hibernating"`, provider.StateUnknown, false},
		// On-demand is never interrupted: it was stopped, ran out, or crashed.
		{owned + outbid + `"actual_status":"stopped"`, provider.StateStopped, false},
		{owned + `"actual_status":"exited"`, provider.StateFailed, false},
		{owned + outbid + `"actual_status":null`, provider.StateStopped, false},
	} {
		p, _ := scripted(t, ok(`{"instances":{"id":31,`+c.fields+`}}`))
		got, err := p.GetInstance(t.Context(), "31")
		if err != nil || got.State != c.state || got.Interrupted != c.interrupted {
			t.Errorf("%s: %s, interrupted %v, %v; want %s, %v", c.fields, got.State, got.Interrupted, err, c.state, c.interrupted)
		}
	}
}

func TestInstanceEndpoint(t *testing.T) {
	for fields, want := range map[string]string{
		`"ports":{"9443/tcp":[{"HostPort":"41877"}]},"public_ipaddr":" 203.0.113.9 \n"`:                                                          "203.0.113.9:41877",
		`"ports":{"9443/tcp":[{"HostPort":41877}]},"public_ipaddr":"203.0.113.9"`:                                                                "203.0.113.9:41877",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}],"8000/tcp":[{"HostPort":"1"}]},"public_ipaddr":"h"`:                                          ":0",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}],"8000/tcp":[{"HostPort":"1"}]},"public_ipaddr":"h","extra_env":[["-p 9443:9443","1"]]`:       "h:41877",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}],"8000/tcp":[{"HostPort":"1"}]},"public_ipaddr":"h","extra_env":{"-p 9443:9443":"1","A":"b"}`: "h:41877",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}],"8000/tcp":[{"HostPort":"1"}]},"public_ipaddr":"h","extra_env":[["GPUSCALE_PORT","9443"]]`:   "h:41877",
		`"ports":{"8000/tcp":[{"HostPort":"1"}]},"public_ipaddr":"h","extra_env":[["-p 9443:9443","1"]]`:                                         ":0",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}]},"public_ipaddr":"h","extra_env":"text"`:                                                     "h:41877",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}]},"public_ipaddr":"h","extra_env":[[]]`:                                                       "h:41877",
		`"ports":{"9443/udp":[{"HostPort":"41877"}]},"public_ipaddr":"h"`:                                                                        ":0",
		`"ports":{"9443/tcp":null},"public_ipaddr":"h"`:                                                                                          ":0",
		`"ports":{"9443/tcp":[]},"public_ipaddr":"h"`:                                                                                            ":0",
		`"ports":{"9443/tcp":[{"HostPort":""}]},"public_ipaddr":"h"`:                                                                             ":0",
		`"ports":{"9443/tcp":[{"HostPort":"70000"}]},"public_ipaddr":"h"`:                                                                        ":0",
		`"ports":null,"public_ipaddr":"h"`:                                                                                                       ":0",
		`"public_ipaddr":"h"`:                                                                                                                    ":0",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}]},"public_ipaddr":"\n"`:                                                                       ":0",
		`"ports":{"9443/tcp":[{"HostPort":"41877"}]}`:                                                                                            ":0",
	} {
		p, _ := scripted(t, ok(`{"instances":{"id":31,`+fields+`}}`))
		got, err := p.GetInstance(t.Context(), "31")
		if have := fmt.Sprintf("%s:%d", got.Address, got.Port); err != nil || have != want {
			t.Errorf("%s is reached at %s, %v; want %s", fields, have, err, want)
		}
	}
}

func TestListPages(t *testing.T) {
	p, s := scripted(t, ok(`{"success":true,"instances":[{"id":1,"label":"gs-a-1"},{"id":2,"label":null}],"next_token":"t1","total_instances":4}`),
		ok(`{"success":true,"instances":[{"id":2},{"id":3,"label":"gs-a-3"}],"next_token":"t2","total_instances":4}`),
		ok(`{"success":true,"instances":[{"id":4,"label":"gs-b-4"}],"next_token":null,"total_instances":4}`))
	got, err := p.ListInstances(t.Context(), provider.InstanceFilter{TagPrefix: "gs-a-"})
	var ids []string
	for _, i := range got {
		ids = append(ids, i.ID)
	}
	if err != nil || !slices.Equal(ids, []string{"1", "3"}) {
		t.Errorf("%v, %v; want 1 and 3", ids, err)
	}
	for i, want := range []string{"limit=25&order_by=", "after_token=t1&limit=25&", "after_token=t2&limit=25&"} {
		if g := s.got[i]; g.path != "/api/v1/instances/" || !strings.HasPrefix(g.query, want) || strings.Contains(g.query, "select_filters") {
			t.Errorf("page %d: sent %s?%s; want %s", i, g.path, g.query, want)
		}
	}
	p, s = scripted(t, ok(`{"instances":[{"id":1,"label":"gs-a-1"},{"id":2,"label":"gs-a-10"}],"total_instances":9}`))
	got, err = p.ListInstances(t.Context(), provider.InstanceFilter{Tag: "gs-a-1"})
	if err != nil || len(got) != 1 || got[0].ID != "1" || !strings.Contains(s.got[0].query, "select_filters=%7B%22label%22%3A%7B%22eq%22%3A%22gs-a-1%22%7D%7D") {
		t.Errorf("by tag: %+v, %v after %s", got, err, s.got[0].query)
	}
}

func TestListIsWholeOrAnError(t *testing.T) {
	page := ok(`{"instances":[{"id":1}],"next_token":"t1"}`)
	for name, answers := range map[string][]answerAs{
		"no instances":          {ok(`{"success":true}`)},
		"null":                  {ok(`{"instances":null}`)},
		"an odd one":            {ok(`{"instances":[{"id":"x"}]}`)},
		"one without id":        {ok(`{"instances":[{"label":"gs-a"}]}`)},
		"a refusal":             {ok(`{"success":false,"error":"invalid_request","instances":[]}`)},
		"the second page fails": {page, {400, `{"error":"invalid_token"}`}},
		"the same token again":  {page, page},
		"fewer than there are":  {ok(`{"instances":[{"id":1}],"total_instances":2,"next_token":null}`)},
		"the old list":          {{410, `{"error":"deprecated_endpoint"}`}},
		"a bad key":             {{404, `{"error":"auth_error"}`}},
	} {
		p, _ := scripted(t, answers...)
		if got, err := p.ListInstances(t.Context(), provider.InstanceFilter{}); err == nil || got != nil || provider.KindOf(err) == provider.NotFound {
			t.Errorf("%s: %+v, %v; want an error that is not NotFound", name, got, err)
		}
	}
}

func TestDestroyAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		kind   provider.Kind
	}{
		{200, `{"success":true}`, ""}, {200, `{"success":true,"msg":"Instance destroyed successfully"}`, ""},
		{200, `{"success":false,"msg":"try later"}`, provider.Unknown}, {200, `{}`, provider.Unknown}, {200, ``, provider.Unknown},
		{404, `{"success":false,"error":"no_such_instance"}`, provider.NotFound}, {404, `{"success":false,"error":"not_found"}`, provider.NotFound},
		{404, `{"error":"auth_error","msg":"Invalid user key"}`, provider.Unauthorized},
		{404, ``, provider.Unknown}, {400, `{"error":"invalid_args","msg":"invalid instance_id"}`, provider.Invalid},
		{429, `{"error":"rate_limit_exceeded"}`, provider.RateLimited}, {500, ``, provider.Unknown}, {503, ``, provider.Unavailable},
	} {
		p, s := scripted(t, answerAs{c.status, c.body})
		if err := p.DestroyInstance(t.Context(), "31"); provider.KindOf(err) != c.kind {
			t.Errorf("%d %s: %v; want kind %q", c.status, c.body, err, c.kind)
		}
		if g := s.got[0]; g.method != "DELETE" || g.path != "/api/v0/instances/31/" || len(s.got) != 1 {
			t.Errorf("sent %+v", s.got)
		}
	}
}

func TestCheckCredentials(t *testing.T) {
	listed := ok(`{"success":true,"instances":[]}`)
	for _, c := range []struct {
		answers []answerAs
		kind    provider.Kind
	}{
		{[]answerAs{{404, `{"error":"auth_error","msg":"Invalid user key"}`}}, provider.Unauthorized},
		{[]answerAs{{401, ``}}, provider.Unauthorized}, {[]answerAs{{429, ``}}, provider.RateLimited},
		{[]answerAs{listed, ok(`{"balance":12.5,"credit":0}`)}, ""},
		{[]answerAs{listed, ok(`{"balance":0,"credit":4.2}`)}, ""},
		{[]answerAs{listed, ok(`{"balance":-3,"credit":5}`)}, ""},
		{[]answerAs{listed, ok(`{"balance":0,"credit":0}`)}, provider.NoBalance},
		{[]answerAs{listed, ok(`{"balance":-1,"credit":0.5}`)}, provider.NoBalance},
		{[]answerAs{listed, ok(`{"balance":0}`)}, provider.NoBalance},
		{[]answerAs{listed, ok(`{"id":7}`)}, ""},
		{[]answerAs{listed, {401, ``}}, ""}, {[]answerAs{listed, {403, `{"msg":"needs user_read"}`}}, ""},
		{[]answerAs{listed, {404, `{"error":"auth_error"}`}}, ""},
		{[]answerAs{listed, {500, ``}}, provider.Unavailable}, {[]answerAs{listed, ok(`<html>`)}, provider.Unknown},
	} {
		p, s := scripted(t, c.answers...)
		if err := p.CheckCredentials(t.Context()); provider.KindOf(err) != c.kind {
			t.Errorf("%v: %v; want kind %q", c.answers, err, c.kind)
		}
		if s.got[0].query != "limit=1" || s.got[0].path != "/api/v1/instances/" || len(s.answers) > 0 {
			t.Errorf("%v: sent %+v", c.answers, s.got)
		}
	}
}

func TestAccountID(t *testing.T) {
	listed := ok(`{"success":true,"instances":[]}`)
	for _, c := range []struct {
		answers []answerAs
		id      string
		kind    provider.Kind
	}{
		{[]answerAs{ok(`{"id":10001,"balance":0,"credit":0}`)}, "10001", ""}, {[]answerAs{ok(`{"id":"7"}`)}, "7", ""},
		{[]answerAs{ok(`{"balance":3}`)}, "", ""},
		{[]answerAs{{403, `{"msg":"needs user_read"}`}, listed}, "", ""}, {[]answerAs{{404, `{"error":"auth_error"}`}, listed}, "", ""},
		{[]answerAs{{401, ``}, {401, ``}}, "", provider.Unauthorized},
		{[]answerAs{{404, `{"error":"auth_error"}`}, {404, `{"error":"auth_error"}`}}, "", provider.Unauthorized},
		{[]answerAs{{401, ``}, {500, ``}}, "", provider.Unavailable},
		{[]answerAs{{500, ``}}, "", provider.Unavailable}, {[]answerAs{{429, ``}}, "", provider.RateLimited},
		{[]answerAs{ok(`<html>`)}, "", provider.Unknown}, {[]answerAs{ok(`{"id":0}`)}, "", provider.Unknown},
		{[]answerAs{ok(`{"id":1.5}`)}, "", provider.Unknown},
	} {
		p, s := scripted(t, c.answers...)
		if id, err := p.AccountID(t.Context()); id != c.id || provider.KindOf(err) != c.kind {
			t.Errorf("%v: %q, %v; want %q and kind %q", c.answers, id, err, c.id, c.kind)
		}
		if s.got[0].path != "/api/v0/users/current/" || len(s.answers) > 0 {
			t.Errorf("%v: sent %+v", c.answers, s.got)
		}
	}
}

func TestCredentialNames(t *testing.T) {
	for _, c := range []struct {
		creds map[string]string
		want  string
	}{
		{map[string]string{"VASTAI_API_KEY": "a", "VAST_API_KEY": "b", "api-key": "c"}, "a"},
		{map[string]string{"VAST_API_KEY": " b\n", "api-key": "c"}, "b"}, {map[string]string{"api-key": "c"}, "c"},
		{map[string]string{"VASTAI_API_KEY": " \n", "api-key": "c"}, "c"}, {map[string]string{"RUNPOD_API_KEY": "d"}, ""}, {nil, ""},
	} {
		got, err := FromCredentials(c.creds)
		if got.APIKey != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v: %q, %v; want %q", c.creds, got.APIKey, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "VASTAI_API_KEY") {
			t.Errorf("%v: %v does not name what is missing", c.creds, err)
		}
	}
}

func TestPaces(t *testing.T) {
	for endpoint, least := range thresholds() {
		if got := paces(0)[endpoint]; got < least || got > least*5/4 {
			t.Errorf("%s is paced at %s; the vendor asks for %s", endpoint, got, least)
		}
		if got := paces(0.01)[endpoint]; got < least/100 || got > least/80 {
			t.Errorf("%s is paced at %s when scaled; want a hundredth of %s", endpoint, got, least)
		}
	}
	if len(paces(-1)) > 0 {
		t.Errorf("a negative factor paces")
	}
}
