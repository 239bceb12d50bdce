package money

import (
	"math"
	"math/bits"
)

type rounding int

const (
	ceil   rounding = iota // towards plus infinity
	halfUp                 // to the nearest, halves towards plus infinity
)

func addSat(a, b int64) int64 {
	sum := a + b
	if a > 0 && b > 0 && sum < 0 {
		return math.MaxInt64
	}
	if a < 0 && b < 0 && sum >= 0 {
		return math.MinInt64
	}
	return sum
}

func subSat(a, b int64) int64 {
	if b != math.MinInt64 {
		return addSat(a, -b)
	}
	if a >= 0 {
		return math.MaxInt64
	}
	return a - b
}

func cmp(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// mulDiv is a×b/den with one rounding of the exact 128-bit product, saturating; den is positive.
func mulDiv(a, b, den int64, how rounding) int64 {
	negative := (a < 0) != (b < 0)
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	if hi >= uint64(den) {
		return saturated(negative)
	}
	quo, rem := bits.Div64(hi, lo, uint64(den))
	if roundsAway(rem, uint64(den), negative, how) {
		if quo == math.MaxUint64 {
			return saturated(negative)
		}
		quo++
	}
	switch {
	case negative && quo <= 1<<63:
		return int64(-quo)
	case !negative && quo <= math.MaxInt64:
		return int64(quo)
	}
	return saturated(negative)
}

// roundsAway reports whether a remainder moves the magnitude up by one.
func roundsAway(rem, den uint64, negative bool, how rounding) bool {
	if how == ceil {
		return rem > 0 && !negative
	}
	if negative {
		return rem > den-rem
	}
	return rem > 0 && rem >= den-rem
}

func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}

func saturated(negative bool) int64 {
	if negative {
		return math.MinInt64
	}
	return math.MaxInt64
}
