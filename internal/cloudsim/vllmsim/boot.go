package vllmsim

import (
	"context"
	"fmt"
	"io"
)

// Phase is where an engine is in its life.
type Phase string

// Phases in the order of a healthy life; PhaseDead and PhaseExited follow from
// a failure. PhaseDead still answers HTTP (500 and 503), PhaseExited does not.
const (
	PhaseImporting   Phase = "importing"
	PhaseDownloading Phase = "downloading"
	PhaseLoading     Phase = "loading"
	PhaseCompiling   Phase = "compiling"
	PhaseProfiling   Phase = "profiling"
	PhaseServing     Phase = "serving"
	PhaseDead        Phase = "dead"
	PhaseExited      Phase = "exited"
)

// span is the share of the load time at which a phase begins.
type span struct {
	phase Phase
	start float64
}

// The shares follow a start with cold caches, where download dominates.
var spans = []span{
	{PhaseImporting, 0}, {PhaseDownloading, 0.15}, {PhaseLoading, 0.5},
	{PhaseCompiling, 0.7}, {PhaseProfiling, 0.85},
}

// failAt is the share of the load time at which each load failure shows.
var failAt = map[Failure]float64{
	FailGPUs: 0.05, FailNotFound: 0.1, FailGated: 0.1, FailLoadError: 0.12,
	FailDiskFull: 0.35, FailHang: 0.35, FailOOM: 0.6, FailKVCache: 0.9,
}

// Status is what an engine is doing at one moment.
type Status struct {
	// Phase is the phase; before PhaseServing the port refuses connections.
	Phase Phase
	// Progress is the share of the load done, 0 to 1.
	Progress float64
	// ExitCode is the exit status of the process in PhaseExited, else 0.
	ExitCode int
	// Reason is what went wrong in PhaseDead and PhaseExited: the line of the
	// traceback that says so, which is not always its last.
	Reason string
	// Running and Waiting count requests in the batch and in the queue.
	Running, Waiting int
}

// Status works out the current Status from the clock. It is cheap and safe for
// concurrent use.
func (s *Server) Status() Status {
	status := s.lifecycle()
	for _, e := range s.engines {
		running, waiting := e.depth()
		status.Running += running
		status.Waiting += waiting
	}
	return status
}

func (s *Server) lifecycle() Status {
	elapsed := s.cfg.Clock.Now().Sub(s.started)
	if dead, at := s.deadSince(); dead {
		status := Status{Phase: PhaseDead, Progress: 1, Reason: crashReason}
		if s.cfg.Clock.Now().Sub(at) >= s.cfg.CrashDelay {
			status.Phase, status.ExitCode = PhaseExited, 1
		}
		return status
	}
	if s.loadFailure == "" && elapsed >= s.cfg.LoadTime {
		return Status{Phase: PhaseServing, Progress: 1}
	}
	done := 1.0
	if s.cfg.LoadTime > 0 {
		done = min(1, max(0, elapsed.Seconds()/s.cfg.LoadTime.Seconds()))
	}
	if s.loadFailure != "" && done >= failAt[s.loadFailure] {
		done = failAt[s.loadFailure]
		if s.loadFailure != FailHang {
			return Status{Phase: PhaseExited, Progress: done, ExitCode: 1, Reason: s.loadReason()}
		}
	}
	return Status{Phase: phaseAt(done), Progress: done}
}

func phaseAt(done float64) Phase {
	phase := PhaseImporting
	for _, s := range spans {
		if done >= s.start {
			phase = s.phase
		}
	}
	return phase
}

// Boot follows the load of s, writing log lines as their time comes, and
// returns nil once s serves. A load that fails returns a *LoadError after the
// traceback is written; a load that hangs returns only ctx's error. It does
// not make the load happen: without Boot the phases pass all the same.
func (s *Server) Boot(ctx context.Context, log io.Writer) error {
	for _, l := range s.bootLines() {
		wait := s.started.Add(l.at).Sub(s.cfg.Clock.Now())
		if err := s.cfg.Clock.Wait(ctx, wait); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(log, l.text); err != nil {
			return fmt.Errorf("write boot log: %w", err)
		}
	}
	switch s.loadFailure {
	case "":
		return ctx.Err()
	case FailHang:
		<-ctx.Done()
		return ctx.Err()
	default:
		return &LoadError{Failure: s.loadFailure, Reason: s.loadReason()}
	}
}

// LoadError says that an engine failed while loading; vLLM exits 1 for each.
type LoadError struct {
	Failure Failure
	Reason  string
}

// Error returns the reason.
func (e *LoadError) Error() string { return e.Reason }

// Logs returns the lines that the process would have written so far, with the
// traceback of a crash if there was one.
func (s *Server) Logs() []string {
	elapsed := s.cfg.Clock.Now().Sub(s.started)
	var texts []string
	for _, l := range s.bootLines() {
		if l.at <= elapsed {
			texts = append(texts, l.text)
		}
	}
	if dead, _ := s.deadSince(); dead {
		texts = append(texts, s.crashLines()...)
	}
	return texts
}

// resolveLoadFailure picks the load failure that shows first.
func (c Config) resolveLoadFailure() Failure {
	var first Failure
	consider := func(failure Failure) {
		if failure == FailNeedsToken {
			if c.HubToken {
				return
			}
			failure = FailGated
		}
		if first == "" || failAt[failure] < failAt[first] {
			first = failure
		}
	}
	for _, fault := range c.Faults {
		if oneOf(fault.Failure, loadFailures) {
			consider(fault.Failure)
		}
	}
	if c.KVBlocks*blockSize < c.MaxModelLen {
		consider(FailKVCache)
	}
	ranks := c.TensorParallel * c.PipelineParallel
	if c.GPUs > 0 && ranks*c.DataParallel > c.GPUs {
		consider(FailGPUs)
	}
	if c.GPUMemoryGiB > 0 && c.WeightsGiB/float64(ranks) > c.GPUMemoryGiB*c.GPUMemoryUtilization {
		consider(FailOOM)
	}
	return first
}
