// Package rest remembers what failed and leaves it alone for a time that grows each time it fails again (the blacklist
// with time-to-live). It is pure bookkeeping: no client, no clock of its own.
package rest

import (
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// Scope is the kind of thing that rests.
type Scope string

// The scopes, one per culprit.
const (
	ScopeOffer    Scope = "offer"
	ScopeWorkload Scope = "workload"
	ScopePool     Scope = "pool"
	ScopeProvider Scope = "provider"
)

// Key names what rests: an offer's stable scope at a provider, a workload in its present form, a pool, or a provider's
// account.
type Key struct {
	Scope    Scope
	Provider provider.Name
	// Value is the provider.RestKey, the workload's key and form, the pool's name or the account's fingerprint.
	Value string
}

// Rest is one entry.
type Rest struct {
	Key Key
	// Since is when this rest began and Until when it ends.
	Since time.Time
	Until time.Time
	// Fails counts the failures that led to it; those during a rest count once.
	Fails  int
	Reason string
	// Message is the failure in words, for the pod or the pool.
	Message string
}

// View is a read-only picture of what rests at one moment; nil rests nothing.
type View map[Key]Rest

// Active returns the entry of k if it rests at now.
func (v View) Active(k Key, now time.Time) (Rest, bool) {
	r, ok := v[k]
	return r, ok && now.Before(r.Until)
}

// OfferKey is the key of an offer's stable scope at a provider.
func OfferKey(p provider.Name, k provider.RestKey) Key {
	return Key{Scope: ScopeOffer, Provider: p, Value: string(k)}
}

// AccountKey is the key of a provider's account, by the fingerprint of its credential.
func AccountKey(p provider.Name, fingerprint string) Key {
	return Key{Scope: ScopeProvider, Provider: p, Value: fingerprint}
}

// WorkloadKey is the key of a workload in its present form: one whose form changes is forgiven, being another key.
func WorkloadKey(workload, form string) Key {
	return Key{Scope: ScopeWorkload, Value: workload + "#" + form}
}

// PoolKey is the key of a pool.
func PoolKey(pool string) Key { return Key{Scope: ScopePool, Value: pool} }
