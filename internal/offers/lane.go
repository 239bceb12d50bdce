package offers

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/pkg/provider"
)

// LongestSearch bounds one search or list, however many pages it has. Drivers have shorter limits per request; this one
// keeps a driver that hangs from blocking its lane for ever.
const LongestSearch = 2 * time.Minute

// lane makes the calls of one kind to one account: one at a time, a least time apart, and none while a failure has the
// whole account wait.
type lane struct {
	clock clock.Clock
	// pause is the least time between the starts of two calls.
	pause time.Duration
	// turn holds one token, the right to call.
	turn chan struct{}
	// next is when the next call may start. Only the holder of the turn touches it.
	next time.Time

	mu   sync.Mutex
	hold hold
}

func newLane(c clock.Clock, pause time.Duration) *lane {
	l := &lane{clock: c, pause: pause, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// do runs call when it is its turn, and returns its error; or, without calling, the error that has the account wait, or
// that of ctx. then runs afterwards, before anybody else's turn.
func (l *lane) do(ctx context.Context, call func(context.Context) error, then func(error)) {
	select {
	case <-l.turn:
		defer func() { l.turn <- struct{}{} }()
	case <-ctx.Done():
		then(ctx.Err())
		return
	}
	then(l.call(ctx, call))
}

func (l *lane) call(ctx context.Context, call func(context.Context) error) error {
	if err := l.held(); err != nil {
		return err
	}
	if err := sleepUntil(ctx, l.clock, l.next); err != nil {
		return err
	}
	l.next = l.clock.Now().Add(l.pause)
	ctx, cancel := context.WithTimeout(ctx, LongestSearch)
	defer cancel()
	err := call(ctx)
	l.settle(err)
	return err
}

// held is the error that has the whole account wait now, or nil.
func (l *lane) held() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold.active(l.clock.Now())
}

func (l *lane) settle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !ActionFor(err, Call{Op: OpRead}).WaitAll {
		return // says nothing of the account
	}
	l.hold.note(err, l.clock.Now())
}

// maxHold bounds the doubling of hold: a provider that recovered is noticed within a minute.
const maxHold = time.Minute

// hold answers with the last error for a while instead of calling again. The while is what ActionFor says, doubled each
// time in a row up to maxHold, unless it is longer to begin with (then the provider said so). The zero value holds
// nothing.
type hold struct {
	err   error
	until time.Time
	fails int
}

// active is the error to answer with at now, or nil when a call may be made.
func (h *hold) active(now time.Time) error {
	if h.err != nil && now.Before(h.until) {
		return h.err
	}
	return nil
}

// note takes the outcome of a call that ended at now.
func (h *hold) note(err error, now time.Time) {
	if err == nil {
		*h = hold{}
		return
	}
	wait := ActionFor(err, Call{Op: OpRead}).Wait
	for range h.fails {
		if wait >= maxHold {
			break
		}
		wait = min(2*wait, maxHold)
	}
	h.err, h.until, h.fails = err, now.Add(wait), h.fails+1
}

// sleepUntil returns nil at t, or the error of ctx if that ends first.
func sleepUntil(ctx context.Context, c clock.Clock, t time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d := t.Sub(c.Now())
	if d <= 0 {
		return nil
	}
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// givenUp is the error of a wait that a context ended, in the form of every other error here.
func givenUp(p provider.Name, op string, err error) error {
	return &provider.Error{Provider: p, Op: op, Kind: provider.Unavailable,
		Message: "stopped waiting for the answer", Err: err}
}
