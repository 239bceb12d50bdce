package planner

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

func TestPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSnapshot(rt)
		before := fmt.Sprintf("%+v", s)
		plan := Make(s)
		if fmt.Sprintf("%+v", s) != before {
			rt.Fatal("the snapshot was changed")
		}
		checkPurchases(rt, s, plan)
		checkAccounted(rt, s, plan)

		shuffled := shuffle(s, rapid.Int64().Draw(rt, "seed"))
		if again := Make(shuffled); !reflect.DeepEqual(plan, again) {
			rt.Fatalf("the order of the input matters:\n%+v\n%+v", plan, again)
		}
		apply(rt, &s, plan, rapid.Bool().Draw(rt, "claims seen"))
		if again := Make(s); len(again.Purchases) != 0 {
			rt.Fatalf("bought twice: %s\nthen %s", say(plan), say(again))
		}
	})
}

// checkPurchases: each purchase is within what its pool's entry and its pods allow.
func checkPurchases(rt *rapid.T, s Snapshot, plan Plan) {
	names, rented := map[string]bool{}, map[offerKey]bool{}
	for _, c := range s.Claims {
		names[c.Name] = true
	}
	for _, b := range plan.Purchases {
		w, pool := workloadOf(s, b.Reservation.Workloads[0]), poolOf(s, b.Pool)
		amount := b.Reservation.DollarsPerHour
		if names[b.ClaimName] {
			rt.Fatalf("name %s is taken", b.ClaimName)
		}
		names[b.ClaimName] = true
		if oneMachine(b.Offer) && rented[keyOf(b.Offer)] {
			rt.Fatalf("one machine twice: %+v", b.Offer)
		}
		rented[keyOf(b.Offer)] = true
		if amount != b.Spec.MaxPrice || amount.Less(b.Offer.Price) {
			rt.Fatalf("reserved %s for %s, licence %s", amount, b.Offer.Price, b.Spec.MaxPrice)
		}
		if w.MaxPrice != nil && w.MaxPrice.Less(amount) {
			rt.Fatalf("%s above the pods' %s", amount, w.MaxPrice)
		}
		within := false
		for _, e := range b.Spec.Providers {
			within = within || e.Name == string(b.Offer.Provider) && e.CapacityType == string(b.Offer.CapacityType) && !e.MaxPrice.Less(amount)
		}
		if !within {
			rt.Fatalf("%s above every entry's maximum or from nobody's: %+v", amount, b)
		}
		if why := Refusal(pool, w); why != "" || b.Reason == "" {
			rt.Fatalf("pool %s %s", pool.Name, why)
		}
		if int(b.Spec.Requirements.GPUCount) != b.Offer.GPUCount || b.Offer.TotalVRAMGB() < w.VRAMGB ||
			int(b.Spec.Placements[0].GPUs) > b.Offer.GPUCount {
			rt.Fatalf("shape: %+v", b)
		}
	}
}

// checkAccounted: what a workload lacks is bought or explained.
func checkAccounted(rt *rapid.T, s Snapshot, plan Plan) {
	has := covered(s)
	for _, b := range plan.Purchases {
		has[b.Reservation.Workloads[0]]++
	}
	unmet := map[string]Unmet{}
	for _, u := range plan.Unmet {
		unmet[u.Workload] = u
	}
	for _, w := range s.Workloads {
		u := unmet[w.Key]
		if lacks := max(0, w.Replicas-has[w.Key]); u.Missing != lacks {
			rt.Fatalf("%s lacks %d, explained %d", w.Key, lacks, u.Missing)
		}
		if u.Missing > 0 && (u.Message == "" || u.Reason == "") {
			rt.Fatalf("no reason: %+v", u)
		}
		if u.Reason == v1alpha1.PodReasonResting && !u.RetryAt.After(s.Now) {
			rt.Fatalf("rests until the past: %+v", u)
		}
	}
}

// apply carries a plan out through the account that the controller uses, which refuses what breaks a ceiling.
func apply(rt *rapid.T, s *Snapshot, plan Plan, claimsSeen bool) {
	for _, b := range plan.Purchases {
		pool := poolOf(*s, b.Pool)
		// Money that the status has lost is restored before anything is added.
		reserve.Restore(pool, reserve.Missing(pool, s.Claims))
		if err := reserve.Add(pool, b.Reservation); err != nil {
			rt.Fatalf("a ceiling: %v", err)
		}
		if claimsSeen {
			s.Claims = append(s.Claims, &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: b.ClaimName}, Spec: b.Spec})
		}
		for i := range s.Markets {
			if oneMachine(b.Offer) {
				s.Markets[i].Offers = slices.DeleteFunc(s.Markets[i].Offers, func(o provider.Offer) bool { return keyOf(o) == keyOf(b.Offer) })
			}
		}
		key := b.Reservation.Workloads[0]
		s.Purchases[key] = append(s.Purchases[key], s.Now)
	}
}

func poolOf(s Snapshot, name string) *v1alpha1.GPUNodePool {
	for _, p := range s.Pools {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func workloadOf(s Snapshot, key string) demand.Workload {
	for _, w := range s.Workloads {
		if w.Key == key {
			return w
		}
	}
	return demand.Workload{}
}

func shuffle(s Snapshot, seed int64) Snapshot {
	r := rand.New(rand.NewSource(seed))
	s.Pools = append(s.Pools[:0:0], s.Pools...)
	s.Claims = append(s.Claims[:0:0], s.Claims...)
	s.Workloads = append(s.Workloads[:0:0], s.Workloads...)
	s.Markets = append(s.Markets[:0:0], s.Markets...)
	r.Shuffle(len(s.Pools), reflect.Swapper(s.Pools))
	r.Shuffle(len(s.Claims), reflect.Swapper(s.Claims))
	r.Shuffle(len(s.Workloads), reflect.Swapper(s.Workloads))
	r.Shuffle(len(s.Markets), reflect.Swapper(s.Markets))
	for i := range s.Markets {
		offers := append([]provider.Offer(nil), s.Markets[i].Offers...)
		r.Shuffle(len(offers), reflect.Swapper(offers))
		s.Markets[i].Offers = offers
	}
	return s
}

var (
	drawGPU   = rapid.SampledFrom([]gpu.Name{"RTX4090", "RTX3090", "L4", "A100-40GB-PCIE", "H100-SXM"})
	drawType  = rapid.SampledFrom([]string{"", "RTX 4090", "A100", "L4"})
	drawWhere = rapid.SampledFrom([]string{"vast.ai", "runpod"})
	drawKind  = rapid.SampledFrom([]string{"spot", "on-demand"})
	drawKey   = rapid.SampledFrom([]string{"m0", "m1", "m2", "m3"})
)

func cents(n int) money.Dollars { return money.FromMicros(int64(n) * 10000) }

func drawSnapshot(rt *rapid.T) Snapshot {
	s := Snapshot{Now: now, Rests: rest.View{}, Purchases: map[string][]time.Time{},
		MaxPurchasesPerHour: rapid.IntRange(0, 3).Draw(rt, "per hour")}
	for i := range rapid.IntRange(0, 3).Draw(rt, "pools") {
		s.Pools = append(s.Pools, drawPool(rt, &s, fmt.Sprint("p", i)))
	}
	for i := range rapid.IntRange(1, 4).Draw(rt, "workloads") {
		s.Workloads = append(s.Workloads, drawWorkload(rt, fmt.Sprint("m", i)))
	}
	for i := range rapid.IntRange(0, 4).Draw(rt, "claims") {
		key := drawKey.Draw(rt, "claim for")
		name := ClaimName(key, i)
		c := makeClaim(name, fmt.Sprint("p", rapid.IntRange(0, 3).Draw(rt, "claim of")), key)
		c.Status.Phase = rapid.SampledFrom([]v1alpha1.Phase{"", v1alpha1.PhasePending, v1alpha1.PhaseReady, v1alpha1.PhaseDraining}).Draw(rt, "phase")
		if rapid.Bool().Draw(rt, "attempted") {
			c.Status.Attempt = &v1alpha1.Attempt{Outcome: v1alpha1.AttemptOpen}
		}
		s.Claims = append(s.Claims, c.GPUNodeClaim)
	}
	for _, k := range []rest.Key{rest.WorkloadKey("m0", "f"), rest.PoolKey("p0"), rest.OfferKey(provider.VastAI, "machine/o1"),
		rest.AccountKey(provider.RunPod, "acct")} {
		if rapid.IntRange(0, 4).Draw(rt, "rests") == 0 {
			s.Rests[k] = rest.Rest{Key: k, Until: now.Add(time.Minute), Reason: "x"}
		}
	}
	return s
}

func drawPool(rt *rapid.T, s *Snapshot, name string) *v1alpha1.GPUNodePool {
	p := makePool(name).maxNodes(rapid.Int32Range(0, 5).Draw(rt, "max nodes")).maxCost(cents(rapid.IntRange(0, 300).Draw(rt, "max cost")).String())
	p.Spec.Providers = nil
	if rapid.Bool().Draw(rt, "GPUs limited") {
		p.maxGPUs(rapid.Int32Range(0, 6).Draw(rt, "max GPUs"))
	}
	if v := drawType.Draw(rt, "pool types"); v != "" {
		p.types(v)
	}
	p.gpuCount(rapid.SampledFrom([]int32{0, 0, 1, 2}).Draw(rt, "pool GPUs")).minVRAM(rapid.SampledFrom([]int32{0, 0, 24}).Draw(rt, "pool VRAM"))
	if rapid.IntRange(0, 4).Draw(rt, "closed") == 0 {
		p.namespaces("other")
	}
	for i := range rapid.IntRange(1, 2).Draw(rt, "entries") {
		where, how := drawWhere.Draw(rt, "provider"), drawKind.Draw(rt, "kind")
		p.entry(where, how, cents(rapid.IntRange(1, 100).Draw(rt, "max price")).String())
		m := Market{Pool: name, Entry: i, Account: "acct"}
		for j := range rapid.IntRange(0, 5).Draw(rt, "offers") {
			o := makeOffer(fmt.Sprint("o", j), drawGPU.Draw(rt, "gpu"), rapid.IntRange(1, 4).Draw(rt, "count"),
				cents(rapid.IntRange(1, 100).Draw(rt, "price")).String())
			o.Provider, o.CapacityType = provider.Name(where), provider.CapacityType(how)
			if rapid.Bool().Draw(rt, "of a kind") {
				o = kind(o)
			}
			m.Offers = append(m.Offers, o)
		}
		s.Markets = append(s.Markets, m)
	}
	for i := range rapid.IntRange(0, 2).Draw(rt, "reservations") {
		key := drawKey.Draw(rt, "reserved for")
		p.reserved(ClaimName(key, 10*len(s.Pools)+i), "0.30", 1, key)
	}
	return p.GPUNodePool
}

func drawWorkload(rt *rapid.T, key string) demand.Workload {
	w := makeWorkload(key).pods(rapid.IntRange(0, 3).Draw(rt, "replicas")).priority(rapid.IntRange(0, 1).Draw(rt, "priority")).
		vram(rapid.SampledFrom([]int{0, 20, 60}).Draw(rt, "VRAM"), rapid.IntRange(0, 2).Draw(rt, "GPUs"))
	if rapid.Bool().Draw(rt, "priced") {
		w = w.maxPrice(cents(rapid.IntRange(1, 100).Draw(rt, "pods' price")).String())
	}
	if v := drawType.Draw(rt, "types"); v != "" {
		w = w.types(v)
	}
	switch rapid.IntRange(0, 5).Draw(rt, "restriction") {
	case 0:
		w = w.pool("p1")
	case 1:
		w = w.listedBy("p0")
	case 2:
		w = w.at(provider.Name(drawWhere.Draw(rt, "at")), "")
	case 3:
		w = w.traffic(w.Replicas)
	}
	return w.Workload
}
