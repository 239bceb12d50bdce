package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// wholeGPU is one GPU's memory in the thousandths that a model's share is given in.
const wholeGPU = 1000

// placer hands out GPU memory, and on each GPU the right to be the engine that starts: an engine measures free memory
// while it starts, so that two at once would both see all of it. It is safe for concurrent use.
type placer struct {
	// counted is false on a machine without GPUs.
	counted bool

	mu      sync.Mutex
	gpus    []slot
	changed chan struct{} // closed and replaced when something is given back
}

type slot struct {
	free     int
	starting bool
}

// errNeverFits says that a model asks for more GPUs, or a larger share, than the machine has.
var errNeverFits = errors.New("asks for more GPUs than the machine has")

// share is what one engine was given. Its methods may be called again without harm.
type share struct {
	placer *placer
	// gpus are indexes in nvidia-smi's order; none on a machine without GPUs.
	gpus     []int
	slots    []int
	fraction int
	started  sync.Once
	returned sync.Once
}

// newPlacer takes the number of GPUs. A machine without any is treated as one place without a limit, so that engines
// there still start one at a time.
func newPlacer(gpus int) *placer {
	p := &placer{counted: gpus > 0, changed: make(chan struct{}), gpus: make([]slot, max(1, gpus))}
	for i := range p.gpus {
		p.gpus[i].free = wholeGPU
	}
	return p
}

// take waits until n GPUs have the share free and nothing starts on them. waiting is called when it has to.
func (p *placer) take(ctx context.Context, n, fraction int, waiting func()) (*share, error) {
	n = max(1, n)
	if !p.counted {
		n, fraction = 1, 0
	}
	if n > len(p.gpus) || fraction > wholeGPU {
		return nil, errNeverFits
	}
	for first := true; ; first = false {
		p.mu.Lock()
		chosen := p.choose(n, fraction)
		changed := p.changed
		if chosen != nil {
			for _, i := range chosen {
				p.gpus[i].free -= fraction
				p.gpus[i].starting = true
			}
			p.mu.Unlock()
			s := &share{placer: p, slots: chosen, fraction: fraction}
			if p.counted {
				s.gpus = chosen
			}
			return s, nil
		}
		p.mu.Unlock()
		if first {
			waiting()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// choose picks the fullest GPUs that have room, so that whole ones stay whole. Nil if there are not enough.
func (p *placer) choose(n, fraction int) []int {
	var fit []int
	for i, g := range p.gpus {
		if g.free >= fraction && !g.starting {
			fit = append(fit, i)
		}
	}
	if len(fit) < n {
		return nil
	}
	slices.SortStableFunc(fit, func(a, b int) int { return cmp.Compare(p.gpus[a].free, p.gpus[b].free) })
	fit = fit[:n]
	slices.Sort(fit)
	return fit
}

// up says that the engine has started, so that another may on the same GPUs.
func (s *share) up() {
	s.started.Do(func() { s.placer.give(func(g *slot) { g.starting = false }, s.slots) })
}

// release gives everything back.
func (s *share) release() {
	s.up()
	s.returned.Do(func() { s.placer.give(func(g *slot) { g.free += s.fraction }, s.slots) })
}

func (p *placer) give(change func(*slot), slots []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range slots {
		change(&p.gpus[i])
	}
	close(p.changed)
	p.changed = make(chan struct{})
}
