package verda_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/verda"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
	"github.com/munhq/gpuscale/pkg/provider/verda"
)

func TestContract(t *testing.T) {
	// Each variant is one way in which the vendor has been seen, or is thought, to say the same.
	for name, options := range map[string]sim.Options{
		"Documented": {},
		"Others": {FormTokens: true, PricesAsNumbers: true, IDForm: "object", CreateStatus: http.StatusCreated, OldSpotFlag: true,
			NotFoundIs400: true, NoCapacityCode: "no_capacity", Vanishes: true},
		"IDsAsJSON": {IDForm: "json", TrashAnyway: true, TokenLife: 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t providertest.T, c providertest.Case) providertest.Harness {
				return newHarness(t, c, options, nil)
			})
		})
	}
}

const (
	clientID   = "client-1"
	goodSecret = "0f3c51d9b7a84e62c1d0a95b7e44f2d8"
	badSecret  = "ffffeeeeddddccccbbbbaaaa99998888"
)

type harness struct {
	*cloudsimtest.Harness
	server    *sim.Server
	good, bad *verda.Provider
	impatient *verda.Provider
	machines  int
	url       string
	options   sim.Options
}

// newHarness puts the driver in front of the simulated Verda, over real connections and in stepped time.
// wrap, if given, goes around the driver's transport.
func newHarness(t providertest.T, c providertest.Case, o sim.Options, wrap func(http.RoundTripper) http.RoundTripper) *harness {
	h := &harness{Harness: cloudsimtest.NewHarness(t, market.Config{
		Seed: 7, Provider: "verda", SpotPaysFloor: true, StableOfferIDs: true,
		Boot:    market.Boot{Accept: time.Second, Create: time.Second, Load: 30 * time.Second},
		ListLag: (&verda.Provider{}).Capabilities().ListLag, Reclaim: market.Reclaim{Destroys: true}, Afterlife: 24 * time.Hour,
		InstanceID: func(n int64) string { return fmt.Sprintf("2d1f0000-0000-4000-8000-%012x", n) },
	})}
	o.Clients = map[string]string{clientID: goodSecret}
	// What the vendor refuses while it provisions is a quirk of its own: cases end instances at any time.
	o.DeleteWhileProvisioning = c.Name != deleteWaits
	h.options = o
	h.server = sim.New(h.Market, o)
	h.Account = h.server.Account()
	h.Faults = providertest.NewFaults(h.server, opOf, vendorAnswers())
	url, transport := h.Serve(h.Faults, wrap)
	h.url = url
	h.good, h.bad = h.driver(url, goodSecret, transport, 0), h.driver(url, badSecret, transport, 0)
	h.impatient = h.driver(url, goodSecret, transport, 250*time.Millisecond)
	return h
}

func (h *harness) driver(url, secret string, transport http.RoundTripper, timeout time.Duration) *verda.Provider {
	p, err := verda.New(verda.Config{ClientID: clientID, ClientSecret: secret, BaseURL: url + "/v1", Transport: transport, Clock: h.Clock,
		RetryMin: time.Millisecond, Timeout: timeout})
	if err != nil {
		h.T.Fatalf("driver: %v", err)
	}
	return p
}

// opOf names what decides about an operation; tokens, scripts, keys and disks are none's.
func opOf(r *http.Request) providertest.Op {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	switch {
	case strings.HasPrefix(path, "/instance-"):
		return providertest.Search
	case path == "/balance":
		return providertest.Check
	case path == "/instances" && r.Method == http.MethodPost:
		return providertest.Create
	case path == "/instances" && r.Method == http.MethodPut:
		return providertest.Destroy
	case path == "/instances":
		return providertest.List
	case strings.HasPrefix(path, "/instances/"):
		return providertest.Get
	}
	return ""
}

// vendorAnswers are the vendor's words for what goes wrong (provider reference §5, §7).
func vendorAnswers() map[providertest.Fault]providertest.Answer {
	type perform = func() *httptest.ResponseRecorder
	return map[providertest.Fault]providertest.Answer{
		providertest.RateLimited: cloudsimtest.Say(http.StatusTooManyRequests, `{"code":"too_many_requests","message":"Too many requests"}`),
		providertest.NoBalance:   cloudsimtest.Say(http.StatusPaymentRequired, `{"code":"insufficient_funds","message":"Insufficient funds"}`),
		providertest.EchoKey: func(w http.ResponseWriter, r *http.Request, _ perform) {
			cloudsimtest.Write(w, http.StatusBadRequest, fmt.Sprintf(`{"code":"invalid_request","message":"cannot take %s of %s"}`, r.Header.Get("Authorization"), goodSecret))
		},
		// Of several actions one failed.
		providertest.FailureIn200: func(w http.ResponseWriter, r *http.Request, _ perform) {
			if opOf(r) != providertest.Destroy {
				cloudsimtest.Write(w, http.StatusOK, `{"code":"server_error","message":"Something went wrong"}`)
				return
			}
			cloudsimtest.Write(w, http.StatusMultiStatus, `[{"action":"delete","instanceId":"2d1f0000-0000-4000-8000-000000000000","status":"error","error":"Internal error","statusCode":500}]`)
		},
		providertest.FailedWithInstance: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			cloudsimtest.Write(w, http.StatusBadRequest, fmt.Sprintf(`{"code":"invalid_request","message":"volume was not created","id":%q}`, textOf(perform())))
		},
	}
}

// textOf is the id in an answer, in whichever form.
func textOf(r *httptest.ResponseRecorder) string {
	return strings.Trim(strings.TrimPrefix(strings.TrimSpace(r.Body.String()), `{"id":`), `"}`)
}

func (h *harness) Driver() provider.Provider          { return h.good }
func (h *harness) BadKeyDriver() provider.Provider    { return h.bad }
func (h *harness) ImpatientDriver() provider.Provider { return h.impatient }
func (h *harness) Secrets() []string                  { return []string{goodSecret, badSecret} }
func (h *harness) UnusedID() string                   { return "2d1f0000-0000-4000-8000-ffffffffffff" }

// AddOffers makes types of their own, since a price is a type's wherever it is sold.
func (h *harness) AddOffers(n int) {
	for range n {
		h.machines++
		i := int64(h.machines)
		for _, spot := range []bool{false, true} {
			h.Market.AddOffer(sim.Offer(fmt.Sprintf("1L40S.%dV", 10+i), fmt.Sprintf("FIN-%02d", 1+i%3), spot, 1, market.Offer{
				GPU: "L40S 48GB", DriverGPU: "NVIDIA L40S", GPUs: 1, GPUMemoryMB: 48 << 10, ComputeCap: 890, Driver: "570.86.15", CUDA: 12.8,
				CPUArch: "amd64", Cores: 20, EffectiveCores: 20, RAMMB: 60_000, DiskGB: 500,
				// Prices that are no round number of micro-dollars, alone or with a disk.
				OnDemand: market.USD(0.9012345678) + market.Nano(i*1234567), MinBid: market.USD(0.4509876543) + market.Nano(i*7654321),
				StorageMonth: market.USD(0.1973),
			}))
		}
	}
}

// marketOffer is the market's name of a driver's offer: type, location and whether it is spot.
func marketOffer(id string) string {
	p := strings.Split(id, "/")
	return fmt.Sprintf("%s/%s/%v", p[0], p[1], p[2] == "spot")
}

func (h *harness) TakeOffer(id string) {
	h.Take(marketOffer(id), strings.Contains(id, "/spot/"))
}

func (h *harness) Start(id string) {
	h.Must("publish the ports of", id, h.Market.HoldPorts(id, false))
	h.Must("start", id, h.Runs(id, func(in market.Instance) bool { return in.Host != "" }))
}

func (h *harness) SayUnknownState(id string) { h.Must("set", id, h.Market.SetState(id, "replicating")) }

// Books leaves out the port: a VM has an address of its own.
func (h *harness) Books() []providertest.Record {
	records := h.Harness.Books()
	for i := range records {
		records[i].Port = 0
	}
	return records
}

func mustDriver(t *testing.T) *verda.Provider {
	t.Helper()
	p, err := verda.New(verda.Config{ClientID: clientID, ClientSecret: goodSecret})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
