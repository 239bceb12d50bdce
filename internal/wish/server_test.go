package wish_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/wish"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

func TestRealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, server.URL(), installation, clock.RealClock{})
	wakes := s.Wakes(t.Context())
	wanted(t, wakes)
	asked := time.Now().Add(-5 * time.Second)
	put(t, s, "a", map[string]wish.Entry{"org/model": {Held: 2, Outstanding: 1, Last: asked}})
	wanted(t, wakes)
	d := read(t, s)
	if counts(d) != "org/model 2+1" || d.Whole {
		t.Errorf("%+v", d)
	}
	for _, e := range d.Models["org/model"] {
		if age := e.Last.Sub(asked).Abs(); age > time.Second {
			t.Errorf("last is off by %s", age)
		}
		if age := time.Since(e.At).Abs(); age > 5*time.Second {
			t.Errorf("written %s ago", age)
		}
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := counts(read(t, s)); got != "" {
		t.Error(got)
	}
}

// TestKilledAndRestartedEmpty loses a Redis with all in it.
func TestKilledAndRestartedEmpty(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, server.URL(), installation, clock.RealClock{})
	wakes := s.Wakes(t.Context())
	wanted(t, wakes)
	put(t, s, "a", map[string]wish.Entry{"m": {Held: 1}})
	wanted(t, wakes)
	server.Kill(t)
	if err := s.Put(t.Context(), "a", map[string]wish.Entry{"m": {Held: 1}}); err == nil {
		t.Error("written without a Redis")
	}
	if _, err := s.Read(t.Context()); err == nil || strings.Contains(err.Error(), redistest.Password) {
		t.Errorf("read without a Redis: %v", err)
	}
	server.Restart(t)
	// Whatever happened meanwhile is worth a look.
	wanted(t, wakes)
	if d := read(t, s); d.Whole || len(d.Models) != 0 {
		t.Errorf("%+v", d)
	}
	// The script is unknown to the new server.
	put(t, s, "a", map[string]wish.Entry{"m": {Held: 1}})
	wanted(t, wakes)
	if got := counts(read(t, s)); got != "m 1+0" {
		t.Error(got)
	}
}

// TestHung has a Redis that accepts and does not answer.
func TestHung(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, server.URL(), installation, clock.RealClock{})
	wakes := s.Wakes(t.Context())
	wanted(t, wakes)
	server.Pause(t)
	begun := time.Now()
	for what, call := range map[string]func() error{
		"put":    func() error { return s.Put(t.Context(), "a", map[string]wish.Entry{"m": {Held: 1}}) },
		"read":   func() error { _, err := s.Read(t.Context()); return err },
		"remove": func() error { return s.Remove(t.Context(), "a") },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("three calls took %s", took)
	}
	server.Resume(t)
	put(t, s, "a", map[string]wish.Entry{"m": {}})
	put(t, s, "a", map[string]wish.Entry{"m": {Held: 1}})
	wanted(t, wakes)
}

// TestHungSubscription notices by itself, with nobody writing, that its connection is dead.
func TestHungSubscription(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, server.URL(), installation, clock.RealClock{})
	wakes := s.Wakes(t.Context())
	wanted(t, wakes)
	server.Pause(t)
	// Longer than a silent subscription is believed; it cannot be seen from outside that it was given up.
	<-time.After(8 * time.Second)
	server.Resume(t)
	wanted(t, wakes)
}
