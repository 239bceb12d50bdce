package claim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Token is the owner tag of a claim's attempt: "gs-<installation 8>-<hash 16>". The same claim and attempt always have
// the same one, so that whoever finds the attempt recorded can look for what it bought.
func Token(installation string, uid types.UID, attempt int32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", uid, attempt))
	return TagPrefix(installation) + hex.EncodeToString(sum[:])[:16]
}

// TagPrefix begins every owner tag of an installation.
func TagPrefix(installation string) string { return fmt.Sprintf("gs-%.8s-", installation) }

// lookUp finds out what an open attempt bought. found is true when an instance was adopted. When nothing was found it
// stops and waits until that is certain: the request is dead, and two lists a list lag apart do not show the token.
// Only then does it return neither stop nor found.
func (v *visit) lookUp(ctx context.Context) (n next, found bool, err error) {
	a := v.claim.Status.Attempt
	acct, err := v.account(ctx)
	if err != nil {
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, unusable(err),
			"cannot look up what an earlier request rented: "+err.Error())
		return waitFor(v.Timing.DestroyRetry), false, nil
	}
	caps := acct.Driver.Capabilities()
	began := v.now()
	list, err := acct.Driver.ListInstances(ctx, provider.InstanceFilter{Tag: a.Token})
	if err != nil {
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonCreateUnclear,
			"cannot look up what an earlier request rented: "+err.Error())
		return waitFor(max(v.Timing.BootPoll, offersWait(err))), false, nil
	}
	if len(list) > 0 {
		v.adopt(v.keepOldest(ctx, list))
		return proceed(), true, v.persist(ctx)
	}
	dead := a.WrittenAt.Add(caps.CreateTimeout + v.Timing.Skew)
	switch {
	case began.Before(dead):
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonCreateUnclear, fmt.Sprintf(
			"nothing under this claim's token yet; the request may still take effect until %s", dead.UTC().Format(time.TimeOnly)))
		// Looked at again before the request is dead: what it did buy should not wait for that.
		return waitFor(min(dead.Sub(began), max(caps.MinPollInterval, v.Timing.BootPoll))), false, nil
	case a.AbsentAt == nil:
		at := metav1.NewMicroTime(began)
		a.AbsentAt = &at
		return waitFor(caps.ListLag), false, nil
	case began.Before(a.AbsentAt.Add(caps.ListLag)):
		return waitFor(a.AbsentAt.Add(caps.ListLag).Sub(began)), false, nil
	}
	return proceed(), false, nil
}

// keepOldest returns the one instance to keep of those that carry the token, the recorded one or else the oldest, and
// asks for the end of the others.
func (v *visit) keepOldest(ctx context.Context, list []provider.Instance) provider.Instance {
	slices.SortFunc(list, offers.OldestFirst)
	keep := 0
	if i := slices.IndexFunc(list, func(in provider.Instance) bool { return in.ID == v.claim.Status.InstanceID }); i >= 0 {
		keep = i
	}
	for i, in := range list {
		if i == keep {
			continue
		}
		what := fmt.Sprintf("a second instance %s carries this claim's token", in.ID)
		if err := v.acct.Driver.DestroyInstance(ctx, in.ID); err != nil && provider.KindOf(err) != provider.NotFound {
			v.event(corev1.EventTypeWarning, v1alpha1.ReasonDestroyFailed, what+" and is not ended yet; the sweep tries again: "+err.Error())
			continue
		}
		v.event(corev1.EventTypeWarning, v1alpha1.ReasonDestroying, what+"; asked for its end")
	}
	return list[keep]
}

// offersWait is how long a provider asked us to wait.
func offersWait(err error) time.Duration {
	var e *provider.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}
