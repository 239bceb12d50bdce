// Package registry knows which worker can serve which model, how much each one is doing, and how its requests fare.
//
// It holds one picture, a Snapshot that a Source replaces whole. A source that cannot see stays silent, and the last
// picture stands: the registry never empties because somebody else is away. Counts of outstanding requests belong to
// the worker and outlive pictures, so that a worker that leaves and comes back is as busy as it really is.
package registry

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// State is the state of a model on a worker, in the agent's words.
type State string

// Ready is the one state that requests are sent to.
const Ready State = "Ready"

// Worker is one agent and the models it has, whatever their state.
type Worker struct {
	// Claim is its name for people, ClaimUID the identity that its certificate proves.
	Claim    string
	ClaimUID string
	// Endpoint is "host:port".
	Endpoint string
	Models   map[string]State
	// Since is when its claim was made; zero where it has none.
	Since time.Time
	// Spare are those of Models that are not wanted here any more, since others serve them or nobody asks for them.
	Spare map[string]bool
}

// Known is a model that exists though no worker need have it.
type Known struct {
	Name string
	// Stage says, for people, how far it is on its way to a worker. Empty means that nothing is on its way.
	Stage string
	// Since is when the machine that is to serve it was asked for; zero where that is not known.
	Since time.Time
	// Target is how many requests a worker of it should have; 0 where nobody says.
	Target int
}

// Snapshot is all that a Source knows at one moment. The same worker or model must not be in it twice.
type Snapshot struct {
	Workers []Worker
	// Models beyond those that workers have.
	Models []Known
	// Partial: there may be more that is not known yet.
	Partial bool
	// Boots of the workers that serve.
	Boots []Boot
}

// Source tells who can serve what.
type Source interface {
	// Run calls apply, never twice at once, with each new picture, until ctx ends. While it cannot see it does not call.
	// It returns nil when ctx ended.
	Run(ctx context.Context, apply func(Snapshot)) error
}

// Model is a known model.
type Model struct {
	Name string
	// FirstKnown is when this registry first heard of it.
	FirstKnown time.Time
	// Workers counts those that serve it now: the model is warm when there is one.
	Workers int
	// Stage is how far it is, for people, when there is none; empty when nothing is on its way.
	Stage string
	// Since is Known's, when there is none.
	Since time.Time
	// Boot is how long this model is expected to take from being asked for to serving, by the boots seen; zero before any.
	Boot time.Duration
}

// Registry is safe for concurrent use.
type Registry struct {
	clock  clock.PassiveClock
	forget func(claimUID string)
	limit  int

	mu      sync.Mutex
	synced  bool
	turn    uint64
	workers map[string]*entry
	models  map[string]*model
	boots   boots
	queues  map[string]*queue
}

// entry is a worker that is in the picture or still has requests outstanding.
type entry struct {
	Worker

	present     bool
	outstanding int
	// turn is when it was chosen last: of equally busy workers the one that has waited longest is next.
	turn uint64

	health health
	// full is until when the worker's word counts that it has no room, by model.
	full map[string]time.Time
}

type model struct {
	firstKnown time.Time
	stage      string
	since      time.Time
	target     int
	ready      []*entry
}

// New makes an empty Registry. forget, which may be nil, is called with the UID of each claim that left the picture,
// once nothing is outstanding there.
func New(c clock.PassiveClock, forget func(claimUID string)) *Registry {
	if forget == nil {
		forget = func(string) {}
	}
	return &Registry{clock: c, forget: forget, workers: map[string]*entry{}, models: map[string]*model{},
		queues: map[string]*queue{}}
}

// Limit sets how many requests a worker may have outstanding, over all its models; 0 means as many as its own admission
// lets in. It is to be called before the first Acquire.
func (r *Registry) Limit(outstanding int) { r.limit = outstanding }

// Apply replaces the picture. It keeps no part of s.
func (r *Registry) Apply(s Snapshot) {
	for _, uid := range r.replace(s) {
		r.forget(uid)
	}
}

func (r *Registry) replace(s Snapshot) (gone []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = r.synced || !s.Partial
	defer r.pictured()
	r.boots.see(s.Boots)
	for _, e := range r.workers {
		e.present = false
	}
	old := r.models
	r.models = make(map[string]*model, len(old))
	for _, known := range s.Models {
		m := r.know(old, known.Name)
		m.stage, m.since, m.target = known.Stage, known.Since, known.Target
	}
	for _, w := range s.Workers {
		e := r.workers[w.ClaimUID]
		if e == nil {
			e = &entry{}
			r.workers[w.ClaimUID] = e
		}
		if e.Endpoint != w.Endpoint {
			e.health, e.full = health{}, nil
		}
		w.Models, w.Spare = maps.Clone(w.Models), maps.Clone(w.Spare)
		e.Worker, e.present = w, true
		for name, state := range w.Models {
			m := r.know(old, name)
			if state == Ready {
				m.ready = append(m.ready, e)
			} else if m.stage == "" {
				m.stage = string(state) + " on " + w.Claim
			}
		}
	}
	for uid, e := range r.workers {
		if !e.present && e.outstanding == 0 {
			delete(r.workers, uid)
			gone = append(gone, uid)
		}
	}
	return gone
}

func (r *Registry) know(old map[string]*model, name string) *model {
	if m := r.models[name]; m != nil {
		return m
	}
	m := &model{}
	if before := old[name]; before != nil {
		m.firstKnown = before.firstKnown
	} else {
		m.firstKnown = r.clock.Now()
	}
	r.models[name] = m
	return m
}

// Synced tells whether there has been a whole picture yet. Without one nothing is known, not even that a model is unknown.
func (r *Registry) Synced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

// Warm tells whether any model is served.
func (r *Registry) Warm() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.models {
		if len(m.ready) > 0 {
			return true
		}
	}
	return false
}

// Models lists the known models by name.
func (r *Registry) Models() []Model {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Model, 0, len(r.models))
	for name, m := range r.models {
		list = append(list, r.public(name, m))
	}
	slices.SortFunc(list, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Model looks one up.
func (r *Registry) Model(name string) (Model, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[name]
	if m == nil {
		return Model{}, false
	}
	return r.public(name, m), true
}

// Only is the name of the model when exactly one is known.
func (r *Registry) Only() (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.models) != 1 {
		return "", false
	}
	for name := range r.models {
		return name, true
	}
	return "", false
}

func (r *Registry) public(name string, m *model) Model {
	out := Model{Name: name, FirstKnown: m.firstKnown, Workers: len(m.ready), Boot: r.boots.expected(name)}
	if out.Workers == 0 {
		out.Stage, out.Since = m.stage, m.since
	}
	return out
}

// Lease is one request outstanding at a worker. It is safe for concurrent use.
type Lease struct {
	// Worker as it was when it was chosen.
	Worker Worker

	registry *Registry
	entry    *entry
	model    string
	// Guarded by the registry's mutex. refused: the worker had no room, so the request's end makes none.
	released, refused bool
}

// Acquire chooses, of the workers where model is Ready and that skip does not name, the one with the fewest requests
// outstanding over all its models, and counts one more until the Lease is released. Where the model is Spare a worker
// gets none while another has fewer than the model's Target, and of several such the oldest gets them: what is not wanted
// is to be idle, so that it can end. A worker at its limit is not chosen; one that is set aside only when no other is left,
// or once its time is over, with one request at a time. Without any it returns nil.
func (r *Registry) Acquire(model string, skip map[string]bool) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		return nil
	}
	var (
		best      *entry
		bestClass = excluded
		now       = r.clock.Now()
	)
	for _, e := range m.ready {
		c := r.classOf(e, model, skip, now)
		if c < bestClass || c == bestClass && best != nil && e.before(best, c) {
			best, bestClass = e, c
		}
	}
	if best == nil {
		return nil
	}
	r.turn++
	best.turn = r.turn
	best.outstanding++
	l := &Lease{Worker: best.Worker, registry: r, entry: best, model: model}
	if bestClass == probed {
		best.health.probe = l
	}
	return l
}

// before tells which of two workers of a class is next. Of the spare ones the oldest is: the controllers too keep older
// ones longer.
func (e *entry) before(other *entry, c class) bool {
	if c == spare {
		return cmp.Or(e.Since.Compare(other.Since), strings.Compare(e.Claim, other.Claim)) < 0
	}
	return e.outstanding < other.outstanding || e.outstanding == other.outstanding && e.turn < other.turn
}

// Release ends the request's count, and tells those who wait that there is room. Only the first call of Release and Return
// counts.
func (l *Lease) Release() { l.end(true) }

// Return is Release for a request that the worker did not answer, and that says nothing of its room.
func (l *Lease) Return() { l.end(false) }

func (l *Lease) end(room bool) {
	r, e := l.registry, l.entry
	r.mu.Lock()
	if l.released {
		r.mu.Unlock()
		return
	}
	l.released = true
	e.outstanding--
	if e.health.probe == l {
		e.health.probe = nil // It said nothing; the next one is to.
	}
	if !l.refused {
		delete(e.full, l.model)
	}
	if room {
		r.freed(e)
	}
	gone := e.outstanding == 0 && !e.present
	if gone {
		delete(r.workers, e.ClaimUID)
	}
	r.mu.Unlock()
	if gone {
		r.forget(e.ClaimUID)
	}
}

// Outstanding is the number of leases held, by claim UID, of workers in the picture and of those that still have any.
func (r *Registry) Outstanding() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int, len(r.workers))
	for uid, e := range r.workers {
		out[uid] = e.outstanding
	}
	return out
}
