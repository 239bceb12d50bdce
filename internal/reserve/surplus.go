package reserve

import (
	"slices"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// surplusMark begins the name of an entry that is no claim's: a colon is in no object's name.
const surplusMark = "surplus:"

// SurplusName is the name under which a pool's status carries an instance that no claim accounts for, a claim's second
// one or one whose claim is gone, so that the ceilings hold while it lives.
func SurplusName(provider, instance string) string { return surplusMark + provider + ":" + instance }

// SurplusOf reports whether r stands for such an instance, and for which.
func SurplusOf(r v1alpha1.Reservation) (provider, instance string, ok bool) {
	rest, ok := strings.CutPrefix(r.Claim, surplusMark)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}

// HasSurplus reports whether the pool carries such an entry.
func HasSurplus(pool *v1alpha1.GPUNodePool) bool {
	return slices.ContainsFunc(pool.Status.Reservations, func(r v1alpha1.Reservation) bool {
		_, _, ok := SurplusOf(r)
		return ok
	})
}

// SetSurplus makes want the pool's entries for instances that no claim accounts for, without asking the ceilings: the
// money is being spent already. It reports whether anything changed.
func SetSurplus(pool *v1alpha1.GPUNodePool, want []v1alpha1.Reservation) bool {
	before := pool.Status.DeepCopy()
	drop(pool, func(r v1alpha1.Reservation) bool { _, _, ok := SurplusOf(r); return ok })
	Restore(pool, want)
	return !v1alpha1.Equal(before.Reservations, pool.Status.Reservations)
}
