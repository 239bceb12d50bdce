package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestLeaseCountsSilence walks one lease of 100 s, counted in steps of 5 s.
func TestLeaseCountsSilence(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	silence := func(l *lease, steps int) {
		for range steps {
			l.advance(l.tick)
		}
	}
	for name, tt := range map[string]struct {
		do   func(l *lease)
		ends bool
	}{
		"nobody calls":             {func(l *lease) { silence(l, 20) }, true},
		"a step too early":         {func(l *lease) { silence(l, 19) }, false},
		"a call in between":        {func(l *lease) { silence(l, 19); l.enter(); l.leave(); silence(l, 19) }, false},
		"silence after a call":     {func(l *lease) { silence(l, 19); l.enter(); l.leave(); silence(l, 20) }, true},
		"a stream runs":            {func(l *lease) { l.enter(); silence(l, 1000) }, false},
		"after a stream":           {func(l *lease) { l.enter(); silence(l, 1000); l.leave(); silence(l, 19) }, false},
		"one of two streams ended": {func(l *lease) { l.enter(); l.enter(); l.leave(); silence(l, 1000) }, false},
		"the clock jumps a day":    {func(l *lease) { silence(l, 3); l.advance(24 * time.Hour) }, false},
		"the clock goes back":      {func(l *lease) { silence(l, 19); l.advance(-24 * time.Hour) }, false},
		"suspended nine times": {func(l *lease) {
			for range 9 {
				l.advance(time.Hour)
			}
		}, false},
		"suspended ten times": {func(l *lease) {
			for range 10 {
				l.advance(time.Hour)
			}
		}, true},
		"a restart": {func(l *lease) { silence(l, 20); *l = lease{length: l.length, tick: l.tick} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLease(100 * time.Second)
			tt.do(l)
			if got := l.begin(now); got != tt.ends || l.closed() != tt.ends {
				t.Errorf("ends %t and refuses work %t, want %t", got, l.closed(), tt.ends)
			}
		})
	}
}

// TestLeaseAfterAnAnswer: only a refusal leaves anything to go back to.
func TestLeaseAfterAnAnswer(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	refused := fmt.Errorf("%w: 403", errNotEnded)
	for name, tt := range map[string]struct {
		answers []error
		called  bool
		closed  bool // work is refused afterwards
		again   bool // the end is asked for again
	}{
		"granted":                           {[]error{nil}, false, true, true},
		"granted, and then called":          {[]error{nil}, true, true, true},
		"unclear, and then called":          {[]error{errors.New("timeout")}, true, true, true},
		"refused":                           {[]error{refused}, false, false, true},
		"refused, and then called":          {[]error{refused}, true, false, false},
		"unclear, refused, and then called": {[]error{errors.New("timeout"), refused}, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLease(time.Second)
			l.silent = time.Second
			for i, answer := range tt.answers {
				if !l.begin(now) || !l.closed() {
					t.Fatalf("request %d is not made, or work is taken meanwhile", i+1)
				}
				l.asked(answer)
			}
			if tt.called {
				l.enter()
				l.leave()
			}
			if l.closed() != tt.closed {
				t.Errorf("refuses work: %t", l.closed())
			}
			if got := l.begin(now); got != tt.again {
				t.Errorf("asks again: %t", got)
			}
		})
	}
}

// TestLeaseNeverEndsEarly: whatever clock and callers do, no lease ends before as many steps without a call as it takes
// at twice the speed, nor while a call is served.
func TestLeaseNeverEndsEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLease(time.Duration(rapid.IntRange(1, 7200).Draw(t, "seconds")) * time.Second)
		least := int(l.length / (2 * l.tick))
		calls, quiet := 0, 0
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			switch rapid.SampledFrom([]string{"step", "step", "step", "jump", "enter", "leave"}).Draw(t, "event") {
			case "enter":
				l.enter()
				calls, quiet = calls+1, 0
			case "leave":
				if calls > 0 {
					l.leave()
					calls, quiet = calls-1, 0
				}
			case "jump":
				l.advance(time.Duration(rapid.Int64().Draw(t, "by")))
				quiet++
			case "step":
				l.advance(l.tick)
				quiet++
			}
			if calls > 0 {
				quiet = 0
			}
			if l.begin(time.Time{}) {
				if calls > 0 || quiet < least {
					t.Fatalf("ended after %d steps of at least %d, with %d calls", quiet, least, calls)
				}
				return
			}
		}
	})
}

// TestEnginesDoNotSeeTheKeyToTheRental: a model's own code may run there.
func TestEnginesDoNotSeeTheKeyToTheRental(t *testing.T) {
	got := ProcessRunner{Environ: func() []string {
		return []string{"CONTAINER_API_KEY=secret", "RUNPOD_API_KEY=secret", "HOME=/root"}
	}}.environ(nil)
	if !slices.Equal(got, []string{"HOME=/root"}) {
		t.Errorf("an engine sees %v", got)
	}
}
