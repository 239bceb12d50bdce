package gatewayrun_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/munhq/gpuscale/internal/gatewayrun"
)

func TestTracesReachACollector(t *testing.T) {
	got := make(chan *collector.ExportTraceServiceRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &collector.ExportTraceServiceRequest{}
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		got <- request
	}))
	defer server.Close()
	traces, err := gatewayrun.NewTraces(t.Context(), server.URL, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	_, span := traces.Tracer("x").Start(t.Context(), "a request")
	span.End()
	if err := traces.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	spans := (<-got).GetResourceSpans()
	if len(spans) != 1 || spans[0].GetScopeSpans()[0].GetSpans()[0].GetName() != "a request" {
		t.Fatalf("%v", spans)
	}
	service := ""
	for _, a := range spans[0].GetResource().GetAttributes() {
		if a.GetKey() == "service.name" {
			service = a.GetValue().GetStringValue()
		}
	}
	if service != "gpuscale-gateway" {
		t.Errorf("service %q", service)
	}
	for _, bad := range []string{"localhost:4318", "http://user:secret@localhost:4318", "grpc://localhost:4317"} {
		if _, err := gatewayrun.NewTraces(t.Context(), bad, logr.Discard()); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
