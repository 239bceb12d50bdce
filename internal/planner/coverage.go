package planner

import (
	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Serves reports whether a claim counts for the workloads placed on it: it is on its way to Ready or there, and nothing
// has begun to end it.
func Serves(c *v1alpha1.GPUNodeClaim) bool {
	if c.DeletionTimestamp != nil || c.Status.Failure != nil {
		return false
	}
	if _, draining := c.Annotations[v1alpha1.AnnotationDrain]; draining {
		return false
	}
	return c.Status.Phase != v1alpha1.PhaseDraining && c.Status.Phase != v1alpha1.PhaseTerminated
}

// covered counts the replicas that each workload has or has been promised. A reservation whose claim is not there yet
// counts like the claim: the purchase has been decided, and the claim may only be missing from a cache.
func covered(s Snapshot) map[string]int {
	count := map[string]int{}
	exists := map[string]bool{}
	for _, c := range s.Claims {
		exists[c.Name] = true
		if !Serves(c) {
			continue
		}
		for _, p := range c.Spec.Placements {
			count[p.Workload]++
		}
	}
	for _, pool := range s.Pools {
		for _, r := range pool.Status.Reservations {
			if exists[r.Claim] {
				continue
			}
			for _, w := range r.Workloads {
				count[w]++
			}
		}
	}
	return count
}
