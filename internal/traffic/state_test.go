package traffic

import (
	"maps"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/wish"
)

var epoch = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

// clocked is a State with a clock in seconds.
type clocked struct {
	*State
	t *testing.T
}

func at(second int) time.Time { return epoch.Add(time.Duration(second) * time.Second) }

var targets = map[string]demand.Target{"m": {Concurrency: 10, Most: 4}, "plain": {}}

// settled has read an empty, whole store from 0 to 15 s.
func settled(t *testing.T) clocked {
	s := clocked{NewState(Settings{}, at(0)), t}
	s.read(0, nil)
	s.read(15, nil)
	return s
}

func (c clocked) read(second int, entries map[string][]wish.Entry) {
	c.Read(at(second), wish.Demand{Models: entries, Whole: true}, targets)
}

func m(entries ...wish.Entry) map[string][]wish.Entry { return map[string][]wish.Entry{"m": entries} }

func (c clocked) must(second, buying, keeping int, known bool) {
	c.t.Helper()
	b, k := c.Buying(at(second))["m"], c.Keeping(at(second))["m"]
	if b != buying || k != keeping || c.Known(at(second)) != known {
		c.t.Errorf("at %d s: buying %d, keeping %d, known %v; want %d, %d, %v", second, b, k, c.Known(at(second)), buying, keeping, known)
	}
}

func TestGatewaysAddUp(t *testing.T) {
	s := settled(t)
	s.must(15, 0, 0, true)
	s.read(16, m(wish.Entry{Held: 1}))
	s.must(16, 1, 1, true)
	s.read(17, m(wish.Entry{Held: 8, Outstanding: 1}, wish.Entry{Outstanding: 2}))
	s.read(27, m(wish.Entry{Held: 8, Outstanding: 1}, wish.Entry{Outstanding: 2}))
	s.must(27, 2, 2, true)
	s.read(28, map[string][]wish.Entry{"m": {{}}, "undeclared": {{Held: 5}}})
	s.must(28, 0, 0, true)
	if got := s.Keeping(at(28)); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestNonsenseChangesNothing(t *testing.T) {
	for name, bad := range map[string]wish.Entry{"negative": {Held: -1}, "negative too": {Outstanding: math.MinInt},
		"absurd": {Held: math.MaxInt, Outstanding: math.MaxInt}, "far too many": {Outstanding: mostRequests + 1}} {
		s := settled(t)
		s.read(16, m(bad))
		s.must(16, 0, 0, true)
		s.read(17, m(wish.Entry{Held: 1}, bad))
		s.must(17, 1, 1, true)
		s.read(18, m(wish.Entry{Held: 1}))
		s.read(19, m(bad))
		s.must(19, 1, 1, true)
		if s.read(19+int(DefaultHold.Seconds()), m(bad)); s.Keeping(at(700))["m"] != 0 {
			t.Errorf("%s: held for ever", name)
		}
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	three := m(wish.Entry{Outstanding: 25})
	serving := func() clocked {
		s := settled(t)
		s.read(16, three)
		s.read(26, three)
		s.must(26, 3, 3, true)
		return s
	}
	t.Run("lost, back as it was", func(t *testing.T) {
		s := serving()
		s.Failed(at(27))
		s.must(27, 0, 3, false)
		s.must(500, 0, 3, false)
		s.read(501, three)
		s.must(501, 3, 3, false)
		s.read(516, three)
		s.must(516, 3, 3, true)
	})
	t.Run("lost for too long", func(t *testing.T) {
		s := serving()
		s.Failed(at(27))
		s.must(626, 0, 3, false)
		s.must(627, 0, 0, true)
		s.read(700, three)
		s.must(700, 1, 1, true)
	})
	t.Run("back empty", func(t *testing.T) {
		s := serving()
		s.Failed(at(27))
		s.read(30, nil)
		s.must(30, 0, 3, false)
		s.read(33, m(wish.Entry{Outstanding: 5}))
		s.must(33, 1, 3, false) // what it says may be bought, what it said is kept
		s.read(44, m(wish.Entry{Outstanding: 5}))
		s.must(44, 1, 3, false)
		s.read(45, m(wish.Entry{Outstanding: 5}))
		s.must(45, 3, 3, true) // and falls like any other
		s.read(105, m(wish.Entry{Outstanding: 5}))
		s.must(105, 1, 1, true)
	})
	t.Run("back empty, nobody comes", func(t *testing.T) {
		s := serving()
		s.Failed(at(27))
		s.read(30, nil)
		s.read(45, nil)
		s.must(45, 0, 0, true)
	})
	t.Run("whole only later", func(t *testing.T) {
		s := serving()
		s.Failed(at(27))
		for second := 30; second < 60; second++ {
			s.Read(at(second), wish.Demand{}, targets)
		}
		s.must(59, 0, 3, false)
		s.read(60, nil)
		s.must(60, 0, 0, true)
	})
	t.Run("never whole", func(t *testing.T) {
		s := clocked{NewState(Settings{}, at(0)), t}
		s.Read(at(1), wish.Demand{Models: three}, targets)
		s.must(1, 1, 1, false)
		s.Read(at(599), wish.Demand{}, targets)
		s.must(599, 0, 1, false)
		s.Read(at(600), wish.Demand{}, targets)
		s.must(600, 0, 0, true)
	})
	t.Run("the reader hangs", func(t *testing.T) {
		s := serving()
		s.must(36, 3, 3, true)
		s.must(37, 0, 3, true)
	})
	t.Run("comes and goes", func(t *testing.T) {
		s := serving()
		for second := 27; second < 620; second += 2 {
			s.Failed(at(second))
			s.read(second+1, nil)
			s.must(second+1, 0, 3, false)
		}
	})
}

// TestNothingIsBoughtThatNobodyAsksFor: whatever readings and failures come, what may be bought is kept too, and no more
// than the latest reading or the lasting wish asks for; nothing is while the store is away.
func TestNothingIsBoughtThatNobodyAsksFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := NewState(Settings{}, at(0)), 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.IntRange(1, 40).Draw(t, "seconds")
			before := maps.Clone(s.Keeping(at(now)))
			doubt := !s.Known(at(now))
			away := rapid.Bool().Draw(t, "away")
			if away {
				s.Failed(at(now))
			} else {
				s.Read(at(now), wish.Demand{Models: m(wish.Entry{Held: rapid.IntRange(-2, 50).Draw(t, "held")}), Whole: rapid.Bool().Draw(t, "whole")}, targets)
			}
			b, k := s.Buying(at(now))["m"], s.Keeping(at(now))["m"]
			if b > k || away && b > 0 || k > 4 {
				t.Fatalf("buying %d, keeping %d, away %v", b, k, away)
			}
			if doubt && !s.Known(at(now)) && k < before["m"] {
				t.Fatalf("fell from %d to %d in doubt", before["m"], k)
			}
		}
	})
}
