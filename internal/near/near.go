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
// or two, or have what was written in them.
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
		if len(want) >= 3 && strings.Contains(have, want) {
			off = min(off, 1)
		}
		if off <= max(1, len(want)/3) {
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

// distance is how many letters have to be changed, left out, put in or swapped with the next.
func distance(a, b string) int {
	var last []int // the row before row
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			change := row[j]
			if a[i] != b[j] {
				change++
			}
			next[j+1] = min(change, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], last[j-1]+1)
			}
		}
		last, row = row, next
	}
	return row[len(b)]
}
