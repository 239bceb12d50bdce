package vastai_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
	"github.com/munhq/gpuscale/pkg/provider/vastai"
)

func TestContract(t *testing.T) {
	// Each variant is one way in which the vendor has been seen to say the same.
	for name, options := range map[string]sim.Options{
		"Documented": {},
		"Others": {BadKeyStatus: 401, GoneStatus: 400, FailWith200: true, LowBidWith200: true, ShowAsList: true, OutbidIntended: "running",
			RateForm: "text"},
		"Messages": {BadKeyStatus: 403, GoneStatus: 410, ErrorForm: "message", RateForm: "message", HideFlags: true,
			AlsoExposed: []int{22, 8000}},
		"Text": {GoneStatus: 400, ErrorForm: "text", RateForm: "text", OutbidIntended: "running"},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t providertest.T, c providertest.Case) providertest.Harness {
				return newHarness(t, c, options, nil)
			})
		})
	}
}

const (
	goodKey = "0f3c51d9b7a84e62c1d0a95b7e44f2d8"
	badKey  = "ffffeeeeddddccccbbbbaaaa99998888"
	newKey  = "11112222333344445555666677778888"
	hisKey  = "99990000aaaabbbbccccddddeeeeffff"
)

type harness struct {
	*cloudsimtest.Harness
	server    *sim.Server
	good, bad *vastai.Provider
	// rotated has another key of good's account, other a key of another's.
	rotated, other *vastai.Provider
	impatient      *vastai.Provider
	machines       int
	options        sim.Options
}

// newHarness puts the driver in front of the simulated Vast.ai, over real connections and in stepped time.
// wrap, if given, goes around the driver's transport.
func newHarness(t providertest.T, c providertest.Case, o sim.Options, wrap func(http.RoundTripper) http.RoundTripper) *harness {
	h := &harness{Harness: cloudsimtest.NewHarness(t, market.Config{
		Seed: 7, Provider: "vast.ai",
		Boot:    market.Boot{Accept: time.Second, Create: time.Second, Load: 30 * time.Second},
		ListLag: (&vastai.Provider{}).Capabilities().ListLag, LowBidStays: true,
	})}
	o.Keys, o.Others = []string{goodKey, newKey}, map[string]int{hisKey: 20002}
	if c.Concurrent {
		o.LimitScale = -1
	}
	h.server = sim.New(h.Market, o)
	h.Account = h.server.Account()
	h.Faults = providertest.NewFaults(h.server, opOf, vendorAnswers())
	url, transport := h.Serve(h.Faults, wrap)
	h.options = o
	h.good, h.bad = h.driver(url, goodKey, transport, 0), h.driver(url, badKey, transport, 0)
	h.rotated, h.other = h.driver(url, newKey, transport, 0), h.driver(url, hisKey, transport, 0)
	h.impatient = h.driver(url, goodKey, transport, 250*time.Millisecond)
	return h
}

func (h *harness) driver(url, key string, transport http.RoundTripper, timeout time.Duration) *vastai.Provider {
	p, err := vastai.New(vastai.Config{
		APIKey: key, BaseURL: url, Transport: transport, Clock: h.Clock, RetryMin: time.Millisecond, Timeout: timeout,
	})
	if err != nil {
		h.T.Fatalf("driver: %v", err)
	}
	return p
}

func opOf(r *http.Request) providertest.Op {
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/v0/bundles"):
		return providertest.Search
	case strings.HasPrefix(r.URL.Path, "/api/v0/asks"):
		return providertest.Create
	case strings.HasPrefix(r.URL.Path, "/api/v0/users"), r.URL.Query().Get("limit") == "1":
		return providertest.Check
	case strings.HasPrefix(r.URL.Path, "/api/v1/instances"):
		return providertest.List
	case r.Method == http.MethodDelete:
		return providertest.Destroy
	}
	return providertest.Get
}

// vendorAnswers are the vendor's words for what goes wrong (provider reference §3, §7).
func vendorAnswers() map[providertest.Fault]providertest.Answer {
	type perform = func() *httptest.ResponseRecorder
	return map[providertest.Fault]providertest.Answer{
		providertest.RateLimited: cloudsimtest.Say(http.StatusTooManyRequests, `{"detail":"API requests too frequent endpoint threshold=4.5"}`),
		providertest.FailureIn200: func(w http.ResponseWriter, r *http.Request, _ perform) {
			body := `{"success":false,"error":"server_error","msg":"Something went wrong, try again."}`
			if opOf(r) == providertest.Create {
				body = `{"success":false,"error":"invalid_args","msg":"error 404/3603: no_such_ask Instance type by id 77 is not available."}`
			}
			cloudsimtest.Write(w, http.StatusOK, body)
		},
		providertest.NoBalance: cloudsimtest.Say(http.StatusBadRequest, `{"success":false,"error":"insufficient_credit","msg":"Your account lacks credit; see the billing page."}`),
		providertest.EchoKey: func(w http.ResponseWriter, r *http.Request, _ perform) {
			cloudsimtest.Write(w, http.StatusBadRequest, fmt.Sprintf(`{"success":false,"error":"invalid_args","msg":"cannot take %s"}`,
				r.Header.Get("Authorization")))
		},
		providertest.FailedWithInstance: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			var made struct {
				NewContract json.Number `json:"new_contract"`
			}
			_ = json.Unmarshal(perform().Body.Bytes(), &made) // without an id the case fails, as it should
			cloudsimtest.Write(w, http.StatusBadRequest, fmt.Sprintf(
				`{"success":false,"error":"invalid_price","msg":"bid is below the minimum","new_contract":%s}`, made.NewContract))
		},
	}
}

func (h *harness) Driver() provider.Provider          { return h.good }
func (h *harness) BadKeyDriver() provider.Provider    { return h.bad }
func (h *harness) RotatedDriver() provider.Provider   { return h.rotated }
func (h *harness) OtherDriver() provider.Provider     { return h.other }
func (h *harness) ImpatientDriver() provider.Provider { return h.impatient }
func (h *harness) Secrets() []string                  { return []string{goodKey, badKey} }
func (h *harness) UnusedID() string                   { return "30999999" }

func (h *harness) AddOffers(n int) {
	for range n {
		h.machines++
		i := int64(h.machines)
		h.Market.AddOffer(market.Offer{
			Machine: fmt.Sprint(4000 + i), Host: fmt.Sprint(90 + i%5), GPU: "RTX 4090", DriverGPU: "NVIDIA GeForce RTX 4090",
			GPUs: 1, MachineGPUs: 1, GPUMemoryMB: 24564, ComputeCap: 890, MemoryBW: 900, Driver: "570.86.15", CUDA: 12.8,
			CPUArch: "amd64", Cores: 64, EffectiveCores: 16, RAMMB: 257_000, DiskGB: 500, Region: "Oslo, NO", Ports: 12,
			DownMbps: 900, UpMbps: 600, Reliability: 0.99, Verification: "verified",
			// Prices that are no round number of micro-dollars, alone or with a disk.
			OnDemand: market.USD(0.4012345678) + market.Nano(i*1234567), MinBid: market.USD(0.2109876543) + market.Nano(i*7654321),
			StorageMonth: market.USD(0.1543), UpPerGB: market.USD(0.02), DownPerGB: market.USD(0.01),
		})
	}
}

func (h *harness) TakeOffer(id string) { h.Take(id, false) }

func (h *harness) Start(id string) {
	h.Must("publish the ports of", id, h.Market.HoldPorts(id, false))
	h.Must("start", id, h.Runs(id, func(in market.Instance) bool { return in.HostPort > 0 }))
}

func (h *harness) SayUnknownState(id string) { h.Must("set", id, h.Market.SetState(id, "hibernating")) }

// TestAKeyThatMayNotReadTheUser: it rents, and whose account it is stays unknown (§1).
func TestAKeyThatMayNotReadTheUser(t *testing.T) {
	h := newHarness(t, providertest.Case{}, sim.Options{NoUserRead: true}, nil)
	if err := h.good.CheckCredentials(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	if id, err := h.good.AccountID(t.Context()); id != "" || err != nil {
		t.Errorf("account %q, %v", id, err)
	}
	if _, err := h.bad.AccountID(t.Context()); provider.KindOf(err) != provider.Unauthorized {
		t.Errorf("with a bad key: %v", err)
	}
}
