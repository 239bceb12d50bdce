package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const (
	// engineMetricsTimeout bounds the wait for one engine's metrics. It is below the time that a scrape has.
	engineMetricsTimeout = 3 * time.Second
	// maxEngineMetrics bounds them: vLLM writes some 60 KB for each of its data-parallel engines.
	maxEngineMetrics = 2 << 20
)

// getMetrics is everything that is measured on this worker as one Prometheus text: the agent's own counts, the GPUs, and
// what each engine says of itself, told apart by the label model. With ?model it is that engine's own text, untouched.
func (a *Agent) getMetrics(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("model"); name != "" {
		a.passMetrics(w, r, name)
		return
	}
	all := a.families(r.Context())
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, err := expfmt.MetricFamilyToText(w, all[name]); err != nil {
			return // The caller left.
		}
	}
}

// passMetrics is the text of one engine.
func (a *Agent) passMetrics(w http.ResponseWriter, r *http.Request, name string) {
	a.mu.Lock()
	u := a.current(name)
	var engine Engine
	if u != nil {
		engine = u.engine
	}
	a.mu.Unlock()
	switch {
	case u == nil:
		refuse(w, agentapi.RefusedNoModel)
	case engine == nil:
		refuse(w, agentapi.RefusedNotReady)
	default:
		r.URL.RawQuery = ""
		newProxy(engine, a.cfg.Log).ServeHTTP(w, r)
	}
}

// families are all metrics by name. An engine that cannot be read or writes what is not Prometheus text has none, which
// the family gpuscale_agent_engine_metrics_up says.
func (a *Agent) families(ctx context.Context) families {
	all := families{}
	up := all.own("gpuscale_agent_engine_metrics_up", dto.MetricType_GAUGE, "1 while the engine's own metrics could be read.")
	read := a.engineMetrics(ctx)
	for _, name := range slices.Sorted(maps.Keys(read)) {
		value := 0.0
		if read[name] != nil {
			value = 1
			all.merge(read[name], name)
		}
		up.Metric = append(up.Metric, series(up, value, pair(agentapi.LabelModel, name)))
	}
	a.ownMetrics(all)
	if reading, ok := a.cfg.Telemetry.Latest(); ok {
		gpuMetrics(all, reading)
	}
	for name, f := range all {
		if len(f.Metric) == 0 {
			delete(all, name) // A family without series is not text that parsers like.
		}
	}
	return all
}

// engineMetrics asks all engines at once. One that fails has nil.
func (a *Agent) engineMetrics(ctx context.Context) map[string]families {
	engines := map[string]Engine{}
	a.mu.Lock()
	for _, u := range a.units {
		if u.engine != nil && (!u.retiring || engines[u.spec.Name] == nil) {
			engines[u.spec.Name] = u.engine
		}
	}
	a.mu.Unlock()
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	out := map[string]families{}
	for name, engine := range engines {
		group.Go(func() {
			read, err := a.readEngine(ctx, engine)
			if err != nil {
				a.cfg.Log.Debug("engine's metrics not read", "model", name, "reason", err)
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = read
		})
	}
	group.Wait()
	return out
}

// readEngine reads one engine's metrics, or nil and why not.
func (a *Agent) readEngine(ctx context.Context, engine Engine) (families, error) {
	ctx, cancel := within(ctx, a.cfg.Clock, engineMetricsTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+agentapi.PathMetrics, nil)
	if err != nil {
		return nil, err
	}
	response, err := engine.Transport().RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // It was read.
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxEngineMetrics+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxEngineMetrics {
		return nil, fmt.Errorf("over %d bytes", maxEngineMetrics)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

// families are metric families by name.
type families map[string]*dto.MetricFamily

// own makes a family of the agent's.
func (f families) own(name string, kind dto.MetricType, help string) *dto.MetricFamily {
	family := &dto.MetricFamily{Name: proto.String(name), Type: kind.Enum(), Help: proto.String(help)}
	f[name] = family
	return family
}

// merge adds one engine's families, with the model's name on each series. Of two engines that disagree on what a family
// is, the first is believed; the agent's own names are nobody else's.
func (f families) merge(engine families, name string) {
	for _, family := range engine {
		if strings.HasPrefix(family.GetName(), "gpuscale_") {
			continue
		}
		for _, m := range family.Metric {
			m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == agentapi.LabelModel })
			m.Label = append([]*dto.LabelPair{pair(agentapi.LabelModel, name)}, m.Label...)
			m.TimestampMs = nil
		}
		have, ok := f[family.GetName()]
		switch {
		case !ok:
			f[family.GetName()] = family
		case have.GetType() == family.GetType():
			have.Metric = append(have.Metric, family.Metric...)
		}
	}
}

// ownMetrics are counts of the agent's own.
func (a *Agent) ownMetrics(all families) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range []struct {
		name  string
		kind  dto.MetricType
		help  string
		value func(*unit) int64
	}{
		{"gpuscale_agent_requests_in_flight", dto.MetricType_GAUGE, "Requests being served.", func(u *unit) int64 { return int64(u.inFlight) }},
		{"gpuscale_agent_requests_total", dto.MetricType_COUNTER, "Requests admitted.", func(u *unit) int64 { return u.requests }},
		{"gpuscale_agent_requests_refused_total", dto.MetricType_COUNTER, "Requests refused for want of room.", func(u *unit) int64 { return u.refused }},
		{"gpuscale_agent_engine_restarts", dto.MetricType_GAUGE, "Restarts of the engine since it last was stable.", func(u *unit) int64 { return int64(u.restarts) }},
		{"gpuscale_agent_model_ready", dto.MetricType_GAUGE, "1 while the model takes requests.", func(u *unit) int64 {
			if u.proxy != nil && !u.drained && !a.closed() {
				return 1
			}
			return 0
		}},
	} {
		family := all.own(m.name, m.kind, m.help)
		for _, u := range a.units {
			if !u.retiring {
				family.Metric = append(family.Metric, series(family, float64(m.value(u)), pair(agentapi.LabelModel, u.spec.Name)))
			}
		}
	}
}

// gpuMetrics are the families of a reading.
func gpuMetrics(all families, r Reading) {
	for _, m := range agentapi.GPUMetrics() {
		kind := dto.MetricType_GAUGE
		if m.Counter {
			kind = dto.MetricType_COUNTER
		}
		family := all.own(agentapi.GPUMetricPrefix+m.Name, kind, m.Help)
		for i, g := range r.GPUs {
			labels := func(more ...*dto.LabelPair) []*dto.LabelPair {
				return append([]*dto.LabelPair{pair("gpu", strconv.Itoa(i)), pair("uuid", g.UUID)}, more...)
			}
			by := func(label string, values map[string]float64) {
				for _, key := range slices.Sorted(maps.Keys(values)) {
					family.Metric = append(family.Metric, series(family, values[key], labels(pair(label, key))...))
				}
			}
			switch m.Name {
			case agentapi.GPUInfo:
				family.Metric = append(family.Metric, series(family, 1, labels(pair("name", g.Name),
					pair("driver_version", r.Driver), pair("cuda_version", r.CUDA), pair("mig", g.MIG))...))
			case agentapi.GPUECCErrors:
				by("kind", g.ECC)
			case agentapi.GPUThrottled:
				by("reason", g.Throttled)
			default:
				if v, ok := g.Values[m.Name]; ok {
					family.Metric = append(family.Metric, series(family, v, labels()...))
				}
			}
		}
	}
}

func pair(name, value string) *dto.LabelPair {
	return &dto.LabelPair{Name: proto.String(name), Value: proto.String(value)}
}

// series is one value of a gauge or counter.
func series(family *dto.MetricFamily, value float64, labels ...*dto.LabelPair) *dto.Metric {
	m := &dto.Metric{Label: labels}
	if family.GetType() == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: proto.Float64(value)}
	} else {
		m.Gauge = &dto.Gauge{Value: proto.Float64(value)}
	}
	return m
}
