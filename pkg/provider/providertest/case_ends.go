package providertest

import (
	"fmt"

	"github.com/munhq/gpuscale/pkg/provider"
)

// endCases tell the ways apart in which an instance comes to its end, each by get and by list.
func endCases() []Case {
	spot := func(c provider.Capabilities) bool { return c.Spot }
	onDemand := func(c provider.Capabilities) bool { return c.OnDemand }
	return []Case{
		{Name: "AReclaimIsInterrupted", Check: reclaimed, Needs: spot},
		{Name: "AStopIsNoInterruption", Check: stopped, Needs: onDemand},
		{Name: "AnExitIsNoInterruption", Check: exited},
		{Name: "AnUnreachableHostIsLost", Check: unreachable},
		{Name: "ADeletionByTheOwnerIsGone", Check: deletedElsewhere},
	}
}

// sightings are how get and list show an instance; nil where one says that there is none. They end the case where
// either fails, or shows another state than the other.
func sightings(t T, h Harness, id, tag string) map[string]*provider.Instance {
	t.Helper()
	out := map[string]*provider.Instance{"get": nil, "list": nil}
	switch got, err := h.Driver().GetInstance(t.Context(), id); provider.KindOf(err) {
	case "":
		out["get"] = &got
	case provider.NotFound:
	default:
		t.Fatalf("get %s: %v", id, err)
	}
	for _, filter := range []provider.InstanceFilter{{}, {Tag: tag}} {
		for _, inst := range list(t, h, filter) {
			if inst.ID == id {
				out["list"] = &inst
			}
		}
	}
	if a, b := describe(out["get"]), describe(out["list"]); a != b {
		t.Fatalf("instance %s reads as %s by get and as %s by list", id, a, b)
	}
	return out
}

// describe is an instance's state in a few words.
func describe(i *provider.Instance) string {
	switch {
	case i == nil:
		return "not there"
	case i.Interrupted:
		return fmt.Sprintf("%s, interrupted", i.State)
	}
	return string(i.State)
}

// reclaimed: an instance that the provider took is interrupted, or not there where the vendor lets it vanish.
func reclaimed(t T, h Harness) {
	h.AddOffers(2)
	inst, _ := rent(t, h, provider.Spot, tag(1))
	h.Start(inst.ID)
	h.Reclaim(inst.ID)
	for what, got := range sightings(t, h, inst.ID, tag(1)) {
		if got != nil && (!got.Interrupted || got.State == provider.StateRunning || got.State == provider.StatePending) {
			t.Errorf("%s: a reclaimed instance is %s", what, describe(got))
		}
	}
}

func stopped(t T, h Harness) {
	h.AddOffers(2)
	inst, _ := rent(t, h, provider.OnDemand, tag(1))
	h.Start(inst.ID)
	h.Stop(inst.ID)
	for what, got := range sightings(t, h, inst.ID, tag(1)) {
		if got == nil || got.State != provider.StateStopped || got.Interrupted {
			t.Errorf("%s: an instance that was stopped is %s", what, describe(got))
		}
	}
}

// exited: software that ends by itself was not taken back, on spot neither.
func exited(t T, h Harness) {
	for i, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		inst, _ := rent(t, h, kind, tag(i))
		h.Start(inst.ID)
		h.Exit(inst.ID)
		for what, got := range sightings(t, h, inst.ID, tag(i)) {
			if got == nil || got.State != provider.StateFailed && got.State != provider.StateStopped || got.Interrupted {
				t.Errorf("%s: a %s instance whose software ended is %s", what, kind, describe(got))
			}
		}
	}
}

// unreachable: a host that may come back was not taken, did not crash and is not gone, whatever was paid for it.
func unreachable(t T, h Harness) {
	for i, kind := range capacityTypes(h.Driver().Capabilities()) {
		h.AddOffers(2)
		inst, _ := rent(t, h, kind, tag(i))
		h.Start(inst.ID)
		show(t, h, Unreachable, inst.ID)
		for what, got := range sightings(t, h, inst.ID, tag(i)) {
			if got == nil || got.State != provider.StateLost || got.Interrupted {
				t.Errorf("%s: a %s instance whose host is away is %s; want %s", what, kind, describe(got), provider.StateLost)
			}
		}
	}
}

// deletedElsewhere: what its owner deleted is not found, and not a moment of some other state.
func deletedElsewhere(t T, h Harness) {
	id, _ := scene(t, h)
	show(t, h, DeletedElsewhere, id)
	wantLive(t, h, 0)
	for what, got := range sightings(t, h, id, tag(1)) {
		if got != nil {
			t.Errorf("%s: an instance that was deleted is %s", what, describe(got))
		}
	}
}

// destroyIgnored: an accepted destroy is no proof, and the next one is sent.
func destroyIgnored(t T, h Harness) {
	id, _ := scene(t, h)
	show(t, h, DestroyIgnored, id)
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		t.Errorf("destroy: %v; the cloud accepted it", err)
	}
	stillThere(t, h, id)
	if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
		t.Errorf("destroy again: %v", err)
	}
	wantLive(t, h, 0)
}

// destroyLate: an end that was asked for is not gone before it is.
func destroyLate(t T, h Harness) {
	id, _ := scene(t, h)
	show(t, h, DestroyLate, id)
	for range 2 {
		if err := h.Driver().DestroyInstance(t.Context(), id); err != nil {
			t.Errorf("destroy: %v; the cloud accepted it", err)
		}
	}
	stillThere(t, h, id)
	h.Wait(DestroyTakes)
	wantLive(t, h, 0)
	for what, got := range sightings(t, h, id, tag(1)) {
		if got != nil {
			t.Errorf("%s: an instance that is gone is %s", what, describe(got))
		}
	}
}

// destroyRefused: a refusal is an error that asks for another try, while the instance starts and bills.
func destroyRefused(t T, h Harness) {
	h.AddOffers(2)
	inst, _ := rent(t, h, anyType(h), tag(1))
	show(t, h, DestroyRefused, inst.ID)
	err := h.Driver().DestroyInstance(t.Context(), inst.ID)
	wantKind(t, h, Destroy, err, provider.Unavailable, provider.Unknown)
	stillThere(t, h, inst.ID)
	if err := h.Driver().DestroyInstance(t.Context(), inst.ID); err != nil {
		t.Errorf("destroy again: %v", err)
	}
	wantLive(t, h, 0)
}

// stillThere checks that one instance is billed and that nobody calls it gone.
func stillThere(t T, h Harness, id string) {
	t.Helper()
	if r := wantLive(t, h, 1)[0]; r.ID != id {
		t.Fatalf("%s is billed; want %s", r.ID, id)
	}
	for what, got := range sightings(t, h, id, tag(1)) {
		if got == nil {
			t.Errorf("%s: an instance that is billed is not there", what)
		}
	}
}
