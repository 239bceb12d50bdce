package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// shape is all workloads that ask for the same: what may serve one may serve each of them. The markets are searched once
// for a shape.
type shape struct {
	id int
	// w is one of its workloads.
	w     *demand.Workload
	pools []*v1alpha1.GPUNodePool
	// slots are the kinds that may serve it and have offers that fit, by the kind's number in at (nil: not that one).
	slots []slot
	at    []*slot
	// alone is the cheapest offer for one replica by itself when nothing has been chosen yet; zero where there is none.
	alone money.Dollars
	// hosts is its share of each claim with room, by the host's number; the zero share where it may not be there.
	hosts []share
	// found is made when it is asked for.
	found *survey
}

// slot is a kind as a shape sees it.
type slot struct {
	kind  *stock
	share share
	// most is what the entry and the pods let the instance cost.
	most money.Dollars
	// fits is how many of the kind's offers cost no more.
	fits int
}

// survey is what the markets of some pools have for one shape.
type survey struct {
	why offers.Explanation
	// silent are the markets that gave no offers because something is wrong, in words.
	silent []string
	// words is choice's, once it was asked for.
	words string
}

// shapeKey says alike of all workloads that the markets and the hosts treat alike.
func shapeKey(w *demand.Workload, pools []*v1alpha1.GPUNodePool) string {
	var b strings.Builder
	for _, p := range pools {
		b.WriteString(p.Name)
		b.WriteByte(' ')
	}
	most := "-"
	if w.MaxPrice != nil {
		most = w.MaxPrice.String()
	}
	fmt.Fprintf(&b, "|%s|%s|%d|%d|%s|%s", w.Provider, w.CapacityType, w.GPUCount, w.VRAMGB, most, strings.Join(w.GPUTypes, ","))
	return b.String()
}

// newShape looks for w in every market that its pools may buy in for it.
func (p *planning) newShape(w *demand.Workload, pools []*v1alpha1.GPUNodePool) *shape {
	sh := &shape{id: len(p.shapes), w: w, pools: pools}
	for _, pool := range pools {
		for _, i := range entries(pool, *w) {
			if b := p.books[marketKey{pool.Name, i}]; b != nil {
				sh.search(b, p.snapshot)
			}
		}
	}
	sh.at = make([]*slot, p.kinds)
	for i := range sh.slots {
		sl := &sh.slots[i]
		sh.at[sl.kind.id] = sl
		if cheapest := sl.kind.fit[0].Price; sh.alone.IsZero() || cheapest.Less(sh.alone) {
			sh.alone = cheapest
		}
	}
	sh.hosts = make([]share, len(p.hosts))
	for i, h := range p.hosts {
		sh.hosts[i] = h.shareFor(sh)
	}
	return sh
}

// search adds the kinds of a market that have something for the shape.
func (sh *shape) search(b *book, s Snapshot) {
	need := needFor(b.pool, b.entry, b.account, sh.w)
	for _, k := range b.kinds {
		if len(k.fit) == 0 {
			continue
		}
		fits := k.within(need.MaxPrice)
		if r, sr := sh.verdict(k, need, s); r == offers.Fits && fits > 0 {
			sh.slots = append(sh.slots, slot{kind: k, share: sr, most: need.MaxPrice, fits: fits})
		}
	}
}

// verdict is why no offer of a kind is right for the shape, whatever its price and machine, or what a replica takes of it.
func (sh *shape) verdict(k *stock, need offers.Need, s Snapshot) (offers.Rejection, share) {
	if r := k.verdict(need, s.Now); r != offers.Fits {
		return r, share{}
	}
	sr, ok := shareOn(sh.w, int(k.pool.Spec.Requirements.GPUCount), k.eachGB)
	switch {
	case !ok:
		return offers.TooLittleVRAM, share{}
	case sr.gpus > k.sample.GPUCount:
		return offers.WrongGPUCount, share{}
	}
	return offers.Fits, sr
}

// survey is the account of every offer that was looked at for the shape.
func (p *planning) survey(sh *shape) *survey {
	if sh.found != nil {
		return sh.found
	}
	found := &survey{}
	for _, pool := range sh.pools {
		for _, i := range entries(pool, *sh.w) {
			b, m := p.books[marketKey{pool.Name, i}], p.markets[marketKey{pool.Name, i}]
			if b == nil {
				m.Err = "not searched yet"
			}
			if m.Err != "" {
				e := pool.Spec.Providers[i]
				found.silent = append(found.silent, fmt.Sprintf("%s %s (pool %s): %s", e.Name, capacityOf(e), pool.Name,
					strings.TrimPrefix(m.Err, e.Name+": ")))
			}
			if b == nil {
				b = &book{pool: pool, entry: i}
			}
			need := needFor(pool, i, b.account, sh.w)
			why := offers.Explanation{Counts: map[offers.Rejection]int{}, MaxPrice: need.MaxPrice, LeastMaxPrice: need.MaxPrice}
			for _, k := range b.kinds {
				r, _ := sh.verdict(k, need, p.snapshot)
				k.count(&why, r, need.MaxPrice)
			}
			found.why = found.why.Merge(why)
		}
	}
	sh.found = found
	return found
}

// allows reports whether the shape's own restrictions, of those that an instance has for good, let it be there.
func (sh *shape) allows(pool, providerName, capacity string) bool {
	return slices.ContainsFunc(sh.pools, func(p *v1alpha1.GPUNodePool) bool { return p.Name == pool }) &&
		(sh.w.Provider == "" || string(sh.w.Provider) == providerName) &&
		(sh.w.CapacityType == "" || sh.w.CapacityType == provider.CapacityType(capacity))
}
