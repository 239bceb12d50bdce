package registry

import (
	"cmp"
	"time"
)

// Outcome is what became of a request at a worker, as far as it says something of the worker.
type Outcome int

const (
	// Began says that the first byte of an answer is there.
	Began Outcome = iota
	// Answered says that the answer came whole; an engine's refusal of the request is one.
	Answered
	// Failed says that the engine failed, or that the connection broke after the request was sent.
	Failed
	// Unreachable says that the request could not be sent.
	Unreachable
)

const (
	// failuresInARow set a worker aside: one may be the request's fault.
	failuresInARow = 3
	// A worker is set aside for firstPause, then twice as long each time its probe fails, at most longestPause.
	firstPause   = time.Second
	longestPause = time.Minute
	// fullFor bounds how long a worker's word that it is full counts when no answer of ours ends there: others may be
	// what fills it.
	fullFor = time.Second
)

// health is what outcomes said of a worker.
type health struct {
	// failures in a row, without a whole answer between.
	failures int
	// pause is how long it was set aside the last time, until when it is now; zero means that it is not.
	pause time.Duration
	until time.Time
	// probe is the request that is to show whether it is back; nil means none.
	probe *Lease
}

// observe notes an outcome and tells whether it sets the worker aside.
func (h *health) observe(o Outcome, now time.Time) (setAside bool) {
	switch o {
	case Began:
		h.until = time.Time{}
		return false
	case Answered:
		h.failures, h.pause, h.until = 0, 0, time.Time{}
		return false
	case Failed:
		h.failures++
		if h.failures < failuresInARow && h.until.IsZero() {
			return false
		}
	case Unreachable:
		h.failures = max(h.failures, failuresInARow)
	}
	if now.Before(h.until) {
		return false // The others of its requests fail for the same cause.
	}
	h.pause = min(max(2*h.pause, firstPause), longestPause) //nolint:mnd // Twice as long.
	h.until = now.Add(h.pause)
	return true
}

// The order in which workers are chosen, of equal ones the least busy.
type class int

const (
	probed    class = iota // set aside long enough: one request is to show whether it is back
	healthy                // wanted, and below its target
	spare                  // below its target, but not wanted
	loaded                 // at its target
	setAside               // better than none
	excluded               // tried before
	exhausted              // at its limit
)

// defaultTarget is the Target of models that have none, as far as it decides when workers that are not wanted get
// requests: so many at once an engine answers about as fast as one.
const defaultTarget = 16

// classOf judges e for a request for model.
func (r *Registry) classOf(e *entry, model string, skip map[string]bool, now time.Time) class {
	switch {
	case skip[e.ClaimUID]:
		return excluded
	case r.limit > 0 && e.outstanding >= r.limit, now.Before(e.full[model]):
		return exhausted
	case e.health.until.IsZero():
		return r.loadOf(e, model)
	case !now.Before(e.health.until) && e.health.probe == nil:
		return probed
	}
	return setAside
}

// loadOf is the class of a worker that nothing speaks against.
func (r *Registry) loadOf(e *entry, model string) class {
	switch {
	case e.outstanding >= cmp.Or(r.models[model].target, defaultTarget):
		return loaded
	case e.Spare[model]:
		return spare
	}
	return healthy
}

// Report notes an outcome. It tells whether the worker is set aside because of it.
func (l *Lease) Report(o Outcome) (setAside bool) {
	r := l.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.entry.health.probe == l {
		l.entry.health.probe = nil
	}
	return l.entry.health.observe(o, r.clock.Now())
}

// Full notes that the worker refused the request because it has no room for the model. It is left alone until an answer
// of the model ends there, for a second at most.
func (l *Lease) Full() {
	r := l.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.entry.full == nil {
		l.entry.full = map[string]time.Time{}
	}
	l.entry.full[l.model] = r.clock.Now().Add(fullFor)
	l.refused = true
}

// Full tells whether a worker of the model would be chosen but for its limit.
func (r *Registry) Full(model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		return false
	}
	now := r.clock.Now()
	for _, e := range m.ready {
		if r.classOf(e, model, nil, now) == exhausted {
			return true
		}
	}
	return false
}

// Health counts the workers that serve a model.
type Health struct{ Healthy, SetAside int }

// Health is the health of the workers of each known model.
func (r *Registry) Health() map[string]Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]Health, len(r.models))
	for name, m := range r.models {
		var h Health
		for _, e := range m.ready {
			if e.health.until.IsZero() {
				h.Healthy++
			} else {
				h.SetAside++
			}
		}
		out[name] = h
	}
	return out
}
