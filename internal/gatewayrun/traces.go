package gatewayrun

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	serviceName = "gpuscale-gateway"
	tracesPath  = "/v1/traces"
	// flushTimeout is for the spans that are left when the gateway ends.
	flushTimeout = 5 * time.Second
)

// NewTraces sends spans by OTLP over HTTP to endpoint, such as http://otel-collector:4318, or, when that is empty, to where
// OpenTelemetry's environment variables say; those for headers, sampling and the service's name count in any case. It
// connects to nothing yet. What cannot be sent is dropped, and logged.
func NewTraces(ctx context.Context, endpoint string, log logr.Logger) (*sdktrace.TracerProvider, error) {
	var options []otlptracehttp.Option
	if endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, errors.New("--otlp-endpoint is not http://host:port or https://host:port")
		}
		if u.Path == "" || u.Path == "/" {
			u.Path = tracesPath
		}
		options = append(options, otlptracehttp.WithEndpointURL(u.String()))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", serviceName)), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Error(err, "traces cannot be sent") }))
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

// flush sends the spans that are left.
func flush(ctx context.Context, traces *sdktrace.TracerProvider) {
	if traces == nil {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	_ = traces.Shutdown(last) // Its failures are the error handler's.
}
