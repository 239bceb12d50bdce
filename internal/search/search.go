// Package search asks every place that pools may buy from what it has now, all at once, for the planner: in the
// controller and for `gpuscale plan` alike.
package search

import (
	"context"
	"sync"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/planner"
)

// maxAge is how old offers may be for planning; the claim asks for fresher ones before it buys.
const maxAge = 20 * time.Second

// Accounts gives the account that a pool entry's credentials open.
type Accounts interface {
	For(ctx context.Context, ref account.Ref) (*account.Account, error)
}

// Searcher asks the providers of pools. Its fields are set once.
type Searcher struct {
	Accounts Accounts
	// Patience is how long one provider is waited for, the first time; see offers.Catalogue.Soon.
	Patience time.Duration
	// Failed, which may be nil, is told of every search that a provider failed. It is called concurrently.
	Failed func(acct *account.Account, err error)
	// Answered, which may be nil, is told of every entry that has its answer, good or bad. It is called concurrently.
	Answered func(m planner.Market)
}

// Markets asks every entry of every pool that is not being deleted. An entry that fails has a market without offers that
// says why; so has one that is slow, whose offers the next call finds.
func (s Searcher) Markets(ctx context.Context, pools []*v1alpha1.GPUNodePool) []planner.Market {
	var (
		wg      sync.WaitGroup
		markets []planner.Market
		of      []*v1alpha1.GPUNodePool
	)
	for _, pool := range pools {
		if !pool.DeletionTimestamp.IsZero() {
			continue
		}
		for i := range pool.Spec.Providers {
			markets, of = append(markets, planner.Market{Pool: pool.Name, Entry: i}), append(of, pool)
		}
	}
	for i := range markets {
		wg.Go(func() {
			s.fill(ctx, of[i], &markets[i])
			if s.Answered != nil {
				s.Answered(markets[i])
			}
		})
	}
	wg.Wait()
	return markets
}

func (s Searcher) fill(ctx context.Context, pool *v1alpha1.GPUNodePool, m *planner.Market) {
	entry := pool.Spec.Providers[m.Entry]
	acct, err := s.Accounts.For(ctx, account.RefOf(entry))
	if err != nil {
		m.Err = err.Error()
		return
	}
	m.Account = acct.Fingerprint
	m.Offers, err = acct.Catalogue.Soon(ctx, offers.QueryOf(entry, pool.Spec.Requirements), maxAge, s.Patience)
	if err != nil {
		m.Err = err.Error()
		if s.Failed != nil {
			s.Failed(acct, err)
		}
	}
}
