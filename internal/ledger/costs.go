package ledger

import (
	"context"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// CostRow is what one instance cost within a window.
type CostRow struct {
	Instance Instance
	// From and To bound the part of the window that was billed; From is before To.
	From, To time.Time
	// Cost is exact but for one rounding, half up to the micro-dollar, for each rate within From and To. The costs of
	// two adjoining windows may therefore differ from that of both together by a micro-dollar for each such rounding.
	Cost money.Amount
	// Running: no end is known yet.
	Running bool
}

// Costs answers what every instance cost from one time up to another, not beyond now, oldest first. An instance that
// was not billed then has no row.
//
// Billing is from CreatedAt to DestroyAskedAt, or to GoneAt where that is earlier or the only one known, or to now. It is
// what the ledger knows: an instance whose CreatedAt is not known has no cost yet, time before the first known rate is
// charged at the offer's price, and a provider's minimum billing is not in it.
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
	row := CostRow{Instance: in, From: from.UTC(), To: earlier(to, &end).UTC(),
		Running: in.DestroyAskedAt == nil && in.GoneAt == nil}
	if row.From.Before(*in.CreatedAt) {
		row.From = *in.CreatedAt
	}
	if !row.From.Before(row.To) {
		return CostRow{}, false
	}
	stretches := h.stretches()
	for i, s := range stretches {
		start, stop := s.from, row.To
		if start.Before(row.From) {
			start = row.From
		}
		if i+1 < len(stretches) {
			stop = earlier(stop, &stretches[i+1].from)
		}
		row.Cost = row.Cost.Add(s.rate.For(stop.Sub(start))) // nothing where the stretch is outside
	}
	return row, true
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
