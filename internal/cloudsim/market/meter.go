package market

import "time"

// meter charges one rate after another. Each stretch of constant rate is rounded up to the granularity, so a rental that
// changes often pays a little more than its exact time, as it does with providers that bill by the second.
type meter struct {
	granularity time.Duration
	rate        Nano
	since       time.Time
	total       Nano
	ran         time.Duration
	lastRate    Nano
}

// set charges what has run up and goes on at the given rate.
func (m *meter) set(rate Nano, at time.Time) {
	if rate == m.rate {
		return
	}
	m.total = m.upTo(at)
	if m.rate > 0 {
		m.ran += m.stretch(at)
		m.lastRate = m.rate
	}
	m.rate, m.since = rate, at
}

// close ends the bill, charging at least the minimum if anything ran at all.
func (m *meter) close(at time.Time, minimum time.Duration) {
	m.set(0, at)
	if m.ran > 0 && m.ran < minimum {
		m.total += cost(m.lastRate, minimum-m.ran)
		m.ran = minimum
	}
}

func (m *meter) stretch(at time.Time) time.Duration {
	d := at.Sub(m.since)
	if rest := d % m.granularity; rest > 0 {
		d += m.granularity - rest
	}
	return d
}

func (m *meter) upTo(at time.Time) Nano {
	if m.rate == 0 || !at.After(m.since) {
		return m.total
	}
	return m.total + cost(m.rate, m.stretch(at))
}
