package workermetrics

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// Bounds of what one worker's answer may be and leave behind: a worker runs on a machine that others own. An answer past
// any of them counts as none, so that no histogram is ever cut in two.
const (
	// maxAnswer is what is read: vLLM writes some 60 KB for each engine.
	maxAnswer = 4 << 20
	maxLine   = 16 << 10
	// maxKept is what is parsed of it, maxSamples what is kept: a worker with eight engines has 4,000 with "all".
	maxKept    = 1 << 20
	maxSamples = 8000
	maxLabels  = 64
	// maxValue is the longest label value, in bytes; those of cache_config_info and LoRA adapters are the longest.
	maxValue   = 512
	maxName    = 128
	maxBuckets = 100
)

var errTooMuch = errors.New("answer exceeds the bounds of a worker's metrics")

// reading is what was read of one worker at a time. It is never changed.
type reading struct {
	families map[string]block
	// dropped counts series that were not believed: of a model that is not placed there, or of a family that is not what
	// it should be.
	dropped int
}

// block is one worker's part of a family.
type block struct {
	family  *Family
	samples []sample
}

// sample is one line without the labels that all lines of the worker have.
type sample struct {
	// suffix is that of a histogram's series.
	suffix string
	// model is empty for a series that is not an engine's.
	model string
	// labels are written out, with no comma at either end.
	labels string
	value  float64
}

// read makes a reading of a worker's answer. It fails when the answer is too much or is not Prometheus text. placed are
// the models that the worker may speak of.
func (x *index) read(answer io.Reader, placed []string) (*reading, error) {
	kept, err := x.filter(answer)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(kept))
	if err != nil {
		return nil, err
	}
	// The newest name of each first: what an older one repeats is then a duplicate.
	type found struct {
		source
		from *dto.MetricFamily
	}
	var all []found
	out := &reading{families: map[string]block{}}
	for _, f := range families {
		s, ok := x.find(f)
		if !ok {
			out.dropped += len(f.Metric)
			continue
		}
		all = append(all, found{s, f})
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(strings.Compare(a.family.Name, b.family.Name), cmp.Compare(a.rank, b.rank))
	})
	total := 0
	seen := map[string]bool{}
	for i, f := range all {
		if i == 0 || all[i-1].family.Name != f.family.Name {
			clear(seen)
		}
		b := block{family: f.family, samples: out.families[f.family.Name].samples}
		for _, m := range f.from.Metric {
			before := len(b.samples)
			b.samples = out.add(b.samples, f.family, m, placed, seen)
			if total += len(b.samples) - before; total > maxSamples {
				return nil, fmt.Errorf("%w: over %d samples", errTooMuch, maxSamples)
			}
		}
		if len(b.samples) > 0 {
			b.samples = slices.Clip(b.samples)
			out.families[f.family.Name] = b
		}
	}
	return out, nil
}

// filter keeps the lines of wanted families, so that what is not wanted costs little to read.
func (x *index) filter(answer io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: answer, N: maxAnswer + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	var kept bytes.Buffer
	for lines.Scan() {
		line := lines.Bytes()
		if !x.wants(nameOf(line)) {
			continue
		}
		if kept.Len()+len(line) > maxKept {
			return nil, fmt.Errorf("%w: over %d bytes are wanted of it", errTooMuch, maxKept)
		}
		kept.Write(line)
		kept.WriteByte('\n')
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: a line of over %d bytes", errTooMuch, maxLine)
	case err != nil:
		return nil, err
	case limited.N == 0:
		return nil, fmt.Errorf("%w: over %d bytes", errTooMuch, maxAnswer)
	}
	return kept.Bytes(), nil
}

// nameOf is the name that a line of series or TYPE is about, empty for other lines: HELP is our own.
func nameOf(line []byte) string {
	if rest, ok := bytes.CutPrefix(line, []byte("# TYPE ")); ok {
		line = rest
	}
	if end := bytes.IndexAny(line, "{ \t"); end >= 0 {
		return string(line[:end])
	}
	return ""
}

// add adds a metric's samples, or none when it is not believed or was there before.
func (r *reading) add(to []sample, f *Family, m *dto.Metric, placed []string, seen map[string]bool) []sample {
	engines := strings.HasPrefix(f.Name, VLLMPrefix)
	labels, of, ok := labelsOf(m, engines)
	at := slices.Index(placed, of)
	if !ok || engines && at < 0 {
		r.dropped++
		return to
	}
	key := of + "\x00" + labels
	if seen[key] {
		return to
	}
	seen[key] = true
	if engines {
		of = placed[at] // One string for all samples that are kept.
	}
	switch {
	case f.Type == histogram:
		lines, ok := bucketLines(m.GetHistogram(), of, labels)
		if !ok {
			r.dropped++
		}
		return append(to, lines...)
	case m.Counter != nil:
		return append(to, sample{model: of, labels: labels, value: m.Counter.GetValue()})
	case m.Untyped != nil:
		return append(to, sample{model: of, labels: labels, value: m.Untyped.GetValue()})
	default:
		return append(to, sample{model: of, labels: labels, value: m.GetGauge().GetValue()})
	}
}

// reserved are labels that say whose a series is. They are ours to write.
var reserved = []string{"claim", "pool", "provider", "gpu_type", "model", "model_name", "le", "quantile"}

// labelsOf writes a metric's own labels in the order of names, and says which model it is of.
func labelsOf(m *dto.Metric, engines bool) (text, of string, ok bool) {
	if len(m.Label) > maxLabels {
		return "", "", false
	}
	own := make([]*dto.LabelPair, 0, len(m.Label))
	for _, l := range m.Label {
		if engines && l.GetName() == agentapi.LabelModel {
			of = l.GetValue()
		}
		if len(l.GetValue()) > maxValue || len(l.GetName()) > maxName || !utf8.ValidString(l.GetValue()) {
			return "", "", false
		}
		if !slices.Contains(reserved, l.GetName()) && !strings.HasPrefix(l.GetName(), "__") {
			own = append(own, l)
		}
	}
	slices.SortFunc(own, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	var out []byte
	for i, l := range own {
		if i > 0 && own[i-1].GetName() == l.GetName() {
			return "", "", false
		}
		out = appendLabel(out, l.GetName(), l.GetValue())
	}
	return string(out), of, true
}

// appendLabel writes a label after those that are there.
func appendLabel(to []byte, name, value string) []byte {
	if len(to) > 0 {
		to = append(to, ',')
	}
	to = append(to, name...)
	to = append(to, '=', '"')
	for i := range len(value) {
		switch c := value[i]; c {
		case '\\', '"':
			to = append(to, '\\', c)
		case '\n':
			to = append(to, '\\', 'n')
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}

// bucketLines are a whole histogram: its buckets rising in bound and count, the last one infinite, its sum and count.
func bucketLines(h *dto.Histogram, of, labels string) ([]sample, bool) {
	buckets := h.GetBucket()
	if len(buckets) > maxBuckets || h.SampleSum == nil || h.SampleCount == nil && h.SampleCountFloat == nil {
		return nil, false
	}
	total := float64(h.GetSampleCount()) + h.GetSampleCountFloat()
	out := make([]sample, 0, len(buckets)+3)
	bound, seen := math.Inf(-1), 0.0
	for _, b := range buckets {
		n := float64(b.GetCumulativeCount()) + b.GetCumulativeCountFloat()
		if !(b.GetUpperBound() > bound) || !(n >= seen) || !(n <= total) {
			return nil, false
		}
		bound, seen = b.GetUpperBound(), n
		out = append(out, bucket(of, labels, bound, n))
	}
	if !math.IsInf(bound, 1) {
		out = append(out, bucket(of, labels, math.Inf(1), total))
	} else if seen != total {
		return nil, false
	}
	return append(out, sample{suffix: "_sum", model: of, labels: labels, value: h.GetSampleSum()},
		sample{suffix: "_count", model: of, labels: labels, value: total}), true
}

func bucket(of, labels string, bound, n float64) sample {
	to := make([]byte, 0, len(labels)+16)
	to = append(to, labels...)
	return sample{suffix: "_bucket", model: of, labels: string(appendLabel(to, "le", string(appendNumber(nil, bound)))), value: n}
}

// appendNumber writes a number as Prometheus has it.
func appendNumber(to []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(to, "NaN"...)
	case math.IsInf(v, 1):
		return append(to, "+Inf"...)
	case math.IsInf(v, -1):
		return append(to, "-Inf"...)
	}
	return strconv.AppendFloat(to, v, 'g', -1, 64)
}
