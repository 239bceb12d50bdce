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

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/pkg/money"
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
	*providertest.Faults
	t         providertest.T
	market    *market.Market
	server    *sim.Server
	clock     steppedClock
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
	clock := steppedClock{clocktesting.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))}
	h := &harness{t: t, clock: clock, booted: map[string]string{}}
	h.market = market.New(market.Config{
		Seed: 7, Provider: "tensordock", Clock: clock.FakeClock, InstanceID: sim.InstanceID, StableOfferIDs: true,
		Boot:    market.Boot{Accept: time.Second, Create: time.Second, Load: 100 * time.Second},
		ListLag: (&tensordock.Provider{}).Capabilities().ListLag, Body: body.FactoryFunc(h.boot),
	})
	o.Tokens = []string{goodKey}
	if c.Concurrent {
		o.LimitScale = -1
	}
	h.server = sim.New(h.market, o)
	h.Faults = providertest.NewFaults(h.server, func(r *http.Request) providertest.Op {
		if o.NoHostnodes && strings.HasSuffix(r.URL.Path, "/hostnodes") {
			return "" // what is not there goes wrong in one way only
		}
		return opOf(r)
	}, vendorAnswers())
	srv := httptest.NewServer(h.Faults)
	t.Cleanup(h.market.Close)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	transport := srv.Client().Transport
	if wrap != nil {
		transport = wrap(transport)
	}
	h.good, h.bad = h.driver(srv.URL, goodKey, transport, 0), h.driver(srv.URL, badKey, transport, 0)
	h.impatient = h.driver(srv.URL, goodKey, transport, 250*time.Millisecond)
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
		Token: key, BaseURL: url, Transport: transport, Clock: h.clock, RetryMin: time.Millisecond, Timeout: timeout,
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
	say := func(status int, body string) providertest.Answer {
		return func(w http.ResponseWriter, _ *http.Request, _ perform) { write(w, status, body) }
	}
	answers := map[providertest.Fault]providertest.Answer{
		providertest.RateLimited:  say(http.StatusTooManyRequests, `{"error":"Too many requests","status":429}`),
		providertest.NoBalance:    say(http.StatusOK, `{"error":"You need at least $1.00 in your account to deploy this virtual machine","status":400}`),
		providertest.FailureIn200: say(http.StatusOK, `{"error":"Something went wrong","status":500}`),
		providertest.EchoKey: func(w http.ResponseWriter, r *http.Request, _ perform) {
			write(w, http.StatusBadRequest, fmt.Sprintf(`{"error":"cannot take %s","status":400}`, r.Header.Get("Authorization")))
		},
		providertest.FailedWithInstance: func(w http.ResponseWriter, _ *http.Request, perform perform) {
			var made struct{ Data struct{ ID string } }
			_ = json.Unmarshal(perform().Body.Bytes(), &made) // without an id the case fails, as it should
			write(w, http.StatusOK, fmt.Sprintf(
				`{"error":"Failed to start the virtual machine","status":500,"data":{"id":%q}}`, made.Data.ID))
		},
	}
	maps.Copy(answers, peculiarAnswers())
	return answers
}

func write(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that has left is its own affair
}

func (h *harness) Driver() provider.Provider          { return h.good }
func (h *harness) BadKeyDriver() provider.Provider    { return h.bad }
func (h *harness) ImpatientDriver() provider.Provider { return h.impatient }
func (h *harness) Secrets() []string                  { return []string{goodKey, badKey} }
func (h *harness) UnusedID() string                   { return sim.InstanceID(999_999) }
func (h *harness) Wait(d time.Duration)               { h.clock.Step(d) }

// AddOffers adds hosts, every other one without an address to give away, each with memory for one offer.
func (h *harness) AddOffers(n int) {
	for range n {
		h.machines++
		i := int64(h.machines)
		h.market.AddOffer(market.Offer{
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
	for _, o := range h.market.Offers() {
		if strings.Contains(id, "/"+sim.NodeID(o.Machine)+"/") || strings.Contains(id, "/"+sim.LocationID(o.Region)+"/") {
			return o
		}
	}
	h.t.Fatalf("the market has no offer %s", id)
	return market.Offer{}
}

func (h *harness) TakeOffer(id string) {
	o := h.marketOffer(id)
	_, err := h.market.Rent(market.RentRequest{Account: "somebody-else", OfferID: o.ID, DiskGB: 100, Image: "x:y"})
	h.must("take", id, err)
}

func (h *harness) Start(id string) {
	h.must("publish the ports of", id, h.market.HoldPorts(id, false))
	h.must("start", id, h.run(id))
	h.clock.Step(20 * time.Second) // forwards come later
}

// run lets an instance come up.
func (h *harness) run(id string) error {
	for range 240 {
		if in, err := h.market.Get(h.server.Account(), id); err == nil && in.State == market.Running {
			return nil
		}
		h.clock.Step(time.Second)
	}
	return fmt.Errorf("instance %s does not start", id)
}

func (h *harness) must(what, id string, err error) {
	if err != nil {
		h.t.Fatalf("%s %s: %v", what, id, err)
	}
}

func (h *harness) Reclaim(id string)         { h.must("reclaim", id, h.market.Reclaim(id)) }
func (h *harness) Stop(id string)            { h.must("stop", id, h.server.StopInstance(id)) }
func (h *harness) Exit(id string)            { h.must("kill", id, h.market.Kill(id)) }
func (h *harness) SayUnknownState(id string) { h.must("set", id, h.market.SetState(id, "hibernating")) }

// portInName is what the driver adds to the tag of a VM with an address of its own.
var portInName = regexp.MustCompile(`-p9443$`)

func (h *harness) Books() []providertest.Record {
	var out []providertest.Record
	for _, in := range h.market.Books().Instances {
		if in.Account == h.server.Account() {
			out = append(out, providertest.Record{
				ID: in.ID, Tag: portInName.ReplaceAllString(in.Label, ""), Spot: in.Spot, Live: in.State != market.Gone,
				PerHour: money.FromMicros((int64(in.GPURate) + int64(in.StorageRate) + 999) / 1000),
			})
		}
	}
	return out
}
