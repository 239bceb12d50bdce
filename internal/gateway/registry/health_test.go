package registry_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

func stepped(workers ...registry.Worker) (*registry.Registry, *testclock.FakePassiveClock) {
	c := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	r := registry.New(c, nil)
	r.Apply(snapshot(workers...))
	return r, c
}

// ask gives a request's outcomes to whichever worker is chosen, and says which it was.
func ask(r *registry.Registry, outcome func(uid string) registry.Outcome) string {
	l := r.Acquire("m", nil)
	if l == nil {
		return ""
	}
	l.Report(outcome(l.Worker.ClaimUID))
	l.Release()
	return l.Worker.ClaimUID
}

func count(r *registry.Registry, n int, outcome func(uid string) registry.Outcome) map[string]int {
	got := map[string]int{}
	for range n {
		got[ask(r, outcome)]++
	}
	return got
}

func aIs(o registry.Outcome) func(string) registry.Outcome {
	return func(uid string) registry.Outcome {
		if uid == "a" {
			return o
		}
		return registry.Answered
	}
}

func TestAFailingWorkerIsSetAsideAndProbedByOneRequest(t *testing.T) {
	for o, failures := range map[registry.Outcome]int{registry.Failed: 3, registry.Unreachable: 1} {
		r, c := stepped(worker("a", "m"), worker("b", "m"))
		if got := count(r, 20, aIs(o)); got["a"] != failures {
			t.Errorf("outcome %d: %d requests were sent to it, want %d", o, got["a"], failures)
		}
		if got := r.Health()["m"]; got != (registry.Health{Healthy: 1, SetAside: 1}) {
			t.Errorf("health %v", got)
		}
		// Each probe that fails doubles the time.
		for _, pause := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			c.SetTime(c.Now().Add(time.Duration(pause)*time.Second - time.Millisecond))
			if got := count(r, 20, aIs(o)); got["a"] != 0 {
				t.Fatalf("outcome %d: sent to %d times before its %d s were over", o, got["a"], pause)
			}
			c.SetTime(c.Now().Add(time.Millisecond))
			if got := count(r, 20, aIs(o)); got["a"] != 1 {
				t.Fatalf("outcome %d: %d probes after %d s, want 1", o, got["a"], pause)
			}
		}
		c.SetTime(c.Now().Add(time.Minute))
		if got := count(r, 20, aIs(registry.Answered)); got["a"] < 9 {
			t.Errorf("outcome %d: back, and sent to %d times of 20", o, got["a"])
		}
	}
}

func TestOnlyOneProbeAtATime(t *testing.T) {
	r, c := stepped(worker("a", "m"), worker("b", "m"))
	count(r, 4, aIs(registry.Unreachable))
	c.SetTime(c.Now().Add(time.Second))
	probe := r.Acquire("m", nil)
	if probe.Worker.ClaimUID != "a" {
		t.Fatal("no probe")
	}
	for range 5 {
		if l := r.Acquire("m", nil); l.Worker.ClaimUID != "b" {
			t.Error("a second request was sent to a worker that is being probed")
		}
	}
	// A probe that says nothing, because its client left, makes place for the next; the first byte of one is enough.
	probe.Release()
	if probe = r.Acquire("m", nil); probe.Worker.ClaimUID != "a" {
		t.Fatal("no second probe")
	}
	probe.Report(registry.Began)
	if l := r.Acquire("m", nil); l.Worker.ClaimUID != "a" {
		t.Error("it is not back")
	}
}

// A worker that begins every answer and breaks it off is set aside for longer each time, like one that answers nothing.
func TestAWorkerThatBreaksEveryAnswerIsSetAside(t *testing.T) {
	r, c := stepped(worker("a", "m"))
	breaks := func() (aside bool) {
		l := r.Acquire("m", nil)
		defer l.Release()
		l.Report(registry.Began)
		return l.Report(registry.Failed)
	}
	for i, want := range []bool{false, false, true} {
		if breaks() != want {
			t.Errorf("answer %d", i)
		}
	}
	c.SetTime(c.Now().Add(time.Second))
	if !breaks() {
		t.Error("it was not set aside again")
	}
}

func TestWhenAllAreSetAsideAllAreTried(t *testing.T) {
	r, _ := stepped(worker("a", "m"), worker("b", "m"))
	got := count(r, 20, func(string) registry.Outcome { return registry.Unreachable })
	if got["a"] != 10 || got["b"] != 10 {
		t.Errorf("%v", got)
	}
	l := r.Acquire("m", map[string]bool{"a": true})
	if l == nil || r.Acquire("m", map[string]bool{"a": true, "b": true}) != nil {
		t.Error("what was tried is not left out, or too much is")
	}
}

func TestAWorkerAtItsLimitIsNotChosen(t *testing.T) {
	r, _ := stepped(worker("a", "m"), worker("b", "m"))
	r.Limit(2)
	var held []*registry.Lease
	for range 4 {
		held = append(held, r.Acquire("m", nil))
	}
	if got := r.Outstanding(); !reflect.DeepEqual(got, map[string]int{"a": 2, "b": 2}) {
		t.Errorf("%v", got)
	}
	if r.Acquire("m", nil) != nil || !r.Full("m") || r.Full("x") {
		t.Error("over the limit")
	}
	held[0].Release()
	if l := r.Acquire("m", nil); l == nil || l.Worker.ClaimUID != held[0].Worker.ClaimUID {
		t.Error("room that came is not used")
	}
}

func TestAWorkerThatSaidThatItIsFullIsLeftAloneForAMoment(t *testing.T) {
	r, c := stepped(worker("a", "m", "n"))
	running := r.Acquire("m", nil)
	refused := r.Acquire("m", nil)
	refused.Full()
	refused.Release()
	if r.Acquire("m", nil) != nil || !r.Full("m") {
		t.Error("asked again at once")
	}
	if r.Acquire("n", nil) == nil {
		t.Error("another model's engine has room of its own")
	}
	running.Release()
	again := r.Acquire("m", nil)
	if again == nil {
		t.Fatal("an answer that ended made no room")
	}
	again.Full()
	again.Release()
	c.SetTime(c.Now().Add(time.Second))
	if r.Acquire("m", nil) == nil {
		t.Error("its word counts for ever")
	}
}

func TestAnotherAddressIsAnotherChance(t *testing.T) {
	r, _ := stepped(worker("a", "m"))
	count(r, 1, aIs(registry.Unreachable))
	moved := worker("a", "m")
	moved.Endpoint = "elsewhere:1"
	r.Apply(snapshot(moved))
	if got := r.Health()["m"]; got.Healthy != 1 {
		t.Errorf("%v", got)
	}
}

// TestNoCountDrifts does to a registry whatever requests and sources can, in any order.
func TestNoCountDrifts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, c := stepped(worker("a", "m"), worker("b", "m"), worker("c", "m", "n"))
		r.Limit(rapid.IntRange(0, 3).Draw(t, "limit"))
		var held []*registry.Lease
		all := []registry.Worker{worker("a", "m"), worker("b", "m"), worker("c", "m", "n")}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				skip := map[string]bool{rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "skip"): true}
				if l := r.Acquire(rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), skip); l != nil {
					held = append(held, l)
				}
			},
			"report": func(t *rapid.T) {
				if len(held) > 0 {
					rapid.SampledFrom(held).Draw(t, "lease").Report(registry.Outcome(rapid.IntRange(0, 3).Draw(t, "outcome")))
				}
			},
			"full": func(t *rapid.T) {
				if len(held) > 0 {
					rapid.SampledFrom(held).Draw(t, "lease").Full()
				}
			},
			"release": func(t *rapid.T) {
				if len(held) > 0 {
					rapid.SampledFrom(held).Draw(t, "lease").Release() // Again and again, too.
				}
			},
			"workers come and go": func(t *rapid.T) {
				r.Apply(snapshot(rapid.SliceOfNDistinct(rapid.SampledFrom(all), 0, 3,
					func(w registry.Worker) string { return w.ClaimUID }).Draw(t, "workers")...))
			},
			"time": func(t *rapid.T) {
				c.SetTime(c.Now().Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond))
			},
			"": func(t *rapid.T) {
				for uid, n := range r.Outstanding() {
					if n < 0 {
						t.Fatalf("%s has %d", uid, n)
					}
				}
			},
		})
		for _, l := range held {
			l.Release()
		}
		r.Apply(snapshot(all...))
		if got := r.Outstanding(); !reflect.DeepEqual(got, map[string]int{"a": 0, "b": 0, "c": 0}) {
			t.Fatalf("outstanding %v", got)
		}
		// Nothing keeps a worker out for good, a probe that was never answered least of all.
		c.SetTime(c.Now().Add(time.Hour))
		for range 30 {
			ask(r, func(string) registry.Outcome { return registry.Answered })
		}
		if got := r.Health()["m"]; got != (registry.Health{Healthy: 3}) {
			t.Fatalf("health %v", got)
		}
	})
}

// says is a source with pictures of its own.
type says chan registry.Snapshot

func (s says) Run(ctx context.Context, apply func(registry.Snapshot)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case p, open := <-s:
			if !open {
				return errors.New("it broke")
			}
			apply(p)
		}
	}
}

func TestSourcesTogether(t *testing.T) {
	one, two := make(says), make(says)
	pictures := make(chan registry.Snapshot, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- registry.Together(one, two).Run(t.Context(), func(s registry.Snapshot) { pictures <- s })
	}()
	one <- registry.Snapshot{Workers: []registry.Worker{worker("a", "m")}, Models: []registry.Known{{Name: "m", Stage: "Pending on z"}}}
	if got := <-pictures; !got.Partial || len(got.Workers) != 1 {
		t.Errorf("with one of two: %+v", got)
	}
	two <- registry.Snapshot{Workers: []registry.Worker{worker("b", "m")}, Models: []registry.Known{{Name: "m"}}}
	got := <-pictures
	if got.Partial || len(got.Workers) != 2 || !slices.Equal(got.Models, []registry.Known{{Name: "m", Stage: "Pending on z"}}) {
		t.Errorf("with both: %+v", got)
	}
	one <- registry.Snapshot{}
	if got := <-pictures; len(got.Workers) != 1 || got.Workers[0].ClaimUID != "b" {
		t.Errorf("the first has none left: %+v", got)
	}
	close(two)
	if err := <-ended; err == nil {
		t.Error("a source that failed ends nothing")
	}
}
