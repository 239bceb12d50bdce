package traffic

import (
	"time"

	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/wish"
)

// Settings of a State. The zero value of each is its default.
type Settings struct {
	// Grace is how long the store must have been read without a break, and be whole, before what it does not hold is
	// believed to be nothing: every gateway has written what it has within that time.
	Grace time.Duration
	// Hold is how long the last known wishes stand while the store says nothing that can be believed. What was held when it
	// was lost has been answered or given up by then; from there on the agents' own account alone says what is idle.
	Hold time.Duration
}

// DefaultGrace is as old as an entry may be, DefaultHold the longest that a gateway holds a request.
const (
	DefaultGrace = wish.MaxAge
	DefaultHold  = 10 * time.Minute
)

// fresh is how old the last reading may be for anything to be bought from it.
const fresh = 10 * time.Second

// mostRequests is the most that one gateway can have of one model; more is a mistake and counts as not said.
const mostRequests = 1_000_000

// State is what is known of the gateways' demand. It is a function of what it was told: readings, failures and times, which
// must come from one clock.
type State struct {
	Settings
	models map[string]model
	// began is when the current run of readings began; zero while the store cannot be read. readAt is the latest reading.
	began, readAt time.Time
	// doubtSince is since when what the store lacks is not believed to be nothing; zero while it is.
	doubtSince time.Time
}

// model is one model's wish.
type model struct {
	wish demand.Wish
	// asked is what the latest reading alone asks for.
	asked int
	// soundAt is when its entries were last all sound.
	soundAt time.Time
}

// NewState knows nothing: until the store has been read for the grace, what it does not hold is unknown.
func NewState(s Settings, now time.Time) *State {
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if s.Hold == 0 {
		s.Hold = DefaultHold
	}
	return &State{Settings: s, doubtSince: now}
}

// Failed notes that the store could not be read.
func (s *State) Failed(now time.Time) {
	s.began = time.Time{}
	if s.doubtSince.IsZero() {
		s.doubtSince = now
	}
}

// Read notes what the store holds. Models without a target are passed over.
func (s *State) Read(now time.Time, d wish.Demand, targets map[string]demand.Target) {
	if s.began.IsZero() {
		s.began = now
	}
	given := s.gaveUp(now) // wishes from before do not come back
	s.readAt = now
	if d.Whole && now.Sub(s.began) >= s.Grace {
		s.doubtSince = time.Time{}
	}
	models := map[string]model{}
	for name, target := range targets {
		m := s.models[name]
		if given {
			m = model{}
		}
		if m = s.next(m, d.Models[name], target, now); m.wish.Replicas > 0 {
			models[name] = m
		}
	}
	s.models = models
}

// next is a model after a reading.
func (s *State) next(m model, entries []wish.Entry, target demand.Target, now time.Time) model {
	requests, sound := total(entries)
	m.asked = target.Replicas(requests)
	if sound {
		m.soundAt = now
	}
	// What cannot be understood adds nothing and takes nothing away, for as long as what cannot be read.
	unsound := !sound && now.Sub(m.soundAt) < s.Hold
	if m.asked < m.wish.Replicas && (unsound || !s.doubtSince.IsZero()) {
		m.wish = demand.Wish{Replicas: m.wish.Replicas}
		return m
	}
	m.wish = m.wish.Next(m.asked, now)
	return m
}

// total is what all gateways have, and whether all of it makes sense.
func total(entries []wish.Entry) (requests int, sound bool) {
	sound = true
	for _, e := range entries {
		if e.Held < 0 || e.Outstanding < 0 || e.Held > mostRequests || e.Outstanding > mostRequests {
			sound = false
			continue
		}
		requests += e.Held + e.Outstanding
	}
	return requests, sound
}

// gaveUp reports that doubt has lasted for too long to go on holding wishes.
func (s *State) gaveUp(now time.Time) bool {
	return !s.doubtSince.IsZero() && now.Sub(s.doubtSince) >= s.Hold
}

// Known reports whether a model without a wish is one that no gateway asks for, as far as that is waited for.
func (s *State) Known(now time.Time) bool { return s.doubtSince.IsZero() || s.gaveUp(now) }

// Buying are the replicas that may be bought for traffic, by model: what is wished for and, while there is doubt, also
// asked for in the latest reading. None while the store cannot be read.
func (s *State) Buying(now time.Time) map[string]int {
	out := map[string]int{}
	if s.began.IsZero() || now.Sub(s.readAt) > fresh {
		return out
	}
	for name, m := range s.models {
		n := m.wish.Replicas
		if !s.doubtSince.IsZero() {
			n = min(n, m.asked)
		}
		if n > 0 {
			out[name] = n
		}
	}
	return out
}

// Keeping are the replicas that traffic keeps, by model: the last known wishes, as long as they are held.
func (s *State) Keeping(now time.Time) map[string]int {
	out := map[string]int{}
	if s.gaveUp(now) && s.began.IsZero() {
		return out
	}
	for name, m := range s.models {
		out[name] = m.wish.Replicas
	}
	return out
}
