package planner

import (
	"fmt"
	"math/bits"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
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
		checkBindings(rt, s, plan)
		checkAccounted(rt, s, plan)

		shuffled := shuffle(s, rapid.Int64().Draw(rt, "seed"))
		if again := Make(shuffled); !reflect.DeepEqual(plan, again) {
			rt.Fatalf("the order of the input matters:\n%+v\n%+v", plan, again)
		}
		apply(rt, &s, plan, rapid.Bool().Draw(rt, "claims seen"))
		if again := Make(s); len(again.Purchases)+len(again.Bindings) != 0 {
			rt.Fatalf("done twice: %s\nthen %s", say(plan), say(again))
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
		amount := b.Reservation.DollarsPerHour
		if names[b.ClaimName] {
			rt.Fatalf("name %s is taken", b.ClaimName)
		}
		names[b.ClaimName] = true
		if oneMachine(&b.Offer) && rented[keyOf(&b.Offer)] {
			rt.Fatalf("one machine twice: %+v", b.Offer)
		}
		rented[keyOf(&b.Offer)] = true
		if amount != b.Spec.MaxPrice || amount.Less(b.Offer.Price) {
			rt.Fatalf("reserved %s for %s, licence %s", amount, b.Offer.Price, b.Spec.MaxPrice)
		}
		within := false
		for _, e := range b.Spec.Providers {
			within = within || e.Name == string(b.Offer.Provider) && e.CapacityType == string(b.Offer.CapacityType) && !e.MaxPrice.Less(amount)
		}
		if !within {
			rt.Fatalf("%s above every entry's maximum or from nobody's: %+v", amount, b)
		}
		if int(b.Spec.Requirements.GPUCount) != b.Offer.GPUCount || b.Reason == "" || !b.Spec.Placements[0].Since.Time.Equal(s.Now) {
			rt.Fatalf("shape: %+v", b)
		}
		var keys []string
		for _, pl := range b.Spec.Placements {
			keys = append(keys, pl.Workload)
			checkResident(rt, s, pl, poolOf(s, b.Pool), amount)
			for _, e := range b.Spec.Providers {
				if w := workloadOf(s, pl.Workload); w.Provider != "" && string(w.Provider) != e.Name || w.CapacityType != "" && string(w.CapacityType) != e.CapacityType {
					rt.Fatalf("%s does not allow %s %s", pl.Workload, e.Name, e.CapacityType)
				}
			}
		}
		if !slices.Equal(keys, b.Reservation.Workloads) || b.ClaimName[:2] != keys[0] {
			rt.Fatalf("placed %v, reserved %+v", keys, b.Reservation)
		}
		// The smallest instance that the licence admits, and the one that was planned with.
		for _, each := range []int{int(b.Spec.Requirements.MinVRAM) / b.Offer.GPUCount, offers.NominalVRAMGB(b.Offer)} {
			checkRoom(rt, s, b.Spec.Placements, b.Offer.GPUCount, each)
		}
		for _, name := range b.Spec.Requirements.GPUTypes {
			checkTypes(rt, s, b.Spec.Placements, gpu.Name(name))
		}
		checkTypes(rt, s, b.Spec.Placements, b.Offer.GPU)
	}
}

// checkResident: pool and price are what a replica's pods allow.
func checkResident(rt *rapid.T, s Snapshot, pl v1alpha1.Placement, pool *v1alpha1.GPUNodePool, amount money.Dollars) {
	w := workloadOf(s, pl.Workload)
	if w.MaxPrice != nil && w.MaxPrice.Less(amount) {
		rt.Fatalf("%s above the pods' %s", amount, w.MaxPrice)
	}
	if why := Refusal(pool, w); why != "" {
		rt.Fatalf("pool %s %s", pool.Name, why)
	}
	if w.Pool != "" && w.Pool != pool.Name {
		rt.Fatalf("%s is for pool %s, not %s", w.Key, w.Pool, pool.Name)
	}
}

func checkTypes(rt *rapid.T, s Snapshot, all []v1alpha1.Placement, name gpu.Name) {
	for _, pl := range all {
		if w := workloadOf(s, pl.Workload); !matchesAny(w.GPUTypes, name) {
			rt.Fatalf("%s on %s", w.Key, name)
		}
	}
}

// checkRoom: no model twice, every model has the VRAM that it declares, an engine's own apart, one that declares none
// shares with nobody, and there is room for all.
func checkRoom(rt *rapid.T, s Snapshot, all []v1alpha1.Placement, gpus, each int) {
	seen := map[string]bool{}
	var shares []share
	for _, pl := range all {
		if seen[pl.Workload] {
			rt.Fatalf("%s twice on one instance", pl.Workload)
		}
		seen[pl.Workload] = true
		shares = append(shares, share{int(pl.GPUs), int(pl.GPUFraction)})
		if !pl.Since.Time.Equal(s.Now) {
			continue // it was there before
		}
		w := workloadOf(s, pl.Workload)
		if pl.GPUs < 1 || int(pl.GPUs) > gpus || w.GPUCount > 0 && int(pl.GPUs) != w.GPUCount || w.VRAMGB == 0 && pl.GPUFraction != 1000 {
			rt.Fatalf("%+v of %d GPUs", pl, gpus)
		}
		whole := pl.GPUFraction == 1000 && int(pl.GPUs)*each >= w.VRAMGB
		if engine := float64(each)*0.9*float64(pl.GPUFraction)/1000 - 1.5; !whole && engine*float64(pl.GPUs) < float64(w.VRAMGB)-1e-9 {
			rt.Fatalf("%s has %f GB on each of %d GPUs, wants %d in all", pl.Workload, engine, pl.GPUs, w.VRAMGB)
		}
	}
	if len(all) > 1 && !alwaysFits(shares, gpus) {
		rt.Fatalf("the agent may run out of room: %+v on %d GPUs", shares, gpus)
	}
}

// alwaysFits starts engines in every order, each on every set of GPUs that has room.
func alwaysFits(shares []share, gpus int) bool {
	load := make([]int, gpus)
	var start func(left []share) bool
	start = func(left []share) bool {
		for i, s := range left {
			others := append(slices.Clone(left[:i]), left[i+1:]...)
			found := false
			for set := range 1 << gpus {
				var on []int
				for g := range gpus {
					if set>>g&1 == 1 && load[g]+s.fraction <= 1000 {
						on = append(on, g)
					}
				}
				if len(on) != s.gpus || bits.OnesCount(uint(set)) != s.gpus {
					continue
				}
				found = true
				for _, g := range on {
					load[g] += s.fraction
				}
				ok := start(others)
				for _, g := range on {
					load[g] -= s.fraction
				}
				if !ok {
					return false
				}
			}
			if !found {
				return false
			}
		}
		return true
	}
	return start(shares)
}

// checkBindings: claims keep what they promised to everyone on them, before and after.
func checkBindings(rt *rapid.T, s Snapshot, plan Plan) {
	after := map[string][]v1alpha1.Placement{}
	for _, b := range plan.Bindings {
		c := claimOf(s, b.Claim)
		if c == nil || !Serves(c) || b.Generation != c.Generation || b.UID != c.UID || b.Reason == "" {
			rt.Fatalf("bound to %+v", b)
		}
		if after[b.Claim] == nil {
			after[b.Claim] = slices.Clone(c.Spec.Placements)
		}
		after[b.Claim] = append(after[b.Claim], b.Placement)
		amount := c.Spec.MaxPrice // and the reservation, which may have fallen since
		if r, ok := reserve.Find(poolOf(s, c.Spec.Pool), c.Name); ok {
			amount = money.Min(amount, r.DollarsPerHour)
		}
		checkResident(rt, s, b.Placement, poolOf(s, c.Spec.Pool), amount)
		w := workloadOf(s, b.Placement.Workload)
		if w.Provider != "" && string(w.Provider) != c.Spec.Providers[0].Name || w.CapacityType != "" && string(w.CapacityType) != c.Spec.Providers[0].CapacityType {
			rt.Fatalf("%s does not allow %+v", w.Key, c.Spec.Providers)
		}
		checkTypes(rt, s, []v1alpha1.Placement{b.Placement}, "L40S")
	}
	for name, all := range after {
		c := claimOf(s, name)
		checkRoom(rt, s, all, int(c.Spec.Requirements.GPUCount), 48)
	}
}

func claimOf(s Snapshot, name string) *v1alpha1.GPUNodeClaim {
	for _, c := range s.Claims {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// checkAccounted: what a workload lacks is bought or explained.
func checkAccounted(rt *rapid.T, s Snapshot, plan Plan) {
	has := covered(s)
	for _, b := range plan.Purchases {
		for _, key := range b.Reservation.Workloads {
			has[key]++
		}
	}
	for _, b := range plan.Bindings {
		has[b.Placement.Workload]++
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
			if oneMachine(&b.Offer) {
				s.Markets[i].Offers = slices.DeleteFunc(s.Markets[i].Offers, func(o provider.Offer) bool { return keyOf(&o) == keyOf(&b.Offer) })
			}
		}
		for _, key := range b.Reservation.Workloads {
			s.Purchases[key] = append(s.Purchases[key], s.Now)
		}
	}
	for _, b := range plan.Bindings {
		c := claimOf(*s, b.Claim)
		c.Spec.Placements = append(c.Spec.Placements, b.Placement)
		c.Generation++
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
		c.Spec.Requirements = v1alpha1.Requirements{GPUCount: rapid.Int32Range(1, 3).Draw(rt, "claim's GPUs"), GPUTypes: []string{"L40S"}}
		c.Spec.Requirements.MinVRAM = 48 * c.Spec.Requirements.GPUCount
		c.Spec.Providers = []v1alpha1.ProviderSpec{{Name: drawWhere.Draw(rt, "claim at"), CapacityType: drawKind.Draw(rt, "claim's kind")}}
		if c.Spec.Placements[0].GPUFraction = rapid.SampledFrom([]int32{300, 500, 1000}).Draw(rt, "share"); rapid.Bool().Draw(rt, "bought") {
			c.Status.InstanceID, c.Status.Provider, c.Status.CapacityType = "i", c.Spec.Providers[0].Name, c.Spec.Providers[0].CapacityType
			c.Status.GPU, c.Status.GPUCount, c.Status.VRAM = fmt.Sprintf("%d×L40S", c.Spec.Requirements.GPUCount), c.Spec.Requirements.GPUCount, 48
		}
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
		vram(rapid.SampledFrom([]int{0, 4, 9, 20, 60}).Draw(rt, "VRAM"), rapid.IntRange(0, 2).Draw(rt, "GPUs"))
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
