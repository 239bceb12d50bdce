package registry_test

import (
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

func turn(p *registry.Place) bool {
	select {
	case <-p.Turn():
		return true
	default:
		return false
	}
}

// TestWhoWaitsIsServedInTurn, by a worker that takes one at a time: who has waited longest tries, and then the next.
func TestWhoWaitsIsServedInTurn(t *testing.T) {
	r := registry.New(clock.RealClock{}, nil)
	r.Limit(1)
	r.Apply(registry.Snapshot{Models: []registry.Known{{Name: "m"}}})
	began := time.Unix(1000, 0)
	third, first := r.Wait("m", began.Add(3*time.Second)), r.Wait("m", began)
	second := r.Wait("m", began.Add(time.Second))
	if !first.First() || second.First() || third.First() {
		t.Fatal("who has waited longest is not the first")
	}
	r.Apply(registry.Snapshot{Models: []registry.Known{{Name: "m"}}, Workers: []registry.Worker{worker("b", "n")}})
	if turn(first) || turn(second) || turn(third) {
		t.Error("a picture of something else made them try")
	}
	r.Apply(snapshot(worker("a", "m"), worker("b", "n")))
	for what, c := range map[string]*registry.Place{"second": second, "third": third} {
		if turn(c) {
			t.Errorf("the %s is to try before the first", what)
		}
	}
	if !turn(first) {
		t.Fatal("the first is not to try")
	}
	l := r.Acquire("m", nil)
	first.Leave()
	if !turn(second) || turn(third) {
		t.Error("after the first the second is to see whether there is more")
	}
	l.Return() // Not answered: that says nothing of room.
	if turn(second) || turn(third) {
		t.Error("what was not answered made room")
	}
	l = r.Acquire("m", nil)
	l.Release()
	if !turn(second) || turn(third) {
		t.Error("the end of an answer makes no room")
	}
	second.Leave() // Its client has left.
	if !turn(third) {
		t.Error("who left in vain told nobody")
	}
	third.Leave()
	r.Acquire("m", nil).Release()
}

// TestAllWhoWaitHearOfAModelsEnd, and of its return.
func TestAllWhoWaitHearOfAModelsEnd(t *testing.T) {
	r := registry.New(clock.RealClock{}, nil)
	known := registry.Snapshot{Models: []registry.Known{{Name: "m"}}}
	r.Apply(known)
	a, b := r.Wait("m", time.Unix(1, 0)), r.Wait("m", time.Unix(2, 0))
	for i, s := range []registry.Snapshot{{}, known} {
		r.Apply(s)
		if !turn(a) || !turn(b) {
			t.Errorf("picture %d", i)
		}
		r.Apply(s)
		if turn(a) || turn(b) {
			t.Errorf("picture %d again", i)
		}
	}
	a.Leave()
	b.Leave()
}
