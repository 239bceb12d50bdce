package operator

import "runtime/debug"

// gcPercent is how much garbage may gather, as a share of what is alive. Go's own, 100, makes a controller that holds a
// thousand claims twice as large for a twentieth of a core; see docs/benchmarks.md.
const gcPercent = 20

// SpareMemory has the process collect garbage sooner, unless GOGC in its environment says otherwise. It is for a process
// of which the controllers are the main thing.
func SpareMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
