package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/munhq/gpuscale/internal/gateway"
)

const (
	clientsTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientsSpan  = "00f067aa0ba902b7"
	traceparent  = "00-" + clientsTrace + "-" + clientsSpan + "-01"
)

func attributesOf(s tracetest.SpanStub) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes {
		out[string(a.Key)] = a.Value.String()
	}
	return out
}

func TestATraceGoesFromTheClientToTheWorker(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	w := newWorld(t, func(c *gateway.Config) {
		c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice"}}
		c.Traces = trace.NewTracerProvider(trace.WithSyncer(spans))
	})
	bad, good := w.add(nil), w.add(nil)
	bad.hook(abort)
	for range 2 { // One or both go to the bad one first.
		if got := w.ask(chatPath, chat(`,"stream":true,"max_tokens":3`), "Authorization", "Bearer sk-alice", "Traceparent", traceparent); got.status != http.StatusOK {
			t.Fatalf("%d %q", got.status, got.text)
		}
	}
	lost := int(bad.requests.Load())
	eventually(t, "all spans ended", func() bool { return len(spans.GetSpans()) == 4+lost })
	var requests, failed, answered int
	parents := map[string]bool{}
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID().String() != clientsTrace {
			t.Errorf("%s is not in the client's trace", s.Name)
		}
		got := attributesOf(s)
		if got["gen_ai.request.model"] != model {
			t.Errorf("%s: %v", s.Name, got)
		}
		switch {
		case s.Name == "POST "+chatPath:
			requests++
			if s.Parent.SpanID().String() != clientsSpan || got["http.response.status_code"] != "200" || got["gpuscale.worker"] != "claim-"+good.uid {
				t.Errorf("%s below %s: %v", s.Name, s.Parent.SpanID(), got)
			}
		case s.Name == "attempt" && got["gpuscale.outcome"] == "lost":
			failed++
		case s.Name == "attempt":
			answered++
			parents[s.SpanContext.SpanID().String()] = true
		}
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, "secret prompt") || strings.Contains(text, "sk-alice") {
			t.Errorf("%s has a prompt or a key in it: %s", s.Name, text)
		}
	}
	if requests != 2 || failed != lost || lost == 0 || answered != 2 {
		t.Errorf("%d requests, %d attempts that failed, %d that were answered", requests, failed, answered)
	}
	for _, h := range good.asked {
		part := strings.Split(h.Get("Traceparent"), "-")
		if len(part) != 4 || part[1] != clientsTrace || !parents[part[2]] {
			t.Errorf("the worker got %q, and the attempts are %v", h.Get("Traceparent"), parents)
		}
	}
}

func TestWithoutTracingTheClientsTracePassesOn(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	w.ask(chatPath, chat(`,"max_tokens":1`), "Traceparent", traceparent)
	if got := a.asked[0].Get("Traceparent"); got != traceparent {
		t.Errorf("the worker got %q", got)
	}
}

// TestEachWaitIsASpan of its own in the request's, whether a worker ended it or the hold limit.
func TestEachWaitIsASpan(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	w, now, _ := holding(t, func(c *gateway.Config) { c.Traces = trace.NewTracerProvider(trace.WithSyncer(spans)) })
	named := func(name string) (out []tracetest.SpanStub) {
		for _, s := range spans.GetSpans() {
			if s.Name == name {
				out = append(out, s)
			}
		}
		return out
	}
	got := w.asking(chatPath, chat(""))
	w.held(1)
	timed(t, now)
	now.Step(gateway.DefaultHoldLimit)
	wantError(t, take(t, "at the hold limit", got), http.StatusServiceUnavailable, "model_not_ready")
	eventually(t, "its span ended", func() bool { return len(named("POST "+chatPath)) == 1 })
	holds, request := named("hold"), named("POST " + chatPath)[0]
	if len(holds) != 1 || holds[0].Status.Code != codes.Error || holds[0].Parent.SpanID() != request.SpanContext.SpanID() ||
		attributesOf(holds[0])["gen_ai.request.model"] != model || len(named("attempt")) != 0 {
		t.Errorf("held in vain: %+v", spans.GetSpans())
	}
	spans.Reset()

	got = w.asking(chatPath, chat(""))
	w.held(1)
	w.add(nil)
	if a := take(t, "with a worker", got); a.status != http.StatusOK {
		t.Fatalf("%d %q", a.status, a.text)
	}
	eventually(t, "its span ended", func() bool { return len(named("POST "+chatPath)) == 1 })
	holds, attempts := named("hold"), named("attempt")
	if len(holds) != 1 || holds[0].Status.Code != codes.Unset || len(attempts) != 1 || attempts[0].StartTime.Before(holds[0].EndTime) ||
		attempts[0].Parent.SpanID() != holds[0].Parent.SpanID() {
		t.Errorf("held and served: %+v", spans.GetSpans())
	}
}
