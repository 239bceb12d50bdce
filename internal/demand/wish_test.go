package demand

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

func i32(n int32) *int32 { return &n }

func TestTargetReplicas(t *testing.T) {
	for _, c := range []struct {
		concurrency, most, requests, want int
	}{
		{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 0, 5000, 1},
		{10, 0, 1, 1}, {10, 0, 10, 1}, {10, 0, 11, 2}, {10, 0, 20, 2}, {10, 0, 21, 3},
		{10, 2, 500, 2}, {1, 0, math.MaxInt, mostWished}, {10, 5, -3, 0},
	} {
		if got := (Target{c.concurrency, c.most}).Replicas(c.requests); got != c.want {
			t.Errorf("%d requests at %d each, at most %d: %d, want %d", c.requests, c.concurrency, c.most, got, c.want)
		}
	}
}

func TestTargetsAreOfListedModels(t *testing.T) {
	gone := makePool("gone", v1alpha1.PoolModel{Name: "x"})
	gone.DeletionTimestamp = &gone.CreationTimestamp
	got := Targets([]*v1alpha1.GPUNodePool{gone,
		makePool("a", v1alpha1.PoolModel{Name: "m", TargetConcurrency: i32(8), MaxReplicas: i32(2)}),
		makePool("b", v1alpha1.PoolModel{Name: "m", TargetConcurrency: i32(16)}, v1alpha1.PoolModel{Name: "plain"})})
	if len(got) != 2 || got["m"] != (Target{16, 2}) || got["plain"] != (Target{}) {
		t.Errorf("%+v", got)
	}
}

// TestWish walks a wish through time: what is asked for from each second on, and what the wish is then.
func TestWish(t *testing.T) {
	type at struct{ second, asked, want int }
	for name, steps := range map[string][]at{
		"wakes at once, and sleeps at once":       {{0, 0, 0}, {1, 1, 1}, {2, 0, 0}, {3, 1, 1}},
		"from zero to many: one, then what lasts": {{0, 5, 1}, {9, 5, 1}, {10, 5, 5}},
		"rises to the least that lasted":          {{0, 1, 1}, {1, 4, 1}, {5, 3, 1}, {10, 6, 1}, {11, 6, 3}, {20, 6, 3}, {21, 6, 6}},
		"a spike buys nothing":                    {{0, 1, 1}, {1, 9, 1}, {10, 1, 1}, {11, 9, 1}, {20, 9, 1}, {21, 9, 9}},
		"the edge never flaps":                    {{0, 2, 1}, {5, 1, 1}, {10, 2, 1}, {15, 1, 1}, {20, 2, 1}, {25, 1, 1}, {30, 2, 1}},
		"falls to the most that was asked for":    {{0, 4, 1}, {10, 4, 4}, {11, 1, 4}, {30, 2, 4}, {70, 1, 4}, {71, 1, 2}, {130, 1, 2}, {131, 1, 1}},
		"a moment of load keeps what there is":    {{0, 4, 1}, {10, 4, 4}, {11, 1, 4}, {70, 4, 4}, {71, 1, 4}, {130, 1, 4}, {131, 1, 1}},
		"turning is not lasting":                  {{0, 3, 1}, {10, 3, 3}, {11, 1, 3}, {60, 5, 3}, {69, 5, 3}, {70, 5, 5}},
		"all gone":                                {{0, 5, 1}, {10, 5, 5}, {11, 0, 0}},
		"never below nothing":                     {{0, 2, 1}, {1, -7, 0}},
	} {
		var w Wish
		for _, s := range steps {
			if w = w.Next(s.asked, epoch.Add(time.Duration(s.second)*time.Second)); w.Replicas != s.want {
				t.Errorf("%s: at %d s %d asked, wish %d, want %d", name, s.second, s.asked, w.Replicas, s.want)
			}
		}
	}
}

// TestWishStaysWithinWhatWasAsked: whatever the load does, the wish lies within what it asked for lately, wants something
// exactly when the load does, and moves rarely.
func TestWishStaysWithinWhatWasAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Wish
		var seen []int
		now, moves, awake := epoch, 0, 0
		for _, asked := range rapid.SliceOfN(rapid.IntRange(0, 6), 1, 200).Draw(t, "asked") {
			now = now.Add(time.Second)
			before := w.Replicas
			w = w.Next(asked, now)
			seen = append(seen, asked)
			if (w.Replicas > 0) != (asked > 0) {
				t.Fatalf("asked %d, wish %d", asked, w.Replicas)
			}
			lately := seen[max(0, len(seen)-1-int(FallAfter/time.Second)):]
			most := 1
			for _, n := range lately {
				most = max(most, n)
			}
			if w.Replicas > most {
				t.Fatalf("wish %d, at most %d was asked for lately", w.Replicas, most)
			}
			if before > 0 && w.Replicas > 0 {
				awake++
				if before != w.Replicas {
					moves++
				}
			} else {
				moves, awake = 0, 0
			}
			if moves > 1+awake/int(RiseAfter/time.Second) {
				t.Fatalf("%d moves in %d s", moves, awake)
			}
		}
	})
}
