package planner

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/provider"
)

// BenchmarkPlan plans for so many pending pods in 500 distinct shapes (or one each) against 5,000 offers of one pool with
// no limit that binds: pods of 20 to a model, and each of a model of its own.
func BenchmarkPlan(b *testing.B) {
	for _, pods := range []int{100, 1000, 10000} {
		for _, each := range []int{20, 1} {
			s := herd(pods, each, 500, 5000)
			b.Run(fmt.Sprintf("pods=%d/each=%d", pods, each), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if plan := Make(s); len(plan.Unmet) > 0 {
						b.Fatal(say(Plan{Unmet: plan.Unmet[:1]}))
					}
				}
			})
		}
	}
}

// herd is a snapshot of pods that ask in distinct shapes. Nine offers in ten are of one machine.
func herd(pods, each, shapes, offers int) Snapshot {
	r := rand.New(rand.NewSource(1))
	names := []gpu.Name{"RTX4090", "RTX3090", "L4", "A100-40GB-PCIE", "A100-80GB-PCIE", "H100-SXM", "L40S", "A10", "T4"}
	pool := makePool("p").maxNodes(1 << 30).maxCost("1000000")
	pool.Spec.Providers[0].MaxPrice = dollars("100")
	s := makeSnapshot(pool)
	s.MaxPurchasesPerHour = 1 << 30
	for i := range max(1, pods/each) {
		n := i % shapes
		w := makeWorkload(fmt.Sprintf("org/model-%d", i)).pods(min(each, pods)).vram([]int{0, 6 + n%34}[min(n%5, 1)], n%3%2).
			maxPrice(cents(5000 + n).String())
		if n%7 == 0 {
			w = w.types("A100", "H100", "RTX 4090")
		}
		s = s.wants(w)
	}
	var list []provider.Offer
	for i := range offers {
		g := names[r.Intn(len(names))]
		spec, _ := gpu.SpecOf(g)
		count := []int{1, 1, 1, 2, 4, 8}[r.Intn(6)]
		o := makeOffer(fmt.Sprint("o", i), g, count, cents(1+count*spec.VRAMGB*(80+r.Intn(60))/100).String())
		if i%10 == 0 {
			o = kind(o)
		}
		list = append(list, o)
	}
	return s.market("p", 0, list...).Snapshot
}
