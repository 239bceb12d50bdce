package claim

import (
	"context"
	"fmt"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

// culprits says whose fault an exit reported by the agent is: the machine that was offered, the model that was asked
// for, or the pool's way of booting. A second machine that fails the same way turns offer into workload (see
// restCulprit).
var culprits = map[string]v1alpha1.Culprit{
	agentapi.ExitNoDriver:        v1alpha1.CulpritOffer,
	agentapi.ExitGPUMismatch:     v1alpha1.CulpritOffer,
	agentapi.ExitNoRuntime:       v1alpha1.CulpritOffer,
	agentapi.ExitNoEngine:        v1alpha1.CulpritPool,
	agentapi.ExitBadArgument:     v1alpha1.CulpritWorkload,
	agentapi.ExitOutOfMemory:     v1alpha1.CulpritWorkload,
	agentapi.ExitWeightsDenied:   v1alpha1.CulpritWorkload,
	agentapi.ExitWeightsNotFound: v1alpha1.CulpritWorkload,
	agentapi.ExitCrashed:         v1alpha1.CulpritOffer,
	agentapi.ExitTimeout:         v1alpha1.CulpritOffer,
	agentapi.ExitWarmupFailed:    v1alpha1.CulpritOffer,
}

// culpritOf maps an agent's exit; an exit that this release does not know is the machine's, so that another one is
// tried.
func culpritOf(exit string) v1alpha1.Culprit {
	if c, ok := culprits[exit]; ok {
		return c
	}
	return v1alpha1.CulpritOffer
}

// restCulprit lets what failed rest. An offer's fault also counts against the workload when the same step failed for it
// on another machine before: by then the model is the likelier cause.
func (v *visit) restCulprit(ctx context.Context, f v1alpha1.Failure) {
	now := v.now()
	var m memory
	defer func() { v.remember(ctx, m) }()
	add := func(k rest.Key) {
		r := v.Rests.Fail(k, f.Reason, f.Message, now)
		m.Rests = append(m.Rests, r)
		v.log(ctx).Info("resting after a failure", "scope", k.Scope, "value", k.Value, "until", r.Until, "reason", f.Reason)
	}
	switch f.Culprit {
	case v1alpha1.CulpritOffer:
		if v.claim.Status.Attempt != nil {
			add(offers.NarrowKey(v.rented()))
		}
		for _, p := range v.suspects() {
			if !v.strikes(f) {
				continue
			}
			m.Struck = append(m.Struck, struck{p.Workload, f.Step, v.machine()})
			if v.Strikes.Strike(p.Workload, f.Step, v.machine()) {
				add(WorkloadRestKey(p))
			}
		}
	case v1alpha1.CulpritWorkload:
		for _, p := range v.suspects() {
			add(WorkloadRestKey(p))
		}
	case v1alpha1.CulpritPool:
		add(rest.Key{Scope: rest.ScopePool, Value: v.claim.Spec.Pool})
	case v1alpha1.CulpritProvider:
		if a, err := v.account(ctx); err == nil {
			add(rest.Key{Scope: rest.ScopeProvider, Provider: a.Provider, Value: a.Fingerprint})
		}
	case v1alpha1.CulpritNone:
	}
}

// strikes reports a failure that can be the model's fault. One that has served was brought down by its machine, a price
// was the host's, and so is a GPU that is missing or another one and an image without Docker, on however many machines in a
// row, and an announced interruption.
func (v *visit) strikes(f v1alpha1.Failure) bool {
	return !v.served() && f.Step != "Purchase" && f.Step != "Notice" && f.Reason != v1alpha1.ReasonOverPriced &&
		f.Reason != v1alpha1.ReasonGPUMismatch && f.Reason != v1alpha1.ReasonMachineUnfit
}

// reasonOf is the failure's reason for an exit that ends the agent.
func reasonOf(exit string) string {
	switch exit {
	case agentapi.ExitGPUMismatch, agentapi.ExitNoDriver:
		return v1alpha1.ReasonGPUMismatch
	case agentapi.ExitNoRuntime:
		return v1alpha1.ReasonMachineUnfit
	}
	return v1alpha1.ReasonModelFailed
}

// suspects are the placements whose model failed, as far as the agent said; where none did, all.
func (v *visit) suspects() []v1alpha1.Placement {
	var failed []v1alpha1.Placement
	for _, p := range v.claim.Spec.Placements {
		for _, m := range v.claim.Status.Models {
			if m.Name == p.Workload && m.State == v1alpha1.ModelFailed {
				failed = append(failed, p)
			}
		}
	}
	if len(failed) == 0 {
		return v.claim.Spec.Placements
	}
	return failed
}

// rented is the offer behind the claim's attempt, as far as the claim remembers it.
func (v *visit) rented() provider.Offer {
	o := provider.Offer{Provider: provider.Name(v.claim.Status.Provider), ID: v.claim.Status.Attempt.OfferID}
	for _, k := range v.claim.Status.RestKeys {
		o.RestKeys = append(o.RestKeys, provider.RestKey(k))
	}
	return o
}

// machine names the machine that the claim ran on, as far as the provider tells machines apart.
func (v *visit) machine() string {
	if v.claim.Status.Attempt == nil {
		return ""
	}
	return fmt.Sprint(offers.NarrowKey(v.rented()))
}
