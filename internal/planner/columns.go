package planner

import (
	"cmp"
	"slices"

	"github.com/munhq/gpuscale/pkg/provider"
)

// mostKinds bounds the kinds that are tried for one instance: the cheapest for each GPU's worth of VRAM, and the cheapest.
const mostKinds = 12

// column is an instance and who shares it, by shape.
type column struct {
	slot   *slot
	offer  *provider.Offer
	shapes []*shape
	// worth is what its residents would cost alone, in micro-dollars.
	worth int64
}

// less orders columns by dollars for what they are worth.
func (c *column) less(o *column) bool {
	if o.slot == nil {
		return c.slot != nil
	}
	// price/worth < price/worth, in whole numbers.
	return float64(c.offer.Price.Micros())*float64(o.worth) < float64(o.offer.Price.Micros())*float64(c.worth)
}

// pools are the workloads of a shape that lack replicas.
type queue struct {
	shape *shape
	ws    []int
}

// columns fills a draft instance by instance. The hardest workload that lacks a replica gets the instance on which it
// and those that fit beside it cost least for what each would cost alone; the same is bought again as long as it is the
// best.
func (d *draft) columns() {
	queues := d.queues()
	for _, q := range queues {
		for _, w := range q.ws {
			for d.missing[w] > 0 && d.bind(w) {
				continue
			}
		}
	}
	byShape := make([]*queue, len(d.p.shapes))
	for _, q := range queues {
		byShape[q.shape.id] = q
	}
	for _, q := range queues {
		for {
			w := d.take(q, nil)
			if w < 0 {
				break
			}
			c := d.bestColumn(q.shape, queues)
			if c.slot == nil {
				break // nothing for this shape: the ceilings, or all is taken
			}
			for d.repeat(&c, byShape) {
				continue
			}
		}
	}
}

// queues are the shapes that lack replicas, those that cost most alone first.
func (d *draft) queues() []*queue {
	byShape := map[int]*queue{}
	var out []*queue
	for w := range d.missing {
		sh := d.p.shapeOf(w)
		if sh == nil || d.missing[w] == 0 {
			continue
		}
		q := byShape[sh.id]
		if q == nil {
			q = &queue{shape: sh}
			byShape[sh.id] = q
			out = append(out, q)
		}
		q.ws = append(q.ws, w)
	}
	slices.SortStableFunc(out, func(a, b *queue) int { return b.shape.alone.Cmp(a.shape.alone) })
	return out
}

// take is a workload of the queue that lacks a replica, may buy, and is not among those; -1 where there is none.
func (d *draft) take(q *queue, not []int) int {
	done := 0
	for i, w := range q.ws {
		if d.missing[w] == 0 || d.bought[w] >= d.p.workloads[w].allowance {
			if i == done {
				done++
			}
			continue
		}
		if !slices.Contains(not, w) {
			q.ws = q.ws[done:]
			return w
		}
	}
	q.ws = q.ws[done:]
	return -1
}

// bestColumn is the best instance for a replica of the seed and what fits beside it.
func (d *draft) bestColumn(seed *shape, queues []*queue) column {
	var best column
	for _, sl := range d.promising(seed) {
		o := d.head(sl)
		if o == nil || d.affords(sl.kind, o) != "" {
			continue
		}
		if c := d.fill(seed, sl, o, queues); c.less(&best) {
			c.shapes = slices.Clone(c.shapes)
			best = c
		}
	}
	return best
}

// promising are the slots of a shape that are worth trying.
func (d *draft) promising(sh *shape) []*slot {
	all := make([]*slot, 0, len(sh.slots))
	for i := range sh.slots {
		if d.head(&sh.slots[i]) != nil {
			all = append(all, &sh.slots[i])
		}
	}
	if len(all) <= mostKinds {
		return all
	}
	price := func(s *slot) int64 { return s.kind.fit[d.heads[s.kind.id]].Price.Micros() }
	slices.SortStableFunc(all, func(a, b *slot) int {
		size := func(s *slot) int64 { return int64(s.kind.sample.GPUCount * max(1, s.kind.eachGB)) }
		return cmp.Compare(price(a)*size(b), price(b)*size(a))
	})
	few := slices.Clone(all[:mostKinds/2])
	rest := all[mostKinds/2:]
	slices.SortStableFunc(rest, func(a, b *slot) int { return cmp.Compare(price(a), price(b)) })
	return append(few, rest[:mostKinds/2]...)
}

// fill puts beside a replica of the seed what fits, the dearest first.
func (d *draft) fill(seed *shape, sl *slot, o *provider.Offer, queues []*queue) column {
	c := column{slot: sl, offer: o, shapes: append(d.spare[:0], seed), worth: seed.alone.Micros()}
	shares := d.scratch[:0]
	shares = append(shares, sl.share)
	defer func() { d.spare, d.scratch = c.shapes, shares }()
	free := o.GPUCount*wholeGPU - sl.share.gpus*sl.share.fraction
	for _, q := range queues {
		if free <= 0 {
			break
		}
		other := q.shape.at[sl.kind.id]
		if other == nil || other.most.Less(o.Price) || free < other.share.gpus*other.share.fraction {
			continue
		}
		left := len(q.ws)
		if q.shape == seed {
			left--
		}
		for ; left > 0 && len(shares) < mostResidents && free >= other.share.gpus*other.share.fraction; left-- {
			shares = append(shares, other.share)
			if o.GPUCount > 1 && !surelyPacks(shares, o.GPUCount) {
				shares = shares[:len(shares)-1]
				break
			}
			free -= other.share.gpus * other.share.fraction
			c.shapes = append(c.shapes, q.shape)
			c.worth += q.shape.alone.Micros()
		}
	}
	return c
}

// dearer is how much dearer than the first one of a column another copy may be before other kinds are looked at again, in
// percent.
const dearer = 2

// repeat buys one more of a column; false where its residents, its offers or the ceilings have run out, or the next is
// dearer.
func (d *draft) repeat(c *column, queues []*queue) bool {
	o := d.head(c.slot)
	if o == nil || c.offer.Price.MulFrac(100+dearer, 100).Less(o.Price) || d.affords(c.slot.kind, o) != "" {
		return false
	}
	var ws []int
	for _, sh := range c.shapes {
		w := d.take(queues[sh.id], ws)
		if w < 0 {
			if len(ws) == 0 || o != c.offer {
				return false
			}
			continue // the first copy is bought with those that there are
		}
		if sl := sh.at[c.slot.kind.id]; sl.most.Less(o.Price) {
			return false
		}
		ws = append(ws, w)
	}
	n := d.buy(c.slot, o, ws[0])
	for _, w := range ws[1:] {
		if s := d.p.shapeOf(w).shareIn(n); d.joins(n, w, s) {
			d.join(n, w, s)
		}
	}
	return true
}
