package tensordock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// peculiarity is a case about what only this vendor does.
type peculiarity struct {
	name    string
	options sim.Options
	check   func(providertest.T, *harness, provider.Provider)
}

func peculiarities() []peculiarity {
	return []peculiarity{
		{"AnAddressOfItsOwn", sim.Options{}, ownAddress},
		{"AForwardComesOutElsewhere", sim.Options{NoPublicIPs: true}, forwardElsewhere},
		{"AForwardThatIsIgnored", sim.Options{NoPublicIPs: true, PortsAfter: 1000 * time.Hour}, forwardIgnored},
		{"APortThatIsTakenIsNoBug", sim.Options{NoPublicIPs: true, NoPortZero: true}, portTaken},
		{"NoAddressLeftIsForwarded", sim.Options{StaleIPs: true}, noAddressLeft},
		{"ThePriceIsOfTheShape", sim.Options{}, priceOfTheShape},
		{"TheScriptArrivesAsItIs", sim.Options{}, scriptArrives},
		{"AGPUThatIsTakenIsInterrupted", sim.Options{}, gpuTaken},
		{"AStoppedVMIsBilledUntilItsEnd", sim.Options{}, stoppedIsBilled},
		{"ADeletionIsOnItsWay", sim.Options{}, deletionOnItsWay},
		{"InsufficientCapacityIsNoBill", sim.Options{}, insufficientCapacity},
		{"AnArrayOfComplaintsIsOurs", sim.Options{}, complaints},
		{"APageNotFoundIsNoInstanceGone", sim.Options{}, pageNotFound},
	}
}

func TestPeculiarities(t *testing.T) {
	for _, c := range ownCases() {
		t.Run(c.Name, func(t *testing.T) { c.Check(t, newHarness(t, c, optionsOf(c), nil)) })
	}
}

// ownCases are the peculiarities as cases of the suite.
func ownCases() []providertest.Case {
	var out []providertest.Case
	for _, p := range peculiarities() {
		out = append(out, providertest.Case{Name: p.name, Check: func(t providertest.T, h providertest.Harness) {
			with, ok := h.(interface{ self() *harness })
			if !ok {
				t.Fatalf("another harness: %T", h)
			}
			p.check(t, with.self(), h.Driver())
		}})
	}
	return out
}

func (h *harness) self() *harness { return h }

func optionsOf(c providertest.Case) sim.Options {
	for _, p := range peculiarities() {
		if p.name == c.Name {
			return p.options
		}
	}
	return sim.Options{}
}

// Answers that no other vendor gives.
const (
	littleCapacity providertest.Fault = "insufficient capacity"
	arrayOf        providertest.Fault = "an array of complaints"
	pageMissing    providertest.Fault = "a page that is not there"
)

func peculiarAnswers() map[providertest.Fault]providertest.Answer {
	say := func(status int, kind, body string) providertest.Answer {
		return func(w http.ResponseWriter, _ *http.Request, _ func() *httptest.ResponseRecorder) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body)) // a client that has left is its own affair
		}
	}
	return map[providertest.Fault]providertest.Answer{
		littleCapacity: say(http.StatusOK, "application/json", `{"error":"Insufficient capacity on hostnode","status":400}`),
		arrayOf: say(http.StatusBadRequest, "application/json",
			`[{"code":"invalid_type","message":"Expected object, received string","path":["data","attributes","resources"]}]`),
		pageMissing: say(http.StatusNotFound, "text/html", "<pre>Cannot GET /api/v2/instances</pre>"),
	}
}

const script = "#!/bin/bash\n# \"quotes\", 'apostrophes', $variables, `ticks`, \\n, tabs\tand ünïcode: {{ jinja }}\nset -eu\n\ncat <<'E'\n  end  \nE\n"

// order is a rental that the driver takes, of the offer that pick chooses.
func (h *harness) order(t providertest.T, d provider.Provider, n int, pick func(provider.Offer) bool) provider.CreateRequest {
	t.Helper()
	offers, err := d.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 40})
	if err != nil {
		t.Fatalf("search: %v", err)
	}
	for _, o := range offers {
		if pick(o) {
			return provider.CreateRequest{Offer: o, Tag: fmt.Sprintf("gs-suite001-%016x", n), MaxPrice: o.Price, DiskGB: 40,
				Boot: provider.Boot{UserData: script, Port: 9443}}
		}
	}
	t.Fatalf("none of %d offers is the one", len(offers))
	return provider.CreateRequest{}
}

func (h *harness) rent(t providertest.T, d provider.Provider, n int, pick func(provider.Offer) bool) (provider.Instance, provider.CreateRequest) {
	t.Helper()
	r := h.order(t, d, n, pick)
	inst, err := d.CreateInstance(t.Context(), r)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	h.Wait(d.Capabilities().ListLag)
	h.Start(inst.ID)
	return inst, r
}

func anyOffer(provider.Offer) bool { return true }

// seen is an instance by get, which list has to agree with.
func seen(t providertest.T, d provider.Provider, id string) provider.Instance {
	t.Helper()
	got, err := d.GetInstance(t.Context(), id)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	all, err := d.ListInstances(t.Context(), provider.InstanceFilter{Tag: got.Tag})
	if err != nil || len(all) != 1 || all[0].State != got.State || all[0].Interrupted != got.Interrupted ||
		all[0].Address != got.Address || all[0].Port != got.Port {
		t.Errorf("list has %+v, %v; get %+v", all, err, got)
	}
	return got
}

// ownAddress: the port that was asked for is the port, and the tag is what was given.
func ownAddress(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(2)
	inst, r := h.rent(t, d, 1, func(o provider.Offer) bool { return strings.Contains(o.ID, "/ip+forward/") })
	if got := seen(t, d, inst.ID); got.Address != "127.0.0.1" || got.Port != 9443 || got.Tag != r.Tag {
		t.Errorf("reached at %s port %d as %q; want 9443 as %q", got.Address, got.Port, got.Tag, r.Tag)
	}
}

// forwardElsewhere: where the agent's port comes out is the host's choice, and SSH is forwarded too.
func forwardElsewhere(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	in, err := h.Market.Get(h.server.Account(), inst.ID)
	if got := seen(t, d, inst.ID); err != nil || got.Port != in.HostPort {
		t.Errorf("reached at port %d; the host forwards %d, %v", got.Port, in.HostPort, err)
	}
}

// forwardIgnored: without a forward there is nothing to reach, whatever the address.
func forwardIgnored(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	if got := seen(t, d, inst.ID); got.State != provider.StateRunning || got.Address != "" || got.Port != 0 {
		t.Errorf("%s, reached at %q port %d; no port is forwarded", got.State, got.Address, got.Port)
	}
}

// portTaken: another VM on the host got the port first; another offer of the host asks for others.
func portTaken(t providertest.T, h *harness, d provider.Provider) {
	o := market.Offer{Machine: "1", Host: "1", GPU: "RTX 4090", GPUs: 1, MachineGPUs: 2, GPUMemoryMB: 24564, CPUArch: "amd64", Cores: 64,
		EffectiveCores: 32, RAMMB: 500_000, DiskGB: 900, Region: "Oslo, NO", Ports: 12, StorageMonth: 1, OnDemand: market.Nano1 / 4, Reliability: 0.99}
	h.Market.AddOffer(o)
	first, second := h.order(t, d, 1, anyOffer), h.order(t, d, 2, anyOffer)
	other := h.order(t, d, 3, func(o provider.Offer) bool { return o.ID != first.Offer.ID })
	if _, err := d.CreateInstance(t.Context(), first); err != nil {
		t.Fatalf("create: %v", err)
	}
	if _, err := d.CreateInstance(t.Context(), second); provider.KindOf(err) != provider.NoCapacity {
		t.Errorf("%v; want %s", err, provider.NoCapacity)
	}
	if _, err := d.CreateInstance(t.Context(), other); err != nil {
		t.Errorf("another offer of the host: %v", err)
	}
}

// noAddressLeft: a host that lists an address and has none rents with forwards, once.
func noAddressLeft(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, r := h.rent(t, d, 1, anyOffer)
	if !strings.Contains(r.Offer.ID, "/ip+forward/") {
		t.Fatalf("offer %s promises no address", r.Offer.ID)
	}
	if books := h.Books(); len(books) != 1 || books[0].Tag != r.Tag {
		t.Errorf("the books have %+v; want one instance", books)
	}
	if got := seen(t, d, inst.ID); got.Port == 0 || got.Port == 9443 {
		t.Errorf("reached at port %d; want one of the host's", got.Port)
	}
}

// refusing is a driver that leaves a host that has no address to give away.
func refusing(p provider.Provider) providertest.Broken {
	return providertest.RequestTwisted(func(r *provider.CreateRequest) {
		r.Offer.ID = strings.Replace(r.Offer.ID, "+forward", "", 1)
	})(p)
}

// priceOfTheShape: each offer costs its GPUs, vCPUs, memory and disk, and what is ordered is what is billed.
func priceOfTheShape(t providertest.T, h *harness, d provider.Provider) {
	o := market.Offer{Machine: "1", Host: "1", GPU: "RTX 4090", MachineGPUs: 2, GPUMemoryMB: 24564, CPUArch: "amd64", Cores: 64,
		RAMMB: 500_000, DiskGB: 900, Region: "Oslo, NO", Ports: 12, StorageMonth: 720 * 51_234, Reliability: 0.99}
	for _, n := range []int{1, 2} {
		o.GPUs, o.EffectiveCores, o.OnDemand = n, float64(32*n), market.Nano(n)*401_234_567
		h.Market.AddOffer(o)
	}
	want := map[string]bool{"1/32": true, "1/64": true, "1/128": true, "2/48": true, "2/64": true, "2/128": true, "2/256": true}
	offers, err := d.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 120})
	if err != nil {
		t.Fatalf("search: %v", err)
	}
	for _, o := range offers {
		shape := fmt.Sprintf("%d/%d", o.GPUCount, *o.RAMGB)
		if !want[shape] || o.VCPU != float64(4*o.GPUCount) || o.DiskGB != 150 {
			t.Errorf("an offer of %s GPUs and GB, %g vCPUs and a disk of %d GB", shape, o.VCPU, o.DiskGB)
		}
		delete(want, shape)
		nano := 401_234_567*o.GPUCount + 3_000_000*int(o.VCPU) + 2_000_000**o.RAMGB + 51_234*o.DiskGB
		if exact := money.FromMicros(int64(nano+999) / 1000); o.Price.Less(exact) || o.Price.Sub(exact).Micros() > 3 {
			t.Errorf("%s costs $%s; want $%s", shape, o.Price, exact)
		}
	}
	if len(want) > 0 {
		t.Errorf("not offered: %v", want)
	}
	inst, r := h.rent(t, d, 1, func(o provider.Offer) bool { return o.GPUCount == 1 && *o.RAMGB >= 64 })
	in, err := h.Market.Get(h.server.Account(), inst.ID)
	if err != nil || in.Extra["ram"] != strconv.Itoa(*r.Offer.RAMGB) || in.Extra["vcpus"] != "4" || in.Offer.GPUs != 1 || in.DiskGB != 100 {
		t.Errorf("rented %d GPUs, %v and %g GB, %v; offered %d GB of RAM", in.Offer.GPUs, in.Extra, in.DiskGB, err, *r.Offer.RAMGB)
	}
	if books := h.Books(); len(books) != 1 || r.Offer.Price.Less(books[0].PerHour) || r.Offer.Price.Sub(books[0].PerHour).Micros() > 5 {
		t.Errorf("offered at $%s, billed %+v", r.Offer.Price, books)
	}
}

// scriptArrives: what the VM runs is what was given, to the byte.
func scriptArrives(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	if got := h.script(inst.ID); got != script {
		t.Errorf("the VM runs %q; want %q", got, script)
	}
}

// escaped is what some have sent: line ends as two characters (§11.5).
func escaped(s string) string { return strings.ReplaceAll(s, "\n", `\n`) }

// gpuTaken: a VM whose GPU went back to the market was taken, though it reads as stopped.
func gpuTaken(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	h.Reclaim(inst.ID)
	if got := seen(t, d, inst.ID); got.State != provider.StateStopped || !got.Interrupted {
		t.Errorf("%s, interrupted: %v; want stopped and interrupted", got.State, got.Interrupted)
	}
}

// stoppedIsBilled: it costs what it cost, and has to be ended.
func stoppedIsBilled(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	running := h.Market.Books().Now.PerHour
	h.Stop(inst.ID)
	if got := seen(t, d, inst.ID); got.State != provider.StateStopped || got.Interrupted || got.Address != "" {
		t.Errorf("%+v; want stopped and nothing else", got)
	}
	if now := h.Market.Books().Now.PerHour; now != running {
		t.Errorf("the façade bills $%s/h; it was $%s/h", now, running)
	}
	if err := d.DestroyInstance(t.Context(), inst.ID); err != nil || h.Market.Books().Now.PerHour != 0 {
		t.Errorf("destroy: %v; $%s/h are billed", err, h.Market.Books().Now.PerHour)
	}
}

func deletionOnItsWay(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	h.Market.SetDestroyLag(time.Minute)
	if err := d.DestroyInstance(t.Context(), inst.ID); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	if got := seen(t, d, inst.ID); got.State != provider.StateEnding {
		t.Errorf("%s; want %s", got.State, provider.StateEnding)
	}
	h.Wait(time.Minute)
	if _, err := d.GetInstance(t.Context(), inst.ID); provider.KindOf(err) != provider.NotFound {
		t.Errorf("once it is gone: %v", err)
	}
}

// insufficientCapacity: the host has too little, not the account.
func insufficientCapacity(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	h.Fail(providertest.Create, littleCapacity, 1)
	if _, err := d.CreateInstance(t.Context(), h.order(t, d, 1, anyOffer)); provider.KindOf(err) != provider.NoCapacity {
		t.Errorf("%v; want %s", err, provider.NoCapacity)
	}
}

// complaints: the request is wrong; another try is refused alike.
func complaints(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	h.Fail(providertest.Create, arrayOf, 1)
	_, err := d.CreateInstance(t.Context(), h.order(t, d, 1, anyOffer))
	if provider.KindOf(err) != provider.Invalid || !strings.Contains(fmt.Sprint(err), "data.attributes.resources") {
		t.Errorf("%v; want it invalid, and where", err)
	}
}

// pageNotFound: an API that is not there says nothing of an instance.
func pageNotFound(t providertest.T, h *harness, d provider.Provider) {
	h.AddOffers(1)
	inst, _ := h.rent(t, d, 1, anyOffer)
	h.Fail(providertest.Get, pageMissing, 1)
	if _, err := d.GetInstance(t.Context(), inst.ID); provider.KindOf(err) != provider.Unknown {
		t.Errorf("get: %v; want %s", err, provider.Unknown)
	}
	h.Fail(providertest.Destroy, pageMissing, 1)
	if err := d.DestroyInstance(t.Context(), inst.ID); provider.KindOf(err) != provider.Unknown {
		t.Errorf("destroy: %v; want %s", err, provider.Unknown)
	}
}
