package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// The steps that cases are made of. Each that can go wrong for the driver's fault ends the case.

const (
	diskGB    = 40
	bootPort  = 9443
	tagPrefix = "gs-suite001-"
)

// tag is an owner tag of the suite's installation.
func tag(n int) string { return fmt.Sprintf("%s%016x", tagPrefix, n) }

// capacityTypes are those that the driver declares.
func capacityTypes(c provider.Capabilities) []provider.CapacityType {
	var out []provider.CapacityType
	if c.OnDemand {
		out = append(out, provider.OnDemand)
	}
	if c.Spot {
		out = append(out, provider.Spot)
	}
	return out
}

// anyType is a capacity type that the driver declares.
func anyType(h Harness) provider.CapacityType { return capacityTypes(h.Driver().Capabilities())[0] }

// search returns at least n offers, cheapest first.
func search(t T, h Harness, kind provider.CapacityType, n int) []provider.Offer {
	t.Helper()
	offers, err := h.Driver().SearchOffers(t.Context(), provider.OfferQuery{CapacityType: kind, DiskGB: diskGB})
	if err != nil {
		t.Fatalf("search for %s: %v", kind, err)
	}
	if len(offers) < n {
		t.Fatalf("search for %s found %d offers; the cloud has at least %d", kind, len(offers), n)
	}
	slices.SortStableFunc(offers, func(a, b provider.Offer) int { return a.Price.Cmp(b.Price) })
	return offers
}

// request is a rental that every driver takes.
func request(h Harness, o provider.Offer, tag string) provider.CreateRequest {
	r := provider.CreateRequest{Offer: o, Tag: tag, MaxPrice: o.Price.MulFrac(11, 10), DiskGB: diskGB}
	r.Boot.Port = bootPort
	if h.Driver().Capabilities().Boot == provider.BootVM {
		r.Boot.UserData = "#cloud-config\nruncmd: [\"true\"]\n"
		return r
	}
	r.Boot.Image = "registry.example/engine:v1"
	r.Boot.Command = []string{"/opt/agent", "--serve"}
	r.Boot.Env = map[string]string{"GPUSCALE_BOOT": "e30="}
	return r
}

// rent buys the cheapest offer under a tag, waits out the list lag, and returns it with its offer.
func rent(t T, h Harness, kind provider.CapacityType, tag string) (provider.Instance, provider.Offer) {
	t.Helper()
	o := search(t, h, kind, 1)[0]
	inst, err := h.Driver().CreateInstance(t.Context(), request(h, o, tag))
	if err != nil {
		t.Fatalf("create on %s: %v", o.ID, err)
	}
	if inst.ID == "" {
		t.Fatalf("create returned an instance without an id")
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	return inst, o
}

// get reads an instance that exists.
func get(t T, h Harness, id string) provider.Instance {
	t.Helper()
	inst, err := h.Driver().GetInstance(t.Context(), id)
	if err != nil {
		t.Fatalf("get %s: %v", id, err)
	}
	return inst
}

// list reads all that f selects.
func list(t T, h Harness, f provider.InstanceFilter) []provider.Instance {
	t.Helper()
	all, err := h.Driver().ListInstances(t.Context(), f)
	if err != nil {
		t.Fatalf("list %+v: %v", f, err)
	}
	return all
}

// live are the instances in the cloud's books that are billed.
func live(h Harness) []Record {
	return slices.DeleteFunc(slices.Clone(h.Books()), func(r Record) bool { return !r.Live })
}

// recordOf is an instance's line in the cloud's books.
func recordOf(h Harness, id string) Record {
	for _, r := range h.Books() {
		if r.ID == id {
			return r
		}
	}
	return Record{}
}

// wantLive ends the case unless the cloud's books have n live instances, and returns them.
func wantLive(t T, h Harness, n int) []Record {
	t.Helper()
	have := live(h)
	if len(have) != n {
		t.Fatalf("the cloud bills %d instances %+v; want %d", len(have), have, n)
	}
	return have
}

// wantKind checks that err is a provider.Error of operation op and of one of the kinds.
func wantKind(t T, h Harness, op Op, err error, kinds ...provider.Kind) {
	t.Helper()
	if err == nil {
		t.Errorf("%s succeeded; want an error of kind %v", op, kinds)
		return
	}
	var e *provider.Error
	if !errors.As(err, &e) {
		t.Errorf("%s: %v is no provider.Error", op, err)
		return
	}
	if e.Provider != h.Driver().Name() || e.Op != string(op) {
		t.Errorf("%s: the error says provider %q and operation %q", op, e.Provider, e.Op)
	}
	if !slices.Contains(kinds, e.Kind) {
		t.Errorf("%s: kind %s (%v); want %v", op, e.Kind, err, kinds)
	}
}

// wantOpen checks that a failed write does not claim to have had no effect.
func wantOpen(t T, h Harness, op Op, err error) {
	t.Helper()
	wantKind(t, h, op, err, provider.Unknown, provider.Unavailable)
	if provider.Refused(err) {
		t.Errorf("%s: %v says that nothing was rented, which is not known", op, err)
	}
}

// wantSilent checks that err contains no credential in any way it can be printed.
func wantSilent(t T, h Harness, err error) {
	t.Helper()
	for _, secret := range h.Secrets() {
		for _, s := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
			if strings.Contains(s, secret) {
				t.Errorf("an error shows a credential: %s", strings.ReplaceAll(s, secret, "<HERE>"))
				return
			}
		}
	}
}

// do calls one operation of a driver, on an instance and an offer where it takes one.
func do(ctx context.Context, h Harness, d provider.Provider, op Op, id string, o provider.Offer) error {
	var err error
	switch op {
	case Search:
		_, err = d.SearchOffers(ctx, provider.OfferQuery{CapacityType: anyType(h), DiskGB: diskGB})
	case Create:
		_, err = d.CreateInstance(ctx, request(h, o, tag(99)))
	case Get:
		_, err = d.GetInstance(ctx, id)
	case List:
		_, err = d.ListInstances(ctx, provider.InstanceFilter{})
	case Destroy:
		err = d.DestroyInstance(ctx, id)
	case Check:
		err = d.CheckCredentials(ctx)
	}
	return err
}

// scene is one running instance and one more offer, for cases that go through every operation.
func scene(t T, h Harness) (id string, spare provider.Offer) {
	t.Helper()
	h.AddOffers(3)
	kind := anyType(h)
	inst, used := rent(t, h, kind, tag(1))
	h.Start(inst.ID)
	for _, o := range search(t, h, kind, 1) {
		if o.ID != used.ID {
			return inst.ID, o
		}
	}
	t.Fatalf("no second offer")
	return "", provider.Offer{}
}

// notAbove reports whether a rate read back is within the price offered.
func notAbove(read *money.Dollars, offered money.Dollars) bool {
	return read == nil || !offered.Less(*read)
}
