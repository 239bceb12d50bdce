package agent

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
)

const (
	// ringBytes bounds what is kept of one model's log.
	ringBytes = 256 << 10
	// maxLine bounds one line; the rest of a longer one is dropped.
	maxLine = 4 << 10
)

// ring keeps the last lines written to it, with secrets blanked. A carriage return ends a line too, since progress bars
// are drawn with it. It is safe for concurrent use.
type ring struct {
	onLine func(string)

	mu      sync.Mutex
	hidden  map[string]bool
	secrets *strings.Replacer
	lines   []string
	size    int
	dropped int
	partial []byte
}

// newRing calls onLine, which may be nil, with each whole line.
func newRing(onLine func(string)) *ring {
	return &ring{onLine: onLine, hidden: map[string]bool{}, secrets: strings.NewReplacer()}
}

// blank replaces the secrets among the values of env in all lines to come, besides those of earlier calls: an engine
// that runs on still has them.
func (r *ring) blank(env map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, value := range env {
		// A value of several lines would be logged as several.
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); secret(key, line) {
				r.hidden[line] = true
			}
		}
	}
	// Longest first, so that a secret which begins another leaves no rest of it.
	words := slices.SortedFunc(maps.Keys(r.hidden), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	})
	var pairs []string
	for _, word := range words {
		pairs = append(pairs, word, "***")
	}
	r.secrets = strings.NewReplacer(pairs...)
}

var secretWords = []string{"TOKEN", "KEY", "SECRET", "PASS", "CRED", "AUTH"}

// secret reports whether a value must not be shown. Any value may be one; but blanking every "1" would make a log
// unreadable, and a path is none.
func secret(key, value string) bool {
	named := slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(strings.ToUpper(key), w) })
	return len(value) >= 8 && !strings.HasPrefix(value, "/") || named && len(value) >= 4
}

// Write takes any part of a log. It never fails.
func (r *ring) Write(p []byte) (int, error) {
	n := len(p)
	var whole []string
	r.mu.Lock()
	for len(p) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			r.extend(p)
			break
		}
		r.extend(p[:end])
		if line := r.flush(); line != "" {
			whole = append(whole, line)
		}
		p = p[end+1:]
	}
	r.mu.Unlock()
	if r.onLine != nil {
		for _, line := range whole {
			r.onLine(line)
		}
	}
	return n, nil
}

func (r *ring) extend(p []byte) {
	r.partial = append(r.partial, p[:min(len(p), maxLine-len(r.partial))]...)
}

// flush ends the partial line.
func (r *ring) flush() string {
	line := r.secrets.Replace(strings.ToValidUTF8(string(r.partial), "?"))
	r.partial = r.partial[:0]
	if strings.TrimSpace(line) == "" {
		return ""
	}
	r.lines = append(r.lines, line)
	r.size += len(line) + 1
	if r.size > ringBytes {
		r.drop()
	}
	return line
}

// drop makes room: a quarter at once, so that a full ring does not move its lines for each new one.
func (r *ring) drop() {
	n := 0
	for r.size > ringBytes*3/4 {
		r.size -= len(r.lines[n]) + 1
		n++
	}
	r.lines = slices.Delete(r.lines, 0, n)
	r.dropped += n
}

// mark is how many lines there have been so far, for since.
func (r *ring) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped + len(r.lines)
}

// since returns the lines after a mark that are still kept.
func (r *ring) since(mark int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines[max(0, min(mark-r.dropped, len(r.lines))):])
}
