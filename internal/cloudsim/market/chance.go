package market

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"time"
)

// chance is the only source of decisions: a hash of the seed, the provider's name and what the decision is about. There
// is no stream to share, so decisions do not depend on the order in which others are taken.
type chance struct {
	seed     int64
	provider string
}

// at is uniform in [0, 1) for this question about this subject and ordinal.
func (c chance) at(question, subject string, ordinal int64) float64 {
	h := fnv.New64a()
	var n [16]byte
	binary.LittleEndian.PutUint64(n[:8], uint64(c.seed))
	binary.LittleEndian.PutUint64(n[8:], uint64(ordinal))
	_, _ = h.Write(n[:]) // A hash never fails to write.
	for _, s := range []string{c.provider, question, subject} {
		_, _ = h.Write([]byte(s))
		_, _ = h.Write([]byte{0})
	}
	return float64(mix(h.Sum64())>>11) / (1 << 53)
}

// mix spreads a weak hash over all bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// between is uniform in [lo, hi).
func (c chance) between(lo, hi float64, question, subject string, ordinal int64) float64 {
	return lo + (hi-lo)*c.at(question, subject, ordinal)
}

// pick is one of n, uniformly.
func (c chance) pick(n int, question, subject string) int {
	return int(c.at(question, subject, 0) * float64(n))
}

// wait is an exponentially distributed time with the given rate per hour; ok is false for a rate of zero.
func (c chance) wait(perHour float64, question, subject string, ordinal int64) (d time.Duration, ok bool) {
	if perHour <= 0 {
		return 0, false
	}
	hours := -math.Log(1-c.at(question, subject, ordinal)) / perHour
	return time.Duration(min(hours, 24*365) * float64(time.Hour)), true
}

// walk is a wandering number in [-1, 1] for step n: noise at three time scales, which unlike a true random walk can be
// computed for any step without those before it.
func (c chance) walk(subject string, n int64) float64 {
	sum := 0.0
	for _, scale := range []int64{1, 5, 25} {
		sum += 2*c.at("walk", subject, n/scale*1000+scale) - 1
	}
	return sum / 3
}
