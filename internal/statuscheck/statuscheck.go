// Package statuscheck judges every state that a test's claims, pools and pods are seen in: what they say of themselves
// may contradict neither itself nor what was said before. Tests that run the controllers get it with Watch.
package statuscheck

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// life is the order of the phases.
var life = []v1alpha1.Phase{"", v1alpha1.PhasePending, v1alpha1.PhaseProvisioning, v1alpha1.PhaseBootstrapping, v1alpha1.PhaseReady,
	v1alpha1.PhaseDraining, v1alpha1.PhaseTerminated}

// claimTypes and poolTypes are the conditions that there are.
var (
	claimTypes = []string{v1alpha1.ConditionInstanceCreated, v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionAgentConnected,
		v1alpha1.ConditionModelLoaded, v1alpha1.ConditionEndpointPublished, v1alpha1.ConditionReady, v1alpha1.ConditionIdle,
		v1alpha1.ConditionInterrupted, v1alpha1.ConditionDrained, v1alpha1.ConditionInstanceGone}
	poolTypes = []string{v1alpha1.ConditionReady, v1alpha1.ConditionLimitsReached, v1alpha1.ConditionCredentialsValid,
		v1alpha1.ConditionOffersAvailable}
)

// Claim says what is wrong with a claim, seen after before; before is nil for the first sight. With missed there may have
// been states between the two.
func Claim(before, c *v1alpha1.GPUNodeClaim, missed bool) []string {
	r := report{name: "claim " + c.Name}
	r.together(c)
	r.phase(c)
	r.conditions(c.Generation, c.Status.Conditions, claimTypes, claimReasons())
	if f := c.Status.Failure; f != nil && !slices.Contains(claimReasons(), f.Reason) {
		r.say("failed for %q, which is not a reason in the list", f.Reason)
	}
	if c.Status.ObservedGeneration > c.Generation {
		r.say("has observed generation %d of %d", c.Status.ObservedGeneration, c.Generation)
	}
	if before == nil {
		return r.wrong
	}
	if was, is := slices.Index(life, before.Status.Phase), slices.Index(life, c.Status.Phase); is < was {
		r.say("went back from %s to %s", before.Status.Phase, c.Status.Phase)
	}
	if before.Status.ObservedGeneration > c.Status.ObservedGeneration {
		r.say("unlearned generation %d", before.Status.ObservedGeneration)
	}
	for _, final := range []string{v1alpha1.ConditionInstanceGone, v1alpha1.ConditionInterrupted} {
		if meta.IsStatusConditionTrue(before.Status.Conditions, final) && !meta.IsStatusConditionTrue(c.Status.Conditions, final) {
			r.say("was %s and is no more", final)
		}
	}
	if before.Status.Failure != nil && (c.Status.Failure == nil || c.Status.Failure.Reason != before.Status.Failure.Reason) {
		r.say("forgot its failure %s", before.Status.Failure.Reason)
	}
	r.since(before.Status.Conditions, c.Status.Conditions, missed)
	return r.wrong
}

// Pool is Claim for a pool.
func Pool(before, p *v1alpha1.GPUNodePool, missed bool) []string {
	r := report{name: "pool " + p.Name}
	r.conditions(p.Generation, p.Status.Conditions, poolTypes, poolReasons())
	is := func(t string) bool { return meta.IsStatusConditionTrue(p.Status.Conditions, t) }
	// Of several entries one that can be bought from is enough.
	if len(p.Spec.Providers) == 1 && is(v1alpha1.ConditionReady) && meta.IsStatusConditionFalse(p.Status.Conditions, v1alpha1.ConditionCredentialsValid) {
		r.say("Ready without %s", v1alpha1.ConditionCredentialsValid)
	}
	if p.Status.ObservedGeneration > p.Generation {
		r.say("has observed generation %d of %d", p.Status.ObservedGeneration, p.Generation)
	}
	if before != nil {
		if before.Status.ObservedGeneration > p.Status.ObservedGeneration {
			r.say("unlearned generation %d", before.Status.ObservedGeneration)
		}
		r.since(before.Status.Conditions, p.Status.Conditions, missed)
	}
	return r.wrong
}

// report collects what is wrong with one object.
type report struct {
	name  string
	wrong []string
}

func (r *report) say(format string, args ...any) {
	r.wrong = append(r.wrong, r.name+": "+fmt.Sprintf(format, args...))
}

// together are conditions that may never be true together, and those that one needs.
func (r *report) together(c *v1alpha1.GPUNodeClaim) {
	is := func(t string) bool { return meta.IsStatusConditionTrue(c.Status.Conditions, t) }
	if is(v1alpha1.ConditionReady) {
		for _, other := range []string{v1alpha1.ConditionInstanceGone, v1alpha1.ConditionInterrupted, v1alpha1.ConditionDrained} {
			if is(other) {
				r.say("Ready and %s are both true", other)
			}
		}
		for _, must := range []string{v1alpha1.ConditionInstanceCreated, v1alpha1.ConditionInstanceRunning,
			v1alpha1.ConditionAgentConnected, v1alpha1.ConditionModelLoaded} {
			if !is(must) {
				r.say("Ready without %s", must)
			}
		}
		if f := c.Status.Failure; f != nil {
			r.say("Ready and failed: %s", f.Reason)
		}
	}
	for _, of := range []string{v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionAgentConnected, v1alpha1.ConditionModelLoaded,
		v1alpha1.ConditionEndpointPublished} {
		if is(of) && is(v1alpha1.ConditionInstanceGone) {
			r.say("%s of an instance that is gone", of)
		}
	}
}

// phase compares the phase with what it should follow from.
func (r *report) phase(c *v1alpha1.GPUNodeClaim) {
	is := func(t string) bool { return meta.IsStatusConditionTrue(c.Status.Conditions, t) }
	at := slices.Index(life, c.Status.Phase)
	ending := at >= slices.Index(life, v1alpha1.PhaseDraining)
	switch {
	case at < 0:
		r.say("in a phase %q that there is not", c.Status.Phase)
	case ending && c.DeletionTimestamp.IsZero():
		r.say("%s and not deleted", c.Status.Phase)
	case ending && is(v1alpha1.ConditionReady):
		r.say("%s and Ready", c.Status.Phase)
	case c.Status.Phase == v1alpha1.PhaseTerminated && !is(v1alpha1.ConditionInstanceGone):
		r.say("Terminated without %s", v1alpha1.ConditionInstanceGone)
	case !ending && at >= slices.Index(life, v1alpha1.PhaseProvisioning) && c.Status.Attempt == nil:
		r.say("%s without an attempt to buy", c.Status.Phase)
	case !ending && at >= slices.Index(life, v1alpha1.PhaseBootstrapping) && c.Status.InstanceID == "":
		r.say("%s without an instance", c.Status.Phase)
	case c.Status.Phase == v1alpha1.PhaseReady && meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReady) == nil:
		r.say("in the phase Ready and never was")
	case !ending && c.Status.Phase != v1alpha1.PhaseReady && is(v1alpha1.ConditionReady):
		r.say("Ready in the phase %s", c.Status.Phase)
	}
}

// conditions are checked one by one.
func (r *report) conditions(generation int64, conditions []metav1.Condition, types, reasons []string) {
	for _, c := range conditions {
		if !slices.Contains(types, c.Type) {
			r.say("has a condition %q that there is not", c.Type)
		}
		if !slices.Contains(reasons, c.Reason) {
			r.say("%s=%s for %q, which is not a reason in the list", c.Type, c.Status, c.Reason)
		}
		if c.ObservedGeneration < 1 || c.ObservedGeneration > generation {
			r.say("%s observed generation %d of %d", c.Type, c.ObservedGeneration, generation)
		}
		if c.LastTransitionTime.IsZero() {
			r.say("%s turned at no time", c.Type)
		}
	}
}

// since compares the conditions with those before. What turned twice between the two is as before.
func (r *report) since(before, now []metav1.Condition, missed bool) {
	for _, old := range before {
		c := meta.FindStatusCondition(now, old.Type)
		switch {
		case c == nil:
			r.say("%s is gone", old.Type)
		case c.LastTransitionTime.Before(&old.LastTransitionTime):
			r.say("%s turned at %s, and before that at %s", c.Type, c.LastTransitionTime, old.LastTransitionTime)
		case !missed && c.Status == old.Status && !c.LastTransitionTime.Equal(&old.LastTransitionTime):
			r.say("%s is %s as before and says that it turned", c.Type, c.Status)
		case c.ObservedGeneration < old.ObservedGeneration:
			r.say("%s unlearned generation %d", c.Type, old.ObservedGeneration)
		}
	}
}
