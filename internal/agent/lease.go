package agent

import (
	"errors"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// lease counts for how long nobody has called. It is safe for concurrent use.
//
// Silence is added up in short steps, of which none counts for more than twice its length: a clock that is set, a machine
// that was suspended and a process that was stopped make it longer, never shorter.
type lease struct {
	length, tick time.Duration

	mu      sync.Mutex
	calls   int // authenticated calls being served
	silent  time.Duration
	longest time.Duration
	// ending: the end of the rental is being asked for. doubtful: an earlier request may have been granted, so that the
	// machine can go at any moment and takes no work any more.
	ending, doubtful bool
	tries            int
	lastTry          time.Time
	lastError        string
}

const (
	// leaseTicks is how many steps a lease is counted in, and shortestTick and longestTick bound one.
	leaseTicks   = 20
	shortestTick = 10 * time.Millisecond
	longestTick  = 15 * time.Second
)

func newLease(length time.Duration) *lease {
	return &lease{length: length, tick: min(max(length/leaseTicks, shortestTick), longestTick)}
}

// enter and leave are the two ends of an authenticated call. Both renew the lease, and while a call is served no silence
// is counted.
func (l *lease) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.silent = 0
}

func (l *lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	l.silent = 0
}

// advance counts a step that took as long as the clock says.
func (l *lease) advance(elapsed time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls > 0 {
		return
	}
	l.silent += min(max(elapsed, 0), 2*l.tick)
	l.longest = max(l.longest, l.silent)
}

// begin reports whether the end of the rental is to be asked for now; if so, no work is taken from here on.
func (l *lease) begin(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.doubtful && (l.calls > 0 || l.silent < l.length) {
		return false
	}
	l.ending = true
	l.tries++
	l.lastTry = now
	return true
}

// asked records how the provider took it. Only after a refusal, which has ended nothing, is work taken again.
func (l *lease) asked(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastError = ""
	if err != nil {
		l.lastError = shorten(err.Error(), 300)
	}
	if !errors.Is(err, errNotEnded) {
		l.doubtful = true
	}
	l.ending = l.doubtful
}

// closed reports that no work is taken because the rental is being ended.
func (l *lease) closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// status is the lease as callers see it.
func (l *lease) status() agentapi.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := agentapi.Lease{State: agentapi.LeaseHeld, Seconds: int(l.length.Seconds()), LongestSilence: int(l.longest.Seconds()),
		Granted: l.doubtful, Tries: l.tries, LastTry: moment(l.lastTry), LastError: l.lastError}
	if l.ending {
		s.State = agentapi.LeaseEnding
	}
	return s
}

const (
	// selfEndTimeout bounds one request to end the rental, and selfEndBackOffMax the wait between two.
	selfEndTimeout    = 30 * time.Second
	selfEndBackOffMax = 5 * time.Minute
)

// keepLease ends the rental once the lease has run out, and tries for ever.
func (a *Agent) keepLease() {
	clock, l := a.cfg.Clock, a.lease
	backOff := a.cfg.Settings.SelfEndBackOff
	for last := clock.Now(); clock.Wait(a.life, l.tick) == nil; last = clock.Now() {
		l.advance(clock.Now().Sub(last))
		if !l.begin(clock.Now()) {
			backOff = a.cfg.Settings.SelfEndBackOff
			continue
		}
		a.cfg.Log.Warn("nobody has called for the whole lease: ending the rental", "lease", l.length, "by", a.cfg.Boot.SelfEnd.By)
		err := a.endRental()
		l.asked(err)
		if err != nil {
			a.cfg.Log.Error("the rental was not ended, it is tried again", "reason", err.Error(), "after", backOff)
		}
		if clock.Wait(a.life, backOff) != nil {
			return
		}
		backOff = min(2*backOff, selfEndBackOffMax)
	}
}

func (a *Agent) endRental() error {
	ctx, cancel := within(a.life, a.cfg.Clock, selfEndTimeout)
	defer cancel()
	return a.ender.end(ctx)
}

// setLease decides whether this worker has a lease that it can act on, and says why not.
func (a *Agent) setLease() {
	boot := a.cfg.Boot
	a.lease = newLease(time.Duration(boot.LeaseSeconds) * time.Second)
	switch {
	case boot.LeaseSeconds <= 0:
		a.noLease = "the controller gave this worker no lease"
	case boot.SelfEnd == nil:
		a.noLease = "the provider gives its instances no way to end their own rental"
	default:
		var err error
		if a.ender, err = newEnder(*boot.SelfEnd, a.cfg); err != nil {
			a.noLease = err.Error()
		}
	}
}

// leaseStatus is the lease as callers see it.
func (a *Agent) leaseStatus() *agentapi.Lease {
	s := a.lease.status()
	if a.noLease != "" {
		s = agentapi.Lease{State: agentapi.LeaseNone, Seconds: s.Seconds, Message: a.noLease}
	} else {
		s.SelfEnd = a.cfg.Boot.SelfEnd.By
	}
	return &s
}

// closed reports that no new work is taken. The agent is locked.
func (a *Agent) closed() bool { return a.draining || a.lease.closed() }

// watchLease counts while there is a lease to act on.
func (a *Agent) watchLease() {
	if a.ender != nil {
		a.work.Go(a.keepLease)
	}
}
