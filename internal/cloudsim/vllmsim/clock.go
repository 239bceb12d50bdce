package vllmsim

import (
	"context"
	"time"
)

// Clock is the only source of time in this package.
type Clock interface {
	// Now returns the current time.
	Now() time.Time
	// Wait returns nil once d has passed, at once if d is not positive, and
	// ctx's error as soon as ctx ends.
	Wait(ctx context.Context, d time.Duration) error
}

// RealClock returns the Clock of the machine.
func RealClock() Clock { return realClock{} }

type realClock struct{}

// Now is time.Now.
func (realClock) Now() time.Time {
	return time.Now() //gpuscale:clock the real clock of this package is made here
}

// Wait waits by the machine's clock.
func (realClock) Wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d) //gpuscale:clock the real clock of this package is made here
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
