package disruption

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/placement"
	"github.com/munhq/gpuscale/internal/planner"
)

// agentPoll is how often a node that may be idle is looked at when nothing else happens.
const agentPoll = 5 * time.Second

// emptiness ends a claim whose models nobody has asked for since the cooldown. The agent's own, fresh account decides;
// an agent that does not answer is not idle.
func (r *Reconciler) emptiness(ctx context.Context, claim *v1alpha1.GPUNodeClaim) (reconcile.Result, error) {
	ready := meta.IsStatusConditionTrue(claim.Status.Conditions, v1alpha1.ConditionReady)
	if !ready && claim.Status.Attempt != nil {
		return reconcile.Result{}, nil // it is carried to Ready first
	}
	in, behind, err := r.situation(ctx, claim, viewAge)
	if err != nil {
		return reconcile.Result{}, err
	}
	next, err := r.judge(ctx, claim, in, ready)
	if behind > 0 && (next == 0 || behind < next) {
		next = behind
	}
	return reconcile.Result{RequeueAfter: next}, err
}

// judge is emptiness in a situation. It says when to look again, 0 for never by itself.
func (r *Reconciler) judge(ctx context.Context, claim *v1alpha1.GPUNodeClaim, in planner.IdleInput, ready bool) (time.Duration, error) {
	wanted := planner.Wanted(claim, in.Claims, in.Workloads) != ""
	if claim.Status.Attempt == nil && !wanted && in.KeptByPool() == "" {
		if _, known := r.Traffic.Keeping(); !known && planner.Listed(claim, in.Workloads) {
			return agentPoll, nil // traffic may want it: unknown is not zero
		}
		return 0, r.endUnbought(ctx, claim)
	}
	if !ready {
		return 0, nil
	}
	if err := r.noteDemand(ctx, claim, wanted, planner.Unwanted(claim, in.Claims, in.Workloads), in.Now); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	in.Agent = r.ask(ctx, claim)
	v := planner.Idle(in)
	if leaving, _ := planner.Leave(in); v.Idle || len(leaving) > 0 { // Nothing ends on an older view of demand than there is.
		agent := in.Agent
		var err error
		if in, _, err = r.situation(ctx, claim, 0); err != nil {
			return 0, err
		}
		in.Agent = agent
		v = planner.Idle(in)
	}
	left := r.patience.left(claim, v, in.Now, r.Uptime())
	if err := r.noteIdle(ctx, claim, v); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if v.Idle && left == 0 {
		return 0, r.end(ctx, claim, v.Reason, v.Message)
	}
	in.Claim = claim
	next, err := r.leave(ctx, in)
	if err != nil {
		return 0, err
	}
	wait := agentPoll
	for _, due := range []time.Time{v.EndsAt, next} {
		if until := due.Sub(in.Now); !due.IsZero() && until < wait {
			wait = max(until, time.Millisecond)
		}
	}
	if left > 0 {
		wait = min(max(wait, left), agentPoll)
	}
	return wait, nil
}

// endUnbought ends a claim whose demand is over before anything was asked for, if that is still so.
func (r *Reconciler) endUnbought(ctx context.Context, claim *v1alpha1.GPUNodeClaim) error {
	in, _, err := r.situation(ctx, claim, 0)
	if err != nil || planner.Wanted(claim, in.Claims, in.Workloads) != "" || in.KeptByPool() != "" {
		return err
	}
	return r.end(ctx, claim, v1alpha1.ReasonDemandEnded, "its demand ended before anything was bought")
}

// situation is everything but the agent's word that the judgement is made from, with claims and demand as they were at
// most maxAge ago. Where demand has changed since then, it is to be judged again after behind.
func (r *Reconciler) situation(ctx context.Context, claim *v1alpha1.GPUNodeClaim, maxAge time.Duration) (in planner.IdleInput, behind time.Duration, err error) {
	in = planner.IdleInput{Now: r.Clock.Now(), Claim: claim}
	v, behind, err := r.view(ctx, maxAge)
	if err != nil {
		return in, 0, err
	}
	in.Claims, in.Workloads = v.claims, v.workloads
	pool := &v1alpha1.GPUNodePool{} // the cache's own, only read: a copy is as large as the pool has claims
	err = r.Client.Get(ctx, client.ObjectKey{Name: claim.Spec.Pool}, pool, client.UnsafeDisableDeepCopy)
	switch {
	case err == nil:
		in.Pool = pool
	case !apierrors.IsNotFound(err):
		return in, 0, err
	}
	return in, behind, nil
}

// ask is the agent's fresh account.
func (r *Reconciler) ask(ctx context.Context, claim *v1alpha1.GPUNodeClaim) planner.AgentView {
	ctx, cancel := context.WithTimeout(ctx, r.AgentTimeout)
	defer cancel()
	s, err := r.Workers.Status(ctx, claim.Status.Endpoint, string(claim.UID))
	if err != nil {
		return planner.AgentView{}
	}
	a := planner.AgentView{Known: true, InFlight: s.InFlight, LastRequest: r.here(s.LastRequest, s.Now),
		Models: map[string]planner.ModelView{}}
	for _, m := range s.Models {
		a.Models[m.Name] = planner.ModelView{InFlight: m.InFlight, LastRequest: r.here(m.LastRequest, s.Now)}
	}
	return a
}

// here is a time of an agent's clock, which shows now, by this one; zero where there is none. A rented machine's clock may
// be wrong by any amount.
func (r *Reconciler) here(t *time.Time, now time.Time) time.Time {
	switch {
	case t == nil:
		return time.Time{}
	case now.IsZero():
		return *t
	}
	return r.Clock.Now().Add(-max(0, now.Sub(*t)))
}

// noteDemand remembers when the last demand for the claim's models ended, and for each of several, and forgets it when
// demand is back.
func (r *Reconciler) noteDemand(ctx context.Context, claim *v1alpha1.GPUNodeClaim, wanted bool, unwanted []string, now time.Time) error {
	models := sinceWhen(claim.Status.Unwanted, unwanted, now)
	if wanted == (claim.Status.DemandEndedAt == nil) && len(models) == len(claim.Status.Unwanted) &&
		!slices.ContainsFunc(models, func(m v1alpha1.UnwantedModel) bool { return m.Since.Time.Equal(now) }) {
		return nil
	}
	return r.patch(ctx, claim, func(s *v1alpha1.GPUNodeClaimStatus) {
		s.Unwanted = models
		switch at := metav1.NewMicroTime(now); {
		case wanted:
			s.DemandEndedAt = nil
		case s.DemandEndedAt == nil:
			s.DemandEndedAt = &at
		}
	})
}

// sinceWhen are the unwanted models of now, those that were unwanted before since then.
func sinceWhen(before []v1alpha1.UnwantedModel, unwanted []string, now time.Time) (out []v1alpha1.UnwantedModel) {
	for _, w := range unwanted {
		u := v1alpha1.UnwantedModel{Workload: w, Since: metav1.NewMicroTime(now)}
		if i := slices.IndexFunc(before, func(o v1alpha1.UnwantedModel) bool { return o.Workload == w }); i >= 0 {
			u = before[i]
		}
		out = append(out, u)
	}
	return out
}

// leave takes off the models that have had their cooldown where others keep the instance, and says when the next one will
// have. Their requests under way finish; their room is free for others at once.
func (r *Reconciler) leave(ctx context.Context, in planner.IdleInput) (time.Time, error) {
	leaving, next := planner.Leave(in)
	target := placement.Target{Name: in.Claim.Name, UID: in.Claim.UID, Generation: in.Claim.Generation}
	for _, l := range leaving {
		written, err := placement.Applier{Client: r.Client, Reader: r.Reader}.Remove(ctx, target, l.Workload)
		if err != nil {
			return next, err
		}
		if written == nil {
			return in.Now, nil // it is not what was judged any more
		}
		target.Generation = written.Generation
		r.Events.Eventf(in.Claim, nil, corev1.EventTypeNormal, l.Reason, "Leave", "model %s is taken off, others stay: %s", l.Workload, l.Message)
	}
	return next, nil
}

// noteIdle keeps the condition Idle: True while a cooldown runs, with its end in the message.
func (r *Reconciler) noteIdle(ctx context.Context, claim *v1alpha1.GPUNodeClaim, v planner.IdleVerdict) error {
	c := metav1.Condition{Type: v1alpha1.ConditionIdle, Status: metav1.ConditionFalse, Reason: v.Reason, Message: v.Message,
		ObservedGeneration: claim.Generation}
	if !v.Since.IsZero() {
		c.Status = metav1.ConditionTrue
	}
	old := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionIdle)
	switch {
	case old != nil && old.Status == c.Status && old.Message == c.Message:
		return nil
	case old == nil && c.Status == metav1.ConditionFalse && r.news(claim):
		return nil
	}
	turned := c.Status == metav1.ConditionTrue && (old == nil || old.Status != c.Status)
	err := r.patch(ctx, claim, func(s *v1alpha1.GPUNodeClaimStatus) { meta.SetStatusCondition(&s.Conditions, c) })
	if err != nil {
		return err
	}
	if turned {
		r.Events.Eventf(claim, nil, corev1.EventTypeNormal, v1alpha1.ReasonIdle, "Watch", "%s", v.Message)
	}
	return nil
}

// news reports that the claim is Ready since the last look. That it is not idle can be told at the next: requests may be
// waiting for the API server to pass on that others are Ready.
func (r *Reconciler) news(claim *v1alpha1.GPUNodeClaim) bool {
	ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && r.Clock.Since(ready.LastTransitionTime.Time) < agentPoll
}

func (r *Reconciler) patch(ctx context.Context, claim *v1alpha1.GPUNodeClaim, edit func(*v1alpha1.GPUNodeClaimStatus)) error {
	before := claim.DeepCopy()
	edit(&claim.Status)
	return r.Client.Status().Patch(ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// end marks the claim with the reason and deletes it, if it is still what was judged.
func (r *Reconciler) end(ctx context.Context, claim *v1alpha1.GPUNodeClaim, reason, why string) error {
	before := claim.DeepCopy()
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[v1alpha1.AnnotationDrain] = reason
	if err := r.Client.Patch(ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Events.Eventf(claim, nil, corev1.EventTypeNormal, reason, "End", "ending: %s", why)
	uid := claim.UID
	return client.IgnoreNotFound(r.Client.Delete(ctx, claim, client.Preconditions{UID: &uid}))
}
