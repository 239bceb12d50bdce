package planner

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/pkg/gpu"
)

// emit writes the plan that a draft is.
func (p *planning) emit(d *draft) {
	for _, n := range d.hosts {
		p.bindings(n)
	}
	for _, n := range d.nodes {
		slices.Sort(n.residents)
	}
	slices.SortStableFunc(d.nodes, byFirst)
	if len(d.nodes) > 0 {
		p.plan.Purchases = make([]Purchase, 0, len(d.nodes))
	}
	for _, n := range d.nodes {
		p.plan.Purchases = append(p.plan.Purchases, p.purchase(n))
	}
	for w := range p.workloads {
		if d.missing[w] > 0 {
			p.plan.Unmet = append(p.plan.Unmet, p.explain(d, w))
		}
	}
	slices.SortFunc(p.plan.Unmet, func(a, b Unmet) int { return strings.Compare(a.Workload, b.Workload) })
}

func (p *planning) bindings(n *node) {
	slices.Sort(n.residents)
	c := n.host.claim
	for _, w := range n.residents {
		s := p.shapeOf(w).shareIn(n)
		p.plan.Bindings = append(p.plan.Bindings, Binding{Claim: c.Name, UID: c.UID, Generation: c.Generation,
			Placement: p.placement(w, s, c.Spec.Bootstrap.Args), Reason: bindingReason(n, s)})
	}
}

func (p *planning) placement(w int, s share, poolArgs []string) v1alpha1.Placement {
	wl := p.workloads[w]
	return v1alpha1.Placement{
		Workload:    wl.Key,
		Source:      wl.Source,
		Args:        slices.Concat(demand.EngineArgs(poolArgs, s.gpus), wl.Args),
		Form:        wl.Form,
		GPUs:        int32(s.gpus),
		GPUFraction: int32(s.fraction),
		Since:       metav1.NewTime(p.snapshot.Now),
	}
}

func (p *planning) purchase(n *node) Purchase {
	keys := make([]string, len(n.residents))
	for i, w := range n.residents {
		keys[i] = p.workloads[w].Key
	}
	pool := n.kind.pool
	first := SpareKey(pool.Name)
	if len(keys) > 0 {
		first = keys[0]
	}
	name := p.taken.next(first)
	return Purchase{
		Pool:      pool.Name,
		ClaimName: name,
		Spec:      p.spec(n),
		Reservation: v1alpha1.Reservation{Claim: name, DollarsPerHour: n.amount, GPUs: int32(n.gpus), Workloads: keys,
			Since: metav1.NewTime(p.snapshot.Now)},
		Offer:  *n.offer,
		Reason: p.reasonFor(n, keys),
	}
}

// spec is the licence for a purchase: the shape of the chosen offer, from any of the pool's entries and with any of its
// GPUs that all residents allow, up to the amount. Fractions hold for every GPU that it admits: it asks for as much VRAM
// as the offer's GPUs have wherever a fraction is less than a whole one.
func (p *planning) spec(n *node) v1alpha1.GPUNodeClaimSpec {
	pool := n.kind.pool.Spec.DeepCopy()
	spec := v1alpha1.GPUNodeClaimSpec{Pool: n.kind.pool.Name, Requirements: pool.Requirements, MaxPrice: n.amount,
		Bootstrap: pool.Bootstrap}
	types, each := [][]string{pool.Requirements.GPUTypes}, 0
	may := entries(n.kind.pool, demand.Workload{})
	for _, w := range n.residents {
		wl, s := p.workloads[w], p.shapeOf(w).shareIn(n)
		types = append(types, wl.GPUTypes)
		allowed := entries(n.kind.pool, *wl.Workload)
		may = slices.DeleteFunc(may, func(i int) bool { return !slices.Contains(allowed, i) })
		each = max(each, (wl.VRAMGB+s.gpus-1)/s.gpus)
		if s.fraction < wholeGPU {
			each = max(each, n.kind.eachGB)
		}
		spec.Placements = append(spec.Placements, p.placement(w, s, pool.Bootstrap.Args))
	}
	for _, i := range may {
		spec.Providers = append(spec.Providers, pool.Providers[i])
	}
	spec.Requirements.GPUCount = int32(n.gpus)
	spec.Requirements.MinVRAM = max(pool.Requirements.MinVRAM, int32(each*n.gpus))
	spec.Requirements.GPUTypes = p.gpuNames(types...)
	return spec
}

// gpuNames are the canonical names that every list which is not empty asks for. None asked: no names, meaning any.
func (p *planning) gpuNames(lists ...[]string) []string {
	lists = slices.DeleteFunc(lists, func(l []string) bool { return len(l) == 0 })
	if len(lists) == 0 {
		return nil
	}
	var out []string
	for _, name := range gpu.Names() {
		if !slices.ContainsFunc(lists, func(l []string) bool { return !matchesAny(l, name) }) {
			out = append(out, string(name))
		}
	}
	return out
}
