package vllmsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errAborted    = errors.New("request aborted")
	errEngineDead = errors.New("engine dead")
)

// Server is one simulated vLLM. It starts to load when it is made, serves once
// Config.LoadTime has passed on its clock, and is safe for concurrent use.
type Server struct {
	cfg         Config
	started     time.Time
	loadFailure Failure
	faults      []Fault
	engines     []*engine
	handler     http.Handler

	// ctx ends every request in flight, with the cause: an abort or a death.
	ctx    context.Context
	cancel context.CancelCauseFunc

	served   atomic.Int64 // generation requests accepted so far
	inFlight atomic.Int64
	draining atomic.Bool
	frozen   atomic.Bool // no engine makes a token any more
	died     chan struct{}

	mu     sync.Mutex
	diedAt time.Time
	counts map[string]float64
}

// New makes a Server that begins to load at once. It starts no goroutine, and
// a Server that is no longer wanted needs no closing.
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	if fault, ok := FaultOfModel(cfg.Model); ok {
		cfg.Faults = append([]Fault{fault}, cfg.Faults...)
	}
	s := &Server{cfg: cfg, started: cfg.Clock.Now(), faults: cfg.Faults, died: make(chan struct{})}
	s.loadFailure = cfg.resolveLoadFailure()
	for range cfg.DataParallel {
		s.engines = append(s.engines, newEngine(cfg))
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.handler = s.routes()
	return s
}

// Handler is the HTTP surface. While the Server does not serve (it loads, it
// failed, or its process has exited) it panics with http.ErrAbortHandler,
// which makes an http.Server drop the connection: where a refused connection
// must be told apart, ask Status first. Aborted requests end the same way.
func (s *Server) Handler() http.Handler { return s.handler }

// EngineDied is closed when the engine dies while serving. Failures of the
// load do not close it; Status and Boot tell those.
func (s *Server) EngineDied() <-chan struct{} { return s.died }

// Drain makes the Server answer 503 to new generation requests; those in
// flight go on.
func (s *Server) Drain() { s.draining.Store(true) }

// Abort ends every request in flight, without an answer, and counts it as
// aborted. Later requests end the same way.
func (s *Server) Abort() { s.cancel(errAborted) }

// InFlight is the number of HTTP requests being answered.
func (s *Server) InFlight() int { return int(s.inFlight.Load()) }

// die is the death of the engine: what is in flight fails, once.
func (s *Server) die() {
	s.mu.Lock()
	first := s.diedAt.IsZero()
	if first {
		s.diedAt = s.cfg.Clock.Now()
	}
	s.mu.Unlock()
	if !first {
		return
	}
	for _, text := range s.crashLines() {
		s.logf("%s", text)
	}
	s.cancel(errEngineDead)
	close(s.died)
}

func (s *Server) deadSince() (bool, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.diedAt.IsZero(), s.diedAt
}

func (s *Server) logf(format string, args ...any) {
	if s.cfg.Log == nil {
		return
	}
	// A log that cannot be written must not break the server it describes.
	_, _ = io.WriteString(s.cfg.Log, fmt.Sprintf(format, args...)+"\n")
}

func (s *Server) oddity(failure Failure) bool {
	return s.failing(failure, 1)
}

// failing reports whether failure shows at the ordinal-th generation request,
// counted from one.
func (s *Server) failing(failure Failure, ordinal int64) bool {
	for _, fault := range s.faults {
		if fault.Failure == failure && ordinal > int64(fault.After) {
			return true
		}
	}
	return false
}

// failingNow is failing for a request that is not counted.
func (s *Server) failingNow(failure Failure) bool {
	return s.failing(failure, s.served.Load()+1)
}

// engineFor spreads requests over the data-parallel ranks in turn.
func (s *Server) engineFor(ordinal int64) *engine {
	return s.engines[int(ordinal)%len(s.engines)]
}

// request derives the context of one request: it ends with the client's, with
// an abort and with the death of the engine, and its cause says which.
func (s *Server) request(r *http.Request) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
