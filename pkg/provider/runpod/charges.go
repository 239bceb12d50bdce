package runpod

import (
	"context"
	"encoding/json"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

var _ provider.Accountant = (*Provider)(nil)

// lookBack is how far before the time asked for a pod's first hour is looked for, further each time that it is not found.
func lookBack() []time.Duration {
	const day = 24 * time.Hour
	return []time.Duration{0, day, 30 * day, 365 * day}
}

// Charges adds up what each pod cost by the hour. An hour that goes on, or is just over, is in the amount and not in its To,
// since more of it may come. A pod that was there before from is looked for further back, to a year. The key needs the right to read
// billing, which one for renting may lack: Unauthorized.
func (p *Provider) Charges(ctx context.Context, from, to time.Time) ([]provider.Charge, error) {
	wanted := map[string]bool{}
	for i, back := range lookBack() {
		bills, err := p.bills(ctx, from.Add(-back), to)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			for _, b := range bills {
				wanted[b.pod] = true
			}
		}
		bills = slices.DeleteFunc(bills, func(b hourly) bool { return !wanted[b.pod] })
		begun := from.Add(-back).UTC().Truncate(time.Hour)
		early := slices.ContainsFunc(bills, func(b hourly) bool { return !b.from.After(begun) })
		if !early || i == len(lookBack())-1 {
			return sums(bills, p.clock.Now()), nil
		}
	}
	return nil, nil
}

// hourly is what a pod cost in one hour.
type hourly struct {
	pod      string
	from, to time.Time
	amount   *big.Rat
}

// bills are all pods' hours between two times, in order.
func (p *Provider) bills(ctx context.Context, from, to time.Time) ([]hourly, error) {
	reply, err := p.call(ctx, opCharges, rest.Call{
		Method: http.MethodGet,
		Path:   "/v2/billing/pods",
		Query: url.Values{"bucketSize": {"hour"}, "startTime": {from.UTC().Format(time.RFC3339)},
			"endTime": {to.UTC().Format(time.RFC3339)}},
	})
	if err != nil {
		return nil, err
	}
	var got billing
	if err := json.Unmarshal(reply.Body, &got); err != nil {
		return nil, p.odd(opCharges, "the answer is not what billing answers: %v", err)
	}
	if got.Records == nil {
		return nil, p.odd(opCharges, "the answer has no records")
	}
	var out []hourly
	for _, w := range *got.Records {
		b := hourly{pod: w.PodID, from: moment(&w.StartTime), to: moment(&w.EndTime)}
		amount, ok := new(big.Rat).SetString(w.TotalAmount.String())
		if b.amount = amount; !ok || b.pod == "" || b.from.IsZero() || !b.to.After(b.from) {
			return nil, p.odd(opCharges, "a record of pod %q cannot be read", w.PodID)
		}
		out = append(out, b)
	}
	slices.SortStableFunc(out, func(a, b hourly) int { return a.from.Compare(b.from) })
	return out, nil
}

// sums are the pods' whole amounts, by the name of the pod.
func sums(bills []hourly, now time.Time) []provider.Charge {
	byPod := map[string][]hourly{}
	for _, b := range bills {
		byPod[b.pod] = append(byPod[b.pod], b)
	}
	var out []provider.Charge
	for pod, hours := range byPod {
		c := provider.Charge{InstanceID: pod, From: hours[0].from, To: hours[0].from}
		total, inCents := new(big.Rat), true
		for _, h := range hours {
			total.Add(total, h.amount)
			inCents = inCents && new(big.Rat).Mul(h.amount, big.NewRat(100, 1)).IsInt()
			if !h.to.Add(settles).After(now) && h.to.After(c.To) {
				c.To = h.to
			}
		}
		step := int64(1)
		if inCents { // rounded hour by hour
			step = microsPerCent * int64(len(hours))
		}
		amount, err := money.ParseAmount(total.FloatString(6)) // rounds half away from zero
		if err != nil {
			continue // more than can be paid
		}
		c.Amount, c.Step = amount, money.AmountFromMicros(step)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b provider.Charge) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return out
}

const (
	microsPerCent = 10_000
	// settles is how long after its end an hour is taken for whole. The vendor does not say when it is.
	settles = time.Hour
)
