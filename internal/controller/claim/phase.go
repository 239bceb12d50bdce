package claim

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

var order = map[v1alpha1.Phase]int{
	"":                          0,
	v1alpha1.PhasePending:       1,
	v1alpha1.PhaseProvisioning:  2,
	v1alpha1.PhaseBootstrapping: 3,
	v1alpha1.PhaseReady:         4,
	v1alpha1.PhaseDraining:      5,
	v1alpha1.PhaseTerminated:    6,
}

// phaseOf is the one place where a phase changes: it follows from the conditions, and never goes back. A Ready claim
// whose agent falls silent stays in the phase Ready and says so in the condition.
func phaseOf(c *v1alpha1.GPUNodeClaim) v1alpha1.Phase {
	p := reached(c)
	if order[p] < order[c.Status.Phase] {
		return c.Status.Phase
	}
	return p
}

func reached(c *v1alpha1.GPUNodeClaim) v1alpha1.Phase {
	is := func(condition string) bool { return meta.IsStatusConditionTrue(c.Status.Conditions, condition) }
	switch {
	case !c.DeletionTimestamp.IsZero() && is(v1alpha1.ConditionInstanceGone):
		return v1alpha1.PhaseTerminated
	case !c.DeletionTimestamp.IsZero() && c.Status.DrainStartedAt != nil: // set together with Ready False
		return v1alpha1.PhaseDraining
	case is(v1alpha1.ConditionReady):
		return v1alpha1.PhaseReady
	case is(v1alpha1.ConditionInstanceRunning):
		return v1alpha1.PhaseBootstrapping
	case c.Status.Attempt != nil:
		return v1alpha1.PhaseProvisioning
	}
	return v1alpha1.PhasePending
}
