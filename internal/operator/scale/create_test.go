package scale_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/bench"
)

// TestCreateFigures measures the time from the close of the batch window to the create call that the market receives,
// for claims one after the other and for all at once.
func TestCreateFigures(t *testing.T) {
	claims, window := 5, time.Second
	if bench.Recording() {
		claims, window = 200, 10*time.Second
	}
	t.Run("singles", func(t *testing.T) { singles(t, claims) })
	t.Run("herd", func(t *testing.T) { herd(t, claims, window) })
}

// singles asks for one claim after the other, each in a batch window of its own, while those before it boot and serve.
func singles(t *testing.T, claims int) {
	const window = 200 * time.Millisecond
	w := start(t, claims+claims/4, window)
	done := w.profile("single.cpu", "/debug/pprof/profile?seconds=30")
	var waits []time.Duration
	for range claims {
		closes := w.ask(1).Add(window)
		w.until(time.Minute, "its create is received", func() error {
			wait, _ := w.creates.after(closes)
			if len(wait) == 0 {
				return fmt.Errorf("none after %d", len(waits))
			}
			waits = append(waits, wait[0])
			return nil
		})
	}
	done()
	slices.Sort(waits)
	bench.Record(t, "create.single.p50", percentile(waits, 50))
	bench.Record(t, "create.single.p99", percentile(waits, 99))
}

// herd asks for all claims within one batch window.
func herd(t *testing.T, claims int, window time.Duration) {
	w := start(t, claims+claims/4, window)
	closes := w.ask(claims).Add(window)
	if late := time.Until(closes); late < 0 {
		t.Fatalf("the last pod was made %s after the window closed", -late)
	}
	if calm := time.Until(closes) - 200*time.Millisecond; calm > 0 {
		time.Sleep(calm) // The profile is of what follows.
	}
	done := w.profile("herd.cpu", "/debug/pprof/profile?seconds=5")
	before := w.look()
	var waits []time.Duration
	refused := 0
	w.until(5*time.Minute, "all creates are received", func() error {
		waits, refused = w.creates.after(closes)
		if len(waits) < claims {
			return fmt.Errorf("%d of %d, %d refused", len(waits), claims, refused)
		}
		return nil
	})
	after := w.look()
	done()
	t.Logf("calls from the close of the window to the last create, per claim:\n%s", after.list(before, claims))
	bench.Record(t, "create.herd.first", percentile(waits, 0))
	bench.Record(t, "create.herd.p50", percentile(waits, 50))
	bench.Record(t, "create.herd.p99", percentile(waits, 99))
	bench.Record(t, "create.herd.refused", float64(refused))
}
