package quote

import (
	"context"
	"slices"

	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// OffersRequest is a question for offers.
type OffersRequest struct {
	// Providers to ask; empty means all that there are credentials for.
	Providers []provider.Name
	// CapacityTypes to ask for.
	CapacityTypes []provider.CapacityType
	// Need is what an offer must be; its disk is the disk that is priced.
	Need offers.Need
}

// Offers is what providers have.
type Offers struct {
	// Kept satisfy the need, in the order in which they would be bought.
	Kept []provider.Offer
	// LeftOut are the others, each with the first reason, in the same order.
	LeftOut []LeftOut
	// Lists account for every list that was given, by provider and capacity type.
	Lists []List
	// Failed gave no list. Without are providers that were not asked for want of credentials.
	Failed  []Failure
	Without []provider.Name
}

// LeftOut is an offer that does not satisfy the need.
type LeftOut struct {
	provider.Offer
	Reason offers.Rejection
}

// List is one provider's answer.
type List struct {
	Provider     provider.Name
	CapacityType provider.CapacityType
	Why          offers.Explanation
}

// answer is one list, or why there is none.
type answer struct {
	list   *List
	offers []provider.Offer
	failed *Failure
}

// Offers asks all providers at once and judges what they have as the controller would. It waits no longer than Timeout:
// what has not answered by then has failed.
func (d Desk) Offers(ctx context.Context, r OffersRequest) Offers {
	within, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	accts, without, failed := d.open(ctx, r.Providers)
	out := Offers{Failed: failed, Without: without}
	var questions []question[answer]
	for _, acct := range accts {
		for _, ct := range r.CapacityTypes {
			if can := acct.Driver.Capabilities(); ct == provider.Spot && !can.Spot || ct == provider.OnDemand && !can.OnDemand {
				if len(r.CapacityTypes) == 1 && len(r.Providers) > 0 { // asked for by name
					out.Failed = append(out.Failed, failureOf(acct.Provider, string(ct), provider.Errorf(acct.Provider, "search",
						provider.Unsupported, "it does not rent %s", ct)))
				}
				continue
			}
			questions = append(questions, question[answer]{string(acct.Provider), func() answer {
				return d.list(within, acct, ct, r.Need)
			}})
		}
	}
	for _, a := range each(d, questions) {
		if a.failed != nil {
			out.Failed = append(out.Failed, *a.failed)
			continue
		}
		out.add(*a.list, a.offers, r.Need, d)
	}
	sortFailures(out.Failed)
	slices.SortFunc(out.Kept, offers.Compare)
	slices.SortStableFunc(out.LeftOut, func(a, b LeftOut) int { return offers.Compare(a.Offer, b.Offer) })
	return out
}

func (d Desk) list(ctx context.Context, acct *account.Account, ct provider.CapacityType, need offers.Need) answer {
	found, err := acct.Catalogue.Offers(ctx, provider.OfferQuery{CapacityType: ct, DiskGB: need.MinDiskGB}, 0)
	if err = d.timedOut(ctx, acct.Provider, err); err != nil {
		f := failureOf(acct.Provider, string(ct), err)
		return answer{failed: &f}
	}
	return answer{list: &List{Provider: acct.Provider, CapacityType: ct}, offers: found}
}

// add judges a list by the very judge of the controller. Nothing rests here: what failed is known to controllers only.
func (o *Offers) add(l List, found []provider.Offer, need offers.Need, d Desk) {
	now := d.Clock.Now()
	kept, why := offers.Select(found, need, nil, now)
	l.Why = why
	o.Lists = append(o.Lists, l)
	o.Kept = append(o.Kept, kept...)
	for _, f := range found {
		if r := offers.Judge(f, need, nil, now); r != offers.Fits {
			o.LeftOut = append(o.LeftOut, LeftOut{f, r})
		}
	}
}
