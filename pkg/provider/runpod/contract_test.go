package runpod_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
	"github.com/munhq/gpuscale/pkg/provider/runpod"
)

// others are the other forms in which the vendor has been seen to say the same.
func others() sim.Options {
	return sim.Options{PageSize: 25, EmptyRuntime: true, StalePorts: true, PriceText: true,
		CapacityText: "This machine does not have the resources to deploy your pod. Please try a different machine", CapacityStatus: 500}
}

func TestContract(t *testing.T) {
	for name, options := range map[string]sim.Options{"Documented": {}, "Others": others()} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t providertest.T, c providertest.Case) providertest.Harness {
				return newHarness(t, c, options, nil)
			})
		})
	}
}

const (
	goodKey = "rpa_0F3C51D9B7A84E62C1D0A95B7E44F2D8"
	badKey  = "rpa_FFFFEEEEDDDDCCCCBBBBAAAA99998888"
)

type harness struct {
	*cloudsimtest.Harness
	options   sim.Options
	server    *sim.Server
	good, bad *runpod.Provider
	// impatient waits a moment for an answer, hastyDriver for its turn not at all.
	impatient, hastyDriver *runpod.Provider
	places, stock          int // data centres so far, and the GPUs of each one's host (1 when zero)
	instead                atomic.Pointer[instead]
}

// instead is what is answered in the cloud's place, where it says so.
type instead struct {
	header http.Header
	what   func(*http.Request) (status int, body string, yes bool)
}

// answer has requests answered in the cloud's place from now on.
func (h *harness) answer(header http.Header, what func(*http.Request) (int, string, bool)) {
	h.instead.Store(&instead{header, what})
}

func (h *harness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if i := h.instead.Load(); i != nil {
		if status, body, yes := i.what(r); yes {
			maps.Copy(w.Header(), i.header)
			write(w, status, body)
			return
		}
	}
	h.Faults.ServeHTTP(w, r)
}

// newHarness puts the driver in front of the simulated RunPod, over real connections and in stepped time. wrap, if given,
// goes around the driver's transport.
func newHarness(t providertest.T, c providertest.Case, o sim.Options, wrap func(http.RoundTripper) http.RoundTripper) *harness {
	cfg := sim.Config(7)
	cfg.Offers, cfg.DestroyLag = nil, 0
	cfg.Faults, cfg.Limits, cfg.Broken = market.FaultRates{}, market.Limits{}, 0
	cfg.Boot = market.Boot{Accept: time.Second, Create: time.Second, Load: 30 * time.Second}
	cfg.ListLag = (&runpod.Provider{}).Capabilities().ListLag
	h := &harness{Harness: cloudsimtest.NewHarness(t, cfg), options: o}
	o.Keys = []string{goodKey}
	if c.Concurrent {
		o.LimitScale = -1
	}
	h.server = sim.New(h.Market, o)
	h.Account = h.server.Account()
	h.Faults = providertest.NewFaults(h.server, opOf, vendorAnswers())
	url, transport := h.Serve(h, wrap)
	config := runpod.Config{APIKey: goodKey, BaseURL: url, Transport: transport, Clock: h.Clock, RetryMin: time.Millisecond}
	h.good = h.driver(config)
	config.Timeout = 300 * time.Millisecond
	h.impatient = h.driver(config)
	config.Timeout, config.PaceFactor = 0, -1
	h.hastyDriver = h.driver(config)
	config.APIKey, config.PaceFactor = badKey, 0
	h.bad = h.driver(config)
	return h
}

func (h *harness) driver(c runpod.Config) *runpod.Provider {
	p, err := runpod.New(c)
	if err != nil {
		h.T.Fatalf("driver: %v", err)
	}
	return p
}

func opOf(r *http.Request) providertest.Op {
	switch {
	case r.URL.Path == "/v2/openapi.json":
		return "" // which is asked for once, and may fail
	case strings.HasPrefix(r.URL.Path, "/v2/catalog"):
		return providertest.Search
	case r.Method == http.MethodPost:
		return providertest.Create
	case r.Method == http.MethodDelete:
		return providertest.Destroy
	case r.URL.Path != "/v2/pods":
		return providertest.Get
	case r.URL.Query().Has("includeClusterPods"):
		return providertest.List
	}
	return providertest.Check
}

// vendorAnswers are the vendor's words for what goes wrong (provider reference §7).
func vendorAnswers() map[providertest.Fault]providertest.Answer {
	type perform = func() *httptest.ResponseRecorder
	say := func(status int, body string) providertest.Answer {
		return func(w http.ResponseWriter, _ *http.Request, _ perform) { write(w, status, body) }
	}
	return map[providertest.Fault]providertest.Answer{
		providertest.RateLimited: say(http.StatusTooManyRequests,
			`{"title":"Too Many Requests","status":429,"detail":"rate limit exceeded for the minute window"}`),
		providertest.NoBalance: say(http.StatusPaymentRequired,
			`{"title":"Payment Required","status":402,"detail":"Your account balance is too low to create this pod."}`),
		providertest.FailureIn200: say(http.StatusOK,
			`{"errors":[{"message":"Something went wrong. Please try again later or contact support."}],"data":null}`),
		providertest.EchoKey: func(w http.ResponseWriter, r *http.Request, _ perform) {
			write(w, http.StatusBadRequest, fmt.Sprintf(`{"title":"Bad Request","status":400,"detail":"cannot take %s"}`,
				r.Header.Get("Authorization")))
		},
		providertest.FailedWithInstance: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			var made struct {
				ID string `json:"id"`
			}
			_ = json.Unmarshal(perform().Body.Bytes(), &made) // without an id the case fails, as it should
			write(w, http.StatusInternalServerError, fmt.Sprintf(
				`{"title":"Internal Server Error","status":500,"detail":"the pod could not be started","id":%q}`, made.ID))
		},
		providertest.Truncated: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			rec := perform()
			half := rec.Body.Bytes()[:rec.Body.Len()/2]
			if rec.Code == http.StatusNoContent { // which has nothing to cut
				rec.Code, half = http.StatusOK, []byte(`{"id":`)
			}
			write(w, rec.Code, string(half))
		},
	}
}

func write(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that has left is its own affair
}

func (h *harness) Driver() provider.Provider          { return h.good }
func (h *harness) BadKeyDriver() provider.Provider    { return h.bad }
func (h *harness) ImpatientDriver() provider.Provider { return h.impatient }
func (h *harness) Secrets() []string                  { return []string{goodKey, badKey} }
func (h *harness) UnusedID() string                   { return "k3x9abk3x9" }

// AddOffers adds a data centre each, with one host of one GPU, and of another type as long as there are: types have one
// price each. The price is no round number of micro-dollars, alone or with a disk.
func (h *harness) AddOffers(n int) {
	for range n {
		types := gpuTypes()
		which := h.places % len(types)
		h.places++
		spec, _ := gpu.SpecOf(types[which])
		id := gpu.SpellingsFor("runpod", string(types[which]))[0]
		h.Market.AddOffer(market.Offer{
			ID: h.offer(h.place()), Machine: h.place(), Host: h.place(), GPU: id, DriverGPU: id, GPUs: 1, MachineGPUs: max(1, h.stock),
			GPUMemoryMB: spec.VRAMGB * 1024, ComputeCap: 890, MemoryBW: 900,
			Driver: "570.86.15", CUDA: 12.8, CPUArch: "amd64", Cores: 64, EffectiveCores: 16, RAMMB: 257_000, DiskGB: 500,
			Region: h.place(), Ports: 12, OnDemand: market.USD(0.4012345678) + market.Nano(which*1234567),
			StorageMonth: market.USD(0.10), Reliability: 0.99, Extra: map[string]string{"cloud": "SECURE"},
		})
	}
}

// gpuTypes are those that the vendor sells and that run CUDA.
func gpuTypes() []gpu.Name {
	return slices.DeleteFunc(slices.Clone(gpu.Names()), func(n gpu.Name) bool {
		spec, _ := gpu.SpecOf(n)
		return len(gpu.SpellingsFor("runpod", string(n))) == 0 || spec.ComputeCapability == [2]int{}
	})
}

func (h *harness) place() string { return fmt.Sprintf("EU-RO-%d", h.places) }

// offer is the market's name for what the driver offers in a data centre.
func (h *harness) offer(place string) string { return "in-" + place }

// marketOffer is the market's name for an offer of the driver's, which names the data centre second.
func (h *harness) marketOffer(id string) string { return h.offer(strings.Split(id, "/")[1]) }

func (h *harness) TakeOffer(id string) { h.Take(h.marketOffer(id), false) }

func (h *harness) Start(id string) {
	h.server.SayRunning(id, false)
	h.Must("show the ports of", id, h.Market.HoldPorts(id, false))
	h.Must("start", id, h.Runs(id, func(in market.Instance) bool {
		return in.HostPort > 0 && h.Clock.Now().Sub(in.StartedAt) > 10*time.Second
	}))
}

func (h *harness) SayUnknownState(id string) { h.Must("set", id, h.Market.SetState(id, "HIBERNATING")) }
