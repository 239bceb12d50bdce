package claim

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/placement"
)

// sharesWithOthers reports that a model of this claim has not failed: the instance is worth keeping for it.
func (v *visit) sharesWithOthers() bool {
	failed := map[string]bool{}
	for _, m := range v.agent.Models {
		failed[m.Name] = m.State == agentapi.StateFailed
	}
	for _, p := range v.claim.Spec.Placements {
		if !failed[p.Workload] {
			return true
		}
	}
	return false
}

// evict takes a model that failed off an instance that others share, which go on. The model rests whatever the cause:
// this is the very place that it would be put on again, since it has room there.
func (v *visit) evict(ctx context.Context, failed agentapi.ModelInfo, msg string) (next, error) {
	for _, p := range v.claim.Spec.Placements {
		if p.Workload == failed.Name {
			r := v.Rests.Fail(WorkloadRestKey(p), v1alpha1.ReasonModelFailed, msg, v.now())
			v.remember(ctx, memory{Rests: []rest.Rest{r}})
			v.log(ctx).Info("a model is taken off an instance that others share", "model", p.Workload, "until", r.Until)
		}
	}
	v.event(corev1.EventTypeWarning, v1alpha1.ReasonModelFailed, "taken off, others stay: "+msg)
	if err := v.persist(ctx); err != nil {
		return halt(), err
	}
	target := placement.Target{Name: v.claim.Name, UID: v.claim.UID, Generation: v.claim.Generation}
	_, err := placement.Applier{Client: v.Client, Reader: v.Reader}.Remove(ctx, target, failed.Name)
	return v.pollBoot(), err
}
