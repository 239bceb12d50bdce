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
