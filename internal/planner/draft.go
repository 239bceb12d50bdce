package planner

import (
	"cmp"
	"slices"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// node is an instance in a draft: a claim with room, or one to be bought.
type node struct {
	// host is the claim; nil for a purchase, which has a kind and an offer.
	host  *host
	kind  *stock
	offer *provider.Offer
	gpus  int
	// residents are workloads by number, added by this draft; shares are those of all residents, a host's own first.
	residents []int
	shares    []share
	free      int
	// spare is the shape by which a purchase for no workload was chosen.
	spare *shape
	// amount is what a purchase reserves, at most what the entry and the residents let it cost.
	amount, most money.Dollars
}

// draft is a plan in the making: what each workload still lacks and what has been promised.
type draft struct {
	p        *planning
	missing  []int
	bought   []int
	nodes    []*node
	hosts    []*node
	reserved map[string]Reserved
	rented   map[offerKey]bool
	// heads are for each kind the first offer that can still be had.
	heads []int
	cost  money.Dollars
	met   int
	// opened are for each shape the purchases that may have room for it, and how many of nodes it has looked at.
	opened  []openNodes
	scratch []share
	spare   []*shape
}

type openNodes struct {
	seen int
	list []*node
}

func (p *planning) newDraft() *draft {
	d := &draft{p: p, missing: make([]int, len(p.workloads)), bought: make([]int, len(p.workloads)),
		reserved: map[string]Reserved{}, rented: map[offerKey]bool{}, heads: make([]int, p.kinds),
		opened: make([]openNodes, len(p.shapes))}
	for i := range p.workloads {
		d.missing[i] = p.workloads[i].missing
	}
	for name, r := range p.reserved {
		d.reserved[name] = r
	}
	for _, h := range p.hosts {
		d.hosts = append(d.hosts, &node{host: h, gpus: h.gpus, shares: slices.Clone(h.shares), free: h.free()})
	}
	return d
}

// shareIn is what a replica of the shape takes of a node; the zero share where it may not be there whatever else is.
func (sh *shape) shareIn(n *node) share {
	if n.host != nil {
		return sh.hosts[n.host.id]
	}
	if sl := sh.at[n.kind.id]; sl != nil && !sl.most.Less(n.offer.Price) {
		return sl.share
	}
	return share{}
}

// joins reports whether the node has room for the w-th workload, which is not there yet: an agent serves one engine for
// each model, and two replicas that end together are one.
func (d *draft) joins(n *node, w int, s share) bool {
	if s.gpus == 0 || n.free < s.gpus*s.fraction || len(n.shares) >= mostResidents || slices.Contains(n.residents, w) ||
		n.host != nil && n.host.models[d.p.workloads[w].Key] {
		return false
	}
	if n.gpus == 1 {
		return true // the room is all of one GPU's
	}
	d.scratch = append(append(d.scratch[:0], n.shares...), s)
	return surelyPacks(d.scratch, n.gpus)
}

// join places a replica on a node. What a purchase may come to cost falls to what the replica's pods allow.
func (d *draft) join(n *node, w int, s share) {
	n.residents = append(n.residents, w)
	n.shares = append(n.shares, s)
	n.free -= s.gpus * s.fraction
	d.missing[w]--
	d.met++
	if n.host != nil {
		return
	}
	if most := d.p.shapeOf(w).at[n.kind.id].most; most.Less(n.most) {
		n.most = most
		if most.Less(n.amount) {
			r := d.reserved[n.kind.pool.Name]
			r.Dollars = r.Dollars.Sub(n.amount.Sub(most))
			d.reserved[n.kind.pool.Name], n.amount = r, most
		}
	}
}

// head is the first offer of a kind that can still be had for no more than the slot allows; nil where there is none.
func (d *draft) head(sl *slot) *provider.Offer {
	k := sl.kind
	i := d.heads[k.id]
	for i < len(k.fit) && d.rented[keyOf(&k.fit[i])] {
		i++
	}
	d.heads[k.id] = i
	if i >= sl.fits {
		return nil
	}
	return &k.fit[i]
}

// affords says which ceiling forbids an offer; empty where none does.
func (d *draft) affords(k *stock, o *provider.Offer) string {
	return d.reserved[k.pool.Name].forbids(k.pool, o.GPUCount, o.Price)
}

// buy opens a node for the w-th workload.
func (d *draft) buy(sl *slot, o *provider.Offer, w int) *node {
	n := d.open(sl, o)
	d.bought[w]++
	d.join(n, w, sl.share)
	return n
}

// open adds a purchase and promises its price, with a margin for the time until the claim asks for it.
func (d *draft) open(sl *slot, o *provider.Offer) *node {
	pool := sl.kind.pool
	so := d.reserved[pool.Name]
	n := &node{kind: sl.kind, offer: o, gpus: o.GPUCount, free: o.GPUCount * wholeGPU, most: sl.most}
	n.amount = money.Min(o.Price.MulFrac(reservePercent, 100), n.most, so.left(pool))
	d.reserved[pool.Name] = so.plus(o.GPUCount, n.amount)
	if oneMachine(o) {
		d.rented[keyOf(o)] = true
	}
	d.cost = d.cost.Add(o.Price)
	d.nodes = append(d.nodes, n)
	return n
}

// reservePercent of the offer's price is reserved: prices move between the plan and the purchase, and the next best
// offer is rarely much dearer.
const reservePercent = 110

// cheapest is the most preferred offer for a shape that can be had within the ceilings; nil where there is none.
func (d *draft) cheapest(sh *shape) (best *slot, offer *provider.Offer) {
	for i := range sh.slots {
		sl := &sh.slots[i]
		o := d.head(sl)
		if o == nil || best != nil && preferred(best.kind, offer, sl.kind, o) <= 0 || d.affords(sl.kind, o) != "" {
			continue
		}
		best, offer = sl, o
	}
	return best, offer
}

// bind places a replica on a claim with room.
func (d *draft) bind(w int) bool {
	sh := d.p.shapeOf(w)
	for _, n := range d.hosts {
		if s := sh.shareIn(n); d.joins(n, w, s) {
			d.join(n, w, s)
			return true
		}
	}
	return false
}

// ride places a replica in the room that a purchase leaves.
func (d *draft) ride(w int) bool {
	sh := d.p.shapeOf(w)
	o := &d.opened[sh.id]
	for ; o.seen < len(d.nodes); o.seen++ {
		if n := d.nodes[o.seen]; n.free > 0 && sh.at[n.kind.id] != nil {
			o.list = append(o.list, n)
		}
	}
	kept := o.list[:0]
	var found *node
	for i, n := range o.list {
		s := sh.shareIn(n)
		if s.gpus == 0 || n.free < s.gpus*s.fraction {
			continue // never again: room only shrinks
		}
		kept = append(kept, n)
		if d.joins(n, w, s) {
			d.join(n, w, s)
			found = n
			kept = append(kept, o.list[i+1:]...)
			break
		}
	}
	o.list = kept
	return found != nil
}

// purchase buys the cheapest instance for a replica alone.
func (d *draft) purchase(w int) bool {
	if d.bought[w] >= d.p.workloads[w].allowance {
		return false
	}
	sl, o := d.cheapest(d.p.shapeOf(w))
	if sl == nil {
		return false
	}
	d.buy(sl, o, w)
	return true
}

// sweep gives every replica that is still missing, in the order of the workloads, what costs least now, until nothing
// more can be had: after it no replica that is missing could be placed or bought.
func (d *draft) sweep() {
	for again := true; again; {
		again = false
		for w := range d.missing {
			for d.missing[w] > 0 && d.p.workloads[w].shape != nil && (d.bind(w) || d.ride(w) || d.purchase(w)) {
				again = true
			}
		}
	}
}

// better orders drafts: the one that gives more to the first workload that they treat differently, then the cheaper, then
// the one with fewer instances.
func better(a, b *draft) bool {
	if c := slices.Compare(a.missing, b.missing); c != 0 {
		return c < 0
	}
	return cmp.Or(a.cost.Cmp(b.cost), cmp.Compare(len(a.nodes), len(b.nodes))) < 0
}
