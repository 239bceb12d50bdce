package registry_test

import (
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

func TestBootsAreRememberedBeyondTheirWorkers(t *testing.T) {
	r := registry.New(clock.RealClock{}, nil)
	expect := func(model string, want time.Duration) {
		t.Helper()
		if m, _ := r.Model(model); m.Boot != want {
			t.Errorf("%s: %s, want %s", model, m.Boot, want)
		}
	}
	known := []registry.Known{{Name: "m"}, {Name: "n"}}
	boot := func(uid string, seconds int) registry.Boot {
		return registry.Boot{ClaimUID: uid, Model: "m", Took: time.Duration(seconds) * time.Second}
	}
	r.Apply(registry.Snapshot{Models: known})
	expect("m", 0)
	// Seen in many pictures it is still one.
	for range 5 {
		r.Apply(registry.Snapshot{Models: known, Boots: []registry.Boot{boot("a", 10)}})
	}
	r.Apply(registry.Snapshot{Models: known, Boots: []registry.Boot{boot("a", 10), boot("b", 100), boot("c", 200)}})
	r.Apply(registry.Snapshot{Models: known})
	expect("m", 100*time.Second)
	expect("n", 100*time.Second)
	// The latest twenty count.
	for i := range 20 {
		r.Apply(registry.Snapshot{Models: known, Boots: []registry.Boot{boot(string(rune('d'+i)), 40)}})
	}
	expect("m", 40*time.Second)
}
