// Package placement changes which models a claim serves. It is the only code that writes spec.placements of a claim that
// exists: provisioning fills room with it, disruption moves with it, and the claim controller takes off what cannot be
// served. The agent is told by the claim controller, which converges it on each new generation.
package placement

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/planner"
)

// Applier writes placements. Its fields are set once.
type Applier struct {
	Client client.Client
	// Reader reads past the cache: what is decided on an old copy is not applied.
	Reader client.Reader
}

// Target is a claim as a decision about its placements saw it.
type Target struct {
	Name string
	UID  types.UID
	// Generation counts changes of the spec. The status may change under a decision, and mostly does while it is made.
	Generation int64
}

// Add places replicas on a claim. It returns the claim as written, or nil where nothing was: the claim is gone, is
// ending, or is not the one that was decided on, and the decision has to be made again. All are placed or none.
func (a Applier) Add(ctx context.Context, t Target, placements ...v1alpha1.Placement) (*v1alpha1.GPUNodeClaim, error) {
	return a.edit(ctx, t, func(c *v1alpha1.GPUNodeClaim) bool {
		if !planner.Serves(c) {
			return false
		}
		for _, p := range placements {
			if slices.ContainsFunc(c.Spec.Placements, func(o v1alpha1.Placement) bool { return o.Workload == p.Workload }) {
				return false
			}
			c.Spec.Placements = append(c.Spec.Placements, p)
		}
		return true
	})
}

// Remove takes a workload's replica off a claim, with the same promises as Add. The engine ends when its requests have.
func (a Applier) Remove(ctx context.Context, t Target, workload string) (*v1alpha1.GPUNodeClaim, error) {
	return a.edit(ctx, t, func(c *v1alpha1.GPUNodeClaim) bool {
		before := len(c.Spec.Placements)
		c.Spec.Placements = slices.DeleteFunc(c.Spec.Placements, func(p v1alpha1.Placement) bool { return p.Workload == workload })
		return len(c.Spec.Placements) < before
	})
}

// Apply carries a plan's bindings out, claim by claim. stale reports that one of them could not be: what the plan was
// made from is no longer so, and the rest of it must not be carried out either.
func (a Applier) Apply(ctx context.Context, bindings []planner.Binding) (written []*v1alpha1.GPUNodeClaim, stale bool, err error) {
	for len(bindings) > 0 {
		first := bindings[0]
		var these []v1alpha1.Placement
		var others []planner.Binding
		for _, b := range bindings {
			if b.Claim == first.Claim {
				these = append(these, b.Placement)
			} else {
				others = append(others, b)
			}
		}
		c, err := a.Add(ctx, Target{first.Claim, first.UID, first.Generation}, these...)
		if err != nil {
			return written, true, err
		}
		if c == nil {
			return written, true, nil
		}
		written, bindings = append(written, c), others
	}
	return written, false, nil
}

// edit changes a claim's placements if it is still what was decided on, under the version that was read.
func (a Applier) edit(ctx context.Context, t Target, change func(*v1alpha1.GPUNodeClaim) bool) (*v1alpha1.GPUNodeClaim, error) {
	c := &v1alpha1.GPUNodeClaim{}
	if err := a.Reader.Get(ctx, client.ObjectKey{Name: t.Name}, c); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	before := c.DeepCopy()
	if c.UID != t.UID || c.Generation != t.Generation || !change(c) {
		return nil, nil
	}
	err := a.Client.Patch(ctx, c, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("placements of claim %s: %w", t.Name, err)
	}
	return c, nil
}
