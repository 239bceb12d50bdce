package runpod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// script answers requests in order, the last one for ever, and keeps them.
type script struct {
	t       *testing.T
	mu      sync.Mutex
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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, sent{r.Method, r.URL.Path, r.URL.RawQuery, string(body), r.Header})
	if len(s.answers) == 0 {
		s.t.Errorf("an unexpected %s %s", r.Method, r.URL)
		return nil, errors.New("no more answers")
	}
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

// fixed is a clock that stands still.
type fixed struct{ now time.Time }

func (c fixed) Now() time.Time                       { return c.now }
func (c fixed) After(time.Duration) <-chan time.Time { return nil }

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func scripted(t *testing.T, answers ...answerAs) (*Provider, *script) {
	t.Helper()
	s := &script{t: t, answers: answers}
	p, err := New(Config{APIKey: "k3y", Transport: s, PaceFactor: -1, RetryMin: time.Microsecond, Clock: fixed{noon}})
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

// noDescription is what a server answers that does not describe itself.
var noDescription = answerAs{404, "404 page not found"}

func ok(body string) answerAs { return answerAs{200, body} }

func to[T any](v T) *T { return &v }

// gpuRow is a type of the provider reference with some fields changed.
func gpuRow(changes string) string {
	fields := map[string]json.RawMessage{}
	base := `{"id":"NVIDIA L4","name":"L4","pool":"AMPERE_24","manufacturer":"NVIDIA","memory":24,"secure":true,"community":true,
		"price":{"secure":0.39,"community":0.29},"maxCount":{"secure":8,"community":4},"availability":"LOW",
		"dataCenters":[{"id":"EU-RO-1","name":"EU-RO-1","availability":"LOW"}],"cudaVersions":[{"version":"12.8","available":true}]}`
	for _, text := range []string{base, changes} {
		if text != "" && json.Unmarshal([]byte(text), &fields) != nil {
			panic("no JSON: " + text)
		}
	}
	out, _ := json.Marshal(fields)
	return string(out)
}

// searchFirst is what the first answer of a search brings; the others are of no type.
func searchFirst(t *testing.T, row string, regions ...string) []provider.Offer {
	t.Helper()
	p, _ := scripted(t, noDescription, ok(`{"gpus":[`+row+`]}`), ok(`{"gpus":[]}`))
	offers, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 60, Regions: regions})
	if err != nil {
		t.Fatal(err)
	}
	return offers
}

func TestSearchRequests(t *testing.T) {
	p, s := scripted(t, noDescription, ok(`{"gpus":[`+gpuRow(`{"maxCount":{"secure":2,"community":1}}`)+`]}`))
	if _, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 60}); err != nil {
		t.Fatal(err)
	}
	var asked []string
	if s.got[0].path != "/v2/openapi.json" {
		t.Errorf("sent %+v", s.got[0])
	}
	for _, g := range s.got[1:] {
		q, _ := url.ParseQuery(g.query)
		asked = append(asked, q.Get("cloud")+q.Get("count"))
		if g.method != "GET" || g.path != "/v2/catalog/gpus" || q.Get("include") != "AVAILABILITY" || q.Get("product") != "POD" ||
			g.header.Get("Authorization") != "Bearer k3y" || g.header.Get("User-Agent") != "gpuscale" {
			t.Errorf("sent %+v", g)
		}
	}
	slices.Sort(asked[1:]) // which are asked at once
	if want := []string{"SECURE1", "COMMUNITY1", "SECURE2"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v; want %v: no more than some type has", asked, want)
	}
}

func TestSearchRow(t *testing.T) {
	want := provider.Offer{
		Provider: provider.RunPod, ID: "SECURE/EU-RO-1/1/0/12.8/0/NVIDIA L4", CapacityType: provider.OnDemand, GPU: "L4", GPUCount: 1,
		VRAMGB: 24, DiskGB: 60, MaxDiskGB: 60, Region: "EU-RO-1", CPUArch: "amd64",
		Price:   money.MustParse("0.398334"), // 0.39 + 60×0.10/720 = 0.39833…
		MaxCUDA: &[2]int{12, 8}, ComputeCapability: &[2]int{8, 9},
		RestKeys: []provider.RestKey{"host/secure/EU-RO-1/1xNVIDIA L4/cuda>=12.8/ram>=0", "shape/secure/EU-RO-1/1xNVIDIA L4", "type/secure/NVIDIA L4"},
	}
	if got := searchFirst(t, gpuRow("")); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSearchRowVariants(t *testing.T) {
	for name, c := range map[string]struct {
		row     string
		regions []string
		want    []string // ids
	}{
		"nothing free":             {gpuRow(`{"availability":"NONE"}`), nil, nil},
		"no hint":                  {gpuRow(`{"availability":null}`), nil, nil},
		"a new hint":               {gpuRow(`{"availability":"PLENTY"}`), nil, []string{"SECURE/EU-RO-1/1/0/12.8/0/NVIDIA L4"}},
		"not in this cloud":        {gpuRow(`{"secure":false}`), nil, nil},
		"a price of 0":             {gpuRow(`{"price":{"secure":0,"community":0}}`), nil, nil},
		"a price below 0":          {gpuRow(`{"price":{"secure":-1}}`), nil, nil},
		"a price of null":          {gpuRow(`{"price":{"secure":null}}`), nil, nil},
		"a price that is no price": {gpuRow(`{"price":{"secure":"NaN"}}`), nil, nil},
		"none that large":          {gpuRow(`{"maxCount":{"secure":0}}`), nil, nil},
		"nobody says where":        {gpuRow(`{"dataCenters":null}`), nil, []string{"SECURE/any/1/0/12.8/0/NVIDIA L4"}},
		"nobody says where, asked": {gpuRow(`{"dataCenters":null}`), []string{"EU-RO-1"}, nil},
		"asked in lower case":      {gpuRow(""), []string{"eu-ro-1"}, []string{"SECURE/EU-RO-1/1/0/12.8/0/NVIDIA L4"}},
		"asked elsewhere":          {gpuRow(""), []string{"EU-RO"}, nil},
		"full here": {gpuRow(`{"dataCenters":[{"id":"EU-RO-1","availability":"NONE"},{"id":"US-KS-2","availability":"HIGH"}]}`), nil,
			[]string{"SECURE/US-KS-2/1/0/12.8/0/NVIDIA L4"}},
		"no CUDA known": {gpuRow(`{"cudaVersions":null}`), nil, []string{"SECURE/EU-RO-1/1/0/any/0/NVIDIA L4"}},
		"several CUDAs": {gpuRow(`{"cudaVersions":[{"version":"12.10","available":true},{"version":"12.4","available":true},
			{"version":"12.9","available":true},{"version":"13.0","available":false},{"version":"new","available":true}]}`), nil,
			[]string{"SECURE/EU-RO-1/1/0/12.10/0/NVIDIA L4", "SECURE/EU-RO-1/1/1/12.4/0/NVIDIA L4"}},
	} {
		var ids []string
		for _, o := range searchFirst(t, c.row, c.regions...) {
			ids = append(ids, o.ID)
			at, err := placementOf(o.ID)
			if at.Rank = 0; err != nil || o.MaxCUDA != nil && *o.MaxCUDA != *cuda(at.CUDA) {
				t.Errorf("%s: %q reads as %+v, %v", name, o.ID, at, err)
			}
		}
		if !slices.Equal(ids, c.want) {
			t.Errorf("%s: %q; want %q", name, ids, c.want)
		}
	}
}

// What is asked of a host beyond its GPUs is what the server takes, and what the offer says.
func TestSearchFloors(t *testing.T) {
	for described, want := range map[string][]string{
		`{"components":{"schemas":{"CreateGpuConfig":{"properties":{"minRamPerGpu":{"type":"integer"}}}}}}`: {
			"SECURE/EU-RO-1/1/0/12.8/32/NVIDIA L4 ram 32", "SECURE/EU-RO-1/1/1/12.8/0/NVIDIA L4 ram 0",
			"SECURE/EU-RO-1/2/0/12.8/32/NVIDIA L4 ram 64", "SECURE/EU-RO-1/2/1/12.8/0/NVIDIA L4 ram 0"},
		`{"components":{"schemas":{"CreateGpuConfig":{},"Other":{"minRamPerGpu":1}}}}`: {
			"SECURE/EU-RO-1/1/0/12.8/0/NVIDIA L4 ram 0", "SECURE/EU-RO-1/2/0/12.8/0/NVIDIA L4 ram 0"},
		`[]`: {"SECURE/EU-RO-1/1/0/12.8/0/NVIDIA L4 ram 0", "SECURE/EU-RO-1/2/0/12.8/0/NVIDIA L4 ram 0"},
	} {
		p, s := scripted(t, ok(described), ok(`{"gpus":[`+gpuRow(`{"community":false,"maxCount":{"secure":2}}`)+`]}`))
		for range 2 {
			offers, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 60})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range offers {
				ram := 0
				if o.RAMGB != nil {
					ram = *o.RAMGB
				}
				got = append(got, fmt.Sprintf("%s ram %d", o.ID, ram))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q; want %q", described, got, want)
			}
		}
		if n := len(s.got); n != 5 {
			t.Errorf("%d calls; want the description once, and two for each search", n)
		}
	}
}

func TestSearchGPUs(t *testing.T) {
	for id, want := range map[string]gpu.Name{
		`"id":"NVIDIA H100 80GB HBM3","memory":80`:                                             "H100-SXM",
		`"id":"NVIDIA B200","memory":180,"manufacturer":"UNKNOWN"`:                             "B200",
		`"id":"NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb","memory":24`:          gpu.Unknown("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb"),
		`"id":"AMD Instinct MI300X OAM","memory":192,"manufacturer":"AMD","cudaVersions":null`: gpu.Unknown("AMD Instinct MI300X OAM"),
	} {
		if got := searchFirst(t, gpuRow("{"+id+"}")); len(got) != 1 || got[0].GPU != want {
			t.Errorf("%s: %+v; want %s", id, got, want)
		}
	}
}

func TestSearchUnderstandsNothingOrSaysSo(t *testing.T) {
	for body, want := range map[string]provider.Kind{
		`{"gpus":[]}`: "", `{"gpus":null}`: provider.Unknown, `{}`: provider.Unknown, `[]`: provider.Unknown, `{"gpus":[7]}`: provider.Unknown,
		`{"gpus":[7,` + gpuRow("") + `]}`: "",
	} {
		p, _ := scripted(t, noDescription, ok(body), ok(`{"gpus":[]}`))
		if _, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 60}); provider.KindOf(err) != want {
			t.Errorf("%s: %v; want %q", body, err, want)
		}
	}
}

func order(change func(*provider.CreateRequest)) provider.CreateRequest {
	r := provider.CreateRequest{
		Offer: provider.Offer{ID: "SECURE/EU-RO-1/2/0/12.8/0/NVIDIA L4", CapacityType: provider.OnDemand, GPU: "L4", GPUCount: 2, DiskGB: 60,
			Price: money.MustParse("0.80"), Region: "EU-RO-1", RestKeys: []provider.RestKey{"shape/x"}},
		Tag: "gs-aaaaaaaa-0000000000000001", MaxPrice: money.MustParse("0.88"), DiskGB: 60,
		Boot: provider.Boot{Image: "vllm/vllm-openai:v0.10.1", Command: []string{"/bin/sh", "-c", `echo "<a>" && agent`},
			Env: map[string]string{"GPUSCALE_BOOT": "e30="}, Port: 9443},
	}
	if change != nil {
		change(&r)
	}
	return r
}

// created is a pod of the provider reference.
const created = `{"id":"k3x9ab","name":"gs-aaaaaaaa-0000000000000001","status":"PROVISIONING","actions":["stop"],"image":"x","args":"",
	"disk":60,"mounts":{},"ports":["9443/tcp"],"env":{},"registry":null,"gpu":{"id":"NVIDIA L4","count":2},"cloud":"SECURE",
	"dataCenterId":null,"cudaVersion":null,"cost":0.788334,"locked":false,"runtime":{},"createdAt":"2026-11-30T08:00:00Z","startedAt":null}`

func TestCreateRequest(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*provider.CreateRequest)
		want   string
	}{
		"in a place": {nil, `{"name":"gs-aaaaaaaa-0000000000000001","image":"vllm/vllm-openai:v0.10.1","cloud":"SECURE",
			"gpu":{"id":"NVIDIA L4","count":2,"minCudaVersion":"12.8"},"dataCenterIds":["EU-RO-1"],"disk":60,"ports":["9443/tcp"],
			"env":{"GPUSCALE_BOOT":"e30="},"args":"{\"entrypoint\":[\"/bin/sh\"],\"cmd\":[\"-c\",\"echo \\\"\\u003ca\\u003e\\\" \\u0026\\u0026 agent\"]}"}`},
		"anywhere, on any host": {func(r *provider.CreateRequest) {
			r.Offer.ID, r.Boot.Command, r.Boot.Env = "COMMUNITY/any/1/0/any/0/NVIDIA L4", []string{"agent"}, nil
		}, `{"name":"gs-aaaaaaaa-0000000000000001","image":"vllm/vllm-openai:v0.10.1","cloud":"COMMUNITY","gpu":{"id":"NVIDIA L4","count":1},
			"disk":60,"ports":["9443/tcp"],"args":"{\"entrypoint\":[\"agent\"],\"cmd\":[]}"}`},
	} {
		p, s := scripted(t, answerAs{201, created})
		if _, err := p.CreateInstance(t.Context(), order(c.change)); err != nil {
			t.Fatal(err)
		}
		var got, want any
		if json.Unmarshal([]byte(s.got[0].body), &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: sent\n%s\nwant\n%s", name, s.got[0].body, c.want)
		}
		if g := s.got[0]; g.method != "POST" || g.path != "/v2/pods" || g.query != "" {
			t.Errorf("sent %+v", g)
		}
	}
}

func TestCreateReply(t *testing.T) {
	p, _ := scripted(t, answerAs{201, created})
	got, err := p.CreateInstance(t.Context(), order(nil))
	want := provider.Instance{Provider: provider.RunPod, ID: "k3x9ab", Tag: "gs-aaaaaaaa-0000000000000001", State: provider.StatePending,
		Message: "PROVISIONING", CapacityType: provider.OnDemand, GPU: "L4", GPUCount: 2, Region: "EU-RO-1", Price: to(money.MustParse("0.788334")),
		CreatedAt: time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC), RestKeys: []provider.RestKey{"shape/x"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	for body, named := range map[string]string{`{"id":""}`: "", `{}`: "", `{"id":"../x"}`: "", `[]`: ""} {
		p, _ := scripted(t, answerAs{201, body})
		_, err := p.CreateInstance(t.Context(), order(nil))
		if e := (*provider.Error)(nil); !errors.As(err, &e) || e.Kind != provider.Unknown || e.InstanceID != named {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// What would be taken for something else is not sent.
func TestCreateRefusesBeforehand(t *testing.T) {
	for name, change := range map[string]func(*provider.CreateRequest){
		"spot":                  func(r *provider.CreateRequest) { r.Offer.CapacityType = provider.Spot },
		"another's offer":       func(r *provider.CreateRequest) { r.Offer.ID = "28000001" },
		"no GPU":                func(r *provider.CreateRequest) { r.Offer.ID = "SECURE/EU-RO-1/2/0/12.8/0/" },
		"no count":              func(r *provider.CreateRequest) { r.Offer.ID = "SECURE/EU-RO-1/0/0/12.8/0/NVIDIA L4" },
		"a third cloud":         func(r *provider.CreateRequest) { r.Offer.ID = "ALL/EU-RO-1/2/0/12.8/0/NVIDIA L4" },
		"a larger disk":         func(r *provider.CreateRequest) { r.DiskGB = 61 },
		"above the maximum":     func(r *provider.CreateRequest) { r.MaxPrice = money.MustParse("0.79") },
		"latest":                func(r *provider.CreateRequest) { r.Boot.Image = "registry:5000/vllm" },
		"the image's command":   func(r *provider.CreateRequest) { r.Boot.Command = nil },
		"an empty command":      func(r *provider.CreateRequest) { r.Boot.Command = []string{""} },
		"the vendor's variable": func(r *provider.CreateRequest) { r.Boot.Env = map[string]string{"RUNPOD_API_KEY": "x"} },
		"too many variables": func(r *provider.CreateRequest) {
			for i := range 51 {
				r.Boot.Env[fmt.Sprint("V", i)] = ""
			}
		},
		"a body that is too long": func(r *provider.CreateRequest) { r.Boot.Env["BIG"] = strings.Repeat("x", 100<<10) },
		"no port":                 func(r *provider.CreateRequest) { r.Boot.Port = 70_000 },
	} {
		p, s := scripted(t, answerAs{201, created})
		_, err := p.CreateInstance(t.Context(), order(change))
		if k := provider.KindOf(err); k != provider.Invalid && k != provider.Unsupported || len(s.got) > 0 {
			t.Errorf("%s: %v after %d calls", name, err, len(s.got))
		}
	}
	// The longest command fits however it has to be escaped.
	p, _ := scripted(t, answerAs{201, created})
	longest := order(func(r *provider.CreateRequest) {
		r.Boot.Command, r.Boot.Env["GPUSCALE_BOOT"] = []string{strings.Repeat("\x01", commandLimit)}, strings.Repeat("x", 8<<10)
	})
	if _, err := p.CreateInstance(t.Context(), longest); err != nil {
		t.Error(err)
	}
}

func TestPodVariants(t *testing.T) {
	pod := func(changes string) provider.Instance {
		fields := map[string]json.RawMessage{}
		for _, text := range []string{created, `{"status":"RUNNING","dataCenterId":"EU-RO-1",
			"runtime":{"ports":[{"private":9443,"public":31207,"type":"tcp","ip":"203.0.113.9"}]}}`, changes} {
			if json.Unmarshal([]byte(text), &fields) != nil {
				t.Fatal(text)
			}
		}
		body, _ := json.Marshal(fields)
		p, _ := scripted(t, ok(string(body)))
		in, err := p.GetInstance(t.Context(), "k3x9ab")
		if err != nil {
			t.Fatalf("%s: %v", changes, err)
		}
		return in
	}
	for changes, want := range map[string]string{
		`{}`: "203.0.113.9:31207",
		`{"ports":["8888/http","9443/tcp","22/tcp"]}`: "203.0.113.9:31207",
		`{"ports":["22/tcp","9443/tcp"]}`:             ":0",
		`{"ports":[]}`:                                ":0",
		`{"runtime":null}`:                            ":0",
		`{"runtime":{}}`:                              ":0",
		`{"runtime":{"ports":null}}`:                  ":0",
		`{"runtime":{"ports":[{"private":9443,"public":null,"type":"tcp","ip":"203.0.113.9"}]}}`:   ":0",
		`{"runtime":{"ports":[{"private":9443,"public":31207,"type":"tcp","ip":null}]}}`:           ":0",
		`{"runtime":{"ports":[{"private":9443,"public":31207,"type":"tcp","ip":""}]}}`:             ":0",
		`{"runtime":{"ports":[{"private":9443,"public":31207,"type":"tcp","ip":"100.65.0.9"}]}}`:   ":0",
		`{"runtime":{"ports":[{"private":9443,"public":60011,"type":"http","ip":"203.0.113.9"}]}}`: ":0",
		`{"runtime":{"ports":[{"private":22,"public":31208,"type":"tcp","ip":"203.0.113.9"}]}}`:    ":0",
		`{"status":"EXITED"}`:   ":0",
		`{"status":"STARTING"}`: ":0",
		`{"status":"ERROR"}`:    ":0",
		`{"runtime":{"ports":[{"private":9443,"public":31207,"type":"tcp","ip":"2001:db8::9"},{"private":1,"type":"x"}]}}`: "2001:db8::9:31207",
	} {
		in := pod(changes)
		if got := fmt.Sprintf("%s:%d", in.Address, in.Port); got != want {
			t.Errorf("%s: %s; want %s", changes, got, want)
		}
	}
	for changes, want := range map[string]provider.State{
		`{"status":"PROVISIONING"}`: provider.StatePending, `{"status":"STARTING"}`: provider.StatePending, `{}`: provider.StateRunning,
		`{"runtime":null}`: provider.StateRunning, `{"status":"EXITED"}`: provider.StateStopped, `{"status":"ERROR"}`: provider.StateFailed,
		`{"status":"running"}`: provider.StateUnknown, `{"status":null}`: provider.StateUnknown, `{"status":"MIGRATING"}`: provider.StateUnknown,
	} {
		if in := pod(changes); in.State != want || in.Interrupted {
			t.Errorf("%s: %s, interrupted %t; want %s", changes, in.State, in.Interrupted, want)
		}
	}
	for changes, want := range map[string]string{
		`{}`: "0.788334", `{"cost":"0.5"}`: "0.500000", `{"cost":0}`: "", `{"cost":null}`: "", `{"cost":"free"}`: "", `{"cost":-1}`: "",
		`{"cost":0.3983333333}`: "0.398334",
	} {
		if in := pod(changes); (in.Price == nil) != (want == "") || in.Price != nil && *in.Price != money.MustParse(want) {
			t.Errorf("%s: $%v; want %q", changes, in.Price, want)
		}
	}
	if in := pod(`{"gpu":null,"createdAt":null,"name":null,"cloud":null}`); in.GPU != "" || in.Tag != "" || !in.CreatedAt.IsZero() {
		t.Errorf("%+v", in)
	}
}

func TestReadsThatAreNotUnderstood(t *testing.T) {
	for body, want := range map[string]provider.Kind{
		`{"id":"other","status":"RUNNING"}`: provider.Unknown, `{}`: provider.Unknown, `null`: provider.Unknown, `[]`: provider.Unknown,
		`{"id":"k3x9ab","status":"TERMINATED"}`: provider.NotFound, `{"title":"Not Found","status":404,"detail":"pod not found"}`: provider.NotFound,
		`{"errors":[{"message":"oops"}],"data":null}`: provider.Unknown,
	} {
		p, _ := scripted(t, ok(body))
		if _, err := p.GetInstance(t.Context(), "k3x9ab"); provider.KindOf(err) != want {
			t.Errorf("get %s: %v; want %s", body, err, want)
		}
	}
	for body, want := range map[string]provider.Kind{
		`{"pods":[]}`: "", `{"pods":null}`: provider.Unknown, `{}`: provider.Unknown, `[]`: provider.Unknown, `{"pods":[{}]}`: provider.Unknown,
		`{"pods":[{"id":"a"}],"pagination":{"hasNextPage":true,"nextCursor":null}}`: provider.Unknown,
		`{"pods":[],"pagination":{"hasNextPage":false,"nextCursor":"x"}}`:           "", `{"pods":[],"pagination":null}`: "",
	} {
		p, _ := scripted(t, ok(body))
		if _, err := p.ListInstances(t.Context(), provider.InstanceFilter{}); provider.KindOf(err) != want {
			t.Errorf("list %s: %v; want %q", body, err, want)
		}
	}
	p, s := scripted(t, ok(`{}`))
	for _, id := range []string{"", "a/b", "a?b", "..", strings.Repeat("a", 65)} {
		_, err := p.GetInstance(t.Context(), id)
		if end := p.DestroyInstance(t.Context(), id); provider.KindOf(err) != provider.Invalid || provider.KindOf(end) != provider.Invalid || len(s.got) > 0 {
			t.Errorf("%q: %v, %v", id, err, end)
		}
	}
}

func TestListPages(t *testing.T) {
	p, s := scripted(t, ok(`{"pods":[{"id":"a","name":"gs-x-1"},{"id":"b","name":"mine"}],"pagination":{"hasNextPage":true,"nextCursor":"c1"}}`),
		ok(`{"pods":[{"id":"b","name":"mine"},{"id":"c","name":"gs-x-2","status":"TERMINATED"},{"id":"d","name":"gs-x-3"}],"pagination":{"hasNextPage":false}}`))
	all, err := p.ListInstances(t.Context(), provider.InstanceFilter{TagPrefix: "gs-x-"})
	if err != nil || len(all) != 2 || all[0].ID != "a" || all[1].ID != "d" {
		t.Errorf("%+v, %v", all, err)
	}
	if len(s.got) != 2 || s.got[0].query != "includeClusterPods=false" || s.got[1].query != "cursor=c1&includeClusterPods=false" {
		t.Errorf("asked %+v", s.got)
	}
}

func TestWaits(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": defaultWait, `"minute";r=0;t=12, "hour";r=2800;t=1812`: 12 * time.Second, `"minute";r=3;t=12`: defaultWait,
		`"minute";r=0;t=12, "hour";r=0;t=1812`: 1812 * time.Second, `"minute"; r=0; t=9`: 9 * time.Second, `r=0;t=99999999999`: defaultWait,
	} {
		var r struct{ http.Header }
		r.Header = http.Header{}
		r.Set("RateLimit", header)
		if got := waitOf(r.Header, 0); got != want {
			t.Errorf("%q: %s; want %s", header, got, want)
		}
	}
}

func TestCharges(t *testing.T) {
	record := func(pod string, hour int, amount string) string {
		return fmt.Sprintf(`{"podId":%q,"startTime":%q,"endTime":%q,"totalAmount":%s,"gpuAmount":0,"cpuAmount":0,"diskAmount":0}`, pod,
			noon.Add(time.Duration(hour)*time.Hour).Format(time.RFC3339), noon.Add(time.Duration(hour+1)*time.Hour).Format(time.RFC3339), amount)
	}
	records := func(r ...string) answerAs { return ok(`{"records":[` + strings.Join(r, ",") + `],"metadata":{}}`) }
	p, s := scripted(t, records(record("b", -3, "0.398333"), record("a", -9, "1e-6"), record("b", -4, "0.1"), record("b", 0, "0.0000005"), record("c", -1, "0.40")))
	got, err := p.Charges(t.Context(), noon.Add(-24*time.Hour), noon.Add(time.Hour))
	amount := func(s string) money.Amount {
		a, err := money.ParseAmount(s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	want := []provider.Charge{
		{InstanceID: "a", From: noon.Add(-9 * time.Hour), To: noon.Add(-8 * time.Hour), Amount: amount("0.000001"), Step: money.AmountFromMicros(1)},
		{InstanceID: "b", From: noon.Add(-4 * time.Hour), To: noon.Add(-2 * time.Hour), Amount: amount("0.498334"), Step: money.AmountFromMicros(1)},
		// The last hour may not be whole yet, and is in whole cents.
		{InstanceID: "c", From: noon.Add(-1 * time.Hour), To: noon.Add(-1 * time.Hour), Amount: amount("0.40"), Step: money.AmountFromMicros(10_000)},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if q, _ := url.ParseQuery(s.got[0].query); len(s.got) != 1 || s.got[0].path != "/v2/billing/pods" || q.Get("bucketSize") != "hour" ||
		q.Get("startTime") != "2026-11-29T12:00:00Z" || q.Get("endTime") != "2026-11-30T13:00:00Z" {
		t.Errorf("asked %+v", s.got)
	}
	// A pod that was there before is looked for further back, and what else was there then is not in the answer.
	p, s = scripted(t, records(record("old", -24, "0.4"), record("new", -2, "0.5")),
		records(record("gone", -40, "0.9"), record("old", -30, "0.4"), record("old", -24, "0.4"), record("new", -2, "0.5")))
	got, err = p.Charges(t.Context(), noon.Add(-24*time.Hour), noon)
	if err != nil || len(got) != 2 || got[0].InstanceID != "new" || got[1].Amount != amount("0.80") || len(s.got) != 2 {
		t.Errorf("%+v, %v after %d calls", got, err, len(s.got))
	}
	for _, body := range []string{`{}`, `[]`, `{"records":null}`, `{"records":[{"podId":"a"}]}`, `{"records":[` + strings.Replace(record("a", 0, "1"), "2026", "late", 1) + `]}`} {
		p, _ := scripted(t, ok(body))
		if _, err := p.Charges(t.Context(), noon, noon); provider.KindOf(err) != provider.Unknown {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestCredentials(t *testing.T) {
	for _, c := range []struct {
		creds map[string]string
		want  string
	}{
		{map[string]string{"RUNPOD_API_KEY": "a", "api-key": "b"}, "a"}, {map[string]string{"RUNPOD_API_KEY": " \n", "api-key": "b\n"}, "b"},
		{map[string]string{"VASTAI_API_KEY": "d"}, ""}, {nil, ""},
	} {
		got, err := FromCredentials(c.creds)
		if got.APIKey != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v: %q, %v", c.creds, got.APIKey, err)
		}
	}
	for _, c := range []Config{{}, {APIKey: "a b"}, {APIKey: "k", BaseURL: "ftp://x"}} {
		if p, err := New(c); p != nil || err == nil || strings.Contains(err.Error(), "a b") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	p, s := scripted(t, ok(`{"pods":[]}`))
	if err := p.CheckCredentials(t.Context()); err != nil || s.got[0].path != "/v2/pods" {
		t.Errorf("%v, %+v", err, s.got)
	}
}
