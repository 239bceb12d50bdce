package planner

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// licensed is a claim of pool p for instances of so many GPUs with 80 GB each.
func licensed(name string, gpus int32, workloads ...string) claimWrapper {
	return makeClaim(name, "p", workloads...).but(func(c *v1alpha1.GPUNodeClaim) {
		c.Spec.Requirements = v1alpha1.Requirements{GPUCount: gpus, MinVRAM: 80 * gpus, GPUTypes: []string{"A100-80GB-PCIE", "H100-SXM"}}
		c.Spec.Providers = []v1alpha1.ProviderSpec{{Name: "vast.ai", CapacityType: "spot", MaxPrice: dollars("0.50")}}
		c.Generation = 3
	})
}

func (c claimWrapper) fraction(f int32) claimWrapper {
	c.Spec.Placements[0].GPUFraction = f
	return c
}

func TestSharing(t *testing.T) {
	one, two := makeOffer("one", "RTX4090", 1, "0.30"), makeOffer("two", "RTX4090", 2, "0.45")
	big := makeOffer("big", "A100-80GB-PCIE", 1, "0.45")
	a, b, c := makeWorkload("a"), makeWorkload("b"), makeWorkload("c")
	declared := func(w workloadWrapper) workloadWrapper { return w.vram(20, 0) }
	for name, s := range map[string]struct {
		s    snapshotWrapper
		want string
	}{
		"two models on two GPUs": {makeSnapshot(makePool("p")).wants(a, b).market("p", 0, kind(one), two), "p buys two for a+b at 0.495"},
		"apart where that is cheaper": {makeSnapshot(makePool("p")).wants(a, b).market("p", 0, makeOffer("one", "RTX4090", 1, "0.20"), makeOffer("uno", "RTX4090", 1, "0.21"), two),
			"p buys one for a at 0.22\np buys uno for b at 0.231"},
		"never two replicas of one model":     {makeSnapshot(makePool("p")).wants(a.pods(2)).market("p", 0, kind(one), two), "p buys one for a at 0.33\np buys one for a at 0.33"},
		"one GPU by fractions":                {makeSnapshot(makePool("p")).wants(declared(a), declared(b), declared(c)).market("p", 0, kind(one), big), "p buys big for a+b+c at 0.495"},
		"undeclared VRAM shares no GPU":       {makeSnapshot(makePool("p")).wants(a, declared(b)).market("p", 0, kind(one), big), "p buys one for a at 0.33\np buys one for b at 0.33"},
		"the price of each resident":          {makeSnapshot(makePool("p")).wants(a, b.maxPrice("0.40")).market("p", 0, kind(one), two), "p buys one for a at 0.33\np buys one for b at 0.33"},
		"the least of the prices is promised": {makeSnapshot(makePool("p")).wants(a, b.maxPrice("0.46")).market("p", 0, kind(one), two), "p buys two for a+b at 0.46"},
		"each one's GPUs":                     {makeSnapshot(makePool("p")).wants(a, b.types("A100")).market("p", 0, kind(one), two, big), "p buys one for a at 0.33\np buys big for b at 0.495"},
		"each one's pool": {makeSnapshot(makePool("p"), makePool("q")).wants(a, b.pool("q")).market("p", 0, kind(one), two).market("q", 0, makeOffer("other", "RTX4090", 1, "0.49")),
			"p buys one for a at 0.33\nq buys other for b at 0.50"},
		"nobody rides where its namespace may not": {makeSnapshot(makePool("p").namespaces("team")).wants(a, b.but(func(w *workloadWrapper) { w.Namespaces = []string{"other"} })).market("p", 0, two),
			"p buys two for a at 0.495\nb lacks 1: NoPool: pool p does not admit namespace other (spec.namespaces has team)"},
		"a ceiling on nodes is shared": {makeSnapshot(makePool("p").maxNodes(1)).wants(a, b).market("p", 0, kind(one), two), "p buys two for a+b at 0.495"},

		"room on a claim costs nothing":   {makeSnapshot(makePool("p")).wants(declared(a)).has(licensed("x", 1, "m").fraction(500)).market("p", 0, one), "a goes on x with 1×299"},
		"a free GPU of a claim":           {makeSnapshot(makePool("p")).wants(a).has(licensed("x", 2, "m")).market("p", 0, one), "a goes on x with 1×1000"},
		"on its way too":                  {makeSnapshot(makePool("p")).wants(a).has(licensed("x", 2, "m").phase(v1alpha1.PhasePending)), "a goes on x with 1×1000"},
		"the fullest that serves":         {makeSnapshot(makePool("p")).wants(declared(a)).has(licensed("w", 1, "l").fraction(600).phase(v1alpha1.PhasePending), licensed("x", 1, "m").fraction(300), licensed("y", 1, "n").fraction(500)), "a goes on y with 1×299"},
		"no room":                         {makeSnapshot(makePool("p")).wants(declared(a)).has(licensed("x", 1, "m").fraction(702)).market("p", 0, one), "p buys one for a at 0.33"},
		"not beside itself":               {makeSnapshot(makePool("p")).wants(declared(a).pods(2)).has(licensed("x", 1, "a").fraction(300)).market("p", 0, one), "p buys one for a at 0.33"},
		"not on one that ends":            {makeSnapshot(makePool("p")).wants(a).has(licensed("x", 2, "m").phase(v1alpha1.PhaseDraining)).market("p", 0, one), "p buys one for a at 0.33"},
		"not on one of another bootstrap": {makeSnapshot(makePool("p").args("--seed", "1")).wants(a).has(licensed("x", 2, "m")).market("p", 0, one), "p buys one for a at 0.33"},
		"not above a pod's price":         {makeSnapshot(makePool("p")).wants(a.maxPrice("0.44")).has(licensed("x", 2, "m")).market("p", 0, one), "p buys one for a at 0.33"},
		"a promise that fell":             {makeSnapshot(makePool("p").reserved("x", "0.44", 2, "m")).wants(a.maxPrice("0.44")).has(licensed("x", 2, "m")), "a goes on x with 1×1000"},
		"a licence with another GPU":      {makeSnapshot(makePool("p")).wants(a.types("A100")).has(licensed("x", 2, "m")).market("p", 0, big), "p buys big for a at 0.495"},
		"the GPU that was bought": {makeSnapshot(makePool("p")).wants(a.types("A100")).has(licensed("x", 2, "m").but(func(c *v1alpha1.GPUNodeClaim) {
			c.Status.InstanceID, c.Status.GPU, c.Status.GPUCount, c.Status.VRAM, c.Status.Provider = "i", "2×A100-80GB-PCIE", 2, 80, "vast.ai"
		})).market("p", 0, big), "a goes on x with 1×1000"},
		"another provider's": {makeSnapshot(makePool("p").entry("runpod", "spot", "0.50")).wants(a.at(provider.RunPod, "")).has(licensed("x", 2, "m")).market("p", 1),
			"a lacks 1: NoOffers: no offers"},
		"beyond the bound on purchases": {makeSnapshot(makePool("p")).wants(a).has(licensed("x", 2, "m")).bought("a", 1, 2, 3, 4, 5, 6), "a goes on x with 1×1000"},
	} {
		got := say(Make(s.s.Snapshot))
		if got != s.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, s.want)
		}
	}
}

// but applies a change, for what has no method.
func (w workloadWrapper) but(f func(*workloadWrapper)) workloadWrapper { f(&w); return w }

func TestALicenceForSeveral(t *testing.T) {
	pool := makePool("p").args("--seed", "1").entry("vast.ai", "on-demand", "0.50")
	s := makeSnapshot(pool).wants(makeWorkload("a").vram(20, 0).at("", provider.Spot), makeWorkload("b").vram(40, 0).types("A100", "H100").engine("--dtype", "half")).
		market("p", 0, makeOffer("big", "A100-80GB-PCIE", 1, "0.40"), makeOffer("dear", "L40S", 1, "0.45"))
	got := Make(s.Snapshot)
	if len(got.Purchases) != 1 {
		t.Fatal(say(got))
	}
	spec := got.Purchases[0].Spec
	if r := spec.Requirements; r.GPUCount != 1 || r.MinVRAM != 80 || len(r.GPUTypes) == 0 || strings.Contains(strings.Join(r.GPUTypes, ","), "L40S") {
		t.Errorf("%+v", r)
	}
	if len(spec.Providers) != 1 || spec.Providers[0].CapacityType != "spot" {
		t.Errorf("%+v", spec.Providers)
	}
	a, b := spec.Placements[0], spec.Placements[1]
	// (20+1.5)/(0.9×80) and (40+1.5)/(0.9×80).
	if a.GPUFraction != 299 || b.GPUFraction != 577 || strings.Join(b.Args, " ") != "--seed 1 --dtype half" {
		t.Errorf("%+v %+v", a, b)
	}
	want := "shared by a, b: best of 2 fitting offers: A100-80GB-PCIE ×1 at $0.40/h from vast.ai in Sweden, spot"
	if got.Purchases[0].Reason != want || got.Purchases[0].ClaimName != ClaimName("a", 0) {
		t.Errorf("%s %s", got.Purchases[0].ClaimName, got.Purchases[0].Reason)
	}
}

// What packs says is held against an agent that starts engines in every order, each wherever there is room.
func TestPacksWhateverTheAgentChooses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		gpus := rapid.IntRange(1, 4).Draw(rt, "GPUs")
		var shares []share
		for range rapid.IntRange(1, 5).Draw(rt, "shares") {
			shares = append(shares, share{rapid.IntRange(1, 2).Draw(rt, "spans"), rapid.SampledFrom([]int{200, 300, 334, 400, 500, 501, 700, 1000}).Draw(rt, "fraction")})
		}
		want := alwaysFits(shares, gpus)
		if got := packs(shares, gpus); got != want {
			rt.Fatalf("%v on %d GPUs: %v, want %v", shares, gpus, got, want)
		}
		if surelyPacks(shares, gpus) && !want {
			rt.Fatalf("%v on %d GPUs surely packs", shares, gpus)
		}
	})
}

// Offers are judged by kind; the account of them is what judging each for the workload gives.
func TestTheAccountOfOffersIsSelects(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSnapshot(rt)
		p := &planning{snapshot: s, workloads: lackingIn(s)}
		p.index()
		for _, sh := range p.shapes {
			var want offers.Explanation
			for _, pool := range sh.pools {
				for _, i := range entries(pool, *sh.w) {
					m := p.markets[marketKey{pool.Name, i}]
					need := needFor(pool, i, m.Account, sh.w)
					gpusOnly := need
					gpusOnly.MinDiskGB, gpusOnly.MinRAMGB, gpusOnly.Regions, gpusOnly.MinReliability, gpusOnly.MinCUDA, gpusOnly.MaxPrice =
						0, 0, nil, nil, nil, offers.AnyPrice()
					apart := map[offers.Rejection]int{}
					list := slices.DeleteFunc(slices.Clone(m.Offers), func(o provider.Offer) bool {
						sr, ok := shareOn(sh.w, int(pool.Spec.Requirements.GPUCount), offers.NominalVRAMGB(o))
						switch {
						case offers.Judge(o, gpusOnly, nil, s.Now) != offers.Fits:
							return false
						case !ok:
							apart[offers.TooLittleVRAM]++
						case sr.gpus > o.GPUCount:
							apart[offers.WrongGPUCount]++
						default:
							return false
						}
						return true
					})
					_, why := offers.Select(list, need, s.Rests, s.Now)
					why.Total = len(m.Offers)
					for r, n := range apart {
						why.Counts[r] += n
					}
					want = want.Merge(why)
				}
			}
			if got := p.survey(sh).why; got.String() != want.String() || got.CheapestOver != want.CheapestOver {
				rt.Fatalf("%s, want %s", got, want)
			}
		}
	})
}

func TestMissingCountsWhatMakeAnswers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawSnapshot(rt)
		plan, answered := Make(s), map[string]int{}
		for _, u := range plan.Unmet {
			answered[u.Workload] += u.Missing
		}
		for _, b := range plan.Bindings {
			answered[b.Placement.Workload]++
		}
		for _, b := range plan.Purchases {
			for _, key := range b.Reservation.Workloads {
				answered[key]++
			}
		}
		for _, w := range lackingIn(s) {
			if answered[w.Key] != w.missing {
				rt.Fatalf("%s lacks %d, answered %d", w.Key, w.missing, answered[w.Key])
			}
		}
		if waiting, urgent := Missing(s); len(waiting)+len(urgent) != len(answered) {
			rt.Fatalf("%v and %v, answered %v", waiting, urgent, answered)
		}
	})
}
