package market

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Throttle refuses calls that come too often, in the two ways that providers count: a shortest pause between two calls,
// or a number of calls per time. Each key is counted by itself. Methods may be called concurrently.
type Throttle struct {
	clock clock.PassiveClock
	scale float64

	mu     sync.Mutex
	next   map[string]time.Time
	recent map[string][]time.Time
}

// NewThrottle makes one whose times are multiplied by scale. A scale of zero means 1, a negative one no throttle at all.
func NewThrottle(c clock.PassiveClock, scale float64) *Throttle {
	if scale == 0 {
		scale = 1
	}
	return &Throttle{clock: c, scale: scale, next: map[string]time.Time{}, recent: map[string][]time.Time{}}
}

func (t *Throttle) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) * t.scale) }

// Spaced admits a call at least pause after the last admitted one. A refused call puts the next one off by penalty, from
// now, if that is later.
func (t *Throttle) Spaced(key string, pause, penalty time.Duration) bool {
	if t.scale < 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if due, ok := t.next[key]; ok && now.Before(due) {
		if later := now.Add(t.scaled(penalty)); later.After(due) {
			t.next[key] = later
		}
		return false
	}
	t.next[key] = now.Add(t.scaled(pause))
	return true
}

// Window admits n calls in any stretch of the given length.
func (t *Throttle) Window(key string, n int, per time.Duration) bool {
	if t.scale < 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	kept := t.recent[key][:0]
	for _, at := range t.recent[key] {
		if now.Sub(at) < t.scaled(per) {
			kept = append(kept, at)
		}
	}
	if len(kept) >= n {
		t.recent[key] = kept
		return false
	}
	t.recent[key] = append(kept, now)
	return true
}
