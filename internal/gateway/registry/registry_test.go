package registry_test

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

func worker(uid string, models ...string) registry.Worker {
	w := registry.Worker{Claim: "c-" + uid, ClaimUID: uid, Endpoint: uid + ":1", Models: map[string]registry.State{}}
	for _, m := range models {
		w.Models[m] = registry.Ready
	}
	return w
}

func snapshot(workers ...registry.Worker) registry.Snapshot {
	return registry.Snapshot{Workers: workers}
}

func TestLeastOutstandingAndTakingTurns(t *testing.T) {
	r := registry.New(clock.RealClock{}, nil)
	r.Apply(snapshot(worker("a", "m"), worker("b", "m", "n"), worker("c", "n")))
	counts := map[string]int{}
	for range 10 {
		l := r.Acquire("m", nil)
		counts[l.Worker.ClaimUID]++
		l.Release()
		l.Release() // Twice is once.
	}
	if counts["a"] != 5 || counts["b"] != 5 {
		t.Errorf("idle workers do not take turns: %v", counts)
	}
	// What b does for n counts for m too.
	n := r.Acquire("n", map[string]bool{"c": true})
	for range 3 {
		l := r.Acquire("m", nil)
		if l.Worker.ClaimUID != "a" {
			t.Error("the busier worker was chosen")
		}
		l.Release()
	}
	n.Release()
	if r.Acquire("m", map[string]bool{"a": true, "b": true}) != nil || r.Acquire("x", nil) != nil {
		t.Error("a worker where there is none")
	}
	if got := r.Outstanding(); !reflect.DeepEqual(got, map[string]int{"a": 0, "b": 0, "c": 0}) {
		t.Errorf("outstanding %v", got)
	}
}

// TestWhatIsNotWantedIsIdle as long as others are below the target, takes its part of what is above it, and when nothing is
// wanted one worker gets all and the others can end.
func TestWhatIsNotWantedIsIdle(t *testing.T) {
	at := func(uid string, day int, spare bool) registry.Worker {
		w := worker(uid, "m")
		w.Since, w.Spare = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC), map[string]bool{"m": spare, "n": true}
		return w
	}
	for name, c := range map[string]struct {
		target  int
		workers []registry.Worker
		want    string // who gets requests that none follows the end of
	}{
		"all wanted":     {4, []registry.Worker{at("a", 1, false), at("b", 2, false)}, "abababababab"},
		"one is spare":   {4, []registry.Worker{at("a", 1, false), at("b", 2, true)}, "aaaabbbbabab"},
		"not the oldest": {4, []registry.Worker{at("a", 1, true), at("b", 2, false), at("c", 3, false)}, "bcbcbcbcaaaabcabca"},
		"all are spare":  {2, []registry.Worker{at("c", 3, true), at("b", 2, true), at("d", 3, true)}, "bbccddbcdbcd"},
		"no target": {0, []registry.Worker{at("a", 1, false), at("b", 2, true)}, strings.Repeat("a", 16) + strings.Repeat("b", 16) +
			"abab"},
	} {
		r := registry.New(clock.RealClock{}, nil)
		s := snapshot(c.workers...)
		s.Models = []registry.Known{{Name: "m", Target: c.target}}
		r.Apply(s)
		got := ""
		for range c.want {
			got += r.Acquire("m", nil).Worker.ClaimUID
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestSpareWorkersAreBetterThanNone(t *testing.T) {
	r := registry.New(clock.RealClock{}, nil)
	spare := worker("b", "m")
	spare.Spare = map[string]bool{"m": true}
	r.Apply(snapshot(worker("a", "m"), spare))
	l := r.Acquire("m", nil)
	l.Report(registry.Unreachable)
	l.Release()
	if got := r.Acquire("m", nil).Worker.ClaimUID; got != "b" {
		t.Errorf("%s, with a set aside", got)
	}
	if got := r.Acquire("m", map[string]bool{"b": true}).Worker.ClaimUID; got != "a" {
		t.Errorf("%s, with b tried", got)
	}
}

func TestCountsOutlivePicturesAndForgetComesLast(t *testing.T) {
	var forgotten []string
	r := registry.New(clock.RealClock{}, func(uid string) { forgotten = append(forgotten, uid) })
	r.Apply(snapshot(worker("a", "m"), worker("b", "m")))
	l := r.Acquire("m", map[string]bool{"b": true})
	r.Apply(snapshot(worker("b", "m")))
	if len(forgotten) != 0 {
		t.Fatal("forgotten with a request outstanding")
	}
	r.Apply(snapshot(worker("a", "m"), worker("b", "m")))
	if r.Outstanding()["a"] != 1 {
		t.Error("a worker that came back lost its count")
	}
	r.Apply(snapshot())
	l.Release()
	if fmt.Sprint(forgotten) != "[b a]" || len(r.Outstanding()) != 0 {
		t.Errorf("forgotten %v, outstanding %v", forgotten, r.Outstanding())
	}
}

func TestModels(t *testing.T) {
	c := testclock.NewFakePassiveClock(time.Unix(100, 0))
	r := registry.New(c, nil)
	if r.Synced() {
		t.Error("synced before any picture")
	}
	loading := worker("a", "warm")
	loading.Models["loading"] = "Loading"
	first := registry.Snapshot{Workers: []registry.Worker{loading},
		Models: []registry.Known{{Name: "cold"}, {Name: "warm", Stage: "Pending on z"}, {Name: "next", Stage: "Pending on z"}}}
	r.Apply(first)
	c.SetTime(time.Unix(200, 0))
	first.Workers[0].Models["warm"] = "Failed" // What was applied is the registry's own.
	r.Apply(registry.Snapshot{Workers: []registry.Worker{worker("a", "warm"), loadingOn("b")}, Models: append(first.Models, registry.Known{Name: "new"})})
	at := time.Unix(100, 0)
	want := []registry.Model{
		{Name: "cold", FirstKnown: at}, {Name: "loading", FirstKnown: at, Stage: "Loading on c-b"},
		{Name: "new", FirstKnown: time.Unix(200, 0)}, {Name: "next", FirstKnown: at, Stage: "Pending on z"},
		{Name: "warm", FirstKnown: at, Workers: 1},
	}
	if got := r.Models(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if r.Acquire("loading", nil) != nil {
		t.Error("a model that loads was chosen")
	}
	if _, ok := r.Only(); ok {
		t.Error("one of five is the only one")
	}
	r.Apply(snapshot(worker("a", "m")))
	if name, ok := r.Only(); !ok || name != "m" {
		t.Error("the only one is not found")
	}
}

func loadingOn(uid string) registry.Worker {
	w := worker(uid)
	w.Models["loading"] = "Loading"
	return w
}

func TestCountsUnderConcurrency(t *testing.T) {
	r := registry.New(clock.RealClock{}, nil)
	full := snapshot(worker("a", "m"), worker("b", "m"), worker("c", "m"))
	r.Apply(full)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				if i == 0 {
					r.Apply(snapshot(full.Workers[j%3:]...))
				}
				if l := r.Acquire("m", nil); l != nil {
					wg.Go(l.Release)
				}
			}
		})
	}
	wg.Wait()
	r.Apply(full)
	if got := r.Outstanding(); !reflect.DeepEqual(got, map[string]int{"a": 0, "b": 0, "c": 0}) {
		t.Errorf("outstanding %v", got)
	}
}
