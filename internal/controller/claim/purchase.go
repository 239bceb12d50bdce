package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/agentfile"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Names of steps that other steps or the ledger refer to.
const (
	stepCreated = "InstanceCreated"
	stepRunning = "InstanceRunning"
	stepReady   = "Ready"

	stepDestroyAsked = "DestroyAsked"
	stepGone         = "Gone"
	// stepAttempt begins the name of what became of an attempt by its number: Attempt2Refused.
	stepAttempt = "Attempt%d"
)

// purchase rents one instance within the claim's reservation, or ends the claim.
func (v *visit) purchase(ctx context.Context) (next, error) {
	if v.is(v1alpha1.ConditionInstanceCreated) {
		return proceed(), nil
	}
	if a := v.claim.Status.Attempt; a != nil && a.Outcome == v1alpha1.AttemptOpen {
		n, found, err := v.lookUp(ctx)
		if err != nil || n.stop || found {
			return n, err
		}
		return v.buy(ctx, a.Token, a.Number)
	} else if a != nil {
		// The next attempt takes its place on the claim, so it must be in the ledger before.
		if err := v.book(ctx); err != nil {
			v.ledgerAway(err)
			return v.pollBoot(), nil
		}
	}
	if v.claim.Status.Attempts >= maxAttempts {
		v.fail("Purchase", v1alpha1.ReasonNoOfferInReservation, v1alpha1.CulpritNone,
			fmt.Sprintf("%d offers tried, none could be had", maxAttempts))
		return proceed(), nil
	}
	n := v.claim.Status.Attempts + 1
	return v.buy(ctx, Token(v.Installation, v.claim.UID, n), n)
}

// buy spends the licence once: pick the cheapest offer in it, check it uncached, record the intent, ask the provider.
func (v *visit) buy(ctx context.Context, token string, number int32) (next, error) {
	if err := v.Recall(ctx); err != nil {
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonLedgerUnavailable,
			"nothing is bought while the ledger cannot be read: "+err.Error())
		return waitFor(v.Timing.BootPoll), nil
	}
	if ref := v.claim.Spec.Bootstrap.HFTokenSecret; ref != nil {
		if _, err := v.HFToken(ctx, *ref); err != nil {
			v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonCredentialsUnavailable,
				"nothing is bought for a model whose token cannot be read: "+err.Error())
			return v.waitOrGiveUp(v1alpha1.ReasonCredentialsUnavailable, err.Error()), nil
		}
	}
	pick, n := v.shop(ctx, v.allowance(ctx))
	if n.stop || v.claim.Status.Failure != nil {
		return n, nil
	}
	defer pick.acct.Catalogue.Release(pick.offer.ID)
	boot, err := v.Boot.Boot(ctx, v.claim, pick.offer, pick.acct.Driver.Capabilities())
	if wrong := (*agentfile.WrongError)(nil); errors.As(err, &wrong) {
		v.fail("Boot", v1alpha1.ReasonAgentUnavailable, v1alpha1.CulpritPool, err.Error())
		return proceed(), nil
	}
	if err != nil {
		v.fail("Boot", v1alpha1.ReasonInvalidRequest, v1alpha1.CulpritPool, "boot data: "+err.Error())
		return proceed(), nil
	}
	if n := v.identify(ctx, &pick); n.stop || v.claim.Status.Failure != nil {
		return n, nil
	}
	// Last of all: the search may have taken long, and a ceiling that was lowered meanwhile stops buying at once.
	ceiling, n, err := v.licence(ctx)
	if err != nil || n.stop || v.claim.Status.Failure != nil {
		return n, err
	}
	if ceiling.Less(pick.offer.Price) {
		return waitFor(v.Timing.BootPoll / 10), nil
	}
	if n, err := v.intend(ctx, pick, token, number); err != nil || n.stop {
		return n, err
	}
	return v.create(ctx, pick, ceiling, boot)
}

// allowance is what the cache says that may be spent, good enough to look at offers with.
func (v *visit) allowance(ctx context.Context) money.Dollars {
	if pool, err := v.pool(ctx); err == nil {
		if res, ok := reserve.Find(pool, v.claim.Name); ok {
			return money.Min(res.DollarsPerHour, v.claim.Spec.MaxPrice)
		}
	}
	return v.claim.Spec.MaxPrice
}

// licence reads pool and claim past the cache and returns the most that may be spent. Without an entry nothing is
// bought, and after a while the claim ends.
func (v *visit) licence(ctx context.Context) (money.Dollars, next, error) {
	fresh := &v1alpha1.GPUNodeClaim{}
	if err := v.Reader.Get(ctx, client.ObjectKeyFromObject(v.claim), fresh); err != nil {
		return money.Dollars{}, halt(), client.IgnoreNotFound(err)
	}
	if fresh.UID != v.claim.UID || !fresh.DeletionTimestamp.IsZero() || fresh.ResourceVersion != v.claim.ResourceVersion {
		return money.Dollars{}, waitFor(v.Timing.BootPoll / 10), nil // the cache catches up
	}
	pool := &v1alpha1.GPUNodePool{}
	err := v.Reader.Get(ctx, client.ObjectKey{Name: v.claim.Spec.Pool}, pool)
	if err != nil && !apierrors.IsNotFound(err) {
		return money.Dollars{}, halt(), err
	}
	res, why := v.entitlement(pool, apierrors.IsNotFound(err))
	if why == "" {
		return money.Min(res.DollarsPerHour, v.claim.Spec.MaxPrice), proceed(), nil
	}
	v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonNotReserved, why)
	if v.now().Sub(v.claim.CreationTimestamp.Time) > v.Timing.LicenceWait {
		v.fail("Purchase", v1alpha1.ReasonNotReserved, v1alpha1.CulpritNone, why)
		return money.Dollars{}, proceed(), nil
	}
	return money.Dollars{}, v.pollBoot(), nil
}

// entitlement is the claim's reservation, or why it may not be used now. A ceiling that was lowered below what is
// promised stops buying at once.
func (v *visit) entitlement(pool *v1alpha1.GPUNodePool, missing bool) (v1alpha1.Reservation, string) {
	res, ok := reserve.Find(pool, v.claim.Name)
	s, spec := pool.Status, pool.Spec
	switch {
	case missing:
		return res, fmt.Sprintf("pool %s does not exist", v.claim.Spec.Pool)
	case !pool.DeletionTimestamp.IsZero():
		return res, fmt.Sprintf("pool %s is being deleted", pool.Name)
	case !ok:
		return res, fmt.Sprintf("pool %s has no reservation for this claim", pool.Name)
	case spec.Limits.MaxCostPerHour.Less(s.DollarsPerHour):
		return res, fmt.Sprintf("pool %s: %s $/h reserved, maxCostPerHour is now %s", pool.Name, s.DollarsPerHour, spec.Limits.MaxCostPerHour)
	case s.Nodes > spec.Scaling.MaxNodes:
		return res, fmt.Sprintf("pool %s: %d nodes reserved, maxNodes is now %d", pool.Name, s.Nodes, spec.Scaling.MaxNodes)
	case spec.Limits.MaxGPUs != nil && s.GPUs > *spec.Limits.MaxGPUs:
		return res, fmt.Sprintf("pool %s: %d GPUs reserved, maxGPUs is now %d", pool.Name, s.GPUs, *spec.Limits.MaxGPUs)
	}
	return res, ""
}

// choice is an offer and where it comes from.
type choice struct {
	offer provider.Offer
	entry v1alpha1.ProviderSpec
	acct  *account.Account
	// accountID is whose account acct is, as far as it can be told.
	accountID string
}

// shop takes the cheapest fresh offer inside the licence over all entries, which the caller releases. All are asked at
// once; a provider that cannot answer now, or not soon, is waited for only when no other has an offer.
func (v *visit) shop(ctx context.Context, ceiling money.Dollars) (choice, next) {
	found := v.searchAll(ctx, v.claim.Spec.Providers, ceiling, v.SearchPatience)
	if len(found.fit) == 0 && found.late {
		found = v.searchAll(ctx, v.claim.Spec.Providers, ceiling, offers.LongestSearch)
	}
	slices.SortStableFunc(found.fit, func(a, b choice) int { return offers.Compare(a.offer, b.offer) })
	for _, c := range found.fit {
		if c.acct.Catalogue.Take(c.offer.ID) {
			return c, proceed()
		}
	}
	trouble := errors.Join(found.trouble...)
	switch {
	case len(found.fit) > 0: // other claims are renting them now, and may yet be refused
		return choice{}, waitFor(v.Timing.BootPoll / 10)
	case trouble != nil:
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonProviderUnavailable, trouble.Error())
		n := v.waitOrGiveUp(v1alpha1.ReasonProviderUnavailable, trouble.Error())
		n.after = max(n.after, offersWait(trouble))
		return choice{}, n
	}
	v.fail("Purchase", v1alpha1.ReasonNoOfferInReservation, v1alpha1.CulpritNone,
		fmt.Sprintf("nothing within %s $/h now: %s", ceiling, found.why))
	return choice{}, proceed()
}

// waitOrGiveUp bounds how long a claim holds its reservation for what it needs from others before it buys.
func (v *visit) waitOrGiveUp(reason, why string) next {
	if v.now().Sub(v.claim.CreationTimestamp.Time) > 5*v.Timing.LicenceWait {
		v.fail("Purchase", reason, v1alpha1.CulpritNone, why)
		return proceed()
	}
	return v.pollBoot()
}

// intend makes the purchase durable before it is made: the ledger's row, then the token on the claim, written only if
// nobody else wrote the claim meanwhile.
func (v *visit) intend(ctx context.Context, pick choice, token string, number int32) (next, error) {
	s := &v.claim.Status
	v.choose(pick.entry)
	s.AccountID = pick.accountID
	s.Region = pick.offer.Region
	s.GPU = fmt.Sprintf("%d×%s", pick.offer.GPUCount, pick.offer.GPU)
	s.GPUCount, s.VRAM = int32(pick.offer.GPUCount), int32(pick.offer.VRAMGB)
	price := pick.offer.Price
	s.DollarsPerHour = &price
	s.RestKeys = nil
	for _, k := range pick.offer.RestKeys {
		s.RestKeys = append(s.RestKeys, string(k))
	}
	s.Attempts = number
	s.Attempt = &v1alpha1.Attempt{Number: number, Token: token, OfferID: pick.offer.ID, Price: price,
		WrittenAt: metav1.NewMicroTime(v.now()), Outcome: v1alpha1.AttemptOpen}
	row, caps := v.record(), pick.acct.Driver.Capabilities()
	v.leased(caps)
	row.BillingStep, row.BillingLeast = caps.BillingGranularity, caps.MinimumBilling
	if err := v.Ledger.Intend(ctx, row); err != nil {
		v.claim.Status = *v.base.Status.DeepCopy()
		if errors.Is(err, ledger.ErrClosed) {
			// The money history knows that this token's purchase is over, which a crash kept from the claim.
			v.claim.Status.Attempts = number
			return waitFor(v.Timing.BootPoll / 10), nil
		}
		v.ledgerAway(err)
		return v.pollBoot(), nil
	}
	v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonCreating,
		fmt.Sprintf("buying %s at %s $/h from %s (offer %s)", s.GPU, price, s.Provider, pick.offer.ID))
	if err := v.persistExclusive(ctx); err != nil {
		return halt(), err
	}
	return proceed(), nil
}

func (v *visit) ledgerAway(err error) {
	v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonLedgerUnavailable,
		"nothing is bought while the ledger cannot be written: "+err.Error())
}

// create asks the provider once. Only an answer that proves what happened closes the attempt.
func (v *visit) create(ctx context.Context, pick choice, ceiling money.Dollars, boot provider.Boot) (next, error) {
	caps := pick.acct.Driver.Capabilities()
	callCtx, cancel := context.WithTimeout(ctx, caps.CreateTimeout)
	defer cancel()
	a := v.claim.Status.Attempt
	inst, err := pick.acct.Driver.CreateInstance(callCtx, provider.CreateRequest{Offer: pick.offer, Tag: a.Token,
		MaxPrice: ceiling, DiskGB: pick.offer.DiskGB, Boot: boot})
	pick.acct.Catalogue.Forget(pick.offer.ID)
	if err == nil {
		v.adopt(inst)
		return proceed(), v.persist(ctx)
	}
	return v.refused(ctx, pick, err)
}

// refused turns a failed create into what the error's kind calls for.
func (v *visit) refused(ctx context.Context, pick choice, err error) (next, error) {
	a, kind := v.claim.Status.Attempt, string(provider.KindOf(err))
	act := offers.ActionFor(err, offers.Call{Op: offers.OpCreate, Provider: pick.acct.Provider, Offer: pick.offer,
		Account: pick.acct.Fingerprint, Pool: v.claim.Spec.Pool})
	for _, k := range act.Rest {
		v.Rests.FailFor(k, act.RestAtLeast, kind, err.Error(), v.now())
	}
	outcome := "Refused"
	if act.LookUp {
		outcome = "Unclear"
	}
	v.reach(fmt.Sprintf(stepAttempt, a.Number)+outcome, kind+": "+err.Error())
	switch {
	case act.Destroy != "":
		a.Outcome, v.claim.Status.InstanceID = v1alpha1.AttemptCreated, act.Destroy
		v.fail("Purchase", v1alpha1.ReasonOfferGone, v1alpha1.CulpritOffer,
			"the provider refused but left an instance, which is being destroyed: "+err.Error())
		return proceed(), v.persist(ctx)
	case act.LookUp:
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonCreateUnclear,
			"it is not known whether the provider rented anything; looking the token up: "+err.Error())
		return waitFor(max(v.Timing.BootPoll, act.Wait)), nil
	}
	a.Outcome = v1alpha1.AttemptRefused
	switch {
	case act.StopProvider: // another entry may still serve; this one rests
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonCredentialsUnavailable, err.Error())
	case act.NextOffer:
		v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionFalse, v1alpha1.ReasonOfferGone, "trying the next offer: "+err.Error())
	default:
		v.fail("Purchase", v1alpha1.ReasonInvalidRequest, v1alpha1.CulpritPool, err.Error())
		return proceed(), nil
	}
	return waitFor(v.Timing.BootPoll / 10), nil
}

// adopt takes an instance as this claim's.
func (v *visit) adopt(inst provider.Instance) {
	s := &v.claim.Status
	s.Attempt.Outcome, s.InstanceID = v1alpha1.AttemptCreated, inst.ID
	v.set(v1alpha1.ConditionInstanceCreated, metav1.ConditionTrue, v1alpha1.ReasonInstanceCreated,
		fmt.Sprintf("instance %s: %s at %s $/h in %s", inst.ID, s.GPU, s.DollarsPerHour, orUnknown(s.Region)))
	v.reach(stepCreated, inst.ID)
}

func orUnknown(s string) string {
	if s == "" {
		return "an unnamed region"
	}
	return s
}

// WorkloadRestKey is the key under which a workload in its present form rests.
func WorkloadRestKey(p v1alpha1.Placement) rest.Key { return rest.WorkloadKey(p.Workload, p.Form) }
