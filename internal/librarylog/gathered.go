package librarylog

import (
	"io"
	"sync"
	"time"
)

const (
	// gatherFor is the most that is lost when a process is killed.
	gatherFor = 50 * time.Millisecond
	// gatherBytes is some hundred lines.
	gatherBytes = 64 << 10
)

// Gathered writes what it is given within 50 ms, together with what comes meanwhile: a line for each of a thousand requests a
// second is a system call for fifty. It is safe for concurrent use.
type Gathered struct {
	to    io.Writer
	timer *time.Timer

	mu     sync.Mutex
	lines  []byte
	closed bool
}

// Gather makes a Gathered. Close is to be called before the process ends.
func Gather(to io.Writer) *Gathered {
	g := &Gathered{to: to}
	g.timer = time.AfterFunc(gatherFor, g.flush)
	return g
}

// Write takes a whole line. What becomes of the writing nobody is told: a log that cannot be written has nobody to tell.
func (g *Gathered) Write(line []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lines) == 0 && !g.closed {
		g.timer.Reset(gatherFor)
	}
	g.lines = append(g.lines, line...)
	if g.closed || len(g.lines) >= gatherBytes {
		g.write()
	}
	return len(line), nil
}

// Close writes what is left. What comes later is written at once.
func (g *Gathered) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.timer.Stop()
	g.write()
}

func (g *Gathered) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.write()
}

func (g *Gathered) write() {
	if len(g.lines) > 0 {
		_, _ = g.to.Write(g.lines) // As Write says.
		g.lines = g.lines[:0]
	}
}
