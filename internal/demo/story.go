// Package demo shows one purchase as it happens, and proves that it happened: each line of its timeline is an
// expectation, met by what was seen through the Kubernetes API, the provider's API, the market's books or the gateway,
// never by what gpuscale says of itself elsewhere.
//
// What has been seen is in a World, which observers change; the expectations of a Story are functions of it. Neither
// makes a call, so that both are tested without a cluster.
package demo

import (
	"fmt"
	"time"
)

// Source is the window through which something was seen.
type Source string

// The windows.
const (
	Kubernetes Source = "kubernetes"
	Provider   Source = "vast.ai"
	Books      Source = "market"
	Gateway    Source = "gateway"
)

// Sighting is when something happened and how it is told.
type Sighting struct {
	At time.Time
	// Version is the resource version of the object in which it first showed; 0 for what is not from Kubernetes. Versions
	// order exactly what the times of observers order only roughly.
	Version uint64
	// Exact: At is what whoever did it wrote down, by this machine's clock, and not when it was noticed.
	Exact bool
	Text  string
}

// Expectation is one thing that has to be seen.
type Expectation struct {
	// Name is what the timeline calls it, and what a failure names.
	Name   string
	Source Source
	// Check says whether it has happened.
	Check func(w *World) (Sighting, bool)
	// After names earlier expectations of the story that must have happened before this one, and not merely have been
	// seen before.
	After []string
	// Gap is how long after them, at the least; nil for any time.
	Gap func(w *World) time.Duration
}

// Story is a number of expectations in the order in which they are told.
type Story struct {
	expectations []Expectation
	met          map[string]Sighting
	next         int
}

// NewStory is a story of which nothing has happened. It panics when a name is used twice or an After names nothing that
// comes earlier, which is a mistake in the program.
func NewStory(all []Expectation) *Story {
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.Name] {
			panic("demo: two expectations are called " + e.Name)
		}
		for _, before := range e.After {
			if !seen[before] {
				panic(fmt.Sprintf("demo: %s comes after %s, which is not told before it", e.Name, before))
			}
		}
		seen[e.Name] = true
	}
	return &Story{expectations: all, met: map[string]Sighting{}}
}

// Line is an expectation that was met.
type Line struct {
	Name   string
	Source Source
	Sighting
}

// Told is one more line of the story if it has happened: the expectations are met one after another. The error says that
// something happened before what it has to come after.
func (s *Story) Told(w *World) (Line, bool, error) {
	e, more := s.Waiting()
	if !more {
		return Line{}, false, nil
	}
	seen, ok := e.Check(w)
	if !ok {
		return Line{}, false, nil
	}
	if err := s.order(e, seen, w); err != nil {
		return Line{}, false, err
	}
	s.met[e.Name] = seen
	s.next++
	return Line{Name: e.Name, Source: e.Source, Sighting: seen}, true, nil
}

// order checks that what was seen happened after what it has to come after.
func (s *Story) order(e Expectation, seen Sighting, w *World) error {
	for _, name := range e.After {
		before := s.met[name]
		if earlier(seen, before) {
			return &Unmet{Expectation: e, Why: fmt.Sprintf("it happened before %q", name)}
		}
		if e.Gap == nil {
			continue
		}
		if gap, least := seen.At.Sub(before.At), e.Gap(w); gap+late+truncated < least {
			return &Unmet{Expectation: e, Why: fmt.Sprintf("it happened %.1fs after %q, %s at the least is right",
				gap.Seconds(), name, least)}
		}
	}
	return nil
}

const (
	// late is how much later than another an observer may notice something, on a loaded machine.
	late = time.Second
	// truncated is what a time in a status may lack: most are whole seconds.
	truncated = time.Second
)

// earlier compares what is exact, and where nothing is, grants that observers are late.
func earlier(a, b Sighting) bool {
	switch {
	case a.Version != 0 && b.Version != 0 && a.Version != b.Version:
		return a.Version < b.Version
	case a.Exact && b.Exact:
		return a.At.Before(b.At)
	}
	return a.At.Before(b.At.Add(-late))
}

// Waiting is the first expectation that has not been met; false when all have.
func (s *Story) Waiting() (Expectation, bool) {
	if s.next == len(s.expectations) {
		return Expectation{}, false
	}
	return s.expectations[s.next], true
}

// Unmet is an expectation that was not met, and why not as far as that is known.
type Unmet struct {
	Expectation Expectation
	Why         string
}

// Error names the expectation in one line.
func (u *Unmet) Error() string {
	return fmt.Sprintf("not seen: %s (%s): %s", u.Expectation.Name, u.Expectation.Source, u.Why)
}
