package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/provider"
)

// considered are the pools that may be asked to pay for w at all, by name: the one it names, else those that list its
// model, else all.
func considered(w demand.Workload, pools []*v1alpha1.GPUNodePool) []*v1alpha1.GPUNodePool {
	var out []*v1alpha1.GPUNodePool
	for _, p := range pools {
		switch {
		case w.Pool != "":
			if p.Name == w.Pool {
				out = append(out, p)
			}
		case len(w.Pools) == 0 || slices.Contains(w.Pools, p.Name):
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.GPUNodePool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Refusal says in words why pool does not pay for w, whatever is on offer; empty where it does.
func Refusal(pool *v1alpha1.GPUNodePool, w demand.Workload) string {
	if pool.DeletionTimestamp != nil {
		return "is being deleted"
	}
	if allowed := pool.Spec.Namespaces; len(allowed) > 0 {
		for _, ns := range w.Namespaces {
			if !slices.Contains(allowed, ns) {
				return fmt.Sprintf("does not admit namespace %s (spec.namespaces has %s)", ns, strings.Join(allowed, ", "))
			}
		}
	}
	if len(entries(pool, w)) == 0 {
		return fmt.Sprintf("has no provider %s (it has %s)", wanted(w), listEntries(pool))
	}
	if req := pool.Spec.Requirements; req.GPUCount > 0 && w.GPUCount > int(req.GPUCount) {
		return fmt.Sprintf("buys instances with %d GPUs (requirements.gpuCount); one replica spans %d", req.GPUCount, w.GPUCount)
	}
	if types := pool.Spec.Requirements.GPUTypes; len(types) > 0 && len(w.GPUTypes) > 0 && !gpuShared(types, w.GPUTypes) {
		return fmt.Sprintf("has no GPU of %s (requirements.gpuTypes has %s)", strings.Join(w.GPUTypes, ", "), strings.Join(types, ", "))
	}
	return ""
}

func wanted(w demand.Workload) string {
	return strings.TrimSpace(string(w.Provider) + " " + string(w.CapacityType))
}

func listEntries(pool *v1alpha1.GPUNodePool) string {
	all := make([]string, len(pool.Spec.Providers))
	for i, e := range pool.Spec.Providers {
		all[i] = e.Name + " " + string(capacityOf(e))
	}
	return strings.Join(all, ", ")
}

// entries are the indices of the pool's provider entries that may be bought from under w's restrictions.
func entries(pool *v1alpha1.GPUNodePool, w demand.Workload) []int {
	var out []int
	for i, e := range pool.Spec.Providers {
		if (w.Provider == "" || provider.Name(e.Name) == w.Provider) &&
			(w.CapacityType == "" || capacityOf(e) == w.CapacityType) {
			out = append(out, i)
		}
	}
	return out
}

// capacityOf applies the API's default, for pools that no API server has defaulted.
func capacityOf(e v1alpha1.ProviderSpec) provider.CapacityType {
	if e.CapacityType == "" {
		return provider.Spot
	}
	return provider.CapacityType(e.CapacityType)
}

// gpuShared reports whether some GPU is asked for by both lists.
func gpuShared(a, b []string) bool {
	return slices.ContainsFunc(gpu.Names(), func(n gpu.Name) bool { return matchesAny(a, n) && matchesAny(b, n) })
}
