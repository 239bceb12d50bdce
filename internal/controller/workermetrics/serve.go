package workermetrics

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

const (
	// maxAnswers bounds answers that are written at once, each of which may take a while at a slow reader.
	maxAnswers        = 4
	writeTimeout      = time.Minute
	readHeaderTimeout = 10 * time.Second
	shutdownTimeout   = 2 * time.Second
	contentType       = "text/plain; version=0.0.4; charset=utf-8"
)

// Own are the families that the controller adds for each worker, in the order of names.
func Own() []Family {
	return []Family{
		{Name: "gpuscale_worker_scrape_duration_seconds", Type: gauge, Core: true, Help: "How long the latest scrape of the worker took."},
		{Name: "gpuscale_worker_series_dropped", Type: gauge, Core: true,
			Help: "Series of the worker's latest answer that were not believed: of a model that is not placed there, or malformed."},
		{Name: "gpuscale_worker_up", Type: gauge, Core: true, Help: "1 when the latest scrape of the Ready worker succeeded."},
	}
}

// Handler answers GET /metrics with what is known of all workers, as Prometheus text: family by family and in each worker
// by worker, written as it goes.
func (s *Scraper) Handler() http.Handler {
	mux := http.NewServeMux()
	answers := make(chan struct{}, maxAnswers)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		select {
		case answers <- struct{}{}:
			defer func() { <-answers }()
		default:
			http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Vary", "Accept-Encoding")
		var to io.Writer = w
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
			if err != nil {
				http.Error(w, "compression failed", http.StatusInternalServerError)
				return
			}
			defer func() { _ = zip.Close() }() // A caller that left needs no end.
			to = zip
		}
		_ = write(to, s.snapshot()) // As above.
	})
	return mux
}

// write writes all workers' families, each in one piece.
func write(to io.Writer, workers []shown) error {
	out := &text{Writer: bufio.NewWriterSize(to, 64<<10)}
	for _, f := range families(workers) {
		out.family(f, workers)
	}
	for i, f := range Own() {
		out.head(&f)
		for _, w := range workers {
			if !w.tried {
				continue
			}
			switch i {
			case 0:
				out.line(f.Name, w.labels, sample{value: w.took.Seconds()})
			case 1:
				if w.last != nil {
					out.line(f.Name, w.labels, sample{value: float64(w.last.dropped)})
				}
			default:
				out.line(f.Name, w.labels, sample{value: map[bool]float64{true: 1}[w.up]})
			}
		}
	}
	return out.Flush()
}

// families are those that some worker has, in the order of names. Where workers disagree on the type of one that is not
// known, most of them are believed, so that no single one decides for the rest.
func families(workers []shown) []*Family {
	type vote struct {
		family *Family
		votes  int
	}
	found := map[string]map[string]vote{}
	for _, w := range workers {
		if w.last == nil {
			continue
		}
		for name, b := range w.last.families {
			byType := found[name]
			if byType == nil {
				byType = map[string]vote{}
				found[name] = byType
			}
			byType[b.family.Type] = vote{b.family, byType[b.family.Type].votes + 1}
		}
	}
	out := make([]*Family, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		var most vote
		for _, kind := range slices.Sorted(maps.Keys(found[name])) {
			if v := found[name][kind]; v.votes > most.votes {
				most = v
			}
		}
		out = append(out, most.family)
	}
	return out
}

// text writes Prometheus text.
type text struct {
	*bufio.Writer
	buffer []byte
}

func (t *text) head(f *Family) {
	t.buffer = append(t.buffer[:0], "# HELP "...)
	t.buffer = append(t.buffer, f.Name...)
	t.buffer = append(t.buffer, ' ')
	t.buffer = append(t.buffer, f.Help...)
	t.buffer = append(t.buffer, "\n# TYPE "...)
	t.buffer = append(t.buffer, f.Name...)
	t.buffer = append(t.buffer, ' ')
	t.buffer = append(t.buffer, f.Type...)
	t.buffer = append(t.buffer, '\n')
	_, _ = t.Write(t.buffer) // The first error stays, and Flush returns it.
}

func (t *text) family(f *Family, workers []shown) {
	t.head(f)
	for _, w := range workers {
		if w.last == nil {
			continue
		}
		b, ok := w.last.families[f.Name]
		if !ok || b.family.Type != f.Type {
			continue
		}
		for _, x := range b.samples {
			t.line(f.Name, w.labels, x)
		}
	}
}

func (t *text) line(name, labels string, x sample) {
	out := t.buffer[:0]
	out = append(out, name...)
	out = append(out, x.suffix...)
	out = append(out, '{')
	out = append(out, labels...)
	if x.model != "" {
		out = appendLabel(out, "model", x.model)
	}
	if x.labels != "" {
		out = append(out, ',')
		out = append(out, x.labels...)
	}
	out = append(out, '}', ' ')
	out = appendNumber(out, x.value)
	out = append(out, '\n')
	t.buffer = out
	_, _ = t.Write(out) // As in head.
}

// listener serves on every replica, also on those that do not scrape.
type listener struct {
	addr    string
	handler http.Handler
	log     logr.Logger
}

// NeedLeaderElection is false.
func (l *listener) NeedLeaderElection() bool { return false }

// Start listens until ctx ends.
func (l *listener) Start(ctx context.Context) error {
	var config net.ListenConfig
	on, err := config.Listen(ctx, "tcp", l.addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: l.handler, ReadHeaderTimeout: readHeaderTimeout, WriteTimeout: writeTimeout}
	l.log.Info("serving the workers' metrics", "address", on.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(on) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(end) != nil {
		_ = server.Close() // Nothing else can be done for readers that do not end.
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
