package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// statusClientGone is what proxies since nginx record for a client that left before its answer. Nobody receives it.
const statusClientGone = 499

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
	usage   usage
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

// send sends an answer of known length now, which net/http would once its handler has ended: the client need not wait for
// the log. Other answers have an end of their own to be sent behind them.
func (r *record) send() {
	if len(r.ResponseWriter.Header()["Content-Length"]) > 0 {
		_ = http.NewResponseController(r.ResponseWriter).Flush() // A client that has left is net/http's to notice.
	}
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
		r = g.tracing.request(pattern, r)
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
	g.metrics.count(rec)
	g.tracing.ended(r.Context(), rec, outcome)
	if whole {
		rec.send()
	}
	g.say(r.Context(), pattern, outcome, took, rec)
}

// say is the log's line of a request. It is every request's, so it goes to the handler without what logr does for calls
// that may come from anywhere.
func (g *Gateway) say(ctx context.Context, pattern, outcome string, took time.Duration, rec *record) {
	if !g.access.Enabled(ctx, slog.LevelInfo) {
		return
	}
	line := slog.NewRecord(g.cfg.Clock.Now(), slog.LevelInfo, "request", 0)
	line.AddAttrs(slog.String("route", pattern), slog.String("model", rec.model), slog.String("worker", rec.worker),
		slog.String("key", rec.key), slog.Int("status", rec.status), slog.String("outcome", outcome),
		slog.String("duration", took.String()), slog.Int64("bytes", rec.bytes), slog.Int("retries", rec.retries))
	_ = g.access.Handle(ctx, line) // A log that cannot be written to has nobody to tell.
}
