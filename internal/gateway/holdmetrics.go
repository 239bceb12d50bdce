package gateway

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// holdMetrics are labelled by known models only.
type holdMetrics struct {
	held       *prometheus.GaugeVec
	bytes      prometheus.Gauge
	seconds    *prometheus.HistogramVec
	coldStarts *prometheus.CounterVec
	refused    *prometheus.CounterVec
	redisUp    prometheus.Gauge
}

func newHoldMetrics(to prometheus.Registerer) *holdMetrics {
	m := &holdMetrics{
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuscale_gateway_held",
			Help: "Requests that wait for a worker of their model."}, []string{"model"}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuscale_gateway_held_bytes",
			Help: "Bodies of the requests that wait for a worker."}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpuscale_gateway_hold_seconds",
			Help: "How long requests waited for a worker, by how that ended: served (a worker took it), expired, client_gone, shutting_down or " +
				"model_gone.",
			Buckets: []float64{.1, .5, 1, 5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600}}, []string{"model", "outcome"}),
		coldStarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuscale_gateway_cold_starts_total",
			Help: "How often requests began to wait for a model that no worker served."}, []string{"model"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuscale_gateway_hold_refused_total",
			Help: "Requests that could not wait for a worker because too many do already."}, []string{"model"}),
		redisUp: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuscale_gateway_redis_up",
			Help: "1 when the demand could be written the last time it was tried, else 0: requests then wake no model."}),
	}
	to.MustRegister(m.held, m.bytes, m.seconds, m.coldStarts, m.refused, m.redisUp)
	return m
}

func (m *holdMetrics) wrote(err error) {
	if err != nil {
		m.redisUp.Set(0)
		return
	}
	m.redisUp.Set(1)
}

// ended counts a request that waits no longer; err is why it got no worker.
func (m *holdMetrics) ended(model string, waited time.Duration, err error) {
	outcome := "served"
	var problem *apiError
	switch {
	case err == nil:
	case !errors.As(err, &problem):
		outcome = "client_gone"
	case problem.Code == codeShuttingDown:
		outcome = codeShuttingDown
	case problem.status == statusUnknownModel:
		outcome = "model_gone"
	default:
		outcome = "expired"
	}
	m.seconds.WithLabelValues(model, outcome).Observe(waited.Seconds())
}
