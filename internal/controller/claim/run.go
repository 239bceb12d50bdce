package claim

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/provider"
)

// run waits for the provider to say that the instance runs and where it is reached. It also keeps watch over an
// instance that serves: a rental that ended under us is noticed here.
func (v *visit) run(ctx context.Context) (next, error) {
	inst, n := v.observe(ctx)
	if n.stop || v.claim.Status.Failure != nil {
		return n, nil
	}
	if !v.paid(ctx, inst) {
		return proceed(), nil
	}
	if why, reason := v.ended(inst); reason != "" {
		if reason == v1alpha1.ReasonInterrupted {
			v.fail("Run", reason, v.blame(), why)
			v.set(v1alpha1.ConditionInterrupted, metav1.ConditionTrue, v1alpha1.ReasonInterrupted, why)
			return proceed(), nil
		}
		v.lost(reason, why)
		return proceed(), nil
	}
	if v.is(v1alpha1.ConditionInstanceRunning) {
		v.moved(inst)
		v.hostLeaves(ctx, inst)
		return proceed(), nil
	}
	if inst.State == provider.StateRunning && inst.Address != "" && inst.Port != 0 {
		v.claim.Status.Endpoint = net.JoinHostPort(inst.Address, strconv.Itoa(inst.Port))
		v.set(v1alpha1.ConditionInstanceRunning, metav1.ConditionTrue, v1alpha1.ReasonRunning, "reached at "+v.claim.Status.Endpoint)
		v.reach(stepRunning, v.claim.Status.Endpoint)
		return proceed(), nil
	}
	msg := fmt.Sprintf("%s says %s %s", v.claim.Status.Provider, inst.State, inst.Message)
	if v.late(ctx) {
		v.fail("Run", v1alpha1.ReasonBootTimeout, v1alpha1.CulpritOffer, "not running within bootstrapTimeout: "+msg)
		return proceed(), nil
	}
	v.set(v1alpha1.ConditionInstanceRunning, metav1.ConditionFalse, v1alpha1.ReasonStarting, msg)
	return v.pollBoot(), nil
}

// observe is the provider's latest word on the instance. Doubt is waited out; absence counts only when it is seen twice,
// a list lag apart.
func (v *visit) observe(ctx context.Context) (provider.Instance, next) {
	acct, err := v.account(ctx)
	if err != nil {
		if !v.is(v1alpha1.ConditionInstanceRunning) {
			v.set(v1alpha1.ConditionInstanceRunning, metav1.ConditionFalse, unusable(err), err.Error())
			return provider.Instance{}, waitFor(v.Timing.DestroyRetry)
		}
		v.blind(ctx, err)
		return provider.Instance{State: provider.StateRunning}, proceed() // unknown is not gone
	}
	inst, ok, asOf, err := acct.Observer.Find(ctx, v.claim.Status.InstanceID, v.now().Add(-v.staleness(ctx)))
	switch {
	case err != nil && v.is(v1alpha1.ConditionInstanceRunning):
		v.log(ctx).Info("provider does not say how the instance is", "error", err.Error())
		return provider.Instance{State: provider.StateRunning}, proceed() // unknown is not gone
	case err != nil:
		v.set(v1alpha1.ConditionInstanceRunning, metav1.ConditionFalse, v1alpha1.ReasonProviderUnavailable, err.Error())
		return provider.Instance{}, waitFor(max(v.Timing.BootPoll, offersWait(err)))
	case ok:
		v.claim.Status.FirstNotFoundAt = nil
		v.seen(ctx, acct)
		v.sighted()
		return inst, proceed()
	}
	return provider.Instance{}, v.absent(ctx, asOf, acct.Driver)
}

// absent handles a complete list without the instance.
func (v *visit) absent(ctx context.Context, began time.Time, driver provider.Provider) next {
	lag := driver.Capabilities().ListLag
	s := &v.claim.Status
	switch {
	case began.Before(v.createdAt().Add(lag)):
		return v.pollBoot() // it may not be listed yet
	case s.FirstNotFoundAt == nil:
		at := metav1.NewMicroTime(began)
		s.FirstNotFoundAt = &at
		return waitFor(lag)
	case began.Before(s.FirstNotFoundAt.Add(lag)):
		return waitFor(max(v.Timing.BootPoll, s.FirstNotFoundAt.Add(lag).Sub(v.now())))
	}
	if _, err := driver.GetInstance(ctx, s.InstanceID); provider.KindOf(err) != provider.NotFound {
		s.FirstNotFoundAt = nil
		return v.pollBoot()
	}
	v.lost(v1alpha1.ReasonInstanceLost, fmt.Sprintf("%s no longer knows instance %s", s.Provider, s.InstanceID))
	return proceed()
}

// ended says whether the instance has stopped for good.
func (v *visit) ended(in provider.Instance) (message, reason string) {
	said := fmt.Sprintf("%s says %s: %s", v.claim.Status.Provider, in.State, in.Message)
	switch {
	case in.Interrupted && v.served():
		return said, v1alpha1.ReasonInterrupted
	case in.Interrupted || in.State == provider.StateFailed || in.State == provider.StateStopped || in.State == provider.StateEnding:
		if v.served() {
			return said, v1alpha1.ReasonInstanceStopped
		}
		// A container that crashes on a bid may look like one that was outbid; before it served, it is the machine that is
		// avoided either way.
		return said, v1alpha1.ReasonDiedWhileBooting
	case in.State == provider.StateLost && !v.served() && v.lateSince(v.createdAt()):
		return said, v1alpha1.ReasonDiedWhileBooting
	}
	return "", ""
}

// served reports that the claim was Ready at some time.
func (v *visit) served() bool { return v.reached(stepReady) }

// blame: an instance that dies is the machine's fault, before and after it served.
func (v *visit) blame() v1alpha1.Culprit { return v1alpha1.CulpritOffer }

// paid takes the rate that the provider really charges for a running instance. A lower one frees part of the
// reservation; one above the reservation ends the claim.
func (v *visit) paid(ctx context.Context, in provider.Instance) bool {
	if in.Price == nil || in.State != provider.StateRunning {
		return true
	}
	rate, limit := *in.Price, v.claim.Spec.MaxPrice
	if pool, err := v.pool(ctx); err == nil {
		if res, ok := reserve.Find(pool, v.claim.Name); ok {
			limit = res.DollarsPerHour
		}
	}
	if limit.Less(rate) {
		v.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonOverPriced, "the rate is above the reservation")
		v.fail("Run", v1alpha1.ReasonOverPriced, v1alpha1.CulpritOffer,
			fmt.Sprintf("%s charges %s $/h, the reservation is %s", v.claim.Status.Provider, rate, limit))
		return false
	}
	if old := v.claim.Status.DollarsPerHour; old == nil || old.Cmp(rate) != 0 {
		v.charged(rate)
	}
	if rate.Less(limit) {
		err := v.editPool(ctx, func(p *v1alpha1.GPUNodePool) bool { return reserve.Lower(p, v.claim.Name, rate) })
		if err != nil {
			v.log(ctx).Info("reservation not lowered yet", "error", err.Error())
		}
	}
	return true
}

// moved follows an address that changed after a restart on the provider's side.
func (v *visit) moved(in provider.Instance) {
	if in.Address == "" || in.Port == 0 {
		return
	}
	if to := net.JoinHostPort(in.Address, strconv.Itoa(in.Port)); to != v.claim.Status.Endpoint {
		v.claim.Status.Endpoint = to
	}
}

// late reports that the instance has had its bootstrapTimeout since creation.
func (v *visit) late(ctx context.Context) bool {
	return v.now().Sub(v.createdAt()) > v.bootTimeout(ctx)
}

// lateSince bounds how long a machine that the provider cannot reach is waited for.
func (v *visit) lateSince(t time.Time) bool {
	const unreachableFor = 5 * time.Minute
	return v.now().Sub(t) > unreachableFor
}

// pool is the claim's pool as the cache has it, and the cache's own: to be read only. A copy is as large as the pool has
// claims, and every look at a claim asks for some number of its pool.
func (v *visit) pool(ctx context.Context) (*v1alpha1.GPUNodePool, error) {
	pool := &v1alpha1.GPUNodePool{}
	err := v.Client.Get(ctx, client.ObjectKey{Name: v.claim.Spec.Pool}, pool, client.UnsafeDisableDeepCopy)
	return pool, err
}

func (v *visit) bootTimeout(ctx context.Context) time.Duration {
	const byDefault = 20 * time.Minute
	pool, err := v.pool(ctx)
	if err != nil {
		return byDefault
	}
	return pool.Spec.Scaling.BootstrapTimeout.Or(byDefault)
}

// staleness is how old the provider's word may be: fresh while booting, the pool's interruptionPollInterval old while
// serving.
func (v *visit) staleness(ctx context.Context) time.Duration {
	if !v.is(v1alpha1.ConditionReady) {
		return v.Timing.BootPoll
	}
	const byDefault = 15 * time.Second
	pool, err := v.pool(ctx)
	if err != nil {
		return byDefault
	}
	return pool.Spec.Scaling.InterruptionPollInterval.Or(byDefault)
}

// createdAt is when the instance was made, or the claim where that is not known.
func (v *visit) createdAt() time.Time {
	for _, s := range v.claim.Status.Steps {
		if s.Name == stepCreated {
			return s.At.Time
		}
	}
	return v.claim.CreationTimestamp.Time
}

func (v *visit) reached(name string) bool {
	return slices.ContainsFunc(v.claim.Status.Steps, func(s v1alpha1.Step) bool { return s.Name == name })
}
