package gateway

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

const page = "../../docs/operating/gateway.md"

// TestThePageHasEveryMetric compares the page's table with the families themselves, row by row.
func TestThePageHasEveryMetric(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `"+prefix) {
			have = append(have, strings.TrimSpace(line))
		}
	}
	want := families(t)
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("%s lacks\n%s", page, line)
		}
	}
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("%s has what is no metric, or not so:\n%s", page, line)
		}
	}
}

// families are the rows of all metrics, each of which gets a series first: a vector without one is not gathered.
func families(t *testing.T) []string {
	t.Helper()
	known := registry.New(clock.RealClock{}, nil)
	known.Apply(registry.Snapshot{Models: []registry.Known{{Name: "m"}}})
	keys := &keyring{}
	if err := keys.set(map[string]Key{"k": {Secret: "x"}}); err != nil {
		t.Fatal(err)
	}
	m := newMetrics(known, keys)
	m.touch()
	gathered, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 100)
	m.registry.Describe(descs)
	if len(descs) != len(gathered) {
		t.Errorf("%d metrics, %d of them gathered", len(descs), len(gathered))
	}
	var rows []string
	for _, f := range gathered {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(labels, ", "), f.GetHelp()))
	}
	return rows
}

// touch makes a series of everything.
func (m *metrics) touch() {
	for _, v := range []*prometheus.CounterVec{m.requests, m.retries, m.broken, m.rejections} {
		v.WithLabelValues("m", "x")
	}
	m.tokens.WithLabelValues("m", "x", "x")
	m.setAside.WithLabelValues("m")
	m.inFlight.WithLabelValues("m")
	m.hold.held.WithLabelValues("m")
	m.hold.seconds.WithLabelValues("m", "o")
	m.hold.coldStarts.WithLabelValues("m")
	m.hold.refused.WithLabelValues("m")
	for _, v := range []*prometheus.HistogramVec{m.duration, m.ttft, m.interToken} {
		v.WithLabelValues("m")
	}
}
