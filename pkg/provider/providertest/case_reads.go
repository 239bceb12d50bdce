package providertest

import (
	"context"

	"github.com/munhq/gpuscale/pkg/provider"
)

func readCases() []Case {
	return []Case{
		{Name: "ListFindsExactlyTheTag", Check: listFindsTag},
		{Name: "ListReadsEveryPage", Check: listReadsEveryPage},
		{Name: "ABrokenPageIsNoShortList", Check: brokenPage},
		{Name: "PagesWithoutEnd", Check: endlessPages},
		{Name: "ListIsEmptyWithoutError", Check: listEmpty},
		{Name: "ReadsAreNoLaterThanTheListLag", Check: readsWithinLag},
		{Name: "GetOfWhatNeverWasIsNotFound", Check: getNeverWas},
	}
}

func stateCases() []Case {
	return []Case{
		{Name: "PendingThenRunningWithAnEndpoint", Check: runsWithEndpoint},
		{Name: "AnUnknownWordIsStateUnknown", Check: unknownState},
		{Name: "DestroyedIsGoneAndStaysGone", Check: destroyedIsGone},
		{Name: "DestroyTwiceIsHarmless", Check: destroyTwice},
		{Name: "DestroyOfWhatNeverWas", Check: destroyNeverWas},
		{Name: "DestroyEndsOnlyTheOneAsked", Check: destroyOnlyOne},
	}
}

func listFindsTag(t T, h Harness) {
	ids := map[string]string{}
	for i := range 3 {
		h.AddOffers(2)
		inst, _ := rent(t, h, anyType(h), tag(i))
		ids[tag(i)] = inst.ID
	}
	for i := range 3 {
		found := list(t, h, provider.InstanceFilter{Tag: tag(i)})
		if len(found) != 1 || found[0].ID != ids[tag(i)] || found[0].Tag != tag(i) {
			t.Errorf("list by tag %s found %+v; want instance %s alone", tag(i), found, ids[tag(i)])
		}
	}
	for f, want := range map[provider.InstanceFilter]int{
		{Tag: tag(9)}:                        0,
		{Tag: tag(1)[:20]}:                   0,
		{TagPrefix: tagPrefix}:               3,
		{TagPrefix: "gs-another-"}:           0,
		{Tag: tag(1), TagPrefix: "gs-other"}: 0,
		{}:                                   3,
	} {
		if found := list(t, h, f); len(found) != want {
			t.Errorf("list %+v found %d instances; want %d", f, len(found), want)
		}
	}
}

// listSize is more than any vendor's page that the provider references know of by default (25).
const listSize = 27

// rentMany fills more than a page and returns the ids, the oldest first; the nth has tag(n).
func rentMany(t T, h Harness) []string {
	t.Helper()
	h.AddOffers(listSize)
	var ids []string
	for i, o := range search(t, h, anyType(h), listSize)[:listSize] {
		inst, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(i)))
		if err != nil {
			t.Fatalf("create %d on %s: %v", i, o.ID, err)
		}
		ids = append(ids, inst.ID)
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	return ids
}

func listReadsEveryPage(t T, h Harness) {
	want := rentMany(t, h)
	for _, f := range []provider.InstanceFilter{{}, {TagPrefix: tagPrefix}} {
		wantAll(t, f, list(t, h, f), want)
	}
	for _, n := range []int{0, listSize - 2, listSize - 1} {
		if found := list(t, h, provider.InstanceFilter{Tag: tag(n)}); len(found) != 1 || found[0].ID != want[n] {
			t.Errorf("list by the tag of instance %d found %+v; want %s alone", n+1, found, want[n])
		}
	}
}

// wantAll checks that a list has each instance once.
func wantAll(t T, f provider.InstanceFilter, found []provider.Instance, want []string) {
	t.Helper()
	got := map[string]bool{}
	for _, inst := range found {
		if got[inst.ID] {
			t.Errorf("list %+v has instance %s twice", f, inst.ID)
		}
		got[inst.ID] = true
	}
	for _, id := range want {
		if !got[id] {
			t.Errorf("list %+v lacks instance %s", f, id)
		}
	}
}

// brokenPage: half a list would have the other half taken for gone.
func brokenPage(t T, h Harness) {
	rentMany(t, h)
	show(t, h, PageTwoFails, "")
	for _, f := range []provider.InstanceFilter{{}, {TagPrefix: tagPrefix}} {
		_, err := h.Driver().ListInstances(t.Context(), f)
		wantKind(t, h, List, err, provider.Unavailable, provider.Unknown)
	}
}

// endlessPages: a list whose pages lead back ends, in an error or with all of it.
func endlessPages(t T, h Harness) {
	want := rentMany(t, h)
	show(t, h, EndlessPages, "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	found, err := h.Driver().ListInstances(ctx, provider.InstanceFilter{})
	switch {
	case ctx.Err() != nil:
		t.Errorf("the list had no end in %s", patience)
	case err != nil:
		wantKind(t, h, List, err, provider.Unknown, provider.Unavailable)
	default:
		wantAll(t, provider.InstanceFilter{}, found, want)
	}
}

func listEmpty(t T, h Harness) {
	for _, f := range []provider.InstanceFilter{{}, {Tag: tag(1)}, {TagPrefix: tagPrefix}} {
		if found := list(t, h, f); len(found) != 0 {
			t.Errorf("list %+v found %+v in an empty account", f, found)
		}
	}
}

func readsWithinLag(t T, h Harness) {
	h.AddOffers(2)
	caps := h.Driver().Capabilities()
	o := search(t, h, anyType(h), 1)[0]
	inst, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag(1)))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	// The harness's cloud shows it late, so that the driver is seen to take that for no error of another kind.
	_, err = h.Driver().GetInstance(t.Context(), inst.ID)
	wantKind(t, h, Get, err, provider.NotFound)
	if found := list(t, h, provider.InstanceFilter{Tag: tag(1)}); len(found) != 0 {
		t.Errorf("list by tag found %+v at once: the harness's cloud has no lag", found)
	}
	wantLive(t, h, 1)
	h.Wait(caps.ListLag)
	get(t, h, inst.ID)
	if found := list(t, h, provider.InstanceFilter{Tag: tag(1)}); len(found) != 1 || found[0].ID != inst.ID {
		t.Errorf("list by tag found %+v a list lag after the create; want instance %s", found, inst.ID)
	}
}

func getNeverWas(t T, h Harness) {
	_, err := h.Driver().GetInstance(t.Context(), h.UnusedID())
	wantKind(t, h, Get, err, provider.NotFound)
}

func runsWithEndpoint(t T, h Harness) {
	for i, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		inst, _ := rent(t, h, kind, tag(i))
		if inst.State != provider.StatePending && inst.State != provider.StateRunning {
			t.Errorf("%s is %s right after its creation", kind, inst.State)
		}
		h.Start(inst.ID)
		inListed := list(t, h, provider.InstanceFilter{Tag: tag(i)})
		if len(inListed) != 1 {
			t.Fatalf("list found %+v; want one", inListed)
		}
		for what, got := range map[string]provider.Instance{"get": get(t, h, inst.ID), "list": inListed[0]} {
			if got.State != provider.StateRunning || got.Interrupted {
				t.Errorf("%s: a running %s instance is %s (interrupted: %v)", what, kind, got.State, got.Interrupted)
			}
			if got.Address == "" || got.Port < 1 || got.Port > 65535 {
				t.Errorf("%s: a running %s instance is reached at %q port %d", what, kind, got.Address, got.Port)
			}
			if r := recordOf(h, inst.ID); r.Port != 0 && got.Port != r.Port {
				t.Errorf("%s: it is reached at port %d; the driver says %d", what, r.Port, got.Port)
			}
			if got.CapacityType != kind || len(got.RestKeys) == 0 {
				t.Errorf("%s: %s instance reads as %s with scopes %v", what, kind, got.CapacityType, got.RestKeys)
			}
		}
	}
}

// unknownState: a word that nobody knows is never taken for gone, and keeps nobody from ending the instance.
func unknownState(t T, h Harness) {
	id, _ := scene(t, h)
	h.SayUnknownState(id)
	for what, got := range sightings(t, h, id, tag(1)) {
		if got == nil || got.State != provider.StateUnknown || got.Interrupted {
			t.Errorf("%s: a state in an unknown word is %s; want %s", what, describe(got), provider.StateUnknown)
		}
	}
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		t.Errorf("destroy: %v", err)
	}
	wantLive(t, h, 0)
}

func destroyedIsGone(t T, h Harness) {
	id, _ := scene(t, h)
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	wantLive(t, h, 0)
	lag := h.Driver().Capabilities().ListLag
	for range 2 { // as the claim controller confirms it: not found twice, a list lag apart
		h.Wait(lag)
		_, err := h.Driver().GetInstance(t.Context(), id)
		wantKind(t, h, Get, err, provider.NotFound)
		if found := list(t, h, provider.InstanceFilter{}); len(found) != 0 {
			t.Errorf("list still has %+v", found)
		}
	}
}

func destroyTwice(t T, h Harness) {
	id, _ := scene(t, h)
	for i := range 3 {
		if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
			if i == 0 {
				t.Fatalf("destroy: %v", err)
			}
			wantKind(t, h, Destroy, err, provider.NotFound)
		}
		wantLive(t, h, 0)
	}
}

func destroyNeverWas(t T, h Harness) {
	if err := h.Driver().DestroyInstance(t.Context(), h.UnusedID()); err != nil {
		wantKind(t, h, Destroy, err, provider.NotFound)
	}
}

func destroyOnlyOne(t T, h Harness) {
	id, spare := scene(t, h)
	other, err := h.Driver().CreateInstance(t.Context(), request(h, spare, tag(2)))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	if r := wantLive(t, h, 1)[0]; r.ID != other.ID {
		t.Errorf("destroying %s left %s; want %s left", id, r.ID, other.ID)
	}
}
