package claim

import (
	"cmp"
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/pkg/provider"
)

// noticed acts on what the provider has announced to the machine. One that goes ends its claim at once: it drains for as
// long as it has, and what it served is planned again. A hint is passed on and ends nothing; a word that this controller
// does not know is none.
func (v *visit) noticed(n *agentapi.Notice) {
	if n == nil || !n.Goes() && n.Kind != agentapi.NoticeRebalance {
		return
	}
	message := cmp.Or(n.Message, v.claim.Status.Provider+" announces "+n.Kind)
	if !n.Goes() {
		v.set(v1alpha1.ConditionInterrupted, metav1.ConditionFalse, v1alpha1.ReasonRebalanceRecommended, message+"; the instance is kept")
		return
	}
	v.reclaimedAt(n)
	when := "at any moment"
	if n.At != nil {
		when = "at " + n.At.UTC().Format(time.RFC3339)
	}
	message += ", " + when
	v.set(v1alpha1.ConditionInterrupted, metav1.ConditionTrue, v1alpha1.ReasonInterruptionNotice, message)
	v.fail("Notice", v1alpha1.ReasonInterruptionNotice, v.blame(), message)
}

// longestFarewell is the most of a host's promise that is given up for the drain, whatever the pool would give: a request
// that takes longer is rare, and offers of hosts that leave within the hour are not bought.
const longestFarewell = 15 * time.Minute

// hostLeaves takes the end of what the host has promised for a notice: there the instance stops, and does not start again.
// It acts once there is just the time that the pool gives for a drain. A promise that is over while the instance runs is
// not one that is understood, and ends nothing.
func (v *visit) hostLeaves(ctx context.Context, in provider.Instance) {
	left := in.EndsAt.Sub(v.now())
	if in.EndsAt.IsZero() || left <= 0 || left > longestFarewell || left > v.drainTimeout(ctx) {
		return
	}
	v.noticed(&agentapi.Notice{Kind: agentapi.NoticeInterrupted, At: &in.EndsAt,
		Message: "the host of the instance leaves " + v.claim.Status.Provider})
}

// reclaimedAt remembers when the machine goes.
func (v *visit) reclaimedAt(n *agentapi.Notice) {
	if n.Goes() && n.At != nil {
		v.claim.Status.ReclaimAt = &metav1.Time{Time: n.At.Truncate(time.Second)}
	}
}

// drainUntil is how long requests may still run: the pool's drainTimeout, or less where the machine goes before that.
func (v *visit) drainUntil(ctx context.Context) time.Time {
	until := v.claim.Status.DrainStartedAt.Add(v.drainTimeout(ctx))
	if at := v.claim.Status.ReclaimAt; at != nil && at.Time.Before(until) {
		return at.Time
	}
	return until
}

// taken reports that the provider has taken an instance that it had announced to take, so that no request runs there any
// more. Doubt is no.
func (v *visit) taken(ctx context.Context) bool {
	if !v.is(v1alpha1.ConditionInterrupted) {
		return false
	}
	acct, err := v.account(ctx)
	if err != nil {
		return false
	}
	inst, there, _, err := acct.Observer.Find(ctx, v.claim.Status.InstanceID, v.now().Add(-v.Timing.BootPoll))
	if err != nil {
		return false
	}
	return !there || inst.Interrupted || inst.State == provider.StateStopped || inst.State == provider.StateFailed
}
