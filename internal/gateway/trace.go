package gateway

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// tracing makes spans: one of a request, in it one of each wait for a worker and of each attempt at one. They hold neither
// prompts nor answers nor keys. Without a provider it makes none, and a client's own trace passes on to the worker.
type tracing struct{ tracer trace.Tracer }

const (
	scope = "github.com/munhq/gpuscale/internal/gateway"

	attrModel   = attribute.Key("gen_ai.request.model")
	attrWorker  = attribute.Key("gpuscale.worker")
	attrOutcome = attribute.Key("gpuscale.outcome")
	attrRetries = attribute.Key("gpuscale.retries")
	attrRoute   = attribute.Key("http.route")
	attrStatus  = attribute.Key("http.response.status_code")
)

func newTracing(p trace.TracerProvider) tracing {
	if p == nil {
		return tracing{}
	}
	return tracing{p.Tracer(scope)}
}

func (t tracing) on() bool { return t.tracer != nil }

// request begins the span of a request, below the client's own where it names one.
func (t tracing) request(pattern string, r *http.Request) *http.Request {
	if !t.on() {
		return r
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, _ = t.tracer.Start(ctx, pattern, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attrRoute.String(pattern)))
	return r.WithContext(ctx)
}

// ended ends it.
func (t tracing) ended(ctx context.Context, rec *record, outcome string) {
	if !t.on() {
		return
	}
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attrModel.String(rec.model), attrWorker.String(rec.worker), attrStatus.Int(rec.status),
		attrOutcome.String(outcome), attrRetries.Int(rec.retries))
	if rec.status >= http.StatusInternalServerError || rec.broken != "" {
		span.SetStatus(codes.Error, outcome)
	}
	span.End()
}

// held is e.hold in a span.
func (e *exchange) held(tried *attempts) error {
	if !e.g.tracing.on() {
		return e.hold(tried)
	}
	_, span := e.g.tracing.tracer.Start(e.ctx, "hold", trace.WithAttributes(attrModel.String(e.model)))
	defer span.End()
	err := e.hold(tried)
	if err != nil {
		span.SetStatus(codes.Error, "no worker")
	}
	return err
}

// attempt begins the span of an attempt at the lease's worker, which release ends.
func (e *exchange) attempt() context.Context {
	if !e.g.tracing.on() {
		return e.ctx
	}
	ctx, span := e.g.tracing.tracer.Start(e.ctx, "attempt", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attrModel.String(e.model), attrWorker.String(e.lease.Worker.Claim)))
	e.span = span
	return ctx
}

// attempted notes how the attempt went, and ends its span unless an answer follows.
func (e *exchange) attempted(response *http.Response, f *failure) {
	if e.span == nil {
		return
	}
	if f == nil {
		e.span.SetAttributes(attrStatus.Int(response.StatusCode))
		return
	}
	e.span.SetAttributes(attrOutcome.String(f.kind))
	e.span.SetStatus(codes.Error, f.kind)
}

func (e *exchange) attemptOver() {
	if e.span != nil {
		e.span.End()
		e.span = nil
	}
}

// inject makes the worker's spans children of the attempt's.
func (t tracing) inject(ctx context.Context, h http.Header) {
	if t.on() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}
