package ledger

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/pkg/money"
)

// piece is a copy of whole with each field kept or forgotten by chance.
func piece(t *rapid.T, whole Instance) Instance {
	out := Instance{Token: whole.Token}
	from, to := reflect.ValueOf(whole), reflect.ValueOf(&out).Elem()
	for i := range from.NumField() {
		if rapid.Bool().Draw(t, from.Type().Field(i).Name) {
			to.Field(i).Set(from.Field(i))
		}
	}
	if out.Rate == nil || out.RateFrom == nil {
		out.Rate, out.RateFrom = nil, nil // one means nothing without the other
	}
	if out.Shares == nil || out.SharesFrom == nil {
		out.Shares, out.SharesFrom = nil, nil
	}
	return out
}

// TestOrderAndRepetitionDoNotMatter: however the parts of one truth arrive, the row that they end in is the same, and
// no write takes away what an earlier one has made known.
func TestOrderAndRepetitionDoNotMatter(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { testOrder(t, open(t, "sqlite::memory:")) })
	t.Run("postgres", func(t *testing.T) { testOrder(t, onPostgres(t)) })
}

func testOrder(t *testing.T, l *Ledger) {
	ctx := context.Background()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		truth := full("")
		truth.Refused = rapid.Bool().Draw(rt, "refused")
		if truth.Refused {
			truth.InstanceID = ""
		}
		var writes []Instance
		for range rapid.IntRange(1, 6).Draw(rt, "writes") {
			in := piece(rt, truth)
			if in.RateFrom != nil {
				// Several rates, each with its own time, and some with none.
				minute := rapid.IntRange(0, 3).Draw(rt, "minute")
				rate := money.FromMicros(int64(1000 + minute))
				in.Rate, in.RateFrom = &rate, after(minute)
				if minute == 0 {
					in.RateFrom = nil
				}
			}
			// A step that was seen again after a restart carries a later time.
			if in.CreatedAt != nil {
				in.CreatedAt = after(rapid.IntRange(1, 3).Draw(rt, "created"))
			}
			writes = append(writes, in)
		}
		repeated := append(append([]Instance{}, writes...), rapid.SliceOfN(rapid.SampledFrom(writes), 0, 4).Draw(rt, "again")...)
		shuffled := rapid.Permutation(repeated).Draw(rt, "order")

		one, two := fmt.Sprint("ordered ", n), fmt.Sprint("shuffled ", n)
		before := Instance{}
		for _, in := range writes {
			in.Token = one
			do(t, l.Update(ctx, in))
			now := mustGet(t, l, one)
			if lost := forgotten(before, now); lost != "" {
				rt.Fatalf("%s was known and is not: %s", lost, show(now))
			}
			before = now
		}
		for _, in := range shuffled {
			in.Token = two
			do(t, l.Update(ctx, in))
		}
		a, b := everything(rt, l, one), everything(rt, l, two)
		b.instance.Token = one
		if !reflect.DeepEqual(a, b) {
			rt.Fatalf("in order %s %v\nshuffled %s %v", show(a.instance), a.rates, show(b.instance), b.rates)
		}
	})
}

// forgotten names a field that was set before and is not now. A refusal may be taken back by a known instance.
func forgotten(before, now Instance) string {
	b, n := reflect.ValueOf(before), reflect.ValueOf(now)
	for i := range b.NumField() {
		name := b.Type().Field(i).Name
		if name == "Refused" && now.InstanceID != "" {
			continue
		}
		if !b.Field(i).IsZero() && n.Field(i).IsZero() {
			return name
		}
	}
	return ""
}

func everything(t *rapid.T, l *Ledger, token string) history {
	found, err := l.histories(context.Background(), selectOne, token)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %d rows, %v", token, len(found), err)
	}
	return found[0]
}
