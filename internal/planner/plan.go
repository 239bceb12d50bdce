package planner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

// planning is the state of one Make: the snapshot in a form that is quick to ask.
type planning struct {
	snapshot  Snapshot
	markets   map[marketKey]Market
	pools     map[string]*v1alpha1.GPUNodePool
	books     map[marketKey]*book
	kinds     int
	hosts     []*host
	shapes    []*shape
	byKey     map[string]*shape
	workloads []lacking
	reserved  map[string]Reserved
	taken     names
	plan      Plan
}

// lacking is a workload that lacks replicas.
type lacking struct {
	*demand.Workload
	missing int
	// allowance is how many instances it may still buy within the hour.
	allowance int
	// shape is nil where no pool pays for it now; unmet then says why.
	shape *shape
	unmet Unmet
}

type marketKey struct {
	pool  string
	entry int
}

// Missing are the workloads that lack replicas, by key, in a plan's order, and the SpareKey of pools that lack nodes,
// without looking for anything: neither why nor whether they could be had. It is Make's own count, cheap enough for every
// change. Those that are urgent wait for no batch window.
func Missing(s Snapshot) (waiting, urgent []string) {
	has := covered(s)
	for _, w := range lackingIn(s) {
		if w.Urgent(has[w.Key]) {
			urgent = append(urgent, w.Key)
		} else {
			waiting = append(waiting, w.Key)
		}
	}
	for pool := range lackingNodes(s) {
		waiting = append(waiting, SpareKey(pool))
	}
	return waiting, urgent
}

// Make plans: every workload that lacks replicas gets room on claims that have some, which costs nothing, and purchases,
// as far as offers, ceilings and rests allow, and a line that says why for those that it does not get. Replicas of
// several workloads share an instance where that is cheaper. Two replicas of one workload never do, nor does one whose
// VRAM is not declared share a GPU.
//
// Where ceilings bind, a workload of higher priority, then one that has waited longer, goes first; within that the plan
// costs least among those tried, and least of all for a handful of replicas. What pools then lack of their minNodes is
// bought last, empty.
//
// The plan is a function of the snapshot, whatever the order of its lists. Carried out in full, it leaves nothing to buy
// or place for a second Make over the same markets.
func Make(s Snapshot) Plan {
	p := &planning{snapshot: s, workloads: lackingIn(s)}
	if len(p.workloads) == 0 && len(lackingNodes(s)) == 0 {
		return p.plan
	}
	p.index()
	best := p.solve()
	best.spares()
	p.emit(best)
	return p.plan
}

// lackingIn are the workloads that lack replicas by priority, then by how long the first that is missing has been waited
// for. Demand that is not a pod's comes before pods of its priority: there somebody waits for an answer.
func lackingIn(s Snapshot) []lacking {
	has := covered(s)
	var ws []lacking
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if n := w.Replicas - has[w.Key]; n > 0 {
			ws = append(ws, lacking{Workload: w, missing: n, unmet: Unmet{Workload: w.Key}})
		}
	}
	slices.SortFunc(ws, func(a, b lacking) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority),
			a.UnmetSince(has[a.Key]).Compare(b.UnmetSince(has[b.Key])),
			strings.Compare(a.Key, b.Key))
	})
	return ws
}

// index sorts markets, claims and workloads by what they offer and ask.
func (p *planning) index() {
	s := p.snapshot
	p.markets, p.books = map[marketKey]Market{}, map[marketKey]*book{}
	p.pools, p.reserved = map[string]*v1alpha1.GPUNodePool{}, map[string]Reserved{}
	p.byKey, p.taken, p.hosts = map[string]*shape{}, takenNames(s), hostsOf(s)
	for _, pool := range s.Pools {
		p.pools[pool.Name] = pool
		p.reserved[pool.Name] = ReservedIn(pool, s.Claims)
	}
	for _, m := range s.Markets {
		pool, key := p.pools[m.Pool], marketKey{m.Pool, m.Entry}
		if _, twice := p.books[key]; twice || pool == nil || m.Entry >= len(pool.Spec.Providers) {
			continue
		}
		p.markets[key] = m
		p.books[key] = newBook(pool, m, s, p.kinds)
		p.kinds += len(p.books[key].kinds)
	}
	for i := range p.workloads {
		p.classify(&p.workloads[i])
	}
}

// classify finds the shape of a workload, or why no pool pays for it.
func (p *planning) classify(w *lacking) {
	w.allowance = max(0, p.perHour()-len(p.recent(w.Key)))
	pools, ok := p.mayBuy(*w.Workload, &w.unmet)
	if !ok {
		return
	}
	key := shapeKey(w.Workload, pools)
	if p.byKey[key] == nil {
		p.byKey[key] = p.newShape(w.Workload, pools)
		p.shapes = append(p.shapes, p.byKey[key])
	}
	w.shape = p.byKey[key]
}

func (p *planning) shapeOf(w int) *shape { return p.workloads[w].shape }

// solve is the best of several drafts. The first is what priority alone would give; one that gives a workload less than
// another does, where all before it get the same, is never better, however cheap it is.
func (p *planning) solve() *draft {
	best := p.newDraft()
	best.sweep()
	byColumn := p.newDraft()
	byColumn.columns()
	for _, d := range []*draft{byColumn, p.exact()} {
		if d == nil {
			continue
		}
		d.sweep()
		if better(d, best) {
			best = d
		}
	}
	return best
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
