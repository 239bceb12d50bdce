package ledger

import (
	"context"
	"math/big"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// CostRow is what one instance cost within a window.
type CostRow struct {
	Instance Instance
	// From and To bound the part of the window that was billed; From is before To.
	From, To time.Time
	// Cost is the provider's own figure where Instance.Bill has one, and then in a window that holds only a part of the
	// instance's life that part's share of it; the shares of adjoining windows come to the whole. Else it is estimated:
	// exact but for one rounding, half up to the micro-dollar, for each rate within From and To, so that the costs of
	// two adjoining windows may differ from that of both together by a micro-dollar for each such rounding.
	Cost money.Amount
	// Estimated: no account of the provider says so, or only for a longer time than From to To.
	Estimated bool
	// Running: no end is known yet.
	Running bool
	// Models are the parts of Cost of the models that shared the instance, by their shares while they did. They come to
	// Cost exactly; empty where the ledger knows no model.
	Models []ModelCost
}

// ModelCost is a model's part of an instance's cost.
type ModelCost struct {
	Model string
	Cost  money.Amount
}

// Costs answers what every instance cost from one time up to another, not beyond now, oldest first. An instance that
// was not billed then has no row.
//
// Estimated is from CreatedAt to DestroyAskedAt, or to GoneAt where that is earlier or the only one known, or to now. It
// is what the ledger knows: an instance whose CreatedAt is not known has no cost yet, time before the first known rate is
// charged at the offer's price, and what a coarse BillingStep or a BillingLeast charges beyond an end falls to the window
// with that end.
func (l *Ledger) Costs(ctx context.Context, from, to, now time.Time) ([]CostRow, error) {
	to = earlier(to, &now)
	if !from.Before(to) {
		return nil, nil
	}
	found, err := l.histories(ctx, selectBilled, from.UnixMicro(), to.UnixMicro())
	if err != nil {
		return nil, l.explain("costs", "of instances", err)
	}
	var out []CostRow
	for _, h := range found {
		if row, ok := h.cost(from, to, now); ok {
			out = append(out, row)
		}
	}
	return out, nil
}

// cost is the row of a history for a window that ends by now.
func (h history) cost(from, to, now time.Time) (CostRow, bool) {
	in := h.latest()
	if in.CreatedAt == nil || in.Refused {
		return CostRow{}, false
	}
	end := earlier(earlier(now, in.DestroyAskedAt), in.GoneAt)
	row := CostRow{Instance: in, From: from.UTC(), To: earlier(to, &end).UTC(), Estimated: true,
		Running: in.DestroyAskedAt == nil && in.GoneAt == nil}
	if row.From.Before(*in.CreatedAt) {
		row.From = *in.CreatedAt
	}
	if !row.From.Before(row.To) {
		return CostRow{}, false
	}
	row.Cost = h.estimate(row.From, row.To)
	switch whole := row.From.Equal(*in.CreatedAt) && row.To.Equal(end); {
	case row.Running:
	case in.Bill != nil:
		row.Cost, row.Estimated = h.part(row.From, row.To, end), !whole
	case row.To.Equal(end):
		row.Cost = row.Cost.Add(h.beyond(end))
	}
	row.Models = h.split(row.From, row.To, row.Cost)
	return row, true
}

// estimate is what the known rates come to.
func (h history) estimate(from, to time.Time) money.Amount {
	var sum money.Amount
	stretches := h.stretches()
	for i, s := range stretches {
		start, stop := s.from, to
		if start.Before(from) {
			start = from
		}
		if i+1 < len(stretches) {
			stop = earlier(stop, &stretches[i+1].from)
		}
		sum = sum.Add(s.rate.For(stop.Sub(start))) // nothing where the stretch is outside
	}
	return sum
}

// beyond is what is charged after the end, up to a whole step and at least for the shortest time.
func (h history) beyond(end time.Time) money.Amount {
	ran := end.Sub(*h.instance.CreatedAt)
	charged := max(ran, h.instance.BillingLeast)
	if step := h.instance.BillingStep; step > 0 {
		if over := charged % step; over > 0 {
			charged += step - over
		}
	}
	stretches := h.stretches()
	rate := stretches[0].rate
	for _, s := range stretches {
		if s.from.Before(end) {
			rate = s.rate
		}
	}
	return rate.For(charged - ran)
}

// part is a window's part of the bill, by what the rates say of it. Cut at the same points, the parts come to the whole.
func (h history) part(from, to, end time.Time) money.Amount {
	created := *h.instance.CreatedAt
	total := h.estimate(created, end).Micros()
	until := func(t time.Time) int64 {
		if !t.Before(end) {
			return h.instance.Bill.Amount.Micros()
		}
		if total == 0 || !created.Before(t) {
			return 0
		}
		n := new(big.Int).Mul(big.NewInt(h.instance.Bill.Amount.Micros()), big.NewInt(h.estimate(created, t).Micros()))
		return n.Quo(n, big.NewInt(total)).Int64()
	}
	return money.AmountFromMicros(until(to) - until(from))
}

// stretches are the rates from the beginning on, each different from the one before it: one that was only seen again
// must not be rounded again.
func (h history) stretches() []stretch {
	all := h.rates
	if len(all) == 0 || !all[0].from.IsZero() {
		first := stretch{rate: h.instance.Price}
		if first.rate.IsZero() && len(all) > 0 {
			first.rate = all[0].rate
		}
		all = append([]stretch{first}, all...)
	}
	out := all[:1:1]
	for _, s := range all[1:] {
		if s.rate != out[len(out)-1].rate {
			out = append(out, s)
		}
	}
	return out
}

func earlier(t time.Time, o *time.Time) time.Time {
	if o != nil && o.Before(t) {
		return *o
	}
	return t
}
