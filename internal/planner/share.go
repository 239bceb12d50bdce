package planner

import (
	"github.com/munhq/gpuscale/internal/demand"
)

// wholeGPU is a placement's share of a GPU that it has for itself.
const wholeGPU = 1000

// mostResidents is how many replicas one instance may serve: as many placements as a claim may have.
const mostResidents = 64

// share is what one replica takes of an instance: the same fraction, in thousandths, of each of so many GPUs. The zero
// value is no share: the instance cannot serve it.
type share struct {
	gpus, fraction int
}

// shareOn is what a replica of w takes of an instance whose GPUs have eachGB nominal VRAM; ok is false where they have
// too little. Without a declared VRAM a replica has its GPUs for itself: nobody knows what it leaves.
//
// Engines together get 0.90 of a GPU's VRAM, and each needs 1.5 GB beside what its model declares. A declared VRAM is
// compared with the nominal one first, so a model that says 24 gets a whole GPU of 24 rather than none.
func shareOn(w *demand.Workload, poolGPUs, eachGB int) (s share, ok bool) {
	n := spanOn(w, poolGPUs, eachGB)
	switch {
	case w.VRAMGB == 0:
		return share{n, wholeGPU}, true
	case w.VRAMGB > n*eachGB:
		return share{}, false
	}
	// ceil(1000 × (VRAM/n + 1.5) / (0.9 × each)), in whole numbers.
	top, bottom := (2*w.VRAMGB+3*n)*10*wholeGPU, 18*n*eachGB
	return share{n, min(wholeGPU, (top+bottom-1)/bottom)}, true
}

// spanOn is the number of GPUs that a replica of w spans: what it says, else what covers its VRAM, else the pool's. An
// engine that is spread must divide its model, so that what covers is a power of two.
func spanOn(w *demand.Workload, poolGPUs, eachGB int) int {
	switch {
	case w.GPUCount > 0:
		return w.GPUCount
	case w.VRAMGB == 0:
		return max(1, poolGPUs)
	}
	n := 1
	for eachGB > 0 && n*eachGB < w.VRAMGB {
		n *= 2
	}
	return n
}

// packs reports whether shares fit together on an instance with so many GPUs whatever GPUs the agent puts each of them
// on, and in whatever order. The agent chooses when an engine starts, and again after each restart; a set that fits only
// when it chooses well would leave an engine waiting for room for ever.
func packs(shares []share, gpus int) bool { return packsBy(shares, gpus, true) }

// surelyPacks is packs by a bound alone: quick, and false for some sets of several sizes that would always fit.
func surelyPacks(shares []share, gpus int) bool { return packsBy(shares, gpus, false) }

func packsBy(shares []share, gpus int, exactly bool) bool {
	total := 0
	for _, s := range shares {
		if s.gpus == 0 || s.gpus > gpus {
			return false
		}
		total += s.gpus * s.fraction
	}
	if total > gpus*wholeGPU {
		return false
	}
	if gpus == 1 || len(shares) <= 1 {
		return true
	}
	for i, s := range shares {
		if i > 0 && s == shares[i-1] {
			continue
		}
		if mostBlocked(shares, i, gpus, exactly) > gpus-s.gpus {
			return false
		}
	}
	return true
}

// mostBlocked is the most GPUs that all shares but the last-th can leave without room for it, or a bound above it.
func mostBlocked(shares []share, last, gpus int, exactly bool) int {
	enough := wholeGPU - shares[last].fraction + 1 // what blocks a GPU
	alone, sum, pieces, largest := 0, 0, 0, 0
	for i, s := range shares {
		switch {
		case i == last:
		case s.fraction >= enough:
			alone += s.gpus
		default:
			sum += s.gpus * s.fraction
			pieces += s.gpus
			largest = max(largest, s.fraction)
		}
	}
	together := 0
	if pieces > 0 {
		// Each GPU that no single share blocks takes so much of the rest, and so many pieces of it.
		together = min(sum/enough, pieces/((enough+largest-1)/largest))
	}
	if !exactly || alone+together <= gpus-shares[last].gpus || len(shares) > exactResidents || gpus > exactGPUs {
		return alone + together
	}
	return worstCase(shares, last, gpus, enough)
}

// exactResidents and exactGPUs bound the sets for which every choice of the agent is tried.
const (
	exactResidents = 6
	exactGPUs      = 4
)

// worstCase tries every way to place all shares but the last-th.
func worstCase(shares []share, last, gpus, enough int) int {
	var load [exactGPUs]int
	worst := 0
	var place func(i, from, left int)
	place = func(i, from, left int) {
		for left == 0 {
			i++
			if i == last {
				continue
			}
			if i >= len(shares) {
				blocked := 0
				for g := range gpus {
					if load[g] >= enough {
						blocked++
					}
				}
				worst = max(worst, blocked)
				return
			}
			from, left = 0, shares[i].gpus
		}
		for g := from; g+left <= gpus; g++ {
			if load[g]+shares[i].fraction > wholeGPU {
				continue
			}
			load[g] += shares[i].fraction
			place(i, g+1, left-1)
			load[g] -= shares[i].fraction
		}
	}
	place(-1, 0, 0)
	return worst
}
