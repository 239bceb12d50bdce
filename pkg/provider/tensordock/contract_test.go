package tensordock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
	"github.com/munhq/gpuscale/pkg/provider/tensordock"
)

func TestContract(t *testing.T) {
	// Each variant is one way in which the vendor has been seen to say the same, or may.
	for name, options := range variants() {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t providertest.T, c providertest.Case) providertest.Harness {
				return newHarness(t, c, options, nil)
			})
		})
	}
}

func variants() map[string]sim.Options {
	return map[string]sim.Options{
		"Likely": {},
		"Others": {BadToken: "403", PlainErrors: true, ListForm: "attributes", Wrapped: true, NoHostnodes: true,
			FreshLocations: true, TextPrices: true, StopReleases: true, RetryAfter: 30},
		"Full": {BadToken: "200", ListForm: "instances", FullList: true, NoPublicIPs: true, NoPortZero: true},
	}
}

const (
	goodKey = "td-0f3c51d9b7a84e62c1d0a95b7e44f2d8"
	badKey  = "td-ffffeeeeddddccccbbbbaaaa99998888"
)

type harness struct {
	*cloudsimtest.Harness
	server    *sim.Server
	good, bad *tensordock.Provider
	impatient *tensordock.Provider
	machines  int
	// booted are the scripts that instances were started with.
	mu     sync.Mutex
	booted map[string]string
}

// newHarness puts the driver in front of the simulated TensorDock, over real connections and in stepped time.
// wrap, if given, goes around the driver's transport.
func newHarness(t providertest.T, c providertest.Case, o sim.Options, wrap func(http.RoundTripper) http.RoundTripper) *harness {
	h := &harness{booted: map[string]string{}}
	h.Harness = cloudsimtest.NewHarness(t, market.Config{
		Seed: 7, Provider: "tensordock", InstanceID: sim.InstanceID, StableOfferIDs: true,
		Boot:    market.Boot{Accept: time.Second, Create: time.Second, Load: 100 * time.Second},
		ListLag: (&tensordock.Provider{}).Capabilities().ListLag, Body: body.FactoryFunc(h.boot),
	})
	o.Tokens = []string{goodKey}
	if c.Concurrent {
		o.LimitScale = -1
	}
	h.server = sim.New(h.Market, o)
	h.Account = h.server.Account()
	h.Faults = providertest.NewFaults(h.server, func(r *http.Request) providertest.Op {
		if o.NoHostnodes && strings.HasSuffix(r.URL.Path, "/hostnodes") {
			return "" // what is not there goes wrong in one way only
		}
		return opOf(r)
	}, vendorAnswers())
	url, transport := h.Serve(h.Faults, wrap)
	h.good, h.bad = h.driver(url, goodKey, transport, 0), h.driver(url, badKey, transport, 0)
	h.impatient = h.driver(url, goodKey, transport, 250*time.Millisecond)
	return h
}

// boot notes what a VM is told to run.
func (h *harness) boot(_ context.Context, s body.Spec) (body.Body, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.booted[s.InstanceID] = s.UserData
	return body.NewInert(), nil
}

func (h *harness) script(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.booted[id]
}

func (h *harness) driver(url, key string, transport http.RoundTripper, timeout time.Duration) *tensordock.Provider {
	p, err := tensordock.New(tensordock.Config{
		Token: key, BaseURL: url, Transport: transport, Clock: h.Clock, RetryMin: time.Millisecond, Timeout: timeout,
	})
	if err != nil {
		h.T.Fatalf("driver: %v", err)
	}
	return p
}

func opOf(r *http.Request) providertest.Op {
	switch {
	case strings.HasSuffix(r.URL.Path, "/hostnodes"), strings.HasSuffix(r.URL.Path, "/locations"):
		return providertest.Search
	case r.Method == http.MethodPost:
		return providertest.Create
	case r.Method == http.MethodDelete:
		return providertest.Destroy
	case strings.HasSuffix(r.URL.Path, "/instances"):
		return providertest.List
	}
	return providertest.Get
}

// call is the operation under which a request is known here: a check of the credentials is a list.
func call(op providertest.Op) providertest.Op {
	if op == providertest.Check {
		return providertest.List
	}
	return op
}

// Fail and Hang are those of Faults.
func (h *harness) Fail(op providertest.Op, how providertest.Fault, times int) {
	h.Faults.Fail(call(op), how, times)
}
func (h *harness) Hang(op providertest.Op) <-chan struct{} { return h.Faults.Hang(call(op)) }

// vendorAnswers are the vendor's words for what goes wrong (provider reference §3, §7).
func vendorAnswers() map[providertest.Fault]providertest.Answer {
	type perform = func() *httptest.ResponseRecorder
	answers := map[providertest.Fault]providertest.Answer{
		providertest.RateLimited:  cloudsimtest.Say(http.StatusTooManyRequests, `{"error":"Too many requests","status":429}`),
		providertest.NoBalance:    cloudsimtest.Say(http.StatusOK, `{"error":"You need at least $1.00 in your account to deploy this virtual machine","status":400}`),
		providertest.FailureIn200: cloudsimtest.Say(http.StatusOK, `{"error":"Something went wrong","status":500}`),
		providertest.EchoKey: func(w http.ResponseWriter, r *http.Request, _ perform) {
			cloudsimtest.Write(w, http.StatusBadRequest, fmt.Sprintf(`{"error":"cannot take %s","status":400}`, r.Header.Get("Authorization")))
		},
		providertest.FailedWithInstance: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			var made struct{ Data struct{ ID string } }
			_ = json.Unmarshal(perform().Body.Bytes(), &made) // without an id the case fails, as it should
			cloudsimtest.Write(w, http.StatusOK, fmt.Sprintf(
				`{"error":"Failed to start the virtual machine","status":500,"data":{"id":%q}}`, made.Data.ID))
		},
	}
	maps.Copy(answers, peculiarAnswers())
	return answers
}

func (h *harness) Driver() provider.Provider          { return h.good }
func (h *harness) BadKeyDriver() provider.Provider    { return h.bad }
func (h *harness) ImpatientDriver() provider.Provider { return h.impatient }
func (h *harness) Secrets() []string                  { return []string{goodKey, badKey} }
func (h *harness) UnusedID() string                   { return sim.InstanceID(999_999) }

// AddOffers adds hosts, every other one without an address to give away, each with memory for one offer.
func (h *harness) AddOffers(n int) {
	for range n {
		h.machines++
		i := int64(h.machines)
		h.Market.AddOffer(market.Offer{
			Machine: fmt.Sprint(4000 + i), Host: fmt.Sprint(90 + i%5), GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090",
			GPUs: 1, MachineGPUs: 1, GPUMemoryMB: 24564, ComputeCap: 890, Driver: "570.86.15", CUDA: 12.8,
			CPUArch: "amd64", Cores: 64, EffectiveCores: 16, RAMMB: 40_000, DiskGB: 500, Region: fmt.Sprintf("City %d, NO", i), Ports: 12,
			DownMbps: 900, UpMbps: 600, Reliability: 0.99, Verification: "verified", StaticIP: i%2 == 0,
			// Prices that are no round number of micro-dollars, alone or with the rest. A month's $/GB is 720 hours'.
			OnDemand: market.USD(0.4012345678) + market.Nano(i*1234567), StorageMonth: 720 * 51_234,
			Extra: map[string]string{"per_vcpu_hr": "0.0031234567", "per_gb_ram_hr": "0.0019876543"},
		})
	}
}

// marketOffer is what an offer of the driver is in the market.
func (h *harness) marketOffer(id string) market.Offer {
	for _, o := range h.Market.Offers() {
		if strings.Contains(id, "/"+sim.NodeID(o.Machine)+"/") || strings.Contains(id, "/"+sim.LocationID(o.Region)+"/") {
			return o
		}
	}
	h.T.Fatalf("the market has no offer %s", id)
	return market.Offer{}
}

func (h *harness) TakeOffer(id string) {
	h.Take(h.marketOffer(id).ID, false)
}

func (h *harness) Start(id string) {
	h.Must("publish the ports of", id, h.Market.HoldPorts(id, false))
	h.Must("start", id, h.Runs(id, nil))
	h.Clock.Step(20 * time.Second) // forwards come later
}

func (h *harness) Stop(id string)            { h.Must("stop", id, h.server.StopInstance(id)) }
func (h *harness) SayUnknownState(id string) { h.Must("set", id, h.Market.SetState(id, "hibernating")) }

// portInName is what the driver adds to the tag of a VM with an address of its own.
var portInName = regexp.MustCompile(`-p9443$`)

// Books leaves out the port, which a VM has as a forward or as its own.
func (h *harness) Books() []providertest.Record {
	records := h.Harness.Books()
	for i, r := range records {
		records[i].Tag, records[i].Port = portInName.ReplaceAllString(r.Tag, ""), 0
	}
	return records
}
