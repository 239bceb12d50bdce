package providertest

import (
	"strings"

	"github.com/munhq/gpuscale/pkg/provider"
)

func searchCases() []Case {
	return []Case{
		{Name: "SearchDescribesWhatWasAskedFor", Check: searchDescribes},
		{Name: "SearchRefusesAnUnknownCapacityType", Check: searchRefuses},
		{Name: "SearchPricesTheDisk", Check: searchPricesTheDisk},
		{Name: "SearchPriceIsWhatIsBilled", Check: searchPriceIsBilled},
	}
}

func createCases() []Case {
	return []Case{
		{Name: "CreateBuysTheCapacityTypeAsked", Check: createBuysType},
		{Name: "CreateTagsTheInstance", Check: createTags},
		{Name: "CreateNeverPassesMaxPrice", Check: createMaxPrice},
		{Name: "CreateRefusesMoreBootDataThanDeclared", Check: createBootLimit},
		{Name: "CreateOnAnOfferThatIsGone", Check: createOfferGone},
		{Name: "CreateRefusedLeavesNothing", Check: createRefused},
		{Name: "CreateThatFailsWithAnInstanceNamesIt", Check: createFailedWithInstance},
		{Name: "CreateWithoutBalance", Check: createNoBalance},
		{Name: "CreateTwiceIsOneInstance", Check: createTwice,
			Needs: func(c provider.Capabilities) bool { return c.IdempotentCreate }},
	}
}

func searchDescribes(t T, h Harness) {
	h.AddOffers(4)
	for _, kind := range capacityTypes(h.Driver().Capabilities()) {
		ids := map[string]bool{}
		for _, o := range search(t, h, kind, 4) {
			if o.Provider != h.Driver().Name() || o.CapacityType != kind || o.ID == "" || ids[o.ID] {
				t.Errorf("offer %q of %s is %s (id seen: %v); want one of %s", o.ID, o.Provider, o.CapacityType, ids[o.ID], kind)
			}
			ids[o.ID] = true
			if o.GPU == "" || o.GPUCount < 1 || o.VRAMGB < 1 {
				t.Errorf("offer %s has %d %q of %d GB", o.ID, o.GPUCount, o.GPU, o.VRAMGB)
			}
			if o.DiskGB < diskGB || o.MaxDiskGB < o.DiskGB {
				t.Errorf("offer %s has a disk of %d, at most %d GB; asked for %d", o.ID, o.DiskGB, o.MaxDiskGB, diskGB)
			}
			if len(o.RestKeys) == 0 {
				t.Errorf("offer %s has no scope to leave alone", o.ID)
			}
			if o.Price.Micros() <= 0 || o.Price.Less(o.Bid) || kind == provider.OnDemand && !o.Bid.IsZero() {
				t.Errorf("%s offer %s costs $%s with a bid of $%s", kind, o.ID, o.Price, o.Bid)
			}
		}
	}
}

func searchRefuses(t T, h Harness) {
	h.AddOffers(1)
	caps := h.Driver().Capabilities()
	for _, kind := range []provider.CapacityType{"", "reserved", provider.Spot, provider.OnDemand} {
		_, err := h.Driver().SearchOffers(t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: diskGB})
		switch {
		case kind == provider.Spot && caps.Spot, kind == provider.OnDemand && caps.OnDemand:
			if err != nil {
				t.Errorf("%s is declared: %v", kind, err)
			}
		case kind == provider.Spot, kind == provider.OnDemand:
			wantKind(t, h, Search, err, provider.Unsupported)
		default:
			wantKind(t, h, Search, err, provider.Invalid)
		}
	}
}

func searchPricesTheDisk(t T, h Harness) {
	h.AddOffers(4)
	for _, kind := range capacityTypes(h.Driver().Capabilities()) {
		small := map[string]provider.Offer{}
		for _, o := range search(t, h, kind, 1) {
			small[o.ID] = o
		}
		large, err := h.Driver().SearchOffers(t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: 3 * diskGB})
		if err != nil {
			t.Fatalf("search with %d GB: %v", 3*diskGB, err)
		}
		for _, o := range large {
			if s, both := small[o.ID]; both && o.DiskGB > s.DiskGB && o.Price.Less(s.Price) {
				t.Errorf("%s offer %s costs $%s with %d GB and $%s with %d", kind, o.ID, s.Price, s.DiskGB, o.Price, o.DiskGB)
			}
		}
	}
}

func searchPriceIsBilled(t T, h Harness) {
	for _, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(3)
		inst, o := rent(t, h, kind, tag(int(kind[0])))
		h.Start(inst.ID)
		if read := get(t, h, inst.ID).Price; !notAbove(read, o.Price) {
			t.Errorf("%s: offered at $%s, read back as $%s", kind, o.Price, read)
		}
		for _, r := range live(h) {
			if r.ID != inst.ID {
				continue
			}
			// A micro-dollar for each part that is rounded up apart.
			if o.Price.Less(r.PerHour) || o.Price.Sub(r.PerHour).Micros() > 5 {
				t.Errorf("%s: offered at $%s, billed at $%s", kind, o.Price, r.PerHour)
			}
		}
	}
}

func createBuysType(t T, h Harness) {
	for i, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		inst, o := rent(t, h, kind, tag(i))
		records := wantLive(t, h, i+1)
		for _, r := range records {
			if r.ID == inst.ID && r.Spot != (kind == provider.Spot) {
				t.Errorf("asked for %s, the books say spot: %v", kind, r.Spot)
			}
		}
		for what, got := range map[string]provider.Instance{"create": inst, "get": get(t, h, inst.ID)} {
			if got.CapacityType != kind || got.Provider != h.Driver().Name() || got.ID != inst.ID {
				t.Errorf("%s answers %s %s of %s; want %s of %s", what, got.CapacityType, got.ID, got.Provider, kind, inst.ID)
			}
			if got.GPU != o.GPU || got.GPUCount != o.GPUCount {
				t.Errorf("%s answers %d %s; bought %d %s", what, got.GPUCount, got.GPU, o.GPUCount, o.GPU)
			}
		}
	}
}

func createTags(t T, h Harness) {
	h.AddOffers(2)
	inst, _ := rent(t, h, anyType(h), tag(7))
	if r := wantLive(t, h, 1)[0]; r.Tag != tag(7) || r.ID != inst.ID {
		t.Errorf("the books have %+v; want instance %s with tag %s", r, inst.ID, tag(7))
	}
	if got := get(t, h, inst.ID).Tag; got != tag(7) || inst.Tag != tag(7) {
		t.Errorf("create answers tag %q and get %q; want %q", inst.Tag, got, tag(7))
	}
}

func createMaxPrice(t T, h Harness) {
	for _, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		r := request(h, search(t, h, kind, 1)[0], tag(1))
		r.MaxPrice = r.Offer.Price.MulFrac(1, 2)
		if _, err := h.Driver().CreateInstance(t.Context(), r); err != nil && !provider.Refused(err) {
			t.Errorf("%s above the maximum: %v; want it bought within or refused", kind, err)
		}
		for _, b := range live(h) {
			if r.MaxPrice.Less(b.PerHour) {
				t.Errorf("%s: $%s/h is billed, at most $%s/h were allowed", kind, b.PerHour, r.MaxPrice)
			}
		}
	}
}

func createBootLimit(t T, h Harness) {
	h.AddOffers(2)
	caps := h.Driver().Capabilities()
	r := request(h, search(t, h, anyType(h), 1)[0], tag(1))
	fill := func(size int) {
		if caps.Boot == provider.BootVM {
			r.Boot.UserData = "#!/bin/sh\n" + strings.Repeat("#", size-10)
			return
		}
		r.Boot.Command = []string{"/bin/sh" + strings.Repeat("/", size-7)}
	}
	fill(caps.BootDataLimit + 1)
	_, err := h.Driver().CreateInstance(t.Context(), r)
	wantKind(t, h, Create, err, provider.Invalid)
	wantLive(t, h, 0)
	fill(caps.BootDataLimit)
	if _, err := h.Driver().CreateInstance(t.Context(), r); err != nil {
		t.Errorf("%d bytes are declared possible: %v", caps.BootDataLimit, err)
	}
}

func createOfferGone(t T, h Harness) {
	for _, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		o := search(t, h, kind, 1)[0]
		h.TakeOffer(o.ID)
		_, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
		wantKind(t, h, Create, err, provider.OfferGone, provider.NoCapacity)
		wantSilent(t, h, err)
		wantLive(t, h, 0)
	}
}

func createRefused(t T, h Harness) {
	h.AddOffers(2)
	good := search(t, h, anyType(h), 1)[0]
	for what, change := range map[string]func(*provider.CreateRequest){
		"no tag":        func(r *provider.CreateRequest) { r.Tag = "" },
		"no disk":       func(r *provider.CreateRequest) { r.DiskGB = 0 },
		"no boot":       func(r *provider.CreateRequest) { r.Boot = provider.Boot{} },
		"no offer":      func(r *provider.CreateRequest) { r.Offer.ID = "" },
		"capacity type": func(r *provider.CreateRequest) { r.Offer.CapacityType = "reserved" },
	} {
		r := request(h, good, tag(1))
		change(&r)
		_, err := h.Driver().CreateInstance(t.Context(), r)
		if !provider.Refused(err) {
			t.Errorf("%s: %v; want it refused", what, err)
		}
		wantKind(t, h, Create, err, provider.Invalid)
		wantLive(t, h, 0)
	}
}

func createFailedWithInstance(t T, h Harness) {
	h.AddOffers(2)
	o := search(t, h, anyType(h), 1)[0]
	h.Fail(Create, FailedWithInstance, 1)
	_, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
	r := wantLive(t, h, 1)[0]
	var id string
	if e := asError(err); e != nil {
		id = e.InstanceID
	}
	if id != r.ID || provider.Refused(err) {
		t.Fatalf("create failed with %v naming instance %q (refused: %v); instance %s is billed", err, id,
			provider.Refused(err), r.ID)
	}
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		t.Errorf("destroy %s: %v", id, err)
	}
	wantLive(t, h, 0)
}

func createNoBalance(t T, h Harness) {
	h.AddOffers(2)
	o := search(t, h, anyType(h), 1)[0]
	h.Fail(Create, NoBalance, 1)
	_, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
	wantKind(t, h, Create, err, provider.NoBalance)
	wantLive(t, h, 0)
}

func createTwice(t T, h Harness) {
	h.AddOffers(2)
	first, o := rent(t, h, anyType(h), tag(1))
	second, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
	if err != nil || second.ID != first.ID {
		t.Errorf("the second create answers %q, %v; want %q again", second.ID, err, first.ID)
	}
	wantLive(t, h, 1)
}
