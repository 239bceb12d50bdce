package vastai_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/money"
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
	*providertest.Faults
	t         providertest.T
	market    *market.Market
	server    *sim.Server
	clock     steppedClock
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
	clock := steppedClock{clocktesting.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))}
	h := &harness{t: t, clock: clock}
	h.market = market.New(market.Config{
		Seed: 7, Provider: "vast.ai", Clock: clock.FakeClock,
		Boot:    market.Boot{Accept: time.Second, Create: time.Second, Load: 30 * time.Second},
		ListLag: (&vastai.Provider{}).Capabilities().ListLag, LowBidStays: true,
	})
	o.Keys, o.Others = []string{goodKey, newKey}, map[string]int{hisKey: 20002}
	if c.Concurrent {
		o.LimitScale = -1
	}
	h.server = sim.New(h.market, o)
	h.Faults = providertest.NewFaults(h.server, opOf, vendorAnswers())
	srv := httptest.NewServer(h.Faults)
	t.Cleanup(h.market.Close)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	transport := srv.Client().Transport
	if wrap != nil {
		transport = wrap(transport)
	}
	h.options = o
	h.good, h.bad = h.driver(srv.URL, goodKey, transport, 0), h.driver(srv.URL, badKey, transport, 0)
	h.rotated, h.other = h.driver(srv.URL, newKey, transport, 0), h.driver(srv.URL, hisKey, transport, 0)
	h.impatient = h.driver(srv.URL, goodKey, transport, 250*time.Millisecond)
	return h
}

func (h *harness) driver(url, key string, transport http.RoundTripper, timeout time.Duration) *vastai.Provider {
	p, err := vastai.New(vastai.Config{
		APIKey: key, BaseURL: url, Transport: transport, Clock: h.clock, RetryMin: time.Millisecond, Timeout: timeout,
	})
	if err != nil {
		h.t.Fatalf("driver: %v", err)
	}
	return p
}

// steppedClock goes on when somebody waits for it.
type steppedClock struct{ *clocktesting.FakeClock }

func (c steppedClock) After(d time.Duration) <-chan time.Time {
	c.Step(d)
	fired := make(chan time.Time, 1)
	fired <- c.Now()
	return fired
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
	say := func(status int, body string) providertest.Answer {
		return func(w http.ResponseWriter, _ *http.Request, _ perform) { write(w, status, body) }
	}
	return map[providertest.Fault]providertest.Answer{
		providertest.RateLimited: say(http.StatusTooManyRequests, `{"detail":"API requests too frequent endpoint threshold=4.5"}`),
		providertest.FailureIn200: func(w http.ResponseWriter, r *http.Request, _ perform) {
			body := `{"success":false,"error":"server_error","msg":"Something went wrong, try again."}`
			if opOf(r) == providertest.Create {
				body = `{"success":false,"error":"invalid_args","msg":"error 404/3603: no_such_ask Instance type by id 77 is not available."}`
			}
			write(w, http.StatusOK, body)
		},
		providertest.NoBalance: say(http.StatusBadRequest, `{"success":false,"error":"insufficient_credit","msg":"Your account lacks credit; see the billing page."}`),
		providertest.EchoKey: func(w http.ResponseWriter, r *http.Request, _ perform) {
			write(w, http.StatusBadRequest, fmt.Sprintf(`{"success":false,"error":"invalid_args","msg":"cannot take %s"}`,
				r.Header.Get("Authorization")))
		},
		providertest.FailedWithInstance: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			var made struct {
				NewContract json.Number `json:"new_contract"`
			}
			_ = json.Unmarshal(perform().Body.Bytes(), &made) // without an id the case fails, as it should
			write(w, http.StatusBadRequest, fmt.Sprintf(
				`{"success":false,"error":"invalid_price","msg":"bid is below the minimum","new_contract":%s}`, made.NewContract))
		},
	}
}

func write(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that has left is its own affair
}

func (h *harness) Driver() provider.Provider          { return h.good }
func (h *harness) BadKeyDriver() provider.Provider    { return h.bad }
func (h *harness) RotatedDriver() provider.Provider   { return h.rotated }
func (h *harness) OtherDriver() provider.Provider     { return h.other }
func (h *harness) ImpatientDriver() provider.Provider { return h.impatient }
func (h *harness) Secrets() []string                  { return []string{goodKey, badKey} }
func (h *harness) UnusedID() string                   { return "30999999" }
func (h *harness) Wait(d time.Duration)               { h.clock.Step(d) }

func (h *harness) AddOffers(n int) {
	for range n {
		h.machines++
		i := int64(h.machines)
		h.market.AddOffer(market.Offer{
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

func (h *harness) TakeOffer(id string) {
	if _, err := h.market.Rent(market.RentRequest{Account: "somebody-else", OfferID: id, DiskGB: 10, Image: "x:y"}); err != nil {
		h.t.Fatalf("take offer %s: %v", id, err)
	}
}

func (h *harness) Start(id string) {
	h.must("publish the ports of", id, h.market.HoldPorts(id, false))
	for range 120 {
		if in, err := h.market.Get(h.server.Account(), id); err == nil && in.State == market.Running && in.HostPort > 0 {
			return
		}
		h.clock.Step(time.Second)
	}
	h.t.Fatalf("instance %s does not start", id)
}

func (h *harness) must(what, id string, err error) {
	if err != nil {
		h.t.Fatalf("%s %s: %v", what, id, err)
	}
}

func (h *harness) Reclaim(id string)         { h.must("reclaim", id, h.market.Reclaim(id)) }
func (h *harness) Stop(id string)            { h.must("stop", id, h.market.Stop(h.server.Account(), id)) }
func (h *harness) Exit(id string)            { h.must("kill", id, h.market.Kill(id)) }
func (h *harness) SayUnknownState(id string) { h.must("set", id, h.market.SetState(id, "hibernating")) }

func (h *harness) Books() []providertest.Record {
	var out []providertest.Record
	for _, in := range h.market.Books().Instances {
		if in.Account == h.server.Account() {
			out = append(out, providertest.Record{
				ID: in.ID, Tag: in.Label, Spot: in.Spot, Live: in.State != market.Gone, Port: in.HostPort,
				PerHour: money.FromMicros((int64(in.GPURate) + int64(in.StorageRate) + 999) / 1000),
			})
		}
	}
	return out
}

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
