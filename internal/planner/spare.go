package planner

import (
	"cmp"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/reserve"
)

// SpareKey stands for a workload's key where a node is bought for none: for its pool's minNodes. No model has such a name.
func SpareKey(pool string) string { return "spare node of pool " + pool }

// lackingNodes is how many nodes each pool lacks of its minNodes, by name, pools that lack none left out. Nodes that end
// do not count, and what is promised to a claim that is not seen yet does.
func lackingNodes(s Snapshot) map[string]int {
	nodes, exists := map[string]int{}, map[string]bool{}
	for _, c := range s.Claims {
		exists[c.Name] = true
		if Serves(c) {
			nodes[c.Spec.Pool]++
		}
	}
	lack := map[string]int{}
	for _, pool := range s.Pools {
		if pool.DeletionTimestamp != nil || pool.Spec.Scaling.MinNodes == 0 {
			continue
		}
		for _, r := range pool.Status.Reservations {
			if _, _, surplus := reserve.SurplusOf(r); !surplus && !exists[r.Claim] {
				nodes[pool.Name]++
			}
		}
		if n := int(pool.Spec.Scaling.MinNodes) - nodes[pool.Name]; n > 0 {
			lack[pool.Name] = n
		}
	}
	return lack
}

// spares buys what a pool lacks of its minNodes when all demand has been served: the cheapest instances that satisfy the
// pool, with nothing on them.
func (d *draft) spares() {
	p := d.p
	lack := lackingNodes(p.snapshot)
	for _, n := range d.nodes {
		lack[n.kind.pool.Name]--
	}
	pools := slices.SortedFunc(slices.Values(p.snapshot.Pools), func(a, b *v1alpha1.GPUNodePool) int { return strings.Compare(a.Name, b.Name) })
	for _, pool := range pools {
		if lack[pool.Name] > 0 {
			d.sparesOf(pool, lack[pool.Name])
		}
	}
}

func (d *draft) sparesOf(pool *v1alpha1.GPUNodePool, missing int) {
	p, key := d.p, SpareKey(pool.Name)
	unmet := Unmet{Workload: key}
	if r, ok := p.snapshot.Rests.Active(rest.PoolKey(pool.Name), p.snapshot.Now); ok {
		unmet.Missing = missing
		unmet.rest("pool "+pool.Name, r)
		p.plan.Unmet = append(p.plan.Unmet, unmet)
		return
	}
	sh := p.newShape(&demand.Workload{Key: key}, []*v1alpha1.GPUNodePool{pool})
	allowance := max(0, p.perHour()-len(p.recent(key)))
	for ; missing > 0 && allowance > 0; missing, allowance = missing-1, allowance-1 {
		sl, o := d.cheapest(sh)
		if sl == nil {
			break
		}
		d.open(sl, o).spare = sh
	}
	if unmet.Missing = missing; missing == 0 {
		return
	}
	if unmet.Reason, unmet.Message = v1alpha1.PodReasonNoOffers, p.survey(sh).why.String(); allowance == 0 {
		p.explainBound(key, &unmet)
	} else if why := d.ceilings(sh); why != "" {
		unmet.Reason, unmet.Message = v1alpha1.PodReasonCeilingReached, why
	}
	p.plan.Unmet = append(p.plan.Unmet, unmet)
}

// byFirst orders purchases by their first workload, those for none last.
func byFirst(a, b *node) int {
	if len(a.residents) == 0 || len(b.residents) == 0 {
		return cmp.Compare(len(b.residents), len(a.residents))
	}
	return cmp.Compare(a.residents[0], b.residents[0])
}
