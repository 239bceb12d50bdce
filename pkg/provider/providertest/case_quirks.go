package providertest

import (
	"github.com/munhq/gpuscale/pkg/provider"
)

func quirkCases() []Case {
	return []Case{
		{Name: "ListedStockThatIsGone", Check: listedGone},
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
