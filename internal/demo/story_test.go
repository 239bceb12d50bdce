package demo

import (
	"errors"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// fixed is an expectation that is met as soon as the world has the name in it.
func fixed(name string, after ...string) Expectation {
	return Expectation{Name: name, Source: Kubernetes, After: after, Check: first(name)}
}

func TestStoryGoesInOrderAndNamesWhatIsMissing(t *testing.T) {
	w := NewWorld()
	s := NewStory([]Expectation{fixed("a"), fixed("b", "a"), fixed("c")})
	w.note("c", Sighting{At: at(1)})
	w.note("a", Sighting{At: at(2)})
	if line, ok, err := s.Told(w); !ok || err != nil || line.Name != "a" {
		t.Fatalf("first line: %v %v %v", line, ok, err)
	}
	// c has been seen, b has not: b is what is missing.
	if line, ok, err := s.Told(w); ok || err != nil {
		t.Fatalf("told %v %v, with b missing", line, err)
	}
	if e, more := s.Waiting(); !more || e.Name != "b" {
		t.Errorf("waiting for %q", e.Name)
	}
	w.note("b", Sighting{At: at(3)})
	for _, want := range []string{"b", "c"} {
		if line, ok, err := s.Told(w); !ok || err != nil || line.Name != want {
			t.Errorf("told %v %v %v, want %s", line, ok, err, want)
		}
	}
	if e, more := s.Waiting(); more {
		t.Errorf("waiting for %q at the end", e.Name)
	}
}

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Sighting
		gap  time.Duration
		want string // in the error; empty for none
	}{
		"versions decide":              {a: Sighting{At: at(5), Version: 7}, b: Sighting{At: at(1), Version: 8}},
		"versions the other way":       {a: Sighting{At: at(1), Version: 8}, b: Sighting{At: at(5), Version: 7}, want: `before "a"`},
		"same version, exact times":    {a: Sighting{At: at(2), Version: 7, Exact: true}, b: Sighting{At: at(1), Version: 7, Exact: true}, want: `before "a"`},
		"same version, observed times": {a: Sighting{At: at(2), Version: 7}, b: Sighting{At: at(1.5), Version: 7}},
		"exact times":                  {a: Sighting{At: at(2), Exact: true}, b: Sighting{At: at(1.999), Exact: true}, want: `before "a"`},
		"an observer may be late":      {a: Sighting{At: at(2)}, b: Sighting{At: at(1.5), Exact: true}},
		"but not by that much":         {a: Sighting{At: at(5)}, b: Sighting{At: at(1), Exact: true}, want: `before "a"`},
		"late enough":                  {a: Sighting{At: at(1)}, b: Sighting{At: at(6)}, gap: 5 * time.Second},
		"too soon":                     {a: Sighting{At: at(1)}, b: Sighting{At: at(3)}, gap: 5 * time.Second, want: `2.0s after "a", 5s at the least`},
	} {
		t.Run(name, func(t *testing.T) {
			b := fixed("b", "a")
			if c.gap > 0 {
				b.Gap = func(*World) time.Duration { return c.gap }
			}
			s, w := NewStory([]Expectation{fixed("a"), b}), NewWorld()
			w.note("a", c.a)
			w.note("b", c.b)
			if _, ok, err := s.Told(w); !ok || err != nil {
				t.Fatal(ok, err)
			}
			_, ok, err := s.Told(w)
			if c.want == "" {
				if !ok || err != nil {
					t.Fatal(ok, err)
				}
				return
			}
			var u *Unmet
			if !errors.As(err, &u) || u.Expectation.Name != "b" || !strings.Contains(u.Why, c.want) {
				t.Fatalf("%v, want b and %q", err, c.want)
			}
		})
	}
}

func TestNewStoryRefusesNonsense(t *testing.T) {
	for name, all := range map[string][]Expectation{
		"twice":            {fixed("a"), fixed("a")},
		"after what":       {fixed("a", "b")},
		"after what comes": {fixed("a", "b"), fixed("b")},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("taken")
				}
			}()
			NewStory(all)
		})
	}
}
