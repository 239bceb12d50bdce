package planner

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// The cost of a plan for a handful of replicas is held against every way to serve them, tried one by one from the rules
// as they are written and not with the planner's code.
func TestAHandfulOfReplicasCostsLeast(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawHandful(rt)
		best := bruteForce(s)
		if best < 0 {
			rt.Skip("no way to serve all")
		}
		plan := Make(s)
		cost := int64(0)
		for _, b := range plan.Purchases {
			cost += b.Offer.Price.Micros()
		}
		if len(plan.Unmet) > 0 || float64(cost) > 1.02*float64(best) {
			rt.Fatalf("%s\ncosts %d, could cost %d", say(plan), cost, best)
		}
		if cost < best {
			rt.Fatalf("%s\ncosts %d, less than the least, %d", say(plan), cost, best)
		}
	})
}

func drawHandful(rt *rapid.T) Snapshot {
	pool := makePool("p").maxNodes(100).maxCost("1000")
	pool.Spec.Providers[0].MaxPrice = dollars("100")
	s := makeSnapshot(pool)
	left := rapid.IntRange(1, 5).Draw(rt, "replicas")
	for i := 0; left > 0; i++ {
		n := rapid.IntRange(1, min(2, left)).Draw(rt, "of one")
		left -= n
		w := makeWorkload(fmt.Sprint("m", i)).pods(n).vram(rapid.SampledFrom([]int{0, 3, 8, 9, 15, 20, 30, 70}).Draw(rt, "VRAM"),
			rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(rt, "GPUs"))
		if rapid.IntRange(0, 4).Draw(rt, "priced") == 0 {
			w = w.maxPrice(cents(rapid.IntRange(50, 300).Draw(rt, "max")).String())
		}
		s = s.wants(w)
	}
	var list []provider.Offer
	for i := range rapid.IntRange(1, 6).Draw(rt, "offers") {
		o := makeOffer(fmt.Sprint("o", i), drawGPU.Draw(rt, "GPU"), rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(rt, "count"),
			cents(rapid.IntRange(10, 400).Draw(rt, "price")).String())
		if rapid.Bool().Draw(rt, "of a kind") {
			o = kind(o)
		}
		list = append(list, o)
	}
	return s.market("p", 0, list...).Snapshot
}

// bruteForce is the least that all replicas may cost, in micro-dollars; -1 where they cannot all be served.
func bruteForce(s Snapshot) int64 {
	var items []demand.Workload
	for _, w := range s.Workloads {
		for range w.Replicas {
			items = append(items, w)
		}
	}
	best := int64(-1)
	type instance struct {
		offer provider.Offer
		on    []demand.Workload
	}
	var put func(i int, bought []instance, cost int64)
	put = func(i int, bought []instance, cost int64) {
		if best >= 0 && cost >= best {
			return
		}
		if i == len(items) {
			best = cost
			return
		}
		for j := range bought {
			was := bought[j].on
			if bought[j].on = append(slices.Clone(was), items[i]); serves(bought[j].offer, bought[j].on) {
				put(i+1, bought, cost)
			}
			bought[j].on = was
		}
		for _, o := range s.Markets[0].Offers {
			if oneMachine(&o) && slices.ContainsFunc(bought, func(b instance) bool { return b.offer.ID == o.ID }) {
				continue
			}
			if one := []demand.Workload{items[i]}; serves(o, one) {
				put(i+1, append(slices.Clone(bought), instance{o, one}), cost+o.Price.Micros())
			}
		}
	}
	put(0, nil, 0)
	return best
}

// serves reports whether an offer may serve these together.
func serves(o provider.Offer, ws []demand.Workload) bool {
	each := float64(offers.NominalVRAMGB(o))
	seen := map[string]bool{}
	var shares []share
	for _, w := range ws {
		n := w.GPUCount
		if n == 0 {
			for n = 1; float64(n)*each < float64(w.VRAMGB); {
				n *= 2
			}
		}
		if seen[w.Key] || n > o.GPUCount || float64(n)*each < float64(w.VRAMGB) || w.MaxPrice != nil && w.MaxPrice.Less(o.Price) {
			return false
		}
		seen[w.Key] = true
		fraction := 1000
		if w.VRAMGB > 0 {
			for fraction = 1; fraction < 1000 && each*0.9*float64(fraction)/1000 < float64(w.VRAMGB)/float64(n)+1.5-1e-9; {
				fraction++
			}
		}
		shares = append(shares, share{n, fraction})
	}
	return alwaysFits(shares, o.GPUCount)
}
