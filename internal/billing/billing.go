// Package billing reads what rentals cost from the providers' own accounts into the ledger.
package billing

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/pkg/provider"
)

const (
	// DefaultEvery is how often ended rentals without a bill are looked for.
	DefaultEvery = time.Minute
	// keenFor is how long after its end a bill is looked for, and doneBy when the account must have it whole.
	keenFor = 7 * 24 * time.Hour
	doneBy  = 48 * time.Hour
	// slack is how far a provider's clock may be from ours, and how much of the end a bill that is taken may lack.
	slack = 10 * time.Second
	// margin is around the time for which an account is asked.
	margin = 24 * time.Hour
	// timeout bounds one account's answer.
	timeout = time.Minute
)

// Ledger is the part of the money history that is used here.
type Ledger interface {
	Unbilled(ctx context.Context, since time.Time) ([]ledger.Instance, error)
	Update(ctx context.Context, in ledger.Instance) error
}

// Reader reads the bills of ended rentals. It decides nothing and holds nothing up: without it, and while a provider
// does not answer, what a rental cost is estimated from its rates and times.
type Reader struct {
	Ledger Ledger
	// Accounts are the open accounts.
	Accounts func() []*account.Account
	Clock    clock.WithTicker
	Every    time.Duration
	Log      logr.Logger
}

// NeedLeaderElection says that one replica reads.
func (r *Reader) NeedLeaderElection() bool { return true }

// Start reads until ctx ends.
func (r *Reader) Start(ctx context.Context) error {
	tick := r.Clock.NewTicker(r.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			if err := r.Read(ctx); err != nil && ctx.Err() == nil {
				r.Log.Info("bills not read yet", "error", err.Error())
			}
		}
	}
}

// Read looks once for the bills that are missing.
func (r *Reader) Read(ctx context.Context) error {
	now := r.Clock.Now()
	rows, err := r.Ledger.Unbilled(ctx, now.Add(-keenFor))
	if err != nil {
		return err
	}
	missing := map[provider.Name]map[string]ledger.Instance{}
	for _, in := range rows {
		name := provider.Name(in.Provider)
		if missing[name] == nil {
			missing[name] = map[string]ledger.Instance{}
		}
		missing[name][in.InstanceID] = in
	}
	for _, acct := range r.Accounts() {
		if err := r.ask(ctx, acct, missing[acct.Provider], now); err != nil {
			r.Log.Info("bills not read yet", "provider", acct.Provider, "error", err.Error())
		}
	}
	return nil
}

// ask reads one account's bills of the instances that are missing, by id.
func (r *Reader) ask(ctx context.Context, acct *account.Account, missing map[string]ledger.Instance, now time.Time) error {
	books, ok := provider.AccountantOf(acct.Driver)
	if !ok || len(missing) == 0 {
		return nil
	}
	from := now
	for _, in := range missing {
		if in.CreatedAt != nil && in.CreatedAt.Before(from) {
			from = *in.CreatedAt
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	charges, err := books.Charges(ctx, from.Add(-margin), now.Add(margin))
	if err != nil {
		return err
	}
	for _, c := range charges {
		in, ok := missing[c.InstanceID]
		if !ok || !whole(in, c, now) {
			continue
		}
		if err := r.Ledger.Update(ctx, ledger.Instance{Token: in.Token, Bill: &ledger.Bill{Amount: c.Amount, Step: c.Step}}); err != nil {
			return err
		}
	}
	return nil
}

// whole reports whether a charge covers an instance to its end. One that never does is taken when the provider has had
// time enough: the instance may have ended long before that was noticed.
func whole(in ledger.Instance, c provider.Charge, now time.Time) bool {
	if in.GoneAt == nil {
		return false
	}
	end := *in.GoneAt
	if in.DestroyAskedAt != nil && in.DestroyAskedAt.Before(end) {
		end = *in.DestroyAskedAt
	}
	return !c.To.Before(end.Add(-slack)) || now.Sub(*in.GoneAt) > doneBy
}
