package planner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// wholeGPU is a placement's share of a GPU that it has for itself.
const wholeGPU = 1000

// planning is the state of one Make: the snapshot, and what the plan so far has promised.
type planning struct {
	snapshot Snapshot
	markets  map[marketKey]Market
	covered  map[string]int
	reserved map[string]Reserved
	taken    names
	// rented are offers of one machine that this plan has chosen: they cannot be had twice.
	rented map[offerKey]bool
	plan   Plan
}

type marketKey struct {
	pool  string
	entry int
}

type offerKey struct {
	provider provider.Name
	id       string
}

// Make plans: every workload that lacks replicas gets purchases, as far as offers, ceilings and rests allow, and a line
// that says why for those that it does not get. Each replica is a claim of its own.
//
// The plan is a function of the snapshot, whatever the order of its lists. Carried out in full, it leaves nothing to buy
// for a second Make over the same markets.
func Make(s Snapshot) Plan {
	p := &planning{snapshot: s, markets: map[marketKey]Market{}, covered: covered(s), reserved: map[string]Reserved{},
		taken: takenNames(s), rented: map[offerKey]bool{}}
	for _, m := range s.Markets {
		p.markets[marketKey{m.Pool, m.Entry}] = m
	}
	for _, pool := range s.Pools {
		p.reserved[pool.Name] = ReservedIn(pool, s.Claims)
	}
	for _, w := range p.inOrder() {
		p.meet(w)
	}
	slices.SortFunc(p.plan.Unmet, func(a, b Unmet) int { return strings.Compare(a.Workload, b.Workload) })
	return p.plan
}

// inOrder are the workloads by priority, then by how long the first replica that is missing has been waited for.
// Demand that is not a pod's comes before pods of its priority: there somebody waits for an answer.
func (p *planning) inOrder() []demand.Workload {
	ws := slices.Clone(p.snapshot.Workloads)
	slices.SortFunc(ws, func(a, b demand.Workload) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority),
			a.UnmetSince(p.covered[a.Key]).Compare(b.UnmetSince(p.covered[b.Key])),
			strings.Compare(a.Key, b.Key))
	})
	return ws
}

// meet buys what one workload lacks, or says why not.
func (p *planning) meet(w demand.Workload) {
	missing := w.Replicas - p.covered[w.Key]
	if missing <= 0 {
		return
	}
	unmet := Unmet{Workload: w.Key}
	pools, ok := p.mayBuy(w, &unmet)
	if ok {
		found := p.look(w, pools)
		allowed := p.allowance(w)
		for ; missing > 0 && allowed > 0; allowed-- {
			c, ok := p.choose(found)
			if !ok {
				break
			}
			p.buy(w, c, found)
			missing--
		}
		if missing > 0 {
			p.explain(w, found, allowed, &unmet)
		}
	}
	if missing > 0 {
		unmet.Missing = missing
		p.plan.Unmet = append(p.plan.Unmet, unmet)
	}
}

// choose is the most preferred candidate that can still be had and that its pool's ceilings still admit.
func (p *planning) choose(found survey) (candidate, bool) {
	for _, c := range found.candidates {
		if !p.rented[keyOf(c.offer)] && p.reserved[c.pool.Name].forbids(c.pool, c.offer.GPUCount, c.offer.Price) == "" {
			return c, true
		}
	}
	return candidate{}, false
}

// buy promises a candidate's price, and a margin for the time until the claim asks for it, out of its pool.
func (p *planning) buy(w demand.Workload, c candidate, found survey) {
	so := p.reserved[c.pool.Name]
	amount := money.Min(c.offer.Price.MulFrac(reservePercent, 100), c.most, so.left(c.pool))
	p.reserved[c.pool.Name] = so.plus(c.offer.GPUCount, amount)
	if oneMachine(c.offer) {
		p.rented[keyOf(c.offer)] = true
	}
	name := p.taken.next(w.Key)
	p.plan.Purchases = append(p.plan.Purchases, Purchase{
		Pool:        c.pool.Name,
		PoolVersion: c.pool.ResourceVersion,
		ClaimName:   name,
		Spec:        p.spec(w, c, amount),
		Reservation: v1alpha1.Reservation{Claim: name, DollarsPerHour: amount, GPUs: int32(c.offer.GPUCount),
			Workloads: []string{w.Key}, Since: metav1.NewTime(p.snapshot.Now)},
		Offer:  c.offer,
		Reason: reasonFor(c, found),
	})
}

// reservePercent of the offer's price is reserved: prices move between the plan and the purchase, and the next best
// offer is rarely much dearer.
const reservePercent = 110

// spec is the licence for one replica of w: the shape of the chosen offer, from any of the pool's entries that w allows,
// up to amount.
func (p *planning) spec(w demand.Workload, c candidate, amount money.Dollars) v1alpha1.GPUNodeClaimSpec {
	pool := c.pool.Spec.DeepCopy()
	spec := v1alpha1.GPUNodeClaimSpec{Pool: c.pool.Name, Requirements: pool.Requirements, MaxPrice: amount,
		Bootstrap: pool.Bootstrap}
	for _, i := range entries(c.pool, w) {
		spec.Providers = append(spec.Providers, pool.Providers[i])
	}
	spec.Requirements.GPUCount = int32(c.offer.GPUCount)
	spec.Requirements.MinVRAM = max(pool.Requirements.MinVRAM, int32(w.VRAMGB))
	spec.Requirements.GPUTypes = gpuNames(pool.Requirements.GPUTypes, w.GPUTypes)
	gpus := cmp.Or(w.GPUCount, c.offer.GPUCount)
	spec.Placements = []v1alpha1.Placement{{
		Workload:    w.Key,
		Source:      w.Source,
		Args:        slices.Concat(demand.EngineArgs(pool.Bootstrap.Args, gpus), w.Args),
		Form:        w.Form,
		GPUs:        int32(gpus),
		GPUFraction: wholeGPU,
		Since:       metav1.NewTime(p.snapshot.Now),
	}}
	return spec
}

// allowance is how many instances w may still buy within the hour.
func (p *planning) allowance(w demand.Workload) int {
	return max(0, p.perHour()-len(p.recent(w.Key)))
}

func (p *planning) perHour() int {
	return cmp.Or(p.snapshot.MaxPurchasesPerHour, DefaultMaxPurchasesPerHour)
}

// recent are the purchases for a workload within the last hour, oldest first.
func (p *planning) recent(key string) []time.Time {
	var out []time.Time
	for _, at := range p.snapshot.Purchases[key] {
		if at.After(p.snapshot.Now.Add(-time.Hour)) {
			out = append(out, at)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}
