// Package near finds the names that somebody may have meant.
package near

import (
	"cmp"
	"slices"
	"strings"
)

// mostNear is how many names are suggested.
const mostNear = 3

// Names are the nearest names, a few at most, that somebody may have meant: that differ in case and separators only, in a letter
// or two, or begin with what was written.
func Names(written string, names []string) []string {
	type candidate struct {
		name string
		off  int
	}
	var found []candidate
	want := plain(written)
	for _, n := range names {
		have := plain(n)
		off := distance(want, have)
		if len(want) >= 3 && strings.HasPrefix(have, want) {
			off = min(off, 1)
		}
		if off <= max(1, len(want)/4) {
			found = append(found, candidate{n, off})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.name, b.name)) })
	var out []string
	for _, c := range found[:min(mostNear, len(found))] {
		if c.off == found[0].off {
			out = append(out, c.name)
		}
	}
	return out
}

var separators = strings.NewReplacer(" ", "", "-", "", "_", "", ".", "")

func plain(s string) string { return strings.ToLower(separators.Replace(s)) }

// distance is how many letters have to be changed, left out or put in.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}
