package offers

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

const prefix = "gs-12345678-"

func anInstance(id string) provider.Instance {
	return provider.Instance{ID: id, Tag: prefix + id, State: provider.StateRunning}
}

func listing(instances ...provider.Instance) func() ([]provider.Instance, error) {
	return func() ([]provider.Instance, error) { return instances, nil }
}

// inObserver runs a test in virtual time, with an observer whose life ends before the test does.
func inObserver(t *testing.T, f *fakeDriver, onChange func(Change), test func(t *testing.T, o *Observer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		test(t, NewObserver(life, f, prefix, clock.RealClock{}, onChange))
		end()
		synctest.Wait() // a goroutine that outlives this fails the test
		if f.crowded || len(f.calls) > 1 && f.tightest() < f.caps.MinPollInterval {
			t.Errorf("the driver was called %s apart, overlapping %v", f.tightest(), f.crowded)
		}
	})
}

func TestFindAnswersFromAListNewEnough(t *testing.T) {
	f := aDriver()
	f.list = listing(anInstance("b"), anInstance("a"), provider.Instance{ID: "foreign", Tag: "gs-99999999-x"}, provider.Instance{ID: "untagged"})
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		asked := time.Now()
		for name, want := range map[string]bool{prefix + "a": true, "a": true, "b": true, prefix + "c": false, "c": false, "foreign": false, "untagged": false} {
			in, ok, asOf, err := o.Find(t.Context(), name, asked)
			if err != nil || ok != want || !asOf.Equal(asked) || ok && in.Tag != prefix+in.ID {
				t.Errorf("%s: %+v, %v as of %s, %v", name, in, ok, asOf, err)
			}
		}
		if f.count() != 1 {
			t.Errorf("%d calls", f.count())
		}
		later := time.Now()
		if _, _, asOf, err := o.Find(t.Context(), "a", later); err != nil || asOf.Before(later) || f.count() != 2 {
			t.Errorf("as of %s, %v, after %d calls", asOf, err, f.count())
		}
		for _, bad := range []string{"", "gs-99999999-x", "gs-", prefix[:5]} {
			if _, _, _, err := o.Find(t.Context(), bad, time.Time{}); provider.KindOf(err) != provider.Invalid {
				t.Errorf("%q: %v", bad, err)
			}
		}
		if l, err := o.Latest(); err != nil || len(l.Instances) != 2 || l.Instances[0].ID != "a" {
			t.Errorf("%+v, %v", l, err)
		}
	})
}

func TestNoListNoAbsence(t *testing.T) {
	f := aDriver()
	f.list = func() ([]provider.Instance, error) {
		return []provider.Instance{anInstance("half")}, failure(provider.Unavailable)
	}
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		if l, err := o.Latest(); !l.Began.IsZero() || err != nil {
			t.Errorf("%+v, %v", l, err)
		}
		for range 3 {
			if _, ok, asOf, err := o.Find(t.Context(), "a", time.Time{}); ok || !asOf.IsZero() || provider.KindOf(err) != provider.Unavailable {
				t.Errorf("%v as of %s, %v", ok, asOf, err)
			}
		}
		if f.count() != 1 {
			t.Errorf("a provider that just failed was asked %d times", f.count())
		}
		f.set(func(f *fakeDriver) { f.list = listing(anInstance("a")) })
		time.Sleep(time.Minute)
		good := time.Now()
		if _, ok, _, err := o.Find(t.Context(), "a", good); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		f.set(func(f *fakeDriver) {
			f.list = func() ([]provider.Instance, error) { return nil, failure(provider.Unauthorized) }
		})
		time.Sleep(time.Minute)
		if _, ok, _, err := o.Find(t.Context(), "a", time.Now()); ok || provider.KindOf(err) != provider.Unauthorized {
			t.Errorf("%v, %v", ok, err)
		}
		// The older list still answers those whom it is new enough for.
		if _, ok, asOf, err := o.Find(t.Context(), "a", good); !ok || err != nil || asOf.Before(good) {
			t.Errorf("%v as of %s, %v", ok, asOf, err)
		}
		if l, err := o.Latest(); len(l.Instances) != 1 || provider.KindOf(err) != provider.Unauthorized {
			t.Errorf("%+v, %v", l, err)
		}
	})
}

func TestCallersShareALists(t *testing.T) {
	f := aDriver()
	f.list = listing(anInstance("a"))
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		var wg sync.WaitGroup
		find := func(notOlderThan time.Time) {
			wg.Go(func() {
				if _, ok, asOf, err := o.Find(t.Context(), "a", notOlderThan); !ok || err != nil || asOf.Before(notOlderThan) {
					t.Errorf("%v as of %s, %v; want %s", ok, asOf, err, notOlderThan)
				}
			})
		}
		for range 10 {
			find(time.Now())
		}
		synctest.Wait()
		time.Sleep(500 * time.Millisecond)
		for range 10 { // the list under way began too early for these
			find(time.Now())
		}
		wg.Wait()
		if f.count() != 2 {
			t.Errorf("%d calls", f.count())
		}
	})
}

func TestQueuedCallersGetTheErrorOfTheListBefore(t *testing.T) {
	f := aDriver()
	f.list = func() ([]provider.Instance, error) { return nil, failure(provider.Unknown) }
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		go func() { _, _ = o.List(t.Context(), time.Time{}) }()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		if _, err := o.List(t.Context(), time.Now()); provider.KindOf(err) != provider.Unknown || f.count() != 1 {
			t.Errorf("%v after %d calls", err, f.count())
		}
		time.Sleep(time.Minute)
		f.set(func(f *fakeDriver) { f.list = listing() })
		if _, err := o.List(t.Context(), time.Now()); err != nil {
			t.Errorf("stuck: %v", err)
		}
	})
}

func TestAMomentToComeIsWaitedFor(t *testing.T) {
	f := aDriver()
	f.list = listing()
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		_, ok, first, err := o.Find(t.Context(), "a", time.Now())
		if ok || err != nil {
			t.Fatal(ok, err)
		}
		again := first.Add(f.caps.ListLag)
		if _, ok, second, err := o.Find(t.Context(), "a", again); ok || err != nil || second.Before(again) {
			t.Errorf("%v as of %s, %v", ok, second, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, _, err := o.Find(ctx, "a", time.Now().Add(time.Hour)); provider.KindOf(err) != provider.Unavailable {
			t.Error(err)
		}
	})
}

func TestACallerThatLeavesDoesNotEndTheList(t *testing.T) {
	f := aDriver()
	f.list = listing()
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := o.List(ctx, time.Time{}); provider.KindOf(err) != provider.Unavailable {
			t.Error(err)
		}
		if _, err := o.List(t.Context(), time.Time{}); err != nil || f.count() != 1 {
			t.Errorf("%v after %d calls", err, f.count())
		}
	})
}

func TestPollsWhileWatchedAtTheFastestInterval(t *testing.T) {
	f := aDriver()
	f.list, f.latency = listing(), 0
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		polls := func(want int, over time.Duration, why string) {
			t.Helper()
			synctest.Wait()
			before := f.count()
			time.Sleep(over)
			synctest.Wait()
			if got := f.count() - before; got < want-1 || got > want+1 {
				t.Errorf("%s: %d polls in %s; want %d", why, got, over, want)
			}
		}
		polls(0, time.Hour, "nobody watches")
		o.Unwatch("x")
		o.Watch("a", time.Minute)
		o.Watch("a", time.Minute)
		polls(60, time.Hour, "one")
		o.Watch("b", 15*time.Second)
		polls(240, time.Hour, "a faster one")
		o.Watch("c", 0)
		polls(720, time.Hour, "faster than allowed")
		o.Watch("c", time.Hour)
		o.Unwatch("b")
		polls(60, time.Hour, "back to the first")
		o.Unwatch("a")
		polls(1, time.Hour, "slower")
		o.Unwatch("c")
		polls(0, time.Hour, "nobody any more")
	})
}

func TestListsOfOthersSpareAPoll(t *testing.T) {
	f := aDriver()
	f.list, f.latency = listing(), 0
	inObserver(t, f, nil, func(t *testing.T, o *Observer) {
		o.Watch("a", time.Minute)
		synctest.Wait()
		for range 10 {
			time.Sleep(50 * time.Second)
			if _, err := o.List(t.Context(), time.Now()); err != nil {
				t.Error(err)
			}
		}
		if f.count() != 11 {
			t.Errorf("%d calls", f.count())
		}
	})
}

func TestPollingGoesOnThroughFailures(t *testing.T) {
	f := aDriver()
	f.latency = 0
	f.list = func() ([]provider.Instance, error) { return nil, failure(provider.Unavailable) }
	var seen []Change
	inObserver(t, f, func(c Change) { seen = append(seen, c) }, func(t *testing.T, o *Observer) {
		o.Watch("a", 5*time.Second)
		time.Sleep(time.Hour)
		if n := f.count(); n < 50 || n > 70 {
			t.Errorf("%d polls of a failing provider in an hour", n)
		}
		f.set(func(f *fakeDriver) { f.list = listing(anInstance("a")) })
		time.Sleep(maxHold + 5*time.Second)
		synctest.Wait()
		if len(seen) != 1 {
			t.Errorf("%+v", seen)
		}
	})
}

func TestChanges(t *testing.T) {
	f := aDriver()
	f.latency = 0
	var seen []string
	onChange := func(c Change) {
		seen = append(seen, fmt.Sprintf("%s %s %s:%d vanished=%v", c.Instance.ID, c.Instance.State, c.Instance.Address, c.Instance.Port, c.Vanished))
	}
	a, b := anInstance("a"), anInstance("b")
	a.State, a.Message = provider.StatePending, "pulling 3 %"
	pulling := a
	pulling.Message = "pulling 4 %"
	running := a
	running.State = provider.StateRunning
	reachable := running
	reachable.Address, reachable.Port = "203.0.113.9", 41234
	interrupted := reachable
	interrupted.Interrupted = true
	priced := interrupted
	priced.Price = ptr(money.MustParse("0.50"))
	same := priced
	same.Price = ptr(money.MustParse("0.50"))
	ending := same
	ending.EndsAt = noon
	inObserver(t, f, onChange, func(t *testing.T, o *Observer) {
		for _, step := range []struct {
			list func() ([]provider.Instance, error)
			want []string
		}{
			{listing(b, a), []string{"a Pending :0 vanished=false", "b Running :0 vanished=false"}},
			{listing(a, b), nil},
			{listing(pulling, b), nil},
			{listing(running, b), []string{"a Running :0 vanished=false"}},
			{listing(reachable, b), []string{"a Running 203.0.113.9:41234 vanished=false"}},
			{func() ([]provider.Instance, error) { return nil, failure(provider.Unavailable) }, nil},
			{listing(reachable), []string{"b Running :0 vanished=true"}},
			{listing(interrupted), []string{"a Running 203.0.113.9:41234 vanished=false"}},
			{listing(priced), []string{"a Running 203.0.113.9:41234 vanished=false"}},
			{listing(same), nil},
			{listing(ending), []string{"a Running 203.0.113.9:41234 vanished=false"}},
			{listing(), []string{"a Running 203.0.113.9:41234 vanished=true"}},
			{listing(), nil},
		} {
			seen = nil
			f.set(func(f *fakeDriver) { f.list = step.list })
			_, _ = o.List(t.Context(), time.Now())
			time.Sleep(time.Minute)
			synctest.Wait()
			if !slices.Equal(seen, step.want) {
				t.Errorf("%q; want %q", seen, step.want)
			}
		}
	})
}

func TestSeveralInstancesOfOneTag(t *testing.T) {
	young, old, undated := anInstance("1"), anInstance("2"), anInstance("0")
	young.Tag, old.Tag, undated.Tag = prefix+"x", prefix+"x", prefix+"x"
	young.CreatedAt, old.CreatedAt = noon, noon.Add(-time.Hour)
	l := newListing(noon, []provider.Instance{young, old, undated}, provider.InstanceFilter{TagPrefix: prefix})
	var ids []string
	for _, in := range l.Tagged(prefix + "x") {
		ids = append(ids, in.ID)
	}
	if in, ok := l.Find(prefix + "x"); !slices.Equal(ids, []string{"2", "1", "0"}) || !ok || in.ID != "2" {
		t.Errorf("%v, %+v, %v", ids, in, ok)
	}
	if _, ok := l.Find(""); ok || l.Tagged("") != nil {
		t.Error("nothing was found")
	}
}

func TestAnObserverNeedsItsPrefix(t *testing.T) {
	for _, bad := range []string{"", "gs-", "x"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is taken", bad)
				}
			}()
			NewObserver(t.Context(), aDriver(), bad, clock.RealClock{}, nil)
		}()
	}
}

func TestObserverEndsWithItsAccount(t *testing.T) {
	f := aDriver()
	f.list = listing()
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		o := NewObserver(life, f, prefix, clock.RealClock{}, nil)
		o.Watch("a", time.Second)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				if l, err := o.List(t.Context(), time.Now()); !l.Began.IsZero() || provider.KindOf(err) != provider.Unavailable {
					t.Errorf("%+v, %v", l, err)
				}
			})
		}
		time.Sleep(300 * time.Millisecond)
		end()
		wg.Wait()
		time.Sleep(time.Hour)
		if _, err := o.List(t.Context(), time.Now()); provider.KindOf(err) != provider.Unavailable || f.count() != 1 {
			t.Errorf("%v after %d calls", err, f.count())
		}
	})
}

// A market that changes all the time, fails often and is asked by many: whatever Find says was true at asOf, and asOf is
// never too old.
func TestObserverTellsTheTruth(t *testing.T) {
	f := aDriver()
	f.caps.MinPollInterval = time.Second
	rng := rand.New(rand.NewSource(1))
	truth := map[time.Time]map[string]bool{}
	alive := map[string]bool{}
	f.list = func() (out []provider.Instance, err error) { // under the driver's lock
		for i := range 5 {
			id := string(rune('a' + i))
			alive[id] = rng.Intn(2) == 0
			if alive[id] {
				out = append(out, anInstance(id))
			}
		}
		if rng.Intn(4) == 0 {
			return out[:len(out)/2], failure(provider.Unavailable)
		}
		now := map[string]bool{}
		for id, is := range alive {
			now[id] = is
		}
		truth[time.Now().Round(0)] = now
		return out, nil
	}
	shown := map[string]bool{}
	onChange := func(c Change) { shown[c.Instance.ID] = !c.Vanished }
	inObserver(t, f, onChange, func(t *testing.T, o *Observer) {
		var wg sync.WaitGroup
		answers, errs := make([]int, 8), make([]int, 8)
		for i := range answers {
			wg.Go(func() {
				rng := rand.New(rand.NewSource(int64(i)))
				for range 100 {
					time.Sleep(time.Duration(rng.Intn(3000)) * time.Millisecond)
					id := string(rune('a' + rng.Intn(5)))
					o.Watch(id, time.Duration(rng.Intn(10))*time.Second)
					notOlderThan := time.Now().Add(time.Duration(rng.Intn(6000)-4000) * time.Millisecond)
					_, ok, asOf, err := o.Find(t.Context(), prefix+id, notOlderThan)
					if rng.Intn(2) == 0 {
						o.Unwatch(id)
					}
					if err != nil {
						errs[i]++
						continue
					}
					answers[i]++
					f.mu.Lock()
					was, known := truth[asOf.Round(0)][id]
					f.mu.Unlock()
					if asOf.Before(notOlderThan) || !known || was != ok {
						t.Errorf("%s is there: %v as of %s; want %v (%v), not before %s", id, ok, asOf, was, known, notOlderThan)
					}
				}
			})
		}
		wg.Wait()
		for i := range answers {
			if answers[i] < 10 || errs[i] < 1 {
				t.Errorf("the test tries too little: %d answers, %d errors", answers[i], errs[i])
			}
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		l, _ := o.Latest()
		for i := range 5 {
			id := string(rune('a' + i))
			if _, ok := l.Find(id); ok != shown[id] {
				t.Errorf("%s: the changes add up to %v, the list says %v", id, shown[id], ok)
			}
		}
	})
}
