package scale_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/bench"
)

// level is what was measured with one number of claims.
type level struct {
	resident, peak int64
	// ready and gone are calls per claim, kept those per second of all claims while they serve.
	ready, gone, kept, cores float64
}

// TestSteadyFigures measures the controllers with few and with many claims that serve.
func TestSteadyFigures(t *testing.T) {
	few, many, window, rest := 3, 6, time.Second, time.Second
	if bench.Recording() {
		few, many, window, rest = 100, 1000, 5*time.Second, 15*time.Second
	}
	w := start(t, many+many/4, window)
	a := w.level(few, rest)
	b := w.level(many, rest)
	const mb, kb = 1e6, 1e3
	bench.Record(t, "memory.100", float64(a.resident)/mb)
	bench.Record(t, "memory.1000", float64(b.resident)/mb)
	bench.Record(t, "memory.claim", float64(b.resident-a.resident)/float64(many-few)/kb)
	bench.Record(t, "memory.peak", float64(b.peak)/mb)
	bench.Record(t, "calls.ready.100", a.ready)
	bench.Record(t, "calls.ready.1000", b.ready)
	bench.Record(t, "calls.ready.growth", b.ready/a.ready)
	bench.Record(t, "calls.gone.100", a.gone)
	bench.Record(t, "calls.gone.1000", b.gone)
	bench.Record(t, "calls.gone.growth", b.gone/a.gone)
	bench.Record(t, "calls.kept.1000", b.kept)
	bench.Record(t, "cpu.kept.1000", b.cores)
}

// level has so many claims made and ended again.
func (w *world) level(claims int, rest time.Duration) level {
	w.t.Helper()
	const patience = 8 * time.Minute
	var l level
	per := func(calls int) float64 { return float64(calls) / float64(claims) }
	began, start := time.Now(), w.look()
	done := w.profile(fmt.Sprintf("ready-%d.cpu", claims), "/debug/pprof/profile?seconds=30")
	w.ask(claims)
	w.ready(patience, claims)
	served := w.look()
	done()
	l.ready = per(served.calls(start))
	w.t.Logf("%d claims serve after %s; calls per claim:\n%s", claims, time.Since(began).Round(time.Second), served.list(start, claims))

	// What garbage the beginning left is given back once; what the steady state makes of its own is counted.
	w.get("/settle")
	done = w.profile(fmt.Sprintf("steady-%d.cpu", claims), fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", rest.Seconds()))
	before, since := w.look(), time.Now()
	for time.Since(since) < rest {
		time.Sleep(rest / 15)
		l.resident = max(l.resident, w.look().Resident)
	}
	after := w.look()
	done()
	w.profile(fmt.Sprintf("steady-%d.heap", claims), "/debug/pprof/heap?gc=1")()
	w.t.Logf("calls while they serve, in %s, per claim:\n%s", time.Since(since).Round(time.Second), after.list(before, claims))
	l.kept = float64(after.calls(before)) / rest.Seconds()
	l.cores = (after.CPU - before.CPU).Seconds() / time.Since(since).Seconds()

	began, start = time.Now(), w.look()
	w.removePods()
	w.gone(patience)
	end := w.look()
	l.gone, l.peak = per(end.calls(start)), end.Peak
	w.t.Logf("they are gone after %s; calls per claim:\n%s", time.Since(began).Round(time.Second), end.list(start, claims))
	return l
}
