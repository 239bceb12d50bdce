package ledger

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/pkg/money"
)

const hour = 60

func amount(t testing.TB, s string) money.Amount {
	t.Helper()
	a, err := money.ParseAmount(s)
	do(t, err)
	return a
}

func TestCosts(t *testing.T) {
	type change struct {
		rate string
		from *time.Time
	}
	price := intent("a")
	price.CreatedAt = after(0)
	with := func(edit func(*Instance)) Instance {
		in := price
		edit(&in)
		return in
	}
	ended := with(func(in *Instance) { in.DestroyAskedAt, in.GoneAt = after(2*hour), after(3*hour) })
	for name, c := range map[string]struct {
		in            Instance
		rates         []change
		from, to, now int // minutes after noon
		want          string
		lasts         int // minutes billed
	}{
		"at the offer's price":             {in: price, from: -hour, to: 9 * hour, now: hour, want: "0.681234", lasts: hour},
		"at the rate read back":            {in: price, rates: []change{{"0.50", nil}}, from: -hour, to: 9 * hour, now: 3 * hour, want: "1.50", lasts: 3 * hour},
		"up to when the end was accepted":  {in: ended, rates: []change{{"0.50", nil}}, from: -hour, to: 9 * hour, now: 9 * hour, want: "1.00", lasts: 2 * hour},
		"up to when it was gone":           {in: with(func(in *Instance) { in.GoneAt = after(90) }), rates: []change{{"0.50", nil}}, from: -hour, to: 9 * hour, now: 9 * hour, want: "0.75", lasts: 90},
		"gone before the end was accepted": {in: with(func(in *Instance) { in.GoneAt, in.DestroyAskedAt = after(30), after(90) }), rates: []change{{"0.50", nil}}, from: -hour, to: 9 * hour, now: 9 * hour, want: "0.25", lasts: 30},
		"within a window":                  {in: ended, rates: []change{{"0.50", nil}}, from: 30, to: hour, now: 9 * hour, want: "0.25", lasts: 30},
		// 0.5 h at 0.60, 1 h at 0.90, 0.5 h at 0.30.
		"over three rates": {in: ended, rates: []change{{"0.30", after(90)}, {"0.60", nil}, {"0.90", after(30)}}, from: -hour, to: 9 * hour, now: 9 * hour, want: "1.35", lasts: 2 * hour},
		// The last 15 min at 0.60, the first 15 at 0.90.
		"a window over a change": {in: ended, rates: []change{{"0.60", nil}, {"0.90", after(30)}}, from: 15, to: 45, now: 9 * hour, want: "0.375", lasts: 30},
		// A third of an hour at 1 micro-dollar more than 1 $/h is 0.333333666…
		"rounded":                     {in: price, rates: []change{{"1.000001", nil}}, from: -hour, to: 9 * hour, now: 20, want: "0.333334", lasts: 20},
		"half is rounded up":          {in: price, rates: []change{{"0.000001", nil}}, from: -hour, to: 9 * hour, now: 30, want: "0.000001", lasts: 30},
		"once for each rate":          {in: price, rates: []change{{"0.000001", nil}, {"0.000003", after(30)}}, from: -hour, to: 9 * hour, now: hour, want: "0.000003", lasts: hour}, // 0.5 + 1.5
		"once for a rate seen again":  {in: price, rates: []change{{"0.000001", nil}, {"0.000001", after(30)}}, from: -hour, to: 9 * hour, now: hour, want: "0.000001", lasts: hour},
		"the first rate is not known": {in: price, rates: []change{{"1.00", after(30)}}, from: -hour, to: 9 * hour, now: hour, want: "0.840617", lasts: hour},
		"nor the price":               {in: with(func(in *Instance) { in.Price = money.Dollars{} }), rates: []change{{"1.00", after(30)}}, from: -hour, to: 9 * hour, now: hour, want: "1.00", lasts: hour},
		"a rate from before the bill": {in: price, rates: []change{{"1.00", after(-5)}}, from: -hour, to: 9 * hour, now: hour, want: "1.00", lasts: hour},
		"a rate from after the end":   {in: ended, rates: []change{{"1.00", nil}, {"5.00", after(150)}}, from: -hour, to: 9 * hour, now: 9 * hour, want: "2.00", lasts: 2 * hour},
		"a rate of nothing":           {in: price, rates: []change{{"0.50", nil}, {"0", after(30)}}, from: -hour, to: 9 * hour, now: hour, want: "0.50", lasts: hour},

		"not billing yet":       {in: intent("a"), from: -hour, to: 9 * hour, now: hour},
		"created after now":     {in: price, from: -hour, to: 9 * hour, now: -1},
		"created at the end":    {in: price, from: -hour, to: 0, now: hour},
		"ended at the start":    {in: ended, from: 2 * hour, to: 9 * hour, now: 9 * hour},
		"a window upside down":  {in: price, from: hour, to: 0, now: hour},
		"a window to come":      {in: price, from: 2 * hour, to: 3 * hour, now: hour},
		"refused, not an error": {in: with(func(in *Instance) { in.Refused, in.InstanceID = true, "" }), from: -hour, to: 9 * hour, now: hour},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, "sqlite::memory:")
			do(t, l.Update(t.Context(), c.in))
			for _, r := range c.rates {
				do(t, l.Update(t.Context(), Instance{Token: "a", Rate: dollars(r.rate), RateFrom: r.from}))
			}
			got, err := l.Costs(t.Context(), *after(c.from), *after(c.to), *after(c.now))
			do(t, err)
			if c.want == "" {
				if len(got) != 0 {
					t.Fatalf("costs %s", got[0].Cost)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("%d rows", len(got))
			}
			if got[0].Cost != amount(t, c.want) || got[0].To.Sub(got[0].From) != time.Duration(c.lasts)*time.Minute {
				t.Errorf("%s from %s to %s; want %s for %d min", got[0].Cost, got[0].From, got[0].To, c.want, c.lasts)
			}
			if ended := c.in.DestroyAskedAt != nil || c.in.GoneAt != nil; got[0].Running == ended {
				t.Errorf("running %v", got[0].Running)
			}
			equal(t, got[0].Instance, mustGet(t, l, "a"))
		})
	}
}

func TestCostsOfSeveral(t *testing.T) { onBoth(t, testCostsOfSeveral) }

func testCostsOfSeveral(t *testing.T, l *Ledger) {
	ctx := t.Context()
	for i, name := range []string{"late", "early"} {
		in := full(name)
		in.CreatedAt = after(-i)
		do(t, l.Intend(ctx, intent(name)), l.Update(ctx, in))
	}
	do(t, l.Intend(ctx, intent("unknown")))
	got, err := l.Costs(ctx, time.Time{}, *after(10 * hour), *after(10 * hour))
	do(t, err)
	if len(got) != 2 || got[0].Instance.Token != "early" || got[1].Instance.Token != "late" {
		t.Errorf("costs: %+v", got)
	}
}

// TestCostsOfWindowsAddUp: days that adjoin come to the whole, but for a rounding for each rate in each of them.
func TestCostsOfWindowsAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seconds := rapid.Int64Range(0, 7200)
		at := func(label string) time.Time { return noon.Add(time.Duration(seconds.Draw(rt, label)) * time.Second) }
		in := intent("a")
		created := at("created")
		in.CreatedAt = &created
		h := history{instance: in}
		for s := range rapid.IntRange(0, 4).Draw(rt, "rates") {
			h.rates = append(h.rates, stretch{from: noon.Add(time.Duration(s) * 1700 * time.Second),
				rate: money.FromMicros(rapid.Int64Range(1, 3_000_000).Draw(rt, "rate"))})
		}
		end, cut := noon.Add(7200*time.Second), at("cut")
		cost := func(from, to time.Time) int64 {
			row, _ := h.cost(from, to, end)
			return row.Cost.Micros()
		}
		whole, parts := cost(noon, end), cost(noon, cut)+cost(cut, end)
		if parts < whole-1 || parts > whole+1 {
			rt.Fatalf("%d in one window, %d in two", whole, parts)
		}
		var high int64
		for _, s := range h.stretches() {
			high = max(high, s.rate.Micros())
		}
		if most := money.FromMicros(high).For(end.Sub(created)).Micros() + 5; whole > most {
			rt.Fatalf("%d is more than the highest rate over all the time, %d", whole, most)
		}
	})
}
