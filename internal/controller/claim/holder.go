package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/metrics"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Whose account bought an instance is on the claim before the provider is asked. What another account does not show
// proves nothing, so nothing is looked up, called gone or bought again with the key of another one.

// account opens the account that this claim bought from. The error is about its credentials, see unusable.
func (v *visit) account(ctx context.Context) (*account.Account, error) {
	if v.acct == nil {
		a, err := v.Accounts.Holder(ctx, v.bought(), v.claim.Status.AccountID)
		if err != nil {
			return nil, err
		}
		v.acct = a
	}
	return v.acct, nil
}

// bought is where the credentials are that this claim bought with.
func (v *visit) bought() account.Ref {
	return account.RefOf(v1alpha1.ProviderSpec{Name: v.claim.Status.Provider, APIKeySecret: v.claim.Status.CredentialSecret})
}

// identify asks whose account is about to pay. Without an answer nothing is bought: it could not be told afterwards what
// a key that is replaced leaves behind.
func (v *visit) identify(ctx context.Context, pick *choice) next {
	id, err := pick.acct.Identity(ctx)
	if err == nil {
		pick.accountID = id
		return proceed()
	}
	reason := unusable(err)
	v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, reason, "nothing is bought while it cannot be read whose account pays: "+err.Error())
	act := offers.ActionFor(err, offers.Call{Op: offers.OpRead, Provider: pick.acct.Provider, Account: pick.acct.Fingerprint})
	for _, k := range act.Rest {
		v.Rests.FailFor(k, act.RestAtLeast, string(provider.KindOf(err)), err.Error(), v.now())
	}
	n := v.waitOrGiveUp(reason, err.Error())
	n.after = max(n.after, offersWait(err))
	return n
}

// seen remembers the account of a claim that was bought before that was written down, or with a key that could not tell:
// the one that shows the instance is its account.
func (v *visit) seen(ctx context.Context, acct *account.Account) {
	if v.claim.Status.AccountID != "" {
		return
	}
	id, err := acct.Identity(ctx)
	if err != nil {
		v.log(ctx).Info("whose account the instance is in cannot be read yet", "error", err.Error())
		return
	}
	v.claim.Status.AccountID = id
}

// unusable is the reason for an account that cannot be opened or asked.
func unusable(err error) string {
	var other *account.OtherAccountError
	if errors.As(err, &other) && other.Err == nil {
		return v1alpha1.ReasonOtherAccount
	}
	var said *provider.Error
	if errors.As(err, &said) && said.Kind != provider.Unauthorized && said.Kind != provider.NoBalance {
		return v1alpha1.ReasonProviderUnavailable
	}
	return v1alpha1.ReasonCredentialsUnavailable
}

// blind notes on a running instance that nobody can look at it, and why.
func (v *visit) blind(ctx context.Context, err error) {
	reason := unusable(err)
	if reason == v1alpha1.ReasonProviderUnavailable {
		v.log(ctx).Info("provider does not say how the instance is", "error", err.Error())
		return
	}
	v.set(v1alpha1.ConditionInstanceRunning, metav1.ConditionTrue, reason,
		fmt.Sprintf("instance %s is kept and cannot be looked at: %v", v.claim.Status.InstanceID, err))
}

// sighted ends what blind began.
func (v *visit) sighted() {
	if v.is(v1alpha1.ConditionInstanceRunning) && !v.hasReason(v1alpha1.ConditionInstanceRunning, v1alpha1.ReasonRunning) {
		v.set(v1alpha1.ConditionInstanceRunning, metav1.ConditionTrue, v1alpha1.ReasonRunning, "reached at "+v.claim.Status.Endpoint)
	}
}

// cannotEnd says exactly what goes on billing because the credentials that rented it are gone, refused or another
// account's. They are read again at every try, so that it ends as soon as they are back.
func (v *visit) cannotEnd(err error) next {
	s := v.claim.Status
	metrics.DestroyFailures.WithLabelValues(s.Provider).Inc()
	what := fmt.Sprintf("instance %s at %s is still rented and", s.InstanceID, s.Provider)
	if s.InstanceID == "" {
		what = fmt.Sprintf("what %s may have rented under the tag %s", s.Provider, s.Attempt.Token)
	}
	from := "the controller's environment"
	if ref := s.CredentialSecret; ref != nil {
		from = fmt.Sprintf("Secret %s/%s", ref.Namespace, ref.Name)
	}
	whose := s.Provider
	if s.AccountID != "" {
		whose += " account " + s.AccountID
	}
	message := fmt.Sprintf("%s cannot be destroyed until the credentials of %s are back in %s: %v", what, whose, from, err)
	reason := unusable(err)
	if reason == v1alpha1.ReasonProviderUnavailable {
		message = fmt.Sprintf("%s cannot be destroyed now: %v", what, err)
	}
	v.set(v1alpha1.ConditionInstanceGone, metav1.ConditionFalse, reason, message)
	return waitFor(max(v.Timing.DestroyRetry, min(offersWait(err), maxEndWait)))
}

// maxEndWait bounds what a provider's word can delay the end of a rental by.
const maxEndWait = time.Minute
