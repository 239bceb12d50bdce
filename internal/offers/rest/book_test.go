package rest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 8, 3, 12, 0, 0, 0, time.UTC)

func TestRestsDoubleUpToTheLongest(t *testing.T) {
	for _, c := range []struct {
		key  Key
		want []time.Duration
	}{
		{OfferKey("vast.ai", "machine/1"), []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute, 80 * time.Minute, 160 * time.Minute, 320 * time.Minute, 6 * time.Hour, 6 * time.Hour}},
		{WorkloadKey("m", "f"), []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour}},
		{PoolKey("p"), []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour}},
		{AccountKey("aws", "f"), []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 30 * time.Minute, 30 * time.Minute}},
	} {
		var b Book
		now := start
		for i, want := range c.want {
			r := b.Fail(c.key, "Reason", "words", now)
			if r.Until.Sub(now) != want || r.Fails != i+1 || !r.Since.Equal(now) || r.Reason != "Reason" || r.Message != "words" {
				t.Errorf("%v: failure %d rests %s: %+v; want %s", c.key, i+1, r.Until.Sub(now), r, want)
			}
			if _, ok := b.View(now.Add(want-1)).Active(c.key, now.Add(want-1)); !ok {
				t.Errorf("%v: does not rest to the end", c.key)
			}
			if len(b.View(r.Until)) != 0 {
				t.Errorf("%v: still rests at its end", c.key)
			}
			now = r.Until
		}
	}
}

func TestFailuresDuringARestCountOnce(t *testing.T) {
	var b Book
	k := AccountKey("aws", "f")
	first := b.Fail(k, "A", "first", start)
	for range 10 {
		r := b.Fail(k, "B", "later", start.Add(30*time.Second))
		if r.Fails != 1 || !r.Until.Equal(first.Until) || r.Reason != "B" || r.Message != "later" {
			t.Fatalf("%+v", r)
		}
	}
	if r := b.Fail(k, "", "", first.Until); r.Fails != 2 {
		t.Errorf("after the rest: %+v", r)
	}
}

func TestForgivenAfterFourRests(t *testing.T) {
	k := PoolKey("p")
	for _, c := range []struct {
		behaved time.Duration
		fails   int
		rests   time.Duration
	}{{40*time.Minute - 1, 3, 20 * time.Minute}, {40 * time.Minute, 1, 5 * time.Minute}} {
		var b Book
		b.Fail(k, "", "", start)
		second := b.Fail(k, "", "", start.Add(5*time.Minute))
		now := second.Until.Add(c.behaved)
		if len(b.Entries(now)) != map[int]int{3: 1, 1: 0}[c.fails] {
			t.Errorf("after %s: %v", c.behaved, b.Entries(now))
		}
		if r := b.Fail(k, "", "", now); r.Fails != c.fails || r.Until.Sub(now) != c.rests {
			t.Errorf("after %s: %+v", c.behaved, r)
		}
	}
}

func TestFailFor(t *testing.T) {
	var b Book
	k := OfferKey("aws", "family/g6/us-east-1")
	r := b.FailFor(k, time.Hour, "", "", start)
	if r.Until.Sub(start) != time.Hour {
		t.Errorf("%+v", r)
	}
	if r = b.FailFor(k, time.Hour, "", "", start.Add(30*time.Minute)); r.Fails != 1 || r.Until.Sub(start) != 90*time.Minute {
		t.Errorf("a longer rest does not extend: %+v", r)
	}
	if r = b.FailFor(k, 100*time.Hour, "", "", start.Add(100*time.Hour)); r.Until.Sub(r.Since) != OfferMax {
		t.Errorf("beyond the longest: %+v", r)
	}
}

func TestForgive(t *testing.T) {
	var b Book
	k := WorkloadKey("m", "f")
	b.Forgive(k)
	b.Fail(k, "", "", start)
	b.Forgive(k)
	if len(b.View(start)) != 0 {
		t.Error("still rests")
	}
	if r := b.Fail(k, "", "", start); r.Fails != 1 {
		t.Errorf("%+v", r)
	}
}

func TestRestoreContinues(t *testing.T) {
	var b, after Book
	keys := []Key{PoolKey("p"), WorkloadKey("m", "f"), OfferKey("aws", "a"), OfferKey("aws", "b")}
	for _, k := range keys {
		b.Fail(k, "", "", start)
	}
	ended := start.Add(6 * time.Minute) // pool and workload do not rest any more, but count
	stored := b.Entries(ended)
	if len(stored) != 4 || !slices.IsSortedFunc(stored, func(x, y Rest) int {
		return map[bool]int{true: -1, false: 1}[x.Key.Scope < y.Key.Scope || x.Key.Scope == y.Key.Scope && x.Key.Value < y.Key.Value]
	}) {
		t.Errorf("%+v", stored)
	}
	newer := after.Fail(keys[2], "newer", "", start.Add(time.Minute))
	after.Restore(stored)
	if r := after.Fail(keys[0], "", "", ended); r.Fails != 2 {
		t.Errorf("the pool's failures are lost: %+v", r)
	}
	if got := after.View(ended)[keys[2]]; got != newer {
		t.Errorf("a newer rest was overwritten by %+v", got)
	}
	if len(after.View(ended)) != 3 {
		t.Errorf("%+v", after.View(ended))
	}
}

func TestViewDoesNotChange(t *testing.T) {
	var b Book
	k := PoolKey("p")
	b.Fail(k, "", "", start)
	v := b.View(start)
	b.Forgive(k)
	if _, ok := v.Active(k, start); !ok {
		t.Error("the view changed")
	}
	if _, ok := View(nil).Active(k, start); ok {
		t.Error("an empty view rests something")
	}
}

// Whatever fails whenever, a rest is within its scope's bounds, grows while failures go on, and ends by itself.
func TestRestsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		keys := []Key{OfferKey("aws", "a"), AccountKey("aws", "f"), PoolKey("p"), WorkloadKey("m", "f")}
		now := start
		last := map[Key]Rest{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(10*time.Hour)).Draw(t, "later")))
			k := rapid.SampledFrom(keys).Draw(t, "key")
			base, longest := k.Scope.bounds()
			r := b.Fail(k, "", "", now)
			if ttl := r.Until.Sub(r.Since); ttl < base || ttl > longest || !now.Before(r.Until) {
				t.Fatalf("%+v", r)
			}
			if was := last[k]; r.Fails > 1 && r.ttl() < was.ttl() || r.Fails > was.Fails+1 {
				t.Fatalf("%+v after %+v", r, was)
			}
			last[k] = r
		}
		if end := now.Add(5 * OfferMax); len(b.View(now.Add(OfferMax))) != 0 || len(b.Entries(end)) != 0 {
			t.Fatal("something rests for ever")
		}
	})
}

func TestKeysAreApart(t *testing.T) {
	seen := map[Key]bool{}
	for _, k := range []Key{OfferKey("aws", "x"), OfferKey("gcp", "x"), AccountKey("aws", "x"), PoolKey("x"), WorkloadKey("x", ""), WorkloadKey("x", "y")} {
		if seen[k] {
			t.Errorf("%v is there twice", k)
		}
		seen[k] = true
	}
}

func TestBookIsSafeForConcurrentUse(t *testing.T) {
	var b Book
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				now := start.Add(time.Duration(i) * time.Minute)
				b.Fail(PoolKey("p"), "", "", now)
				b.Restore(b.Entries(now))
				b.View(now)
				b.Forgive(PoolKey("p"))
			}
		})
	}
	wg.Wait()
}
