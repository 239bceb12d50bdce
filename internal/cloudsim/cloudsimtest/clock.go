// Package cloudsimtest is what the tests of drivers and of simulated clouds have in common: stepped time, the part of a
// contract harness that does not depend on the vendor, and real workers on rented instances.
package cloudsimtest

import (
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// Clock is stepped time that goes on by itself when somebody waits for it: nothing is waited for in real time. It may be
// used by several goroutines.
type Clock struct{ *clocktesting.FakeClock }

// NewClock starts on a day on which every simulated offer can be had.
func NewClock() Clock {
	return Clock{clocktesting.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))}
}

// After steps by d.
func (c Clock) After(d time.Duration) <-chan time.Time {
	c.Step(d)
	fired := make(chan time.Time, 1)
	fired <- c.Now()
	return fired
}
