package wish_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/wish"
)

const installation = "5f2c91ab"

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, url, installation string, c clock.Clock) *wish.Store {
	t.Helper()
	s, err := wish.Open(url, installation, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fake(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.RunT(t)
	m.SetTime(start)
	return m
}

func put(t *testing.T, s *wish.Store, gateway string, entries map[string]wish.Entry) {
	t.Helper()
	if err := s.Put(t.Context(), gateway, entries); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s *wish.Store) wish.Demand {
	t.Helper()
	d, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// counts is a Demand's text: per model its entries' held and outstanding.
func counts(d wish.Demand) string {
	var models []string
	for model, entries := range d.Models {
		var each []string
		for _, e := range entries {
			each = append(each, fmt.Sprintf("%d+%d", e.Held, e.Outstanding))
		}
		slices.Sort(each)
		models = append(models, model+" "+strings.Join(each, ","))
	}
	slices.Sort(models)
	return strings.Join(models, "; ")
}

func TestEntriesOfAllGatewaysUntilTooOld(t *testing.T) {
	m := fake(t)
	// Gateway and controller are an hour apart, and neither has Redis' time.
	gateways, controller := testclock.NewFakeClock(start.Add(time.Hour)), testclock.NewFakeClock(start.Add(-time.Minute))
	s, reader := open(t, "redis://"+m.Addr(), installation, gateways), open(t, "redis://"+m.Addr(), installation, controller)
	put(t, s, "a", map[string]wish.Entry{"m1": {Held: 3, Outstanding: 1, Last: gateways.Now().Add(-7 * time.Second)}, "m2": {}})
	m.SetTime(start.Add(10 * time.Second))
	put(t, s, "b", map[string]wish.Entry{"m1": {Held: 2}})
	d := read(t, reader)
	if got := counts(d); got != "m1 2+0,3+1; m2 0+0" {
		t.Error(got)
	}
	for _, e := range d.Models["m1"] {
		if e.Held != 3 {
			if !e.Last.IsZero() {
				t.Errorf("last is %s where there was none", e.Last)
			}
			continue
		}
		if at, last := controller.Now().Sub(e.At), controller.Now().Sub(e.Last); at != 10*time.Second || last != 17*time.Second {
			t.Errorf("written %s ago and last asked %s ago", at, last)
		}
	}
	m.SetTime(start.Add(16 * time.Second))
	if got := counts(read(t, reader)); got != "m1 2+0" {
		t.Error(got)
	}
	// What one gateway no longer has, another's entry does not keep.
	put(t, s, "b", map[string]wish.Entry{"m1": {}})
	if got := counts(read(t, reader)); got != "m1 0+0" {
		t.Error(got)
	}
	if err := s.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if got := counts(read(t, reader)); got != "" {
		t.Error(got)
	}
}

func TestNothingOfADeadGatewayIsLeft(t *testing.T) {
	m := fake(t)
	s := open(t, "redis://"+m.Addr(), installation, clock.RealClock{})
	put(t, s, "a", map[string]wish.Entry{"m1": {Held: 1}, "m2": {Outstanding: 1}})
	m.FastForward(2 * time.Minute)
	if keys := m.Keys(); len(keys) != 1 || !strings.HasSuffix(keys[0], ":since") {
		t.Errorf("left: %v", keys)
	}
	m.FastForward(31 * 24 * time.Hour)
	if keys := m.Keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
}

func TestModelsThatNobodyHasLeaveTheIndex(t *testing.T) {
	m := fake(t)
	s := open(t, "redis://"+m.Addr(), installation, clock.RealClock{})
	put(t, s, "a", map[string]wish.Entry{"old": {Held: 1}})
	m.SetTime(start.Add(2 * time.Minute))
	put(t, s, "a", map[string]wish.Entry{"new": {Held: 1}})
	members, err := m.ZMembers("gpuscale:{" + installation + "}:demand:models")
	if err != nil || !slices.Equal(members, []string{"new"}) {
		t.Errorf("%v %v", members, err)
	}
}

func TestAbsenceMeansNothingUntilEverybodyCouldWrite(t *testing.T) {
	m := fake(t)
	s := open(t, "redis://"+m.Addr(), installation, clock.RealClock{})
	if d := read(t, s); d.Whole || len(d.Models) != 0 {
		t.Errorf("an empty Redis: %+v", d)
	}
	put(t, s, "a", nil)
	if read(t, s).Whole {
		t.Error("whole at the first word")
	}
	m.SetTime(start.Add(14 * time.Second))
	put(t, s, "b", map[string]wish.Entry{"m": {Held: 1}})
	if d := read(t, s); d.Whole || counts(d) != "m 1+0" {
		t.Errorf("%+v", d)
	}
	m.SetTime(start.Add(16 * time.Second))
	if !read(t, s).Whole {
		t.Error("not whole when all have had the time")
	}
	m.FlushAll()
	if read(t, s).Whole {
		t.Error("whole after all was lost")
	}
}

func TestInstallationsDoNotMeet(t *testing.T) {
	m := fake(t)
	ours, theirs := open(t, "redis://"+m.Addr(), installation, clock.RealClock{}), open(t, "redis://"+m.Addr(), "other", clock.RealClock{})
	wakes := theirs.Wakes(t.Context())
	wanted(t, wakes)
	put(t, ours, "a", map[string]wish.Entry{"m": {Held: 1}})
	put(t, theirs, "a", map[string]wish.Entry{"n": {}})
	if got := counts(read(t, theirs)); got != "n 0+0" {
		t.Error(got)
	}
	put(t, theirs, "a", map[string]wish.Entry{"n": {Held: 1}})
	wanted(t, wakes)
	none(t, wakes)
}

// wanted takes one signal.
func wanted(t *testing.T, wakes <-chan struct{}) {
	t.Helper()
	select {
	case _, open := <-wakes:
		if !open {
			t.Fatal("the channel is closed")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no signal")
	}
}

// none is for when whatever comes has come: what was published before the last signal was delivered before it.
func none(t *testing.T, wakes <-chan struct{}) {
	t.Helper()
	select {
	case <-wakes:
		t.Fatal("a signal too many")
	default:
	}
}

func TestOnlyTheFirstToWaitWakes(t *testing.T) {
	m := fake(t)
	s := open(t, "redis://"+m.Addr(), installation, clock.RealClock{})
	published := m.NewSubscriber()
	defer published.Close()
	published.Subscribe("gpuscale:{" + installation + "}:demand:wake")
	signals := make(chan struct{}, 100)
	go func() {
		for range published.Messages() {
			signals <- struct{}{}
		}
	}()
	step := func(held int, after time.Duration, want int) {
		t.Helper()
		start := start.Add(after)
		m.SetTime(start)
		put(t, s, "a", map[string]wish.Entry{"m": {Held: held}, "n": {Outstanding: held}})
		for range want {
			wanted(t, signals)
		}
		none(t, signals)
	}
	step(0, 0, 0)
	step(1, 0, 1)
	step(2, 0, 0)
	step(1, 10*time.Second, 0)
	step(0, 11*time.Second, 0)
	step(5, 12*time.Second, 1)
	// An entry that had become too old was no demand any more.
	step(5, 40*time.Second, 1)
	m.HSet("gpuscale:{"+installation+"}:demand:model:m", "a", "nonsense")
	if _, err := s.Read(t.Context()); err == nil {
		t.Error("nonsense was read")
	}
	step(1, 41*time.Second, 1)
}

func TestSignalsThatAreNotTakenAreOne(t *testing.T) {
	m := fake(t)
	s := open(t, "redis://"+m.Addr(), installation, clock.RealClock{})
	wakes := s.Wakes(t.Context())
	wanted(t, wakes) // connected
	for range 3 {
		put(t, s, "a", map[string]wish.Entry{"m": {Held: 1}, "n": {Held: 1}})
		put(t, s, "a", map[string]wish.Entry{"m": {}, "n": {}})
	}
	wanted(t, wakes)
	ctx, cancel := context.WithCancel(t.Context())
	ended := s.Wakes(ctx)
	cancel()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case _, open := <-ended:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("not closed after its context ended")
		}
	}
}

func TestAURLIsNotRepeated(t *testing.T) {
	for _, url := range []string{"redis://:secret@host:port:x", "http://:secret@host", "redis://:secret@%zz", ""} {
		if _, err := wish.Open(url, installation, clock.RealClock{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
