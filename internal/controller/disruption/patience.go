package disruption

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/planner"
)

// patience holds a cooldown to the time that has really passed. The times of a verdict are of the day, and the clock of
// the day can be set; one that jumps ahead must end no node early.
type patience struct {
	mu    sync.Mutex
	waits map[string]waiting
}

// waiting is one claim's cooldown: the last use from which it runs, and the uptime at which it is over.
type waiting struct {
	claim types.UID
	since time.Time
	over  time.Duration
}

// jitter is how far the same last use may seem to move between two looks.
const jitter = time.Second

// left is how much of a verdict's cooldown is still to pass; 0 where it is over.
func (p *patience) left(c *v1alpha1.GPUNodeClaim, v planner.IdleVerdict, now time.Time, uptime time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.Since.IsZero() {
		delete(p.waits, c.Name)
		return 0
	}
	w, seen := p.waits[c.Name]
	if !seen || w.claim != c.UID || v.Since.Sub(w.since) > jitter {
		w = waiting{c.UID, v.Since, uptime + max(0, v.EndsAt.Sub(now))}
		if p.waits == nil {
			p.waits = map[string]waiting{}
		}
		p.waits[c.Name] = w
	}
	return max(0, w.over-uptime)
}

// forget drops a claim that is gone.
func (p *patience) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waits, name)
}
