package market

import (
	"slices"
	"time"
)

// Sample is the books' state from a time until the next sample. Several may bear the same time; each was true in turn.
type Sample struct {
	At time.Time `json:"at"`
	// Live counts instances that are not gone, Running those whose GPU is billed, GPUs those of all live instances.
	Live    int `json:"live"`
	Running int `json:"running"`
	GPUs    int `json:"gpus"`
	// PerHour is what is billed, CommittedPerHour what would be if every live instance ran.
	PerHour          Nano `json:"perHour"`
	CommittedPerHour Nano `json:"committedPerHour"`
}

// Books is the market's own account of everything rented. It is what an auditor believes.
type Books struct {
	Provider string    `json:"provider"`
	At       time.Time `json:"at"`
	// Rented counts every instance ever, Sample the state at At.
	Rented int    `json:"rented"`
	Now    Sample `json:"now"`
	// Spent is the whole bill so far.
	Spent Nano `json:"spent"`
	// Instances is every instance ever, visible or not, in the order of creation.
	Instances []Instance `json:"instances"`
	// Series is every change since the market opened.
	Series []Sample `json:"series,omitempty"`
}

// Live is those that are not gone.
func (b Books) Live() []Instance {
	return slices.DeleteFunc(slices.Clone(b.Instances), func(in Instance) bool { return in.State == Gone })
}

// Peak is, for each number on its own, the highest that it has been.
func (b Books) Peak() Sample {
	var p Sample
	for _, s := range b.Series {
		p.Live, p.Running, p.GPUs = max(p.Live, s.Live), max(p.Running, s.Running), max(p.GPUs, s.GPUs)
		p.PerHour, p.CommittedPerHour = max(p.PerHour, s.PerHour), max(p.CommittedPerHour, s.CommittedPerHour)
	}
	return p
}

// Books is the account as of now.
func (m *Market) Books() Books {
	now, unlock := m.begin()
	defer unlock()
	b := Books{
		Provider: m.cfg.Provider, At: now, Rented: len(m.rentals), Now: m.state(now), Spent: m.spent(now),
		Instances: make([]Instance, 0, len(m.rentals)), Series: slices.Clone(m.series),
	}
	for _, r := range m.rentals {
		b.Instances = append(b.Instances, r.snapshot(now))
	}
	return b
}

func (m *Market) state(at time.Time) Sample {
	s := Sample{At: at}
	for _, r := range m.live {
		s.Live++
		s.GPUs += r.Offer.GPUs
		s.PerHour += r.rate()
		s.CommittedPerHour += r.committed()
		if r.gpu.rate > 0 {
			s.Running++
		}
	}
	return s
}

// sample writes down the state if it has changed.
func (m *Market) sample(at time.Time) {
	s := m.state(at)
	if n := len(m.series); n > 0 {
		last := m.series[n-1]
		last.At = at
		if last == s {
			return
		}
	}
	m.series = append(m.series, s)
}
