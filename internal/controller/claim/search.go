package claim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/money"
)

// freshOffers is how old offers may be when money is spent on them; the provider's search interval is the least.
const freshOffers = time.Second

// answers are what the entries of a licence have now.
type answers struct {
	fit     []choice
	why     offers.Explanation
	trouble []error
	// late: some provider was not waited for to the end.
	late bool
}

// searchAll asks all entries at once, and adds up what they say in their order.
func (v *visit) searchAll(ctx context.Context, entries []v1alpha1.ProviderSpec, ceiling money.Dollars, patience time.Duration) answers {
	each := make([]answers, len(entries))
	var wg sync.WaitGroup
	for i, entry := range entries {
		wg.Go(func() { each[i] = v.search(ctx, entry, ceiling, patience) })
	}
	wg.Wait()
	var all answers
	for _, a := range each {
		all.fit, all.trouble = append(all.fit, a.fit...), append(all.trouble, a.trouble...)
		all.why, all.late = all.why.Merge(a.why), all.late || a.late
	}
	return all
}

func (v *visit) search(ctx context.Context, entry v1alpha1.ProviderSpec, ceiling money.Dollars, patience time.Duration) answers {
	acct, err := v.Accounts.For(ctx, account.RefOf(entry))
	if err != nil {
		return answers{trouble: []error{err}}
	}
	list, err := acct.Catalogue.Soon(ctx, offers.QueryOf(entry, v.claim.Spec.Requirements), freshOffers, patience)
	if err != nil {
		return answers{trouble: []error{err}, late: errors.Is(err, offers.ErrTooSlow)}
	}
	need, err := offers.NeedOf(entry, v.claim.Spec.Requirements, acct.Fingerprint)
	if err != nil {
		return answers{trouble: []error{err}}
	}
	kept, why := offers.Select(list, need.Within(ceiling), v.Rests.View(v.now()), v.now())
	out := answers{why: why}
	for _, o := range kept {
		out.fit = append(out.fit, choice{offer: o, entry: entry, acct: acct})
	}
	return out
}
