package market

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// Market is one provider's supply and one or more accounts' rentals. All methods may be called concurrently.
type Market struct {
	cfg    Config
	chance chance
	epoch  time.Time
	ctx    context.Context // the life of the bodies, which outlive any one call
	cancel context.CancelFunc
	bodies sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	events   eventQueue
	eventSeq int64
	timer    clock.Timer

	machines   map[string]*machine
	offers     map[string]*listing
	offerOrder []string
	nextOffer  int64

	rentals   []*rental // every one ever, in order
	live      []*rental // those not gone, in order
	byID      map[string]*rental
	byToken   map[string]*rental
	goneSpent Nano
	walking   bool
	series    []Sample

	control control
	faults  faultState
}

// New opens a market. Close it to end what runs in it.
func New(cfg Config) *Market {
	cfg.complete()
	ctx, cancel := context.WithCancel(context.Background())
	m := &Market{
		cfg: cfg, chance: chance{seed: cfg.Seed, provider: cfg.Provider}, epoch: cfg.Clock.Now(),
		ctx: ctx, cancel: cancel,
		machines: map[string]*machine{}, offers: map[string]*listing{},
		byID: map[string]*rental{}, byToken: map[string]*rental{},
		faults: newFaultState(),
	}
	for _, o := range cfg.Offers {
		m.list(o)
	}
	m.sample(m.epoch)
	return m
}

// Provider is the name that the market was opened under.
func (m *Market) Provider() string { return m.cfg.Provider }

// Seed is what its decisions derive from.
func (m *Market) Seed() int64 { return m.cfg.Seed }

// Clock is the market's.
func (m *Market) Clock() clock.WithDelayedExecution { return m.cfg.Clock }

// Close ends every body and returns when they are gone. The books stay readable.
func (m *Market) Close() {
	m.mu.Lock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	for _, r := range m.live {
		if r.body != nil {
			r.body.Kill()
		}
	}
	m.mu.Unlock()
	m.bodies.Wait()
	m.cancel()
}

// Tick makes everything happen that is due. Every other method does so first; a test with a hand-cranked clock calls it
// where it wants effects, such as bodies started, without asking anything.
func (m *Market) Tick() {
	_, unlock := m.begin()
	unlock()
}

// begin locks the market and brings it up to now; the returned function writes the books and unlocks.
func (m *Market) begin() (now time.Time, unlock func()) {
	m.mu.Lock()
	now = m.cfg.Clock.Now()
	m.advance(now)
	return now, func() {
		m.sample(now)
		m.arm(now)
		m.mu.Unlock()
	}
}

// event is something due at a time; seq keeps those of one time in the order in which they were planned.
type event struct {
	at  time.Time
	seq int64
	do  func(at time.Time)
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push is for container/heap.
func (q *eventQueue) Push(x any) {
	if e, ok := x.(event); ok {
		*q = append(*q, e)
	}
}

// Pop is for container/heap.
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (m *Market) at(t time.Time, do func(at time.Time)) {
	m.eventSeq++
	heap.Push(&m.events, event{at: t, seq: m.eventSeq, do: do})
}

// plan is at, dropped if the rental has changed course or gone by then.
func (m *Market) plan(r *rental, t time.Time, do func(at time.Time)) {
	run := r.run
	m.at(t, func(at time.Time) {
		if r.run == run && r.live() {
			do(at)
		}
	})
}

func (m *Market) advance(now time.Time) {
	for !m.closed && len(m.events) > 0 && !m.events[0].at.After(now) {
		e := m.events[0]
		heap.Pop(&m.events)
		e.do(e.at)
		m.sample(e.at)
	}
	m.enforceCredit(now)
}

// arm wakes the market up for the next event, so that bodies start and die in time though nobody asks.
func (m *Market) arm(now time.Time) {
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	if m.closed || len(m.events) == 0 {
		return
	}
	// A goroutine of its own, because a hand-cranked clock calls back while it holds its own lock.
	m.timer = m.cfg.Clock.AfterFunc(max(0, m.events[0].at.Sub(now)), func() { go m.Tick() })
}

// startBody begins a rental's software and watches for its end.
func (m *Market) startBody(r *rental, now time.Time) error {
	spec := body.Spec{
		InstanceID: r.ID, Image: r.Image, Command: r.Command, Env: map[string]string{}, UserData: r.userData,
		Port: r.Port, GPU: reported(r.Offer, r.Broken),
	}
	for k, v := range r.Env {
		spec.Env[k] = v
	}
	if r.prepare != nil {
		r.prepare(r.snapshot(now), &spec)
	}
	b, err := m.cfg.Body.Start(m.ctx, spec)
	if err != nil {
		return err
	}
	r.body, r.last = b, b
	m.bodies.Add(1)
	go func() {
		defer m.bodies.Done()
		<-b.Done()
		m.bodyEnded(r, b)
	}()
	return nil
}

// bodyEnded notes software that ended by itself. What the market killed it has already let go of.
func (m *Market) bodyEnded(r *rental, b body.Body) {
	now, unlock := m.begin()
	defer unlock()
	if r.body != b || m.closed {
		return
	}
	info := b.ExitInfo()
	m.down(r, now)
	m.enter(r, Exited, now)
	r.Message = fmt.Sprintf("exited with status %d: %s", info.Code, info.Message)
}

// reported is the GPU that the host's driver tells of.
func reported(o Offer, b Breakage) body.GPU {
	g := body.GPU{
		Name: o.DriverGPU, MemoryMB: o.GPUMemoryMB, Count: o.GPUs, Driver: o.Driver,
		CUDA:       fmt.Sprintf("%.1f", o.CUDA),
		ComputeCap: fmt.Sprintf("%d.%d", o.ComputeCap/100, o.ComputeCap%100/10),
	}
	if g.Name == "" {
		g.Name = o.GPU
	}
	switch b {
	case WrongGPU:
		g.Name, g.MemoryMB, g.ComputeCap = "NVIDIA GeForce RTX 3060", 12288, "8.6"
	case OldDriver:
		g.Driver, g.CUDA = "470.256.02", "11.4"
	case Sound, DiesBooting, StuckCreated, StuckLoading, NoAddress, Unreachable:
	}
	return g
}

// jitter stretches a boot time as the machine does.
func (m *Market) jitter(d time.Duration, machine string) time.Duration {
	return time.Duration(math.Round(float64(d) * (1 + m.cfg.Boot.Jitter*m.chance.at("boot", machine, 0))))
}
