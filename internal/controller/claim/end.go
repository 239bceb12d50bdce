package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/metrics"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// settleAttempt makes sure of what there is to destroy before anything is called gone: an attempt whose outcome is open
// is looked up first.
func (v *visit) settleAttempt(ctx context.Context) (next, error) {
	if v.is(v1alpha1.ConditionInstanceGone) {
		return proceed(), nil
	}
	if v.claim.Status.DrainStartedAt == nil {
		now := metav1.NewTime(v.now())
		v.claim.Status.DrainStartedAt = &now
		reason := v.endReason()
		v.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDraining, "the claim ends: "+reason)
		v.reach("Draining", reason)
		// Written at once: the gateway stops sending here when it sees the phase.
		if err := v.persist(ctx); err != nil {
			return halt(), err
		}
	}
	a := v.claim.Status.Attempt
	if a == nil || (a.Outcome == v1alpha1.AttemptRefused && v.claim.Status.InstanceID == "") {
		v.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonNothingToDrain, "nothing was ever rented")
		v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionTrue, v1alpha1.ReasonNeverCreated, "nothing was ever rented")
		return proceed(), nil
	}
	if a.Outcome != v1alpha1.AttemptOpen {
		return proceed(), nil
	}
	if _, err := v.account(ctx); err != nil {
		return v.cannotEnd(err), nil
	}
	n, found, err := v.lookUp(ctx)
	if err != nil || n.stop {
		return n, err
	}
	if !found {
		a.Outcome = v1alpha1.AttemptRefused
		v.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonNothingToDrain, "nothing was rented")
		v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionTrue, v1alpha1.ReasonNeverCreated,
			"the provider has nothing under this claim's token, twice")
	}
	return proceed(), nil
}

// endReason is why the claim ends, in the words of whoever asked.
func (v *visit) endReason() string {
	if f := v.claim.Status.Failure; f != nil {
		return f.Reason
	}
	if r := v.claim.Annotations[v1alpha1.AnnotationDrain]; r != "" {
		return r
	}
	return v1alpha1.ReasonDeleted
}

// drain lets running requests finish, up to the pool's drain time-out. An instance that never served, or that the
// provider has stopped already, has nothing to drain.
func (v *visit) drain(ctx context.Context) (next, error) {
	if v.is(v1alpha1.ConditionDrained) || v.is(v1alpha1.ConditionInstanceGone) {
		return proceed(), nil
	}
	if v.claim.Status.Endpoint == "" || !v.is(v1alpha1.ConditionModelLoaded) || v.stopped() {
		v.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonNothingToDrain, "it serves nothing")
		return proceed(), nil
	}
	busy, err := v.askToDrain(ctx)
	deadline := v.drainUntil(ctx)
	if err == nil && busy == 0 {
		v.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonDrained, "no request is running and none is accepted")
		v.reach("Drained", "")
		return proceed(), nil
	}
	if err != nil && v.taken(ctx) {
		v.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonNothingToDrain, "the provider has taken the instance")
		return proceed(), nil
	}
	if v.now().After(deadline) {
		what := fmt.Sprintf("%d requests still running", busy)
		if err != nil {
			what = "the agent does not answer: " + err.Error()
		}
		v.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonDrainTimeout, "drain time-out: "+what)
		return proceed(), nil
	}
	msg := fmt.Sprintf("%d requests running, until %s", busy, deadline.UTC().Format(time.TimeOnly))
	if err != nil {
		msg = fmt.Sprintf("asking the agent again until %s: %v", deadline.UTC().Format(time.TimeOnly), err)
	}
	v.set(v1alpha1.ConditionDrained, metav1.ConditionFalse, v1alpha1.ReasonDraining, msg)
	return waitFor(time.Second), nil
}

// stopped reports a failure after which no engine runs any more.
func (v *visit) stopped() bool {
	f := v.claim.Status.Failure
	if f == nil {
		return false
	}
	switch f.Reason {
	case v1alpha1.ReasonInterrupted, v1alpha1.ReasonInstanceStopped, v1alpha1.ReasonInstanceLost,
		v1alpha1.ReasonDiedWhileBooting, v1alpha1.ReasonLeaseExpired:
		return true
	}
	return false
}

// askToDrain returns how many requests are still running.
func (v *visit) askToDrain(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, v.Timing.AgentTimeout)
	defer cancel()
	uid := string(v.claim.UID)
	if err := v.Workers.Drain(ctx, v.claim.Status.Endpoint, uid, ""); err != nil {
		return 0, err
	}
	s, err := v.Workers.Status(ctx, v.claim.Status.Endpoint, uid)
	v.reclaimedAt(s.Notice)
	return s.InFlight, err
}

func (v *visit) drainTimeout(ctx context.Context) time.Duration {
	const byDefault = 5 * time.Minute
	pool, err := v.pool(ctx)
	if err != nil {
		return byDefault
	}
	return pool.Spec.Scaling.DrainTimeout.Or(byDefault)
}

// destroy asks the provider to end the rental, for ever if need be, and says loudly when it cannot.
func (v *visit) destroy(ctx context.Context) (next, error) {
	if v.is(v1alpha1.ConditionInstanceGone) || v.claim.Status.FirstNotFoundAt != nil {
		return proceed(), nil
	}
	acct, err := v.account(ctx)
	if err != nil {
		return v.cannotEnd(err), nil
	}
	err = acct.Driver.DestroyInstance(ctx, v.claim.Status.InstanceID)
	if provider.KindOf(err) == provider.Unauthorized {
		return v.cannotEnd(err), nil
	}
	if err != nil && provider.KindOf(err) != provider.NotFound {
		metrics.DestroyFailures.WithLabelValues(v.claim.Status.Provider).Inc()
		v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionFalse, v1alpha1.ReasonDestroyFailed,
			fmt.Sprintf("instance %s is still rented: %v", v.claim.Status.InstanceID, err))
		return waitFor(max(v.Timing.DestroyRetry, offersWait(err))), nil
	}
	v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionFalse, v1alpha1.ReasonDestroying,
		fmt.Sprintf("instance %s: asked %s to end the rental", v.claim.Status.InstanceID, v.claim.Status.Provider))
	v.reach(stepDestroyAsked, "")
	return proceed(), nil
}

// confirmGone believes the end of a rental only after two calls, a list lag apart, that prove the credentials good and
// do not know the instance, the second one a list that shows nothing else under the claim's token either.
func (v *visit) confirmGone(ctx context.Context) (next, error) {
	if v.is(v1alpha1.ConditionInstanceGone) {
		return proceed(), nil
	}
	acct, err := v.account(ctx)
	if err != nil {
		return v.cannotEnd(err), nil
	}
	lag := acct.Driver.Capabilities().ListLag
	inst, err := acct.Driver.GetInstance(ctx, v.claim.Status.InstanceID)
	switch {
	case err == nil:
		v.claim.Status.FirstNotFoundAt = nil // it is there: destroy again
		if inst.State != provider.StateEnding {
			v.log(ctx).Info("instance still listed after destroy", "instance", inst.ID, "state", inst.State)
		}
		return v.pollBoot(), nil
	case provider.KindOf(err) != provider.NotFound:
		v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionFalse, v1alpha1.ReasonProviderUnavailable,
			fmt.Sprintf("cannot tell whether instance %s is gone: %v", v.claim.Status.InstanceID, err))
		return waitFor(max(v.Timing.BootPoll, offersWait(err))), nil
	case v.claim.Status.FirstNotFoundAt == nil:
		now := metav1.NewMicroTime(v.now())
		v.claim.Status.FirstNotFoundAt = &now
		return waitFor(lag), nil
	}
	if wait := v.claim.Status.FirstNotFoundAt.Add(lag).Sub(v.now()); wait > 0 {
		return waitFor(wait), nil
	}
	left, err := acct.Driver.ListInstances(ctx, provider.InstanceFilter{Tag: v.claim.Status.Attempt.Token})
	if err != nil {
		return waitFor(max(v.Timing.BootPoll, offersWait(err))), nil
	}
	if len(left) > 0 {
		v.claim.Status.InstanceID, v.claim.Status.FirstNotFoundAt = left[0].ID, nil
		v.event(corev1.EventTypeWarning, v1alpha1.ReasonDestroying, "a second instance carries this claim's token: "+left[0].ID)
		return v.pollBoot(), nil
	}
	v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionTrue, v1alpha1.ReasonGone,
		fmt.Sprintf("%s does not know instance %s, asked twice", v.claim.Status.Provider, v.claim.Status.InstanceID))
	for _, stale := range []string{v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionAgentConnected, v1alpha1.ConditionModelLoaded,
		v1alpha1.ConditionEndpointPublished} {
		if v.is(stale) {
			v.note(stale, metav1.ConditionFalse, v1alpha1.ReasonGone, "the instance is gone")
		}
	}
	v.reach(stepGone, "")
	return proceed(), nil
}

// close writes the end everywhere, in the order in which a crash does no harm: Terminated on the claim, the ledger, the
// reservation, and last the finalizer.
func (v *visit) close(ctx context.Context) (next, error) {
	v.claim.Status.DollarsPerHour = &money.Dollars{}
	if err := v.persist(ctx); err != nil {
		return halt(), err
	}
	if err := v.closeBooks(ctx); err != nil {
		if !errors.Is(err, errLedgerRests) {
			v.event(corev1.EventTypeWarning, v1alpha1.ReasonLedgerUnavailable, "kept until the ledger has it: "+err.Error())
		}
		return waitFor(v.Timing.DestroyRetry), nil
	}
	if err := v.editPool(ctx, func(p *v1alpha1.GPUNodePool) bool { return reserve.Release(p, v.claim.Name) }); err != nil {
		return halt(), err
	}
	v.Workers.Forget(string(v.claim.UID))
	before := v.claim.DeepCopy()
	controllerutil.RemoveFinalizer(v.claim, v1alpha1.Finalizer)
	err := v.Client.Patch(ctx, v.claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	v.base = v.claim.DeepCopy()
	if client.IgnoreNotFound(err) == nil {
		v.books.forget(v.claim.UID)
	}
	return halt(), client.IgnoreNotFound(err)
}

// closeBooks writes the rest to the ledger, and takes back the intent of the attempt that would have come next: it may
// have been written just before a crash or an answer that was lost, and was never acted on.
func (v *visit) closeBooks(ctx context.Context) error {
	if err := v.book(ctx); err != nil {
		return err
	}
	return v.Ledger.Abandon(ctx, Token(v.Installation, v.claim.UID, v.claim.Status.Attempts+1))
}

// editPool changes the reservations of the claim's pool.
func (v *visit) editPool(ctx context.Context, edit func(*v1alpha1.GPUNodePool) bool) error {
	return v.pools.edit(ctx, v.Reader, v.Client, v.claim.Spec.Pool, edit)
}
