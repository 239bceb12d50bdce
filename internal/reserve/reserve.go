// Package reserve keeps the account of what a pool has promised: GPUNodePool.status.reservations. It is the only code
// that changes that list. Everything here is pure; the caller writes the pool's status with the resourceVersion that it
// read, so that two writers cannot both be right.
package reserve

import (
	"fmt"
	"sort"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/money"
)

// OrphanAge is how old an entry without a claim must be before it is dropped: longer than any gap between the
// reservation and the creation of the claim, short enough that a crash between the two does not block the pool.
const OrphanAge = 60 * time.Second

// Find returns the reservation of a claim.
func Find(pool *v1alpha1.GPUNodePool, claim string) (v1alpha1.Reservation, bool) {
	for _, r := range pool.Status.Reservations {
		if r.Claim == claim {
			return r, true
		}
	}
	return v1alpha1.Reservation{}, false
}

// Add promises r out of the pool, or says which ceiling forbids it and changes nothing.
func Add(pool *v1alpha1.GPUNodePool, r v1alpha1.Reservation) error {
	if _, ok := Find(pool, r.Claim); ok {
		return fmt.Errorf("pool %s already has a reservation for claim %s", pool.Name, r.Claim)
	}
	now := totalOf(pool.Status.Reservations)
	limits, scaling := pool.Spec.Limits, pool.Spec.Scaling
	switch {
	case now.nodes >= scaling.MaxNodes:
		return fmt.Errorf("pool %s: maxNodes %d: %d reserved", pool.Name, scaling.MaxNodes, now.nodes)
	case limits.MaxGPUs != nil && now.gpus+r.GPUs > *limits.MaxGPUs:
		return fmt.Errorf("pool %s: maxGPUs %d: %d reserved and %d more wanted", pool.Name, *limits.MaxGPUs, now.gpus, r.GPUs)
	case limits.MaxCostPerHour.Less(now.dollars.Add(r.DollarsPerHour)):
		return fmt.Errorf("pool %s: maxCostPerHour %s: %s reserved and %s more wanted",
			pool.Name, limits.MaxCostPerHour, now.dollars, r.DollarsPerHour)
	}
	pool.Status.Reservations = append(pool.Status.Reservations, r)
	recount(&pool.Status)
	return nil
}

// PromisesNothingNew reports whether a plan that was made from an older state of a pool holds for the newer one: the same
// pool under the same spec, which has promised nothing since that the plan did not know. What was released or lowered
// meanwhile leaves more room than the plan had, and conditions and counts are no part of it.
func PromisesNothingNew(older, newer *v1alpha1.GPUNodePool) bool {
	if older.UID != newer.UID || older.Generation != newer.Generation || !newer.DeletionTimestamp.IsZero() {
		return false
	}
	known := make(map[string]v1alpha1.Reservation, len(older.Status.Reservations))
	for _, r := range older.Status.Reservations {
		known[r.Claim] = r
	}
	for _, r := range newer.Status.Reservations {
		k, ok := known[r.Claim]
		if !ok || !r.Since.Equal(&k.Since) || k.GPUs < r.GPUs || k.DollarsPerHour.Less(r.DollarsPerHour) {
			return false
		}
	}
	return true
}

// Lower replaces the dollars of a claim's reservation by the rate that is really paid. A reservation only falls: a
// higher rate leaves it, and the caller ends the instance. It reports whether anything changed.
func Lower(pool *v1alpha1.GPUNodePool, claim string, rate money.Dollars) bool {
	for i, r := range pool.Status.Reservations {
		if r.Claim == claim && rate.Less(r.DollarsPerHour) {
			pool.Status.Reservations[i].DollarsPerHour = rate
			recount(&pool.Status)
			return true
		}
	}
	return false
}

// Release takes a claim's reservation back. It reports whether anything changed.
func Release(pool *v1alpha1.GPUNodePool, claim string) bool {
	return drop(pool, func(r v1alpha1.Reservation) bool { return r.Claim == claim })
}

// DropOrphans releases entries older than age whose claim does not exist, and returns the names dropped. exists must be
// an uncached answer: a cache that has not seen a claim yet would free money that is being spent.
func DropOrphans(pool *v1alpha1.GPUNodePool, now time.Time, age time.Duration, exists func(claim string) bool) []string {
	var dropped []string
	drop(pool, func(r v1alpha1.Reservation) bool {
		if _, _, surplus := SurplusOf(r); surplus {
			return false // the sweep's, which knows when its instance is gone
		}
		orphan := now.Sub(r.Since.Time) > age && !exists(r.Claim)
		if orphan {
			dropped = append(dropped, r.Claim)
		}
		return orphan
	})
	return dropped
}

// Missing returns the reservations that a pool's claims imply and its status lacks, as after a lost status. Claims
// whose instance is gone imply none.
func Missing(pool *v1alpha1.GPUNodePool, claims []*v1alpha1.GPUNodeClaim) []v1alpha1.Reservation {
	var out []v1alpha1.Reservation
	for _, c := range claims {
		if c.Spec.Pool != pool.Name || !MayHoldInstance(c) {
			continue
		}
		if _, ok := Find(pool, c.Name); ok {
			continue
		}
		out = append(out, Of(c))
	}
	return out
}

// Restore puts implied reservations back without asking the ceilings: the money is being spent already.
func Restore(pool *v1alpha1.GPUNodePool, rs []v1alpha1.Reservation) {
	pool.Status.Reservations = append(pool.Status.Reservations, rs...)
	recount(&pool.Status)
}

// MayHoldInstance reports whether the provider may have rented something for the claim that is not confirmed gone.
func MayHoldInstance(c *v1alpha1.GPUNodeClaim) bool {
	if c.Status.Attempt == nil {
		return false
	}
	for _, cond := range c.Status.Conditions {
		if cond.Type == v1alpha1.ConditionInstanceGone && cond.Status == metav1.ConditionTrue {
			return false
		}
	}
	return c.Status.InstanceID != "" || c.Status.Attempt.Outcome != v1alpha1.AttemptRefused
}

// Of is the reservation that a claim's spec implies.
func Of(c *v1alpha1.GPUNodeClaim) v1alpha1.Reservation {
	amount := c.Spec.MaxPrice
	if c.Status.DollarsPerHour != nil && c.Status.InstanceID != "" && c.Status.DollarsPerHour.Less(amount) {
		amount = *c.Status.DollarsPerHour
	}
	r := v1alpha1.Reservation{Claim: c.Name, DollarsPerHour: amount, GPUs: c.Spec.Requirements.GPUCount,
		Since: c.CreationTimestamp}
	for _, p := range c.Spec.Placements {
		r.Workloads = append(r.Workloads, p.Workload)
	}
	return r
}

func drop(pool *v1alpha1.GPUNodePool, which func(v1alpha1.Reservation) bool) bool {
	kept := pool.Status.Reservations[:0:0]
	for _, r := range pool.Status.Reservations {
		if !which(r) {
			kept = append(kept, r)
		}
	}
	changed := len(kept) != len(pool.Status.Reservations)
	pool.Status.Reservations = kept
	recount(&pool.Status)
	return changed
}

// recount derives the totals from the entries and keeps the entries in a stable order.
func recount(s *v1alpha1.GPUNodePoolStatus) {
	sort.Slice(s.Reservations, func(i, j int) bool { return s.Reservations[i].Claim < s.Reservations[j].Claim })
	t := totalOf(s.Reservations)
	s.Nodes, s.GPUs, s.DollarsPerHour = t.nodes, t.gpus, t.dollars
}

type total struct {
	nodes, gpus int32
	dollars     money.Dollars
}

func totalOf(rs []v1alpha1.Reservation) total {
	t := total{nodes: int32(len(rs))}
	for _, r := range rs {
		t.gpus += r.GPUs
		t.dollars = t.dollars.Add(r.DollarsPerHour)
	}
	return t
}
