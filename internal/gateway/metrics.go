package gateway

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// metrics are labelled by known models only: a name that somebody made up is the empty one. docs/operating/gateway.md
// has a line for each.
type metrics struct {
	handler    http.Handler
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	ttft       *prometheus.HistogramVec
	interToken *prometheus.HistogramVec
	tokens     *prometheus.CounterVec
	retries    *prometheus.CounterVec
	broken     *prometheus.CounterVec
	rejections *prometheus.CounterVec
	setAside   *prometheus.CounterVec
	inFlight   *prometheus.GaugeVec
	hold       *holdMetrics
}

var (
	durationBuckets   = []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}
	ttftBuckets       = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	interTokenBuckets = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .5, 1, 2.5, 10}
)

func newMetrics(known *registry.Registry, keys *keyring) *metrics {
	m := &metrics{
		requests: counter("requests_total", "Requests answered, by model and HTTP status. 499 is a client that left first.",
			"model", "code"),
		duration:   histogram("request_duration_seconds", "From a request's headers to the last byte of its answer.", durationBuckets),
		ttft:       histogram("ttft_seconds", "From a streaming request's headers to the first byte of its answer's body.", ttftBuckets),
		interToken: histogram("inter_token_seconds", "Between two events of a stream, as they came from the worker.", interTokenBuckets),
		tokens: counter("tokens_total", "Tokens of whole and broken answers, kind prompt or completion. Source is usage where the "+
			"engine says, else events: the data events of a stream.", "model", "kind", "source"),
		retries: counter("retries_total", "Requests sent again before their first byte, by what became of the attempt before: "+
			"unreachable, refused or lost.", "model", "reason"),
		broken: counter("streams_broken_total", "Streams that ended in an error event of the gateway's: worker_lost, stream_cut or "+
			"shutting_down.", "model", "reason"),
		rejections: counter("key_rejections_total", "Requests that their API key let no further: invalid_key, then without a key's "+
			"name, or concurrency.", "key", "reason"),
		setAside: counter("workers_set_aside_total", "Times that a worker was set aside because its requests failed.", "model"),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "in_flight", Help: "Requests being answered."},
			[]string{"model"}),
	}
	m.registry = prometheus.NewRegistry()
	m.registry.MustRegister(m.requests, m.duration, m.ttft, m.interToken, m.tokens, m.retries, m.broken, m.rejections, m.setAside,
		m.inFlight, &standing{known: known, keys: keys})
	m.hold = newHoldMetrics(m.registry)
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
}

const prefix = "gpuscale_gateway_"

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, []string{"model"})
}

// standing are the metrics that are read off when asked for.
type standing struct {
	known *registry.Registry
	keys  *keyring
}

var (
	workersDesc = prometheus.NewDesc(prefix+"workers", "Workers and plain backends that serve a model, state healthy or "+
		"set_aside.", []string{"model", "state"}, nil)
	keyInFlightDesc = prometheus.NewDesc(prefix+"key_in_flight", "Requests under way with an API key.", []string{"key"}, nil)
)

// Describe is prometheus.Collector's.
func (s *standing) Describe(out chan<- *prometheus.Desc) {
	out <- workersDesc
	out <- keyInFlightDesc
}

// Collect is prometheus.Collector's.
func (s *standing) Collect(out chan<- prometheus.Metric) {
	for model, h := range s.known.Health() {
		out <- prometheus.MustNewConstMetric(workersDesc, prometheus.GaugeValue, float64(h.Healthy), model, "healthy")
		out <- prometheus.MustNewConstMetric(workersDesc, prometheus.GaugeValue, float64(h.SetAside), model, "set_aside")
	}
	s.keys.each(func(name string, inFlight int64) {
		out <- prometheus.MustNewConstMetric(keyInFlightDesc, prometheus.GaugeValue, float64(inFlight), name)
	})
}
