package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// statusClientGone is what proxies since nginx record for a client that left before its answer. Nobody receives it.
const statusClientGone = 499

// metrics are labelled by known models only: a name that somebody made up is the empty one.
type metrics struct {
	handler  http.Handler
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	ttft     *prometheus.HistogramVec
	retries  *prometheus.CounterVec
	broken   *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
}

func newMetrics() *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuscale_gateway_requests_total",
			Help: "Requests answered, by model and HTTP status. 499 is a client that left first."}, []string{"model", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpuscale_gateway_request_duration_seconds",
			Help:    "From a request's headers to the last byte of its answer.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}}, []string{"model"}),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpuscale_gateway_ttft_seconds",
			Help:    "From a streaming request's headers to the first byte of its answer's body.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}}, []string{"model"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuscale_gateway_retries_total",
			Help: "Requests sent again before their first byte, by what became of the attempt before: unreachable, refused or lost."},
			[]string{"model", "reason"}),
		broken: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuscale_gateway_streams_broken_total",
			Help: "Streams that ended in an error event of the gateway's: worker_lost, stream_cut or shutting_down."},
			[]string{"model", "reason"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuscale_gateway_in_flight",
			Help: "Requests being answered."}, []string{"model"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.requests, m.duration, m.ttft, m.retries, m.broken, m.inFlight)
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// record is what is told of one request, and the writer that sees its answer. It never holds prompts or keys.
type record struct {
	http.ResponseWriter

	start  time.Time
	status int
	bytes  int64

	// model is set once it is known to exist.
	model   string
	worker  string
	key     string
	broken  string
	retries int
}

// WriteHeader notes the final status.
func (r *record) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write counts.
func (r *record) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (r *record) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// recordOf is the record that observed put around every handler of the API.
func recordOf(w http.ResponseWriter) *record {
	if r, ok := w.(*record); ok {
		return r
	}
	return &record{ResponseWriter: w}
}

// observed logs and counts a request when it ends, however it ends.
func (g *Gateway) observed(pattern string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &record{ResponseWriter: w, start: g.cfg.Clock.Now()}
		whole := false
		defer func() {
			g.account(pattern, rec, r, whole)
		}()
		next.ServeHTTP(rec, r)
		whole = true
	})
}

func (g *Gateway) account(pattern string, rec *record, r *http.Request, whole bool) {
	outcome := "answered"
	switch {
	case rec.broken != "":
		outcome = rec.broken
	case rec.status == statusClientGone, !whole && r.Context().Err() != nil:
		outcome = "client_gone"
	case !whole:
		outcome = "aborted"
	}
	if rec.status == 0 {
		rec.status = http.StatusOK // net/http's own, for a handler that wrote nothing.
	}
	took := g.cfg.Clock.Since(rec.start)
	g.metrics.requests.WithLabelValues(rec.model, strconv.Itoa(rec.status)).Inc()
	g.metrics.duration.WithLabelValues(rec.model).Observe(took.Seconds())
	g.cfg.Log.Info("request", "route", pattern, "model", rec.model, "worker", rec.worker, "key", rec.key, "status", rec.status,
		"outcome", outcome, "duration", took.String(), "bytes", rec.bytes, "retries", rec.retries)
}
