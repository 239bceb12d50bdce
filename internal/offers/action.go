package offers

import (
	"errors"
	"time"

	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Waits before a failed call is repeated, where the provider does not say how long.
const (
	// retryWait: most outages of an API are a single bad answer.
	retryWait = 5 * time.Second
	// rateLimitWait: the slowest documented pace is one call in a few seconds; this is past two of them.
	rateLimitWait = 15 * time.Second
	// refusedWait: a refusal of the account or of the request changes only by somebody's hand.
	refusedWait = time.Minute
	// maxWait bounds what a provider can tell us to wait, so that a mistaken header does not stop it for days.
	maxWait = time.Hour
)

// quotaRest is the first rest after a refusal for quota: quotas are raised by a request that a person answers, so the
// base for offers would only repeat the question.
const quotaRest = time.Hour

// Op is the kind of call that failed.
type Op string

// OpRead changes nothing at the provider (search, list, get, check). OpCreate may have rented something. OpDestroy may
// be repeated without harm.
const (
	OpRead    Op = "read"
	OpCreate  Op = "create"
	OpDestroy Op = "destroy"
)

// Ops lists every kind of call.
func Ops() []Op { return []Op{OpRead, OpCreate, OpDestroy} }

// Call is what was attempted.
type Call struct {
	Op       Op
	Provider provider.Name
	// Offer is what CreateInstance was asked for.
	Offer provider.Offer
	// Account is the credential's fingerprint, Pool the pool that the request was made from; each may be empty, and then
	// does not rest.
	Account string
	Pool    string
}

// Action is what to do about a failed call. The zero value says: it is over, report it.
type Action struct {
	// Rest are the keys that rest from now on, at least RestAtLeast; 0 is the scope's base.
	Rest        []rest.Key
	RestAtLeast time.Duration
	// ForgetOffer: the offer is not there any more; see Catalogue.Forget.
	ForgetOffer bool
	// NextOffer: certainly nothing was rented, and an offer that does not rest may do.
	NextOffer bool
	// StopProvider: no call with this credential until its rest is over, except to end what was rented; the pool says so
	// in a condition.
	StopProvider bool
	// Retry: the same call may succeed after Wait. After a create only if LookUp found nothing.
	Retry bool
	// Wait is the pause before the next attempt. With WaitAll it holds for every call with this credential, else for
	// this call only.
	Wait    time.Duration
	WaitAll bool
	// LookUp: something may have been rented; look the tag up before anything else is asked for.
	LookUp bool
	// Destroy is an instance that exists although its creation failed; it must be ended, and the attempt with it.
	Destroy string
}

// ActionFor is the one place where an error of a provider becomes an action; nil needs none. An error that is not a
// *provider.Error counts as its provider.KindOf.
func ActionFor(err error, c Call) Action {
	kind := provider.KindOf(err)
	if kind == "" {
		return Action{}
	}
	a := actionOf(kind, c)
	if c.Op == OpDestroy && kind != provider.NotFound {
		// What bills must end, whatever the answer was.
		a.Retry = true
	}
	var e *provider.Error
	if errors.As(err, &e) {
		if e.RetryAfter > 0 && a.Wait > 0 {
			a.Wait = min(e.RetryAfter, maxWait)
		}
		if c.Op == OpCreate && e.InstanceID != "" {
			// An attempt that made an instance is over, so that a claim never has two.
			a.Destroy, a.NextOffer, a.Retry, a.LookUp = e.InstanceID, false, false, false
		}
	}
	return a
}

// actionOf is the table. What a create leaves open is looked up, as provider.Refused says.
func actionOf(kind provider.Kind, c Call) Action {
	create := c.Op == OpCreate
	switch kind {
	case provider.OfferGone:
		// Somebody else was faster, which says nothing against the machine: only this ID rests, for a provider that goes
		// on listing it would otherwise be asked for ever.
		if create {
			return Action{Rest: []rest.Key{idKey(c.Offer)}, ForgetOffer: true, NextOffer: true}
		}
	case provider.NoCapacity:
		if create {
			return Action{Rest: []rest.Key{NarrowKey(c.Offer)}, ForgetOffer: true, NextOffer: true}
		}
	case provider.Quota:
		if create {
			return Action{Rest: []rest.Key{WideKey(c.Offer)}, RestAtLeast: quotaRest, NextOffer: true}
		}
	case provider.Unauthorized, provider.NoBalance:
		return Action{Rest: c.accountKeys(), StopProvider: true, Wait: refusedWait, WaitAll: true, NextOffer: create}
	case provider.RateLimited:
		return Action{Retry: true, Wait: rateLimitWait, WaitAll: true, LookUp: create}
	case provider.Invalid:
		// The request was built from the pool, so every other offer would be refused alike; the pool says why.
		if create {
			return Action{Rest: c.poolKeys()}
		}
		return Action{Wait: refusedWait}
	case provider.Unsupported:
		// The provider listed what it cannot rent out; its other offers, and other providers, can be had.
		if create {
			return Action{Rest: []rest.Key{NarrowKey(c.Offer)}, NextOffer: true}
		}
		return Action{Wait: refusedWait}
	case provider.NotFound:
		// An answer, not a failure, except to a create, which has nothing to find.
		if !create {
			return Action{}
		}
	case provider.Unavailable, provider.Unknown:
	}
	return Action{Retry: true, Wait: retryWait, LookUp: create}
}

// NarrowKey is the narrowest stable scope of o: what rests when this machine, or this shape in this zone, failed. An
// offer that names no scope rests by its ID.
func NarrowKey(o provider.Offer) rest.Key {
	if len(o.RestKeys) == 0 {
		return idKey(o)
	}
	return rest.OfferKey(o.Provider, o.RestKeys[0])
}

// WideKey is the widest stable scope of o (a family in a region, a host with all its machines).
func WideKey(o provider.Offer) rest.Key {
	if len(o.RestKeys) == 0 {
		return idKey(o)
	}
	return rest.OfferKey(o.Provider, o.RestKeys[len(o.RestKeys)-1])
}

func (c Call) accountKeys() []rest.Key {
	if c.Account == "" {
		return nil
	}
	return []rest.Key{rest.AccountKey(c.Provider, c.Account)}
}

func (c Call) poolKeys() []rest.Key {
	if c.Pool == "" {
		return nil
	}
	return []rest.Key{rest.PoolKey(c.Pool)}
}
