package rest

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
)

// Clock is where the time comes from, so that tests need not wait.
type Clock interface {
	Now() time.Time
	// After is time.After.
	After(d time.Duration) <-chan time.Time
}

// System is the machine's clock.
var System Clock = systemClock{}

type systemClock struct{}

// Now is time.Now.
func (systemClock) Now() time.Time { return time.Now() } //gpuscale:clock the default clock of every driver

// After is time.After.
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// pacer keeps a least time between the sends of each endpoint. The limits that it serves count from one call to the
// next, so there is no burst.
type pacer struct {
	clock    Clock
	limiters map[string]*rate.Limiter
}

func newPacer(paces map[string]time.Duration, clock Clock) *pacer {
	p := &pacer{clock: clock, limiters: make(map[string]*rate.Limiter, len(paces))}
	for endpoint, gap := range paces {
		if gap > 0 {
			p.limiters[endpoint] = rate.NewLimiter(rate.Every(gap), 1)
		}
	}
	return p
}

// paceError: the call's turn comes after its deadline, so it is not worth queueing for.
type paceError struct{ wait time.Duration }

func (e *paceError) Error() string {
	return fmt.Sprintf("our turn at this endpoint comes in %s, after the deadline", e.wait)
}

// wait returns when it is the caller's turn at the endpoint. A turn that is not taken is given back.
func (p *pacer) wait(ctx context.Context, endpoint string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limiter := p.limiters[endpoint]
	if limiter == nil {
		return nil
	}
	now := p.clock.Now()
	turn := limiter.ReserveN(now, 1)
	delay := turn.DelayFrom(now)
	if delay <= 0 {
		return nil
	}
	// A context's deadline is in the system's time; against another clock it says nothing beforehand.
	if deadline, ok := ctx.Deadline(); ok && p.clock == System && now.Add(delay).After(deadline) {
		turn.CancelAt(now)
		return &paceError{wait: delay}
	}
	select {
	case <-p.clock.After(delay):
		return nil
	case <-ctx.Done():
		turn.CancelAt(p.clock.Now())
		return ctx.Err()
	}
}
