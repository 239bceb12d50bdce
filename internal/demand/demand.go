package demand

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Input is everything that asks. Nothing in it is changed.
type Input struct {
	// Pods, all or only candidates; those that are none are passed over.
	Pods []*corev1.Pod
	// ReplicaSets that own pods, to tell a Deployment's newest template. Without them it is told by the pods' names and
	// ages.
	ReplicaSets []*appsv1.ReplicaSet
	Pools       []*v1alpha1.GPUNodePool
	// GatewayWish has the replicas that traffic asks for, by served model name. Names that neither a pod nor a pool
	// declares are passed over: nobody has said what to load.
	GatewayWish map[string]int
	Options     Options
}

// Result is demand in normal form. All lists are in a fixed order, whatever the order of the input.
type Result struct {
	// Workloads by key, also those known and not wanted now (Replicas 0).
	Workloads []Workload
	// Problems by pod, then pool.
	Problems []Problem
	Notes    []Note
}

// Workloads puts demand into normal form.
func Workloads(in Input) Result {
	var res Result
	var candidates []*corev1.Pod
	for _, pod := range in.Pods {
		if IsCandidate(pod, in.Options) {
			candidates = append(candidates, pod)
		}
	}
	candidates, res.Notes = newestTemplates(candidates, in.ReplicaSets)
	byKey := map[string][]ask{}
	for _, pod := range candidates {
		a, problem := readPod(pod)
		if problem != nil {
			res.Problems = append(res.Problems, *problem)
			continue
		}
		byKey[a.key] = append(byKey[a.key], a)
	}
	pools := livePools(in.Pools)
	for _, pool := range pools {
		asks, problems := readPool(pool)
		res.Problems = append(res.Problems, problems...)
		for _, a := range asks {
			byKey[a.key] = append(byKey[a.key], a)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		g := group{key: key, asks: byKey[key], wish: in.GatewayWish[key], pools: pools}
		g.settle(&res)
	}
	res.sort()
	return res
}

// livePools are the pools that can still buy, by name.
func livePools(all []*v1alpha1.GPUNodePool) []*v1alpha1.GPUNodePool {
	var live []*v1alpha1.GPUNodePool
	for _, p := range all {
		if p.DeletionTimestamp == nil {
			live = append(live, p)
		}
	}
	slices.SortFunc(live, func(a, b *v1alpha1.GPUNodePool) int { return strings.Compare(a.Name, b.Name) })
	return live
}

func (r *Result) sort() {
	slices.SortFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(a.Pool, b.Pool),
			strings.Compare(a.Message, b.Message))
	})
	slices.SortFunc(r.Notes, func(a, b Note) int {
		return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(a.Reason, b.Reason))
	})
}

// group is every ask for one served name.
type group struct {
	key   string
	asks  []ask
	wish  int
	pools []*v1alpha1.GPUNodePool
}

// settle makes the group's workload from the oldest ask and those that agree with it; the others become Problems.
func (g *group) settle(res *Result) {
	slices.SortFunc(g.asks, func(a, b ask) int {
		return cmp.Or(a.created().Compare(b.created()), strings.Compare(a.label(), b.label()))
	})
	m := merger{workload: Workload{Key: g.key}}
	g.chooseSource(&m)
	if m.workload.Source == "" {
		for _, a := range g.asks {
			res.Problems = append(res.Problems, a.problem(v1alpha1.PodReasonNoModel, fmt.Sprintf(
				"no pool lists a model named %q and the pod does not say what to load; set the annotation %s", g.key, v1alpha1.AnnotationModel)))
		}
		return
	}
	for _, a := range g.asks {
		if why := m.conflict(a); why != "" {
			res.Problems = append(res.Problems, a.problem(v1alpha1.PodReasonModelConflict, why))
		} else if why := g.shutsOut(&m, a); why != "" {
			res.Problems = append(res.Problems, a.problem(v1alpha1.PodReasonNoPool, why))
		} else {
			m.add(a)
		}
	}
	w := m.finish(g.wish)
	serving := poolsFor(w, g.pools)
	w.Form = m.formHash(serving)
	res.Workloads = append(res.Workloads, w)
	res.Notes = append(res.Notes, m.notes(serving)...)
}

// shutsOut says that no pool that could pay for what was added would pay for it together with a: every namespace that
// asks must be allowed. Without this a pod of a namespace that may spend nothing would stop what others are served.
func (g *group) shutsOut(m *merger, a ask) string {
	if a.pod == nil || len(m.added) == 0 || slices.Contains(m.workload.Namespaces, a.pod.Namespace) {
		return ""
	}
	w := Workload{Pool: cmp.Or(m.needs.pool, a.needs.pool)}
	for _, other := range g.asks {
		if other.pool != nil {
			w.Pools = append(w.Pools, other.pool.Name)
		}
	}
	before := m.workload.Namespaces
	open := false
	for _, pool := range poolsFor(w, g.pools) {
		if !admits(pool, before) {
			continue
		}
		open = true
		if admits(pool, []string{a.pod.Namespace}) {
			return ""
		}
	}
	if !open {
		return ""
	}
	return fmt.Sprintf("%s serves %s already, and no pool that pays for it admits namespace %s: add it to the pool's spec.namespaces, or use another served name",
		m.added[0].label(), g.key, a.pod.Namespace)
}

func admits(pool *v1alpha1.GPUNodePool, namespaces []string) bool {
	allowed := pool.Spec.Namespaces
	return len(allowed) == 0 || !slices.ContainsFunc(namespaces, func(ns string) bool { return !slices.Contains(allowed, ns) })
}

// chooseSource takes the source of the oldest ask that has one of its own, else what an annotation alone names.
func (g *group) chooseSource(m *merger) {
	for _, weak := range []bool{false, true} {
		for i := range g.asks {
			if a := &g.asks[i]; a.source != "" && a.weak == weak && m.sourceOf == nil {
				m.sourceOf = a
				m.workload.Source = a.source
			}
		}
	}
}

// poolsFor are the pools that may serve w as far as its pool restriction and the pools' lists say.
func poolsFor(w Workload, pools []*v1alpha1.GPUNodePool) []*v1alpha1.GPUNodePool {
	var out []*v1alpha1.GPUNodePool
	for _, p := range pools {
		switch {
		case w.Pool != "" && p.Name != w.Pool:
		case w.Pool == "" && len(w.Pools) > 0 && !slices.Contains(w.Pools, p.Name):
		default:
			out = append(out, p)
		}
	}
	return out
}
