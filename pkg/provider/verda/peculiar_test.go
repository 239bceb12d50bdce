package verda_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/verda"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
	"github.com/munhq/gpuscale/pkg/provider/verda"
)

// peculiarity is a case about what only this vendor does.
type peculiarity struct {
	name    string
	options sim.Options
	check   func(providertest.T, *harness, provider.Provider)
}

// deleteWaits is the one case in which a delete is refused while an instance is provisioned.
const deleteWaits = "ADeleteWaitsForProvisioning"

func peculiarities() []peculiarity {
	return []peculiarity{
		{"AnEndLeavesNothing", sim.Options{}, endLeavesNothing},
		{"AnEndWithoutAWordLeavesNothing", sim.Options{DeleteStatus: http.StatusNoContent}, endLeavesNothing},
		{"ARefusedCreateLeavesNothing", sim.Options{}, refusedLeavesNothing},
		{"ALostAnswersScriptIsRemoved", sim.Options{}, lostScript},
		{"LostScriptsDoNotFillTheAccount", sim.Options{}, scriptsFull},
		{"AReclaimIsToldAndEnds", sim.Options{}, reclaimTold},
		{"WhatVanishedIsTidied", sim.Options{Vanishes: true}, vanishedTidied},
		{"TheTrashIsEmptied", sim.Options{TrashAnyway: true}, trashEmptied},
		{deleteWaits, sim.Options{}, provisioning},
		{"APriceThatRoseIsNotPaid", sim.Options{}, priceRose},
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

const otherTag = "gs-suite001-0000000000000002"

func tagged(n int) string { return fmt.Sprintf("gs-suite001-%016x", n) }

// order is a rental of the cheapest offer.
func (h *harness) order(t providertest.T, p provider.Provider, kind provider.CapacityType, tag string) provider.CreateRequest {
	t.Helper()
	offers, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: 60})
	if err != nil || len(offers) == 0 {
		t.Fatalf("%d offers, %v", len(offers), err)
	}
	o := offers[0]
	for _, other := range offers {
		if other.Price.Less(o.Price) {
			o = other
		}
	}
	return provider.CreateRequest{Offer: o, Tag: tag, MaxPrice: o.Price, DiskGB: 60, Boot: provider.Boot{UserData: "#!/bin/bash\ntrue\n", Port: 9443}}
}

func (h *harness) rent(t providertest.T, p provider.Provider, kind provider.CapacityType, tag string) provider.Instance {
	t.Helper()
	in, err := p.CreateInstance(t.Context(), h.order(t, p, kind, tag))
	if err != nil {
		t.Fatalf("%v", err)
	}
	h.Wait(p.Capabilities().ListLag)
	return in
}

func (h *harness) wantLeft(t providertest.T, when string, want ...string) {
	t.Helper()
	got := h.server.Leftovers()
	for i := range got { // A script's name ends in its time.
		got[i], _, _ = strings.Cut(got[i], ".")
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q is left, want %q", when, got, want)
	}
}

func open(t *testing.T, o sim.Options) *harness {
	t.Helper()
	h := newHarness(t, providertest.Case{}, o, nil)
	h.AddOffers(4)
	return h
}

func endLeavesNothing(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	for i, kind := range []provider.CapacityType{provider.OnDemand, provider.Spot} {
		in := h.rent(t, p, kind, tagged(i))
		h.wantLeft(t, "running")
		if err := p.DestroyInstance(t.Context(), in.ID); err != nil {
			t.Errorf("%v", err)
		}
		h.wantLeft(t, "destroyed")
	}
}

func refusedLeavesNothing(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	r := h.order(t, p, provider.OnDemand, tagged(1))
	h.TakeOffer(r.Offer.ID)
	if _, err := p.CreateInstance(t.Context(), r); provider.KindOf(err) != provider.NoCapacity {
		t.Errorf("%v", err)
	}
	h.wantLeft(t, "refused")
}

// lostScript: it is removed by the next create with the tag, by the end of what was made, or an hour later.
func lostScript(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	h.Fail(providertest.Create, providertest.ServerError, 1) // Nothing was made, which nobody knows.
	if _, err := p.CreateInstance(t.Context(), h.order(t, p, provider.OnDemand, tagged(1))); provider.Refused(err) || err == nil {
		t.Fatalf("%v", err)
	}
	h.wantLeft(t, "unclear", "script "+tagged(1))
	first := h.rent(t, p, provider.OnDemand, tagged(1))
	h.wantLeft(t, "with the same tag")

	h.Fail(providertest.Create, providertest.ServerError, 1)
	if _, err := p.CreateInstance(t.Context(), h.order(t, p, provider.OnDemand, tagged(2))); err == nil {
		t.Fatalf("no error")
	}
	if err := p.DestroyInstance(t.Context(), first.ID); err != nil {
		t.Fatalf("%v", err)
	}
	h.wantLeft(t, "too young to be known as one", "script "+otherTag)
	h.Wait(2 * time.Hour)
	if err := p.DestroyInstance(t.Context(), h.rent(t, p, provider.OnDemand, tagged(3)).ID); err != nil {
		t.Fatalf("%v", err)
	}
	h.wantLeft(t, "two hours later")
}

// scriptsFull: an account can have a hundred.
func scriptsFull(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	r := h.order(t, p, provider.OnDemand, "")
	h.Fail(providertest.Create, providertest.ServerError, 100)
	for i := range 100 {
		r.Tag = tagged(i)
		if _, err := p.CreateInstance(t.Context(), r); provider.KindOf(err) != provider.Unknown {
			t.Fatalf("create %d: %v", i, err)
		}
	}
	h.Wait(2 * time.Hour)
	r.Tag = tagged(100)
	if _, err := p.CreateInstance(t.Context(), r); provider.KindOf(err) != provider.Quota {
		t.Errorf("a script too many: %v", err)
	}
	if _, err := p.CreateInstance(t.Context(), r); err != nil {
		t.Errorf("after that: %v", err)
	}
	h.wantLeft(t, "after that")
}

// reclaimTold: the vendor lists what it took for ever.
func reclaimTold(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	in := h.rent(t, p, provider.Spot, tagged(1))
	h.Start(in.ID)
	h.Reclaim(in.ID)
	got, err := p.GetInstance(t.Context(), in.ID)
	if err != nil || !got.Interrupted || got.State != provider.StateFailed || got.Message != "discontinued" {
		t.Errorf("%+v, %v", got, err)
	}
	// Asked to end it, the vendor says that there is nothing to end.
	for range 2 {
		if err := p.DestroyInstance(t.Context(), in.ID); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if _, err := p.GetInstance(t.Context(), in.ID); provider.KindOf(err) != provider.NotFound {
		t.Errorf("after its end: %v", err)
	}
	if all, err := p.ListInstances(t.Context(), provider.InstanceFilter{Tag: tagged(1)}); err != nil || len(all) > 0 {
		t.Errorf("after its end: %+v, %v", all, err)
	}
	h.wantLeft(t, "after its end")
}

// vanishedTidied: nobody ends an instance that is not listed any more.
func vanishedTidied(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	in := h.rent(t, p, provider.Spot, tagged(1))
	h.Start(in.ID)
	h.Reclaim(in.ID)
	if _, err := p.GetInstance(t.Context(), in.ID); provider.KindOf(err) != provider.NotFound {
		t.Errorf("%v", err)
	}
	h.wantLeft(t, "vanished", "script "+tagged(1))
	h.Wait(2 * time.Hour)
	if err := p.DestroyInstance(t.Context(), h.rent(t, p, provider.OnDemand, tagged(2)).ID); err != nil {
		t.Fatalf("%v", err)
	}
	h.wantLeft(t, "two hours later")
}

// trashEmptied: of what is ours, and of nothing else.
func trashEmptied(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	for i, tag := range []string{"my-own-machine", tagged(1)} {
		in := h.rent(t, p, provider.OnDemand, tag)
		h.Wait(2 * time.Hour) // A disk is left over when it is old enough.
		if err := p.DestroyInstance(t.Context(), in.ID); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	h.wantLeft(t, "in the trash", "trash volume my-own-machine-os")
	for i := range 2 {
		if err := p.DestroyInstance(t.Context(), h.rent(t, p, provider.OnDemand, tagged(2+i)).ID); err != nil {
			t.Fatalf("%v", err)
		}
		h.wantLeft(t, "young", "trash volume "+tagged(2+i)+"-os", "trash volume my-own-machine-os")
		h.Wait(2 * time.Hour)
	}
}

// provisioning: a delete is refused and is to be tried again, with everything as it was.
func provisioning(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	in := h.rent(t, p, provider.OnDemand, tagged(1))
	if err := p.DestroyInstance(t.Context(), in.ID); provider.KindOf(err) != provider.Unavailable {
		t.Errorf("while provisioning: %v", err)
	}
	if got, err := p.GetInstance(t.Context(), in.ID); err != nil || got.State != provider.StatePending {
		t.Errorf("while provisioning: %+v, %v", got, err)
	}
	h.wantLeft(t, "while provisioning")
	h.Wait(time.Minute)
	if err := p.DestroyInstance(t.Context(), in.ID); err != nil {
		t.Errorf("when it runs: %v", err)
	}
	h.wantLeft(t, "destroyed")
}

// priceRose: what is rented costs what it costs then.
func priceRose(t providertest.T, h *harness, p provider.Provider) {
	h.AddOffers(4)
	r := h.order(t, p, provider.Spot, tagged(1))
	h.Market.RaiseFloor(marketOffer(r.Offer.ID), market.USD(3))
	if _, err := p.CreateInstance(t.Context(), r); provider.KindOf(err) != provider.OfferGone {
		t.Errorf("%v", err)
	}
	h.wantLeft(t, "refused")
	r.MaxPrice = money.MustParse("4")
	if _, err := p.CreateInstance(t.Context(), r); err != nil {
		t.Errorf("within what may be paid: %v", err)
	}
}

// TestATokenIsReplaced when it has run out, and when it is refused before that.
func TestATokenIsReplaced(t *testing.T) {
	h := open(t, sim.Options{TokenLife: 2 * time.Minute})
	p := h.good
	for range 3 {
		if err := p.CheckCredentials(t.Context()); err != nil {
			t.Fatalf("%v", err)
		}
		h.Wait(3 * time.Minute)
	}
	h.server.ExpireTokens()
	in := h.rent(t, p, provider.OnDemand, tagged(1))
	h.server.ExpireTokens()
	if err := p.DestroyInstance(t.Context(), in.ID); err != nil {
		t.Errorf("%v", err)
	}
	if n := len(h.Books()); n != 1 {
		t.Errorf("%d were rented", n)
	}
}

// TestVendorWordsHaveTheirKind is the tables of the provider reference, §5 and §7.
func TestVendorWordsHaveTheirKind(t *testing.T) {
	for _, c := range []struct {
		op     providertest.Op
		status int
		body   string
		want   provider.Kind
	}{
		{providertest.Create, 400, `{"code":"invalid_request","message":"Instance limit exceeded"}`, provider.Quota},
		{providertest.Create, 400, `{"code":"invalid_request","message":"Insufficient funds"}`, provider.NoBalance},
		{providertest.Create, 400, `{"code":"invalid_request","message":"Insufficient capacity"}`, provider.NoCapacity},
		{providertest.Create, 400, `{"code":"invalid_request","message":"Operating system is not valid for this instance type"}`, provider.Invalid},
		{providertest.Create, 400, `instance type is out of stock`, provider.NoCapacity},
		{providertest.Create, 403, `{"code":"forbidden_action","message":"no"}`, provider.Invalid},
		{providertest.Create, 409, `{"code":"conflict","message":"busy"}`, provider.Unknown},
		{providertest.Create, 500, `{"code":"server_error","message":"no capacity"}`, provider.Unknown},
		{providertest.Create, 503, `{"code":"service_unavailable","message":"unavailable"}`, provider.Unavailable},
		{providertest.Create, 404, `<html>`, provider.Unknown},
		{providertest.Get, 404, `<html>`, provider.Unknown},
		{providertest.Get, 404, `{"code":"not_found","message":"Instance not found"}`, provider.NotFound},
		{providertest.Get, 400, `{"code":"invalid_request","message":"Invalid instance id"}`, provider.NotFound},
		{providertest.Destroy, 403, `{"code":"forbidden_action","message":"Can't discontinue a provisioning instance"}`, provider.Unavailable},
		{providertest.Destroy, 207, `[{"instanceId":"2d1f0000-0000-4000-8000-000000000000","status":"error","error":"Can't discontinue a provisioning instance","statusCode":403}]`, provider.Unavailable},
		{providertest.Destroy, 207, `[{"instanceId":"2d1f0000-0000-4000-8000-000000000000","status":"error","error":"busy"}]`, provider.Unknown},
		{providertest.Destroy, 403, `{"code":"forbidden_action","message":"You may not"}`, provider.Unauthorized},
		{providertest.List, 200, `null`, provider.Unknown},
		{providertest.List, 200, `{"code":"server_error","message":"x"}`, provider.Unknown},
		{providertest.Check, 200, `{"amount":"0.00","currency":"usd"}`, provider.NoBalance},
		{providertest.Check, 200, `{"currency":"usd"}`, provider.Unknown},
	} {
		h := open(t, sim.Options{})
		in := h.rent(t, h.good, provider.OnDemand, tagged(1))
		answer := &answering{next: http.DefaultTransport, op: c.op, status: c.status, body: c.body}
		p := h.driver(h.url, goodSecret, answer, 0)
		var err error
		switch c.op {
		case providertest.Create:
			_, err = p.CreateInstance(t.Context(), h.order(t, h.good, provider.OnDemand, tagged(2)))
		case providertest.Get:
			_, err = p.GetInstance(t.Context(), in.ID)
		case providertest.List:
			_, err = p.ListInstances(t.Context(), provider.InstanceFilter{})
		case providertest.Destroy:
			err = p.DestroyInstance(t.Context(), in.ID)
		case providertest.Check:
			err = p.CheckCredentials(t.Context())
		}
		if got := provider.KindOf(err); got != c.want {
			t.Errorf("%s %d %s: %s (%v), want %s", c.op, c.status, c.body, got, err, c.want)
		}
	}
}

// answering answers an operation in the vendor's place.
type answering struct {
	next   http.RoundTripper
	op     providertest.Op
	status int
	body   string
}

// RoundTrip is the answer, or the cloud's.
func (a *answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if opOf(r) != a.op {
		return a.next.RoundTrip(r)
	}
	w := httptest.NewRecorder()
	cloudsimtest.Write(w, a.status, a.body)
	return w.Result(), nil
}

func TestStatesOfTheReference(t *testing.T) {
	for word, want := range map[string]provider.State{
		"new": provider.StatePending, "pending": provider.StatePending, "validating": provider.StatePending, "offline": provider.StateStopped,
		"hibernating": provider.StateStopped, "deleting": provider.StateEnding, "no_capacity": provider.StateFailed, "error": provider.StateFailed,
		"deleted": "", "notfound": "", "replicating": provider.StateUnknown,
	} {
		h := open(t, sim.Options{})
		in := h.rent(t, h.good, provider.OnDemand, tagged(1))
		h.rewriteInstance(in.ID, func(row map[string]any) { row["status"] = word })
		got, err := h.good.GetInstance(t.Context(), in.ID)
		if want == "" && provider.KindOf(err) != provider.NotFound || want != "" && (err != nil || got.State != want || got.Interrupted) {
			t.Errorf("%s: %+v, %v; want %s", word, got, err, want)
		}
	}
}

func TestCredentialsAreBothNeeded(t *testing.T) {
	for _, creds := range []map[string]string{{}, {"VERDA_CLIENT_ID": "a"}, {"VERDA_CLIENT_SECRET": "hunter2"}} {
		if _, err := verda.FromCredentials(creds); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: %v", creds, err)
		}
	}
	c, err := verda.FromCredentials(map[string]string{"VERDA_CLIENT_ID": " a\n", "VERDA_CLIENT_SECRET": "b\n"})
	if err != nil || c.ClientID != "a" || c.ClientSecret != "b" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := verda.New(verda.Config{ClientID: "a b", ClientSecret: "c"}); err == nil {
		t.Error("white space in an id is taken")
	}
	if caps := mustDriver(t).Capabilities(); caps.SelfEnd != provider.SelfEndNone {
		t.Errorf("%+v: a machine that is off bills on", caps)
	}
}

// TestAListRemovesWhatIsLeft where nothing is rented or ended any more.
func TestAListRemovesWhatIsLeft(t *testing.T) {
	h := open(t, sim.Options{})
	p := h.Driver()
	h.Fail(providertest.Create, providertest.ServerError, 1)
	if _, err := p.CreateInstance(t.Context(), h.order(t, p, provider.OnDemand, tagged(1))); err == nil {
		t.Fatal("no error")
	}
	list := func(f provider.InstanceFilter) {
		t.Helper()
		if all, err := p.ListInstances(t.Context(), f); err != nil || len(all) > 0 {
			t.Fatalf("%v, %v", all, err)
		}
	}
	list(provider.InstanceFilter{TagPrefix: "gs-suite001-"})
	h.wantLeft(t, "too young", "script "+tagged(1))
	h.Wait(2 * time.Hour)
	list(provider.InstanceFilter{})
	list(provider.InstanceFilter{TagPrefix: "gs-another1-"})
	h.wantLeft(t, "listed by somebody else", "script "+tagged(1))
	h.Wait(2 * time.Hour) // It is looked for now and then only.
	list(provider.InstanceFilter{TagPrefix: "gs-suite001-"})
	h.wantLeft(t, "listed")
}
