package providertest

import (
	"strings"

	"github.com/munhq/gpuscale/pkg/provider"
)

// quirkCases are about what clouds do that costs money where a driver believes it.
func quirkCases() []Case {
	spot := func(c provider.Capabilities) bool { return c.Spot }
	return []Case{
		{Name: "ListedStockThatIsGone", Check: listedGone},
		{Name: "ABidThatTheMarketPassed", Check: lowBid, Needs: spot},
		{Name: "SuccessInAnErrorIsNoRefusal", Check: successInError},
		{Name: "AFailureIn200IsAFailure", Check: failureIn200},
		{Name: "APriceAsTextIsItOrNone", Check: func(t T, h Harness) { oddPrice(t, h, PriceText) }},
		{Name: "ANullPriceIsNoOffer", Check: func(t T, h Harness) { oddPrice(t, h, PriceNull) }},
		{Name: "AZeroPriceIsNoOffer", Check: func(t T, h Harness) { oddPrice(t, h, PriceZero) }},
		{Name: "ARateAsTextIsItOrNone", Check: func(t T, h Harness) { oddRate(t, h, RateText) }},
		{Name: "ANullRateIsNotSaid", Check: func(t T, h Harness) { oddRate(t, h, RateNull) }},
		{Name: "AZeroRateIsNotSaid", Check: func(t T, h Harness) { oddRate(t, h, RateZero) }},
		{Name: "ADestroyThatIsNotDone", Check: destroyIgnored},
		{Name: "ADestroyThatTakesTime", Check: destroyLate},
		{Name: "ADestroyThatIsRefused", Check: destroyRefused},
		{Name: "RunningBeforeItsPorts", Check: func(t T, h Harness) { notThereYet(t, h, LatePorts) }},
		{Name: "RunningWithoutARuntime", Check: func(t T, h Harness) { notThereYet(t, h, NoRuntime) }},
	}
}

// listedGone: a search may be behind what can be had.
func listedGone(t T, h Harness) {
	h.AddOffers(2)
	kind := anyType(h)
	o := search(t, h, kind, 1)[0]
	show(t, h, ListedGone, o.ID)
	listed := false
	for _, again := range search(t, h, kind, 1) {
		listed = listed || again.ID == o.ID
	}
	if !listed {
		t.Fatalf("offer %s is not listed any more: the harness did not show what it was asked", o.ID)
	}
	_, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
	wantKind(t, h, Create, err, provider.OfferGone, provider.NoCapacity)
	if !provider.Refused(err) {
		t.Errorf("%v; want it known that nothing was rented", err)
	}
	wantLive(t, h, 0)
}

// lowBid: what a bid leaves behind that was too low is named, by the error or by the look-up, and can be ended.
func lowBid(t T, h Harness) {
	h.AddOffers(2)
	o := search(t, h, provider.Spot, 1)[0]
	show(t, h, LowBid, o.ID)
	inst, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
	left := wantLive(t, h, 1)[0]
	if provider.Refused(err) {
		t.Errorf("%v says that nothing was rented; instance %s is billed", err, left.ID)
	}
	named := inst.ID
	if e := asError(err); e != nil {
		named = e.InstanceID
		// Neither the request nor the account is at fault: another offer can be had.
		wantKind(t, h, Create, err, provider.OfferGone, provider.NoCapacity)
	}
	if named != left.ID {
		t.Errorf("create names instance %q (%v); %s is billed", named, err, left.ID)
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	for what, got := range sightings(t, h, left.ID, tag(1)) {
		if got == nil || got.State != provider.StateStopped && got.State != provider.StateFailed {
			t.Errorf("%s: an instance that was never started reads as %s", what, describe(got))
		}
	}
	if err := h.Driver().DestroyInstance(t.Context(), left.ID); err != nil {
		t.Errorf("destroy: %v", err)
	}
	wantLive(t, h, 0)
}

// successInError: the status says one thing and the body the other; what was rented is not called refused.
func successInError(t T, h Harness) {
	id, spare := scene(t, h)
	for _, op := range []Op{Search, Get, List, Check} {
		h.Fail(op, SuccessInError, 10) // more than any driver retries
		err := do(t.Context(), h, h.Driver(), op, id, spare)
		h.Fail(op, SuccessInError, 0)
		if err != nil {
			wantKind(t, h, op, err, provider.Unavailable, provider.Unknown)
		}
	}
	h.Fail(Create, SuccessInError, 1)
	inst, err := h.Driver().CreateInstance(t.Context(), request(h, spare, tag(2)))
	if provider.Refused(err) {
		t.Errorf("%v says that nothing was rented, and something was", err)
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	found := list(t, h, provider.InstanceFilter{Tag: tag(2)})
	if len(found) != 1 {
		t.Fatalf("the look-up by tag found %d instances; want 1", len(found))
	}
	if err == nil && inst.ID != found[0].ID {
		t.Errorf("create answers instance %q; it is %s", inst.ID, found[0].ID)
	}
	h.Fail(Destroy, SuccessInError, 1)
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		wantKind(t, h, Destroy, err, provider.Unknown, provider.Unavailable)
	}
	if r := wantLive(t, h, 1)[0]; r.ID != found[0].ID {
		t.Errorf("%s is left; want %s", r.ID, found[0].ID)
	}
}

// failureIn200: nothing took effect, and no success, empty list or missing instance is read from it.
func failureIn200(t T, h Harness) {
	id, spare := scene(t, h)
	var cannot []string
	tried := 0
	for _, op := range Ops() {
		if reason := tryShow(t, h, Fails200, string(op)); reason != "" {
			cannot = append(cannot, string(op)+": "+reason)
			continue
		}
		tried++
		err := do(t.Context(), h, h.Driver(), op, id, spare)
		e := asError(err)
		switch {
		case e == nil:
			t.Errorf("%s answers %v to a failure under status 200", op, err)
		case e.Kind == provider.NotFound || e.Op != string(op):
			t.Errorf("%s: %v of %s; want no such conclusion", op, err, e.Op)
		}
		if r := wantLive(t, h, 1)[0]; r.ID != id {
			t.Fatalf("%s changed what is rented: %+v", op, r)
		}
	}
	if tried == 0 {
		t.Skipf("%s: %s", Fails200, strings.Join(cannot, "; "))
	}
	if len(cannot) > 0 {
		t.Logf("not shown: %s", strings.Join(cannot, "; "))
	}
}

// oddPrice: a price that is no number hides one offer at the most, and is never taken for another price.
func oddPrice(t T, h Harness, q Quirk) {
	for i, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(4)
		before := search(t, h, kind, 4)
		odd := before[i]
		show(t, h, q, odd.ID)
		after := map[string]provider.Offer{}
		for _, o := range search(t, h, kind, len(before)-1) {
			after[o.ID] = o
		}
		for _, o := range before {
			now, listed := after[o.ID]
			switch {
			case o.ID != odd.ID && (!listed || now.Price != o.Price):
				t.Errorf("%s offer %s at $%s became $%s (listed: %v) by another one's price", kind, o.ID, o.Price, now.Price, listed)
			case o.ID == odd.ID && listed && (q != PriceText || now.Price != o.Price):
				t.Errorf("%s offer %s at $%s is offered at $%s with its %s", kind, o.ID, o.Price, now.Price, q)
			}
		}
	}
}

// oddRate: an instance whose rate is no number is still seen, at the same rate or none.
func oddRate(t T, h Harness, q Quirk) {
	h.AddOffers(2)
	inst, _ := rent(t, h, anyType(h), tag(1))
	h.Start(inst.ID)
	before := get(t, h, inst.ID).Price
	show(t, h, q, inst.ID)
	for what, got := range sightings(t, h, inst.ID, tag(1)) {
		switch {
		case got == nil || got.State != provider.StateRunning:
			t.Errorf("%s: a running instance reads as %s with its %s", what, describe(got), q)
		case got.Price != nil && (q != RateText || before == nil || *got.Price != *before):
			t.Errorf("%s: the rate reads as $%s with its %s; it was $%s", what, got.Price, q, before)
		}
	}
}

// notThereYet: whatever the provider's word is, there is no endpoint before there is one.
func notThereYet(t T, h Harness, q Quirk) {
	h.AddOffers(2)
	inst, _ := rent(t, h, anyType(h), tag(1))
	show(t, h, q, inst.ID)
	for what, got := range sightings(t, h, inst.ID, tag(1)) {
		switch {
		case got == nil || got.State != provider.StatePending && got.State != provider.StateRunning || got.Interrupted:
			t.Errorf("%s: an instance that starts reads as %s; want pending or running", what, describe(got))
		case got.Address != "" && got.Port != 0:
			t.Errorf("%s: it is reached at %s port %d before it can be", what, got.Address, got.Port)
		}
	}
	h.Start(inst.ID)
	for what, got := range sightings(t, h, inst.ID, tag(1)) {
		if got == nil || got.State != provider.StateRunning || got.Address == "" || got.Port == 0 {
			t.Errorf("%s: once it runs it reads as %s", what, describe(got))
		}
	}
}
