package agent

import (
	"context"
	"time"
)

// Clock is the only source of time in this package.
type Clock interface {
	// Now returns the current time.
	Now() time.Time
	// Wait returns nil once d has passed, at once if d is not positive, and ctx's error as soon as ctx ends.
	Wait(ctx context.Context, d time.Duration) error
}

// RealClock returns the machine's Clock.
func RealClock() Clock { return realClock{} }

type realClock struct{}

// Now is the machine's time.
func (realClock) Now() time.Time {
	return time.Now() //gpuscale:clock the agent's real clock is made here
}

// Wait waits by the machine's time.
func (realClock) Wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d) //gpuscale:clock the agent's real clock is made here
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// soon is the moment d from now for the deadline of a connection, which the system judges by the same clock, and by its
// monotonic part, whatever Config.Clock says.
func soon(d time.Duration) time.Time {
	return time.Now().Add(d) //gpuscale:clock a connection's deadline is judged by the machine's own clock
}
