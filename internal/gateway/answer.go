package gateway

import (
	"errors"
	"io"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// stream is a worker's stream as the client gets it, watched: its tokens are counted and its end is judged.
func (e *exchange) stream(body io.ReadCloser) *eventStream {
	e.report(registry.Began)
	last := e.g.cfg.Clock.Now()
	e.g.metrics.ttft.WithLabelValues(e.model).Observe(last.Sub(e.record.start).Seconds())
	var (
		interToken = e.g.metrics.interToken.WithLabelValues(e.model)
		begun      bool
	)
	return &eventStream{body: body, ended: e.broken,
		came: func(events int64) {
			now := e.g.cfg.Clock.Now()
			if begun { // Events that come together share the wait for them.
				for range events {
					interToken.Observe(now.Sub(last).Seconds() / float64(events))
				}
			}
			begun, last = true, now
		},
		left: func(lines *lineWatch) {
			e.record.usage.events = lines.events
			e.record.usage.read(lines.usage)
			if lines.finished() {
				e.report(registry.Answered)
			}
		},
	}
}

// whole is the same for an answer that is no stream.
func (e *exchange) whole(body io.ReadCloser) *wholeAnswer {
	e.report(registry.Began)
	return &wholeAnswer{body: body, ended: func(tail []byte, err error) {
		switch {
		case errors.Is(err, io.EOF):
			e.record.usage.read(tail)
			e.report(registry.Answered)
		case e.ended() == nil:
			e.report(registry.Failed)
		}
	}}
}

// broken gives a stream that ended early its last words, none when there is nobody to hear them.
func (e *exchange) broken(err error) *apiError {
	problem := streamCut()
	if !errors.Is(err, io.EOF) {
		problem = workerLost()
	}
	switch end := e.ended(); {
	case end == nil:
		e.report(registry.Failed)
	case errors.As(end, &problem):
	default:
		return nil
	}
	e.record.broken = problem.Code
	e.g.metrics.broken.WithLabelValues(e.model, problem.Code).Inc()
	return problem
}

// reportFailure tells the registry what an attempt without an answer says of its worker.
func (e *exchange) reportFailure(f *failure) {
	switch {
	case f.refused == agentapi.RefusedFull:
		e.lease.Full()
	case f.reused: // A kept connection may have been dead for long.
	case f.kind == "unreachable":
		e.report(registry.Unreachable)
	case f.kind == "lost":
		e.report(registry.Failed)
	}
}

func (e *exchange) report(o registry.Outcome) {
	if !e.lease.Report(o) {
		return
	}
	e.g.metrics.setAside.WithLabelValues(e.model).Inc()
	e.g.cfg.Log.Info("a worker is set aside for a time, because its requests fail", "model", e.model, "worker",
		e.lease.Worker.Claim)
}
