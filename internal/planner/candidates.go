package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// candidate is an offer that a pool's entry may buy for a workload.
type candidate struct {
	pool  *v1alpha1.GPUNodePool
	entry int
	offer provider.Offer
	// most is what the entry and the pods let the instance cost.
	most money.Dollars
}

// survey is what the markets of some pools have for one workload.
type survey struct {
	// candidates in the order of preference.
	candidates []candidate
	why        offers.Explanation
	// silent are the markets that gave no offers because something is wrong, in words.
	silent []string
}

// look judges every offer that the pools' entries may buy for w.
func (p *planning) look(w demand.Workload, pools []*v1alpha1.GPUNodePool) survey {
	var all survey
	for _, pool := range pools {
		for _, i := range entries(pool, w) {
			market, ok := p.markets[marketKey{pool.Name, i}]
			if !ok {
				market.Err = "not searched yet"
			}
			if market.Err != "" {
				all.silent = append(all.silent, fmt.Sprintf("%s (pool %s): %s", pool.Spec.Providers[i].Name, pool.Name, market.Err))
			}
			need := needFor(pool, i, market.Account, w)
			kept, why := offers.Select(market.Offers, need, p.snapshot.Rests, p.snapshot.Now)
			kept = coveringOnly(kept, need, &why)
			all.why = all.why.Merge(why)
			for _, o := range kept {
				all.candidates = append(all.candidates, candidate{pool: pool, entry: i, offer: o, most: need.MaxPrice})
			}
		}
	}
	slices.SortStableFunc(all.candidates, prefer)
	return all
}

// prefer puts the cheapest first; at one price the pool's name and then the order of its entries decide, and only then
// what makes one machine better than another.
func prefer(a, b candidate) int {
	return cmp.Or(a.offer.Price.Cmp(b.offer.Price), strings.Compare(a.pool.Name, b.pool.Name), cmp.Compare(a.entry, b.entry),
		offers.Compare(a.offer, b.offer))
}

// needFor combines what a pool's entry and a workload ask of an instance.
func needFor(pool *v1alpha1.GPUNodePool, entry int, account string, w demand.Workload) offers.Need {
	e, req := pool.Spec.Providers[entry], pool.Spec.Requirements
	n := offers.Need{
		Provider:        provider.Name(e.Name),
		CapacityType:    capacityOf(e),
		Account:         account,
		GPUTypeSets:     [][]string{req.GPUTypes, w.GPUTypes},
		GPUCount:        cmp.Or(int(req.GPUCount), w.GPUCount),
		MinTotalVRAMGB:  max(int(req.MinVRAM), w.VRAMGB),
		MaxVRAMGBPerGPU: int(req.MaxVRAM),
		MinDiskGB:       int(req.MinDisk),
		MinRAMGB:        int(req.MinRAM),
		Regions:         e.Regions,
		MaxPrice:        e.MaxPrice,
	}
	if w.MaxPrice != nil {
		n.MaxPrice = money.Min(e.MaxPrice, *w.MaxPrice)
	}
	n.MinReliability, n.MinCUDA = reliability(req.MinReliability), cuda(req.MinCUDA)
	return n
}

// reliability and cuda read what the schema has checked. What it would not have let through asks for more than any offer
// has, so that a pool that was never checked buys nothing rather than something worse than asked.
func reliability(s string) *float64 {
	if s == "" {
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		f = 2
	}
	return &f
}

func cuda(s string) *[2]int {
	if s == "" {
		return nil
	}
	major, minor, _ := strings.Cut(s, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if errA != nil || errB != nil {
		a, b = 1000, 0
	}
	return &[2]int{a, b}
}

// coveringOnly leaves out offers with more GPUs than cover the VRAM, where neither pool nor workload gives a count. An
// engine is spread over all the GPUs of its replica, and spreading costs speed and may not divide the model; counts are
// powers of two for the same reason.
func coveringOnly(kept []provider.Offer, n offers.Need, why *offers.Explanation) []provider.Offer {
	if n.GPUCount != 0 {
		return kept
	}
	return slices.DeleteFunc(kept, func(o provider.Offer) bool {
		count := 1
		for each := offers.NominalVRAMGB(o); each > 0 && count*each < n.MinTotalVRAMGB; {
			count *= 2
		}
		if o.GPUCount != count {
			why.Counts[offers.WrongGPUCount]++
		}
		return o.GPUCount != count
	})
}

func keyOf(o provider.Offer) offerKey { return offerKey{o.Provider, o.ID} }

// oneMachine reports whether an offer is of one particular machine, as its rest keys say, and so can be rented once. Two
// replicas planned on it would make one claim that finds nothing at its price. Offers of a kind of machine can be had
// again and again.
func oneMachine(o provider.Offer) bool {
	return slices.ContainsFunc(o.RestKeys, func(k provider.RestKey) bool { return strings.HasPrefix(string(k), "machine/") })
}
