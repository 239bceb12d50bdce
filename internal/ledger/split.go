package ledger

import (
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// split divides a cost among the models that shared the instance from one time to another, by time and weight. What is
// left over by rounding down goes, a micro-dollar each, to those that lost most by it.
func (h history) split(from, to time.Time, cost money.Amount) []ModelCost {
	parts := h.weights(from, to)
	total := new(big.Rat)
	for _, w := range parts {
		total.Add(total, w)
	}
	if total.Sign() == 0 {
		return nil
	}
	type cut struct {
		ModelCost
		lost *big.Rat
	}
	var cuts []cut
	left := cost.Micros()
	for model, w := range parts {
		exact := new(big.Rat).Mul(new(big.Rat).Quo(w, total), new(big.Rat).SetInt64(cost.Micros()))
		whole := new(big.Int).Quo(exact.Num(), exact.Denom()).Int64()
		left -= whole
		cuts = append(cuts, cut{ModelCost{model, money.AmountFromMicros(whole)}, exact.Sub(exact, new(big.Rat).SetInt64(whole))})
	}
	slices.SortFunc(cuts, func(a, b cut) int {
		if c := b.lost.Cmp(a.lost); c != 0 {
			return c
		}
		return strings.Compare(a.Model, b.Model)
	})
	out := make([]ModelCost, 0, len(cuts))
	for i, c := range cuts {
		if int64(i) < left {
			c.Cost = c.Cost.Add(money.AmountFromMicros(1))
		}
		out = append(out, c.ModelCost)
	}
	slices.SortFunc(out, func(a, b ModelCost) int { return strings.Compare(a.Model, b.Model) })
	return out
}

// weights are each model's part of the time from one moment to another. Without shares all models count alike.
func (h history) weights(from, to time.Time) map[string]*big.Rat {
	shares := h.shares
	if len(shares) == 0 {
		all := sharing{}
		for _, m := range h.instance.Models {
			all.shares = append(all.shares, Share{Model: m, Weight: 1})
		}
		shares = []sharing{all}
	}
	out := map[string]*big.Rat{}
	for i, s := range shares {
		start, stop := s.from, to
		if i == 0 || start.Before(from) {
			start = from
		}
		if i+1 < len(shares) {
			stop = earlier(stop, &shares[i+1].from)
		}
		var sum int64
		for _, share := range s.shares {
			sum += share.Weight
		}
		if !start.Before(stop) || sum <= 0 {
			continue
		}
		for _, share := range s.shares {
			if out[share.Model] == nil {
				out[share.Model] = new(big.Rat)
			}
			part := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(int64(stop.Sub(start))), big.NewInt(share.Weight)), big.NewInt(sum))
			out[share.Model].Add(out[share.Model], part)
		}
	}
	return out
}
