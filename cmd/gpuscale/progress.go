package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Progress begins after a while, so that quick answers show none, and counts seconds.
const (
	progressAfter = time.Second
	progressEvery = 500 * time.Millisecond
)

// progress tells a person at a terminal who is waited for, in one line that is gone when there is something to read.
type progress struct {
	console *console
	clock   clock.WithTicker
	began   time.Time
	stop    chan struct{}
	stopped sync.WaitGroup

	mu      sync.Mutex
	waiting []string
	shown   bool
}

// newProgress begins it; end must be called. Without a terminal it says nothing.
func newProgress(c *console, now clock.WithTicker) *progress {
	p := &progress{console: c, clock: now, began: now.Now(), stop: make(chan struct{})}
	if c.terminal {
		p.stopped.Go(p.run)
	}
	return p
}

func (p *progress) run() {
	t := p.clock.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C():
			p.show()
		case <-p.stop:
			p.clear()
			return
		}
	}
}

func (p *progress) asked(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, name)
}

func (p *progress) answered(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, name); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
}

func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.clock.Since(p.began)
	if since < progressAfter || len(p.waiting) == 0 {
		return
	}
	p.shown = true
	names := slices.Compact(slices.Sorted(slices.Values(p.waiting)))
	_, _ = fmt.Fprintf(p.console.errOut, "\r\x1b[KWaiting for %s (%.0fs)", strings.Join(names, ", "), since.Seconds())
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		_, _ = fmt.Fprint(p.console.errOut, "\r\x1b[K")
	}
	p.shown = false
}

// end takes the line away. Calling it twice is harmless.
func (p *progress) end() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.stopped.Wait()
}
