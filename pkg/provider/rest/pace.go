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

// Budget bounds the calls of all endpoints together, for vendors who count them so: Calls at once, and one more after
// each Every. In any stretch of time there are at most Calls and what the stretch has of Every. The zero value is none.
type Budget struct {
	Calls int
	Every time.Duration
}

// pacer keeps a least time between the sends of each endpoint, which serves limits that count from one call to the next
// and so has no burst, and a budget for all of them.
type pacer struct {
	clock    Clock
	limiters map[string]*rate.Limiter
	budget   *rate.Limiter
}

func newPacer(paces map[string]time.Duration, budget Budget, clock Clock) *pacer {
	p := &pacer{clock: clock, limiters: make(map[string]*rate.Limiter, len(paces))}
	if budget.Every > 0 {
		p.budget = rate.NewLimiter(rate.Every(budget.Every), max(budget.Calls, 1))
	}
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

// wait returns when it is the caller's turn at the endpoint and in the budget. A turn that is not taken is given back.
func (p *pacer) wait(ctx context.Context, endpoint string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now := p.clock.Now()
	turns, delay := p.reserve(endpoint, now)
	if delay <= 0 {
		return nil
	}
	// A context's deadline is in the system's time; against another clock it says nothing beforehand.
	if deadline, ok := ctx.Deadline(); ok && p.clock == System && now.Add(delay).After(deadline) {
		giveBack(turns, now)
		return &paceError{wait: delay}
	}
	select {
	case <-p.clock.After(delay):
		return nil
	case <-ctx.Done():
		giveBack(turns, p.clock.Now())
		return ctx.Err()
	}
}

// reserve takes a turn in every limit that the endpoint is under, and says how far away the last of them is.
func (p *pacer) reserve(endpoint string, now time.Time) (turns []*rate.Reservation, delay time.Duration) {
	for _, limiter := range []*rate.Limiter{p.limiters[endpoint], p.budget} {
		if limiter == nil {
			continue
		}
		turn := limiter.ReserveN(now, 1)
		turns = append(turns, turn)
		delay = max(delay, turn.DelayFrom(now))
	}
	return turns, delay
}

func giveBack(turns []*rate.Reservation, at time.Time) {
	for _, turn := range turns {
		turn.CancelAt(at)
	}
}
