package workermetrics

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

const (
	// shownFor is how many intervals a reading is shown.
	shownFor = 3
	// mostIntervals is how far apart scrapes of a worker that does not answer grow.
	mostIntervals = 8
)

// Scraper scrapes workers and keeps the last reading of each. All methods may be called concurrently.
type Scraper struct {
	settings Settings
	workers  Workers
	clock    clock.WithTicker
	log      logr.Logger
	index    *index
	slots    chan struct{}

	mu sync.Mutex
	// ctx is set while Start runs.
	ctx     context.Context //nolint:containedctx // Set may be called before Start, and by others.
	targets map[string]*worker
	work    sync.WaitGroup
}

// worker is one target and what is known of it.
type worker struct {
	Target
	// labels are those that all of its series have, written out.
	labels string
	stop   context.CancelFunc // nil until it is scraped

	// Guarded by Scraper.mu. A reading is never changed.
	last *reading
	at   time.Time // of last
	// up and took are those of the latest scrape, tried says that there was one.
	tried, up bool
	took      time.Duration
}

// New makes a Scraper without targets. Nothing is scraped before Start.
func New(s Settings, workers Workers, c clock.WithTicker, log logr.Logger) *Scraper {
	s = s.withDefaults()
	return &Scraper{settings: s, workers: workers, clock: c, log: log, index: newIndex(s.All),
		slots: make(chan struct{}, s.Concurrency), targets: map[string]*worker{}}
}

// Start scrapes until ctx ends.
func (s *Scraper) Start(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for _, w := range s.targets {
		s.begin(w) //nolint:contextcheck // It is the one just kept.
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	s.work.Wait()
	return nil
}

// NeedLeaderElection is true: one replica scrapes.
func (s *Scraper) NeedLeaderElection() bool { return true }

// Set begins to scrape a worker, or says what changed about it. A worker under another identity or at another address is a
// new one: what was read of the old one is forgotten.
func (s *Scraper) Set(t Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.targets[t.Claim]
	if old != nil && old.same(t) {
		return
	}
	w := &worker{Target: t, labels: labelsFor(t)}
	if old != nil {
		old.end()
		if old.UID == t.UID && old.Endpoint == t.Endpoint {
			w.last, w.at, w.tried, w.up, w.took = old.last.only(t.Models), old.at, old.tried, old.up, old.took
		}
	}
	s.targets[t.Claim] = w
	s.begin(w)
}

// Remove forgets a claim's worker and all that was read of it.
func (s *Scraper) Remove(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.targets[claim]; w != nil {
		w.end()
		delete(s.targets, claim)
	}
}

// begin scrapes a worker from now on. The Scraper is locked.
func (s *Scraper) begin(w *worker) {
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	w.stop = cancel
	s.work.Go(func() { s.follow(ctx, w) })
}

func (w *worker) end() {
	if w.stop != nil {
		w.stop()
	}
}

func (w *worker) same(t Target) bool {
	return w.UID == t.UID && w.Endpoint == t.Endpoint && w.labels == labelsFor(t) && slices.Equal(w.Models, t.Models)
}

// follow scrapes one worker at its own moment of every interval, less often while it does not answer.
func (s *Scraper) follow(ctx context.Context, w *worker) {
	failures := 0
	for s.wait(ctx, s.due(w, failures)) {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := s.scrape(ctx, w)
		<-s.slots
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 1 {
			s.log.Info("worker's metrics not read", "claim", w.Claim, "reason", shorten(err.Error()))
		}
	}
}

// maxReason bounds what is logged of an error, which may quote the worker.
const maxReason = 200

func shorten(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "") + "…"
}

// due is how long it is to a worker's next moment: they are spread over the interval by identity, so that neither a restart
// nor a purchase of many makes them coincide.
func (s *Scraper) due(w *worker, failures int) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(w.UID)) // It never fails.
	interval := s.settings.Interval
	offset := time.Duration(h.Sum64() % uint64(interval))
	now := time.Duration(s.clock.Now().UnixNano())
	to := (offset - now%interval + interval) % interval
	if to == 0 {
		to = interval
	}
	skip := min(1<<min(failures, 10), mostIntervals) - 1
	return to + time.Duration(skip)*interval
}

func (s *Scraper) wait(ctx context.Context, d time.Duration) bool {
	timer := s.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// scrape reads a worker once and keeps what it said.
func (s *Scraper) scrape(ctx context.Context, w *worker) error {
	ctx, cancel := context.WithTimeout(ctx, s.settings.Timeout)
	defer cancel()
	began := s.clock.Now()
	r, err := s.read(ctx, w)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err() // It was not the worker's fault.
	}
	ended := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	w.tried, w.up, w.took = true, err == nil, ended.Sub(began)
	if err == nil {
		w.last, w.at = r, ended
	}
	return err
}

func (s *Scraper) read(ctx context.Context, w *worker) (*reading, error) {
	answer, err := s.workers.Metrics(ctx, w.Endpoint, w.UID, maxAnswer+1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }() // It was read.
	return s.index.read(answer, w.Models)
}

// only is a reading without what it has of models that are not placed any more.
func (r *reading) only(models []string) *reading {
	if r == nil {
		return nil
	}
	out := &reading{families: make(map[string]block, len(r.families)), dropped: r.dropped}
	for name, b := range r.families {
		kept := slices.DeleteFunc(slices.Clone(b.samples), func(x sample) bool {
			return x.model != "" && !slices.Contains(models, x.model)
		})
		if len(kept) > 0 {
			out.families[name] = block{b.family, kept}
		}
	}
	return out
}

// labelsFor are the labels that say whose a series is.
func labelsFor(t Target) string {
	var out []byte
	for _, l := range [][2]string{{"claim", t.Claim}, {"pool", t.Pool}, {"provider", t.Provider}, {"gpu_type", t.GPUType}} {
		out = appendLabel(out, l[0], strings.ToValidUTF8(l[1], "?"))
	}
	return string(out)
}

// shown is a worker at one moment, for an answer.
type shown struct {
	labels    string
	last      *reading // nil when there is none, or none that is fresh
	tried, up bool
	took      time.Duration
}

// snapshot is all workers in the order of claims, without what is stale.
func (s *Scraper) snapshot() []shown {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.targets))
	for name := range s.targets {
		names = append(names, name)
	}
	slices.Sort(names)
	out := make([]shown, 0, len(names))
	for _, name := range names {
		w := s.targets[name]
		x := shown{labels: w.labels, last: w.last, tried: w.tried, up: w.up, took: w.took}
		if w.last == nil || now.Sub(w.at) >= shownFor*s.settings.Interval {
			x.last = nil
		}
		out = append(out, x)
	}
	return out
}
