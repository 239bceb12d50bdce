package planner

import (
	"math/bits"
	"slices"

	"github.com/munhq/gpuscale/pkg/provider"
)

// Bounds of the exact search: replicas, claims with room, and steps, after which the best so far is returned. Steps and
// not time, so that the plan depends on nothing but the snapshot.
const (
	exactReplicas = 7
	exactHosts    = 6
	exactSteps    = 20000
)

// search tries every way to share instances for a handful of replicas.
type search struct {
	p *planning
	// items are the replicas, by workload number, in a plan's order.
	items []int
	hosts []*node
	// buys are the offers that may serve a set of items together, the most preferred first, as many of each pool as there
	// are items: no plan needs more.
	buys  map[uint]*[]chance
	steps int
	best  *draft
	// groups are the sets of items that share an instance: first the hosts', then one for each purchase.
	groups []uint
}

// chance is an offer with its kind.
type chance struct {
	slot  *slot
	offer *provider.Offer
}

// exact is the best draft for a handful of replicas; nil where there are more, or steps ran out before one was found.
func (p *planning) exact() *draft {
	s := &search{p: p, buys: map[uint]*[]chance{}}
	for w := range p.workloads {
		if p.workloads[w].shape == nil {
			continue
		}
		for range p.workloads[w].missing {
			if s.items = append(s.items, w); len(s.items) > exactReplicas {
				return nil
			}
		}
	}
	for _, n := range p.newDraft().hosts {
		if slices.ContainsFunc(s.items, func(w int) bool { return p.shapeOf(w).shareIn(n).gpus > 0 }) && len(s.hosts) < exactHosts {
			s.hosts = append(s.hosts, n)
		}
	}
	s.groups = make([]uint, len(s.hosts))
	s.assign(0)
	return s.best
}

// assign places the i-th item and all after it in every way: on each claim, beside each set, on an instance of its own,
// or nowhere.
func (s *search) assign(i int) {
	if s.steps++; s.steps > exactSteps {
		return
	}
	if i == len(s.items) {
		s.price()
		return
	}
	bit := uint(1) << i
	for g := range s.groups {
		if s.groups[g]&s.twins(i) != 0 {
			continue
		}
		s.groups[g] |= bit
		if s.possible(g) {
			s.assign(i + 1)
		}
		s.groups[g] &^= bit
	}
	s.groups = append(s.groups, bit)
	if s.possible(len(s.groups) - 1) {
		s.assign(i + 1)
	}
	s.groups = s.groups[:len(s.groups)-1]
	// Nothing after it may make up for an item that is left out where another plan has it.
	if s.best == nil || s.best.met < len(s.items) {
		s.assign(i + 1)
	}
}

// twins are the items of the same workload.
func (s *search) twins(i int) uint {
	var set uint
	for j, w := range s.items {
		if w == s.items[i] {
			set |= 1 << j
		}
	}
	return set
}

// possible reports whether the g-th group could be together.
func (s *search) possible(g int) bool {
	if g >= len(s.hosts) {
		return len(*s.offers(s.groups[g])) > 0
	}
	n := s.hosts[g]
	shares := slices.Clone(n.shares)
	for i, w := range s.items {
		if s.groups[g]>>i&1 == 0 {
			continue
		}
		sr := s.p.shapeOf(w).shareIn(n)
		if sr.gpus == 0 || n.host.models[s.p.workloads[w].Key] {
			return false
		}
		shares = append(shares, sr)
	}
	return len(shares) <= mostResidents && packs(shares, n.gpus)
}

// offers may serve a set of items together.
func (s *search) offers(set uint) *[]chance {
	if known := s.buys[set]; known != nil {
		return known
	}
	found := &[]chance{}
	s.buys[set] = found
	first := s.p.shapeOf(s.items[bits.TrailingZeros(set)])
	perPool := map[string]int{}
	var all []chance
	for k := range first.slots {
		sl := &first.slots[k]
		fits := s.together(set, sl)
		for o := range min(fits, len(s.items)) {
			all = append(all, chance{sl, &sl.kind.fit[o]})
		}
	}
	slices.SortFunc(all, func(a, b chance) int { return preferred(a.slot.kind, a.offer, b.slot.kind, b.offer) })
	for _, c := range all {
		if pool := c.slot.kind.pool.Name; perPool[pool] < len(s.items) {
			perPool[pool]++
			*found = append(*found, c)
		}
	}
	return found
}

// together is how many of a kind's offers may serve all items of a set.
func (s *search) together(set uint, sl *slot) int {
	fits := sl.fits
	var shares []share
	for i, w := range s.items {
		if set>>i&1 == 0 {
			continue
		}
		other := s.p.shapeOf(w).at[sl.kind.id]
		if other == nil {
			return 0
		}
		fits = min(fits, other.fits)
		shares = append(shares, other.share)
	}
	if !packs(shares, sl.kind.sample.GPUCount) {
		return 0
	}
	return fits
}

// price buys an offer for each group in every way that can still be better, and keeps the best.
func (s *search) price() {
	d := s.p.newDraft()
	for g := range s.hosts {
		s.each(s.groups[g], func(w int) {
			n := d.hosts[s.hosts[g].host.id]
			d.join(n, w, s.p.shapeOf(w).shareIn(n))
		})
	}
	s.choose(d, len(s.hosts))
}

// choose buys for the g-th group and all after it.
func (s *search) choose(d *draft, g int) {
	if s.best != nil && !better(d.bound(s, g), s.best) {
		return
	}
	if g == len(s.groups) {
		s.best = d
		return
	}
	tried := 0
	for _, c := range *s.offers(s.groups[g]) {
		if s.steps++; s.steps > exactSteps || tried == len(s.groups) {
			return
		}
		w := s.items[bits.TrailingZeros(s.groups[g])]
		if d.rented[keyOf(c.offer)] || d.affords(c.slot.kind, c.offer) != "" || d.bought[w] >= s.p.workloads[w].allowance {
			continue
		}
		tried++
		next := d.clone()
		n := next.buy(c.slot, c.offer, w)
		s.each(s.groups[g]&(s.groups[g]-1), func(w int) { next.join(n, w, s.p.shapeOf(w).shareIn(n)) })
		s.choose(next, g+1)
	}
}

// each calls f for the workload of each item of a set.
func (s *search) each(set uint, f func(w int)) {
	for i, w := range s.items {
		if set>>i&1 != 0 {
			f(w)
		}
	}
}

// bound is at least as good as all that the draft can become: the groups from g on at the lowest price there is.
func (d *draft) bound(s *search, g int) *draft {
	b := &draft{missing: slices.Clone(d.missing), cost: d.cost, nodes: d.nodes, met: d.met}
	for _, set := range s.groups[g:] {
		b.cost = b.cost.Add((*s.offers(set))[0].offer.Price)
		s.each(set, func(w int) { b.missing[w]-- })
	}
	return b
}

// clone is a draft to go on from; hosts are shared, since the search has placed all of theirs before.
func (d *draft) clone() *draft {
	c := *d
	c.missing, c.bought = slices.Clone(d.missing), slices.Clone(d.bought)
	c.nodes = slices.Clone(d.nodes)
	c.reserved, c.rented = map[string]Reserved{}, map[offerKey]bool{}
	for k, v := range d.reserved {
		c.reserved[k] = v
	}
	for k, v := range d.rented {
		c.rented[k] = v
	}
	return &c
}
