package offers

import (
	"cmp"
	"slices"
	"time"

	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Select returns the offers that satisfy n at now, in the order of Compare, and an account of all the others. It
// changes nothing in its arguments; kept is the caller's.
func Select(offers []provider.Offer, n Need, rests rest.View, now time.Time) (kept []provider.Offer, why Explanation) {
	why = Explanation{Total: len(offers), Counts: map[Rejection]int{}, MaxPrice: n.MaxPrice, LeastMaxPrice: n.MaxPrice}
	for _, o := range offers {
		r, until := judge(o, n, rests, now)
		if r == Fits {
			kept = append(kept, o)
			continue
		}
		why.Counts[r]++
		switch r {
		case OverPrice:
			if why.Counts[r] == 1 || o.Price.Less(why.CheapestOver) {
				why.CheapestOver = o.Price
			}
		case Resting:
			why.RestingUntil = earliest(why.RestingUntil, until)
		}
	}
	slices.SortFunc(kept, Compare)
	return kept, why
}

// Compare orders offers as they are bought: the cheapest first, then the more reliable (one without a score last), then
// the one with cheaper traffic. What remains equal is ordered by provider, ID, capacity type and disk, so that the order
// does not depend on the order of a provider's answer. For slices.SortFunc.
func Compare(a, b provider.Offer) int {
	return cmp.Or(
		a.Price.Cmp(b.Price),
		cmp.Compare(score(b), score(a)),
		cmp.Compare(a.TrafficPerGB, b.TrafficPerGB),
		cmp.Compare(a.Provider, b.Provider),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.CapacityType, b.CapacityType),
		cmp.Compare(a.DiskGB, b.DiskGB),
	)
}

// score puts a missing score, and one that is not a number, below every real one.
func score(o provider.Offer) float64 {
	if o.Reliability == nil || *o.Reliability != *o.Reliability {
		return -1
	}
	return *o.Reliability
}

// earliest is the earlier of two times, where zero means none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
