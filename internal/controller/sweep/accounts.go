package sweep

import (
	"context"
	"errors"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/metrics"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Accounts gives the accounts that credentials open.
type Accounts interface {
	For(ctx context.Context, ref account.Ref) (*account.Account, error)
	Latest(ref account.Ref) (*account.Account, bool)
	All() []*account.Account
	InUse(acc *account.Account) bool
	Providers() []provider.Name
}

// accountSet is accounts by fingerprint.
type accountSet map[string]*account.Account

// accounts are all that anything leads to: the pools' entries, what the claims may buy from and have bought from, the
// environment, and those opened earlier, whose Secrets may be gone. Silent are the providers of credentials that are
// named and cannot be had.
func (s *Sweeper) accounts(ctx context.Context) (accountSet, []provider.Name, error) {
	refs, err := s.refs(ctx)
	if err != nil {
		return nil, nil, err
	}
	set, silent := accountSet{}, []provider.Name{}
	for _, ref := range refs {
		acc, err := s.Accounts.For(ctx, ref)
		if err == nil {
			set[acc.Fingerprint] = acc
			continue
		}
		var none *account.KeyMissingError
		var unknown *account.UnsupportedError
		if ref.Secret == nil && errors.As(err, &none) || errors.As(err, &unknown) {
			continue // nothing was ever rented without credentials
		}
		if _, open := s.Accounts.Latest(ref); !open {
			silent = append(silent, ref.Provider)
		}
	}
	for _, acc := range s.Accounts.All() {
		set[acc.Fingerprint] = acc
	}
	return set, silent, nil
}

// refs are where credentials may be. The cached read is only a hint of where to look.
func (s *Sweeper) refs(ctx context.Context) ([]account.Ref, error) {
	var (
		pools  v1alpha1.GPUNodePoolList
		claims v1alpha1.GPUNodeClaimList
		refs   []account.Ref
	)
	for _, list := range []client.ObjectList{&pools, &claims} {
		if err := s.Client.List(ctx, list); err != nil && !missing(err) {
			return nil, err
		}
	}
	for _, p := range s.Accounts.Providers() {
		refs = append(refs, account.Ref{Provider: p})
	}
	for _, p := range pools.Items {
		for _, entry := range p.Spec.Providers {
			refs = append(refs, account.RefOf(entry))
		}
	}
	for _, c := range claims.Items {
		for _, entry := range c.Spec.Providers {
			refs = append(refs, account.RefOf(entry))
		}
		if c.Status.Provider != "" {
			refs = append(refs, account.RefOf(v1alpha1.ProviderSpec{Name: c.Status.Provider, APIKeySecret: c.Status.CredentialSecret}))
		}
	}
	return distinct(refs), nil
}

func distinct(refs []account.Ref) []account.Ref {
	same := func(a, b account.Ref) bool {
		return a.Provider == b.Provider && (a.Secret == nil) == (b.Secret == nil) && (a.Secret == nil || *a.Secret == *b.Secret)
	}
	var out []account.Ref
	for _, r := range refs {
		if !slices.ContainsFunc(out, func(o account.Ref) bool { return same(o, r) }) {
			out = append(out, r)
		}
	}
	return out
}

// list asks all accounts at once, for lists that begin now or later.
func (s *Sweeper) list(ctx context.Context, accounts accountSet, snap *Snapshot) {
	ctx, cancel := context.WithTimeout(ctx, s.Timing.ListTimeout)
	defer cancel()
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	now := s.Clock.Now()
	for _, acc := range accounts {
		wg.Go(func() {
			listing, err := acc.Observer.List(ctx, now)
			// Where it cannot be told whose list it is, it proves nothing about what is known to be somebody's.
			identity, _ := acc.Identity(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.unlisted(ctx, acc, err, snap)
				return
			}
			caps := acc.Driver.Capabilities()
			snap.Lists = append(snap.Lists, List{Account: acc.Fingerprint, Identity: identity, Provider: acc.Provider, Began: listing.Began,
				Lag: caps.ListLag, CreateTimeout: caps.CreateTimeout, Instances: listing.Instances})
		})
	}
	wg.Wait()
	// Of two credentials for one account the one that is in use is believed first.
	slices.SortFunc(snap.Lists, func(a, b List) int {
		ina, inb := s.Accounts.InUse(accounts[a.Account]), s.Accounts.InUse(accounts[b.Account])
		switch {
		case ina == inb && a.Account < b.Account, ina && !inb:
			return -1
		}
		return 1
	})
}

// unlisted notes that an account did not answer. A credential that was replaced and is refused by now is no gap: what it
// rented is listed by its successor.
func (s *Sweeper) unlisted(ctx context.Context, acc *account.Account, err error, snap *Snapshot) {
	if provider.KindOf(err) == provider.Unauthorized && !s.Accounts.InUse(acc) {
		return
	}
	metrics.SweepListFailures.WithLabelValues(string(acc.Provider)).Inc()
	log.FromContext(ctx).Info("account not listed; nothing there is touched or forgotten", "provider", acc.Provider,
		"account", acc.Fingerprint, "error", err.Error())
	snap.Silent = append(snap.Silent, acc.Provider)
}
