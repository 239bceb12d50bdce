package workermetrics

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exposed is what is served of one worker that answered so, which has to be valid. It is lines without comments.
func exposed(t *testing.T, all bool, answer string, placed ...string) []string {
	t.Helper()
	r, err := newIndex(all).read(strings.NewReader(answer), placed)
	if err != nil {
		t.Fatal(err)
	}
	return served(t, r)
}

// served is what is written of readings, one worker each: claim-0, claim-1 and so on.
func served(t *testing.T, readings ...*reading) []string {
	t.Helper()
	var workers []shown
	for i, r := range readings {
		workers = append(workers, shown{labels: labelsFor(Target{Claim: fmt.Sprintf("claim-%d", i), Pool: "p", Provider: "vast.ai", GPUType: "H200"}),
			last: r, tried: true, up: true, took: time.Millisecond})
	}
	var out bytes.Buffer
	if err := write(&out, workers); err != nil {
		t.Fatal(err)
	}
	families := strict(t, out.String())
	for _, f := range families {
		for _, m := range f.Metric {
			if claim := labelOf(m, "claim"); !strings.HasPrefix(claim, "claim-") {
				t.Errorf("%s of claim %q", f.GetName(), claim)
			}
		}
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "#") && strings.HasPrefix(line, "gpuscale_worker_vllm") || strings.HasPrefix(line, "gpuscale_worker_gpu") {
			lines = append(lines, strings.ReplaceAll(strings.TrimSpace(line), `pool="p",provider="vast.ai",gpu_type="H200"`, "…"))
		}
	}
	return lines
}

// strict parses an exposition as the format's rules have it, beyond what the parser insists on: each family in one piece
// and with its type, no series twice, no label twice, every histogram whole.
func strict(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	current, done, series := "", map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, _, _ = strings.Cut(name, " ")
			if done[name] {
				t.Errorf("%s is there twice", name)
			}
			current, done[name] = name, true
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndex(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(line, current) || series[line[:end]] {
			t.Errorf("out of place or twice: %s", line)
		}
		series[line[:end]] = true
	}
	for name, f := range families {
		if f.GetType() == dto.MetricType_UNTYPED {
			t.Errorf("%s has no type", name)
		}
		for _, m := range f.Metric {
			names := map[string]bool{}
			for _, l := range m.Label {
				if names[l.GetName()] {
					t.Errorf("%s has %s twice", name, l.GetName())
				}
				names[l.GetName()] = true
			}
			if h := m.GetHistogram(); h != nil {
				last := h.Bucket[len(h.Bucket)-1]
				if fmt.Sprint(last.GetUpperBound()) != "+Inf" || last.GetCumulativeCount() != h.GetSampleCount() || h.SampleSum == nil {
					t.Errorf("%s is not whole: %v", name, h)
				}
			}
		}
	}
	return families
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestOldNamesAreTheNewOnes(t *testing.T) {
	const labels = `{model="m",model_name="m",engine="0"} `
	series := func(kind, name, value string) string {
		return "# TYPE vllm:" + name + " " + kind + "\nvllm:" + name + labels + value + "\n"
	}
	oldHistogram := "# TYPE vllm:time_per_output_token_seconds histogram\n" +
		`vllm:time_per_output_token_seconds_bucket{model="m",le="0.1"} 1` + "\n" + `vllm:time_per_output_token_seconds_bucket{model="m",le="+Inf"} 2` + "\n" +
		`vllm:time_per_output_token_seconds_sum{model="m"} 3` + "\n" + `vllm:time_per_output_token_seconds_count{model="m"} 2` + "\n"
	expect(t, "old", exposed(t, false, series("gauge", "gpu_cache_usage_perc", "0.5")+series("counter", "gpu_prefix_cache_hits_total", "7")+
		series("counter", "gpu_prefix_cache_queries_total", "9")+series("gauge", "num_requests_swapped", "1")+series("gauge", "cpu_cache_usage_perc", "1")+oldHistogram, "m"),
		`gpuscale_worker_vllm_inter_token_latency_seconds_bucket{claim="claim-0",…,model="m",le="0.1"} 1`,
		`gpuscale_worker_vllm_inter_token_latency_seconds_bucket{claim="claim-0",…,model="m",le="+Inf"} 2`,
		`gpuscale_worker_vllm_inter_token_latency_seconds_sum{claim="claim-0",…,model="m"} 3`,
		`gpuscale_worker_vllm_inter_token_latency_seconds_count{claim="claim-0",…,model="m"} 2`,
		`gpuscale_worker_vllm_kv_cache_usage_perc{claim="claim-0",…,model="m",engine="0"} 0.5`,
		`gpuscale_worker_vllm_prefix_cache_hits_total{claim="claim-0",…,model="m",engine="0"} 7`,
		`gpuscale_worker_vllm_prefix_cache_queries_total{claim="claim-0",…,model="m",engine="0"} 9`)
	// A version between the two writes both. Of two engines, each may be of another version.
	expect(t, "both", exposed(t, false, series("gauge", "gpu_cache_usage_perc", "0.5")+series("gauge", "kv_cache_usage_perc", "0.6"), "m"),
		`gpuscale_worker_vllm_kv_cache_usage_perc{claim="claim-0",…,model="m",engine="0"} 0.6`)
	expect(t, "mixed", exposed(t, false, series("gauge", "gpu_cache_usage_perc", "0.5")+
		strings.ReplaceAll(series("gauge", "kv_cache_usage_perc", "0.6"), `="m"`, `="n"`), "m", "n"),
		`gpuscale_worker_vllm_kv_cache_usage_perc{claim="claim-0",…,model="n",engine="0"} 0.6`,
		`gpuscale_worker_vllm_kv_cache_usage_perc{claim="claim-0",…,model="m",engine="0"} 0.5`)
}

func TestWhatIsPassedOn(t *testing.T) {
	const answer = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model="m",engine="0"} 3 1700000000000
vllm:num_requests_running{model="m",engine="1"} NaN
# TYPE vllm:request_params_n histogram
vllm:request_params_n_bucket{model="m",le="1"} 1
vllm:request_params_n_bucket{model="m",le="+Inf"} 1
vllm:request_params_n_sum{model="m"} 1
vllm:request_params_n_count{model="m"} 1
# TYPE vllm:brand_new_total counter
vllm:brand_new_total{model="m",kind="a\\b\"c\nd"} 1e+06
# TYPE vllm:brand_new_created gauge
vllm:brand_new_created{model="m"} 1.7e9
# TYPE process_start_time_seconds gauge
process_start_time_seconds{model="m"} 1
# TYPE gpuscale_agent_gpu_utilization_ratio gauge
gpuscale_agent_gpu_utilization_ratio{gpu="0",uuid="GPU-1"} 0.5
# TYPE gpuscale_agent_gpu_fan_speed_ratio gauge
gpuscale_agent_gpu_fan_speed_ratio{gpu="0",uuid="GPU-1"} 0.3
# TYPE gpuscale_agent_gpu_invented gauge
gpuscale_agent_gpu_invented{gpu="0"} 0.3
`
	gpu := `gpuscale_worker_gpu_utilization_ratio{claim="claim-0",…,gpu="0",uuid="GPU-1"} 0.5`
	running := []string{`gpuscale_worker_vllm_num_requests_running{claim="claim-0",…,model="m",engine="0"} 3`,
		`gpuscale_worker_vllm_num_requests_running{claim="claim-0",…,model="m",engine="1"} NaN`}
	expect(t, "core", exposed(t, false, answer, "m"), append([]string{gpu}, running...)...)
	expect(t, "all", exposed(t, true, answer, "m"), slices.Concat([]string{
		`gpuscale_worker_gpu_fan_speed_ratio{claim="claim-0",…,gpu="0",uuid="GPU-1"} 0.3`, gpu,
		`gpuscale_worker_vllm_brand_new_total{claim="claim-0",…,model="m",kind="a\\b\"c\nd"} 1e+06`}, running, []string{
		`gpuscale_worker_vllm_request_params_n_bucket{claim="claim-0",…,model="m",le="1"} 1`,
		`gpuscale_worker_vllm_request_params_n_bucket{claim="claim-0",…,model="m",le="+Inf"} 1`,
		`gpuscale_worker_vllm_request_params_n_sum{claim="claim-0",…,model="m"} 1`,
		`gpuscale_worker_vllm_request_params_n_count{claim="claim-0",…,model="m"} 1`})...)
}

// TestAWorkerCannotSpeakForAnother tries what a hostile machine could answer.
func TestAWorkerCannotSpeakForAnother(t *testing.T) {
	const head = "# TYPE vllm:num_requests_running gauge\n"
	own := `gpuscale_worker_vllm_num_requests_running{claim="claim-0",…,model="m"} 1`
	for name, c := range map[string]struct {
		answer string
		want   []string
	}{
		"another's labels": {head + `vllm:num_requests_running{claim="claim-9",pool="x",provider="y",gpu_type="z",model="m",model_name="n"} 1` + "\n", []string{own}},
		"another's model":  {head + `vllm:num_requests_running{model="n"} 1` + "\n", nil},
		"no model":         {head + `vllm:num_requests_running 1` + "\n", nil},
		"the same twice":   {head + `vllm:num_requests_running{model="m"} 1` + "\n" + `vllm:num_requests_running{model="m"} 2` + "\n", []string{own}},
		"twice but for what is ours": {head + `vllm:num_requests_running{model="m",claim="a"} 1` + "\n" +
			`vllm:num_requests_running{model="m",claim="b"} 2` + "\n", []string{own}},
		"quotes in a label": {head + `vllm:num_requests_running{model="m",a="\"} 9\n# TYPE x"} 1` + "\n", []string{strings.Replace(own, `model="m"`, `model="m",a="\"} 9\n# TYPE x"`, 1)}},
		"a long label":      {head + `vllm:num_requests_running{model="m",a="` + strings.Repeat("x", maxValue+1) + `"} 1` + "\n", nil},
		"another type":      {"# TYPE vllm:num_requests_running histogram\n" + whole("vllm:num_requests_running"), nil},
		"a gauge of gauges": {"# TYPE vllm:time_to_first_token_seconds gauge\n" + `vllm:time_to_first_token_seconds{model="m"} 1` + "\n", nil},
		"a summary":         {"# TYPE vllm:num_requests_running summary\n" + `vllm:num_requests_running{model="m",quantile="0.5"} 1` + "\n", nil},
		"our own names":     {"# TYPE gpuscale_worker_up gauge\ngpuscale_worker_up 1\n# TYPE gpuscale_worker_vllm_num_requests_running gauge\n" + `gpuscale_worker_vllm_num_requests_running{model="m"} 1` + "\n", nil},
		"a name like a histogram's": {"# TYPE vllm:time_to_first_token_seconds_count gauge\n" + `vllm:time_to_first_token_seconds_count{model="m"} 1` + "\n" +
			"# TYPE vllm:x_bucket gauge\nvllm:x_bucket{model=\"m\"} 1\n# TYPE vllm:a:b gauge\nvllm:a:b{model=\"m\"} 1\n", nil},
		"a name in braces": {`{"vllm:num_requests_running",model="m"} 1` + "\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, all := range []bool{false, true} {
				expect(t, fmt.Sprint("all ", all), exposed(t, all, c.answer, "m"), c.want...)
			}
		})
	}
}

func whole(name string, more ...string) string {
	labels := strings.Join(append([]string{`model="m"`}, more...), ",")
	return fmt.Sprintf("%[1]s_bucket{%[2]s,le=\"1\"} 2\n%[1]s_bucket{%[2]s,le=\"+Inf\"} 3\n%[1]s_sum{%[2]s} 4\n%[1]s_count{%[2]s} 3\n", name, labels)
}

func TestHistogramsAreWholeOrAbsent(t *testing.T) {
	const name = "vllm:time_to_first_token_seconds"
	good := whole(name)
	if got := exposed(t, false, "# TYPE "+name+" histogram\n"+good, "m"); len(got) != 4 {
		t.Errorf("a good one: %q", got)
	}
	// Without an infinite bucket the count is it.
	lines := strings.SplitAfter(good, "\n")
	expect(t, "no +Inf", exposed(t, false, "# TYPE "+name+" histogram\n"+lines[0]+lines[2]+lines[3], "m"), exposed(t, false, "# TYPE "+name+" histogram\n"+good, "m")...)
	for what, text := range map[string]string{
		"no sum": lines[0] + lines[1] + lines[3], "no count": lines[0] + lines[1] + lines[2],
		"falling counts":  strings.Replace(good, `le="1"} 2`, `le="1"} 4`, 1),
		"falling bounds":  lines[1] + lines[0] + lines[2] + lines[3],
		"one bound twice": lines[0] + lines[0] + lines[1] + lines[2] + lines[3],
		"count too large": strings.Replace(good, "_count{model=\"m\"} 3", "_count{model=\"m\"} 9", 1),
		"negative counts": strings.Replace(good, `le="1"} 2`, `le="1"} -1`, 1),
		"no number":       strings.Replace(good, `le="1"} 2`, `le="1"} NaN`, 1),
	} {
		r, err := newIndex(false).read(strings.NewReader("# TYPE "+name+" histogram\n"+text), []string{"m"})
		if err == nil && len(served(t, r)) != 0 {
			t.Errorf("%s: %q", what, served(t, r))
		}
	}
}

func TestAnAnswerIsBoundedOrNone(t *testing.T) {
	line := func(i int) string { return fmt.Sprintf("vllm:num_requests_running{model=\"m\",engine=\"%d\"} 1\n", i) }
	many := func(n int) string {
		var b strings.Builder
		b.WriteString("# TYPE vllm:num_requests_running gauge\n")
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	if r, err := newIndex(false).read(strings.NewReader(many(maxSamples)), []string{"m"}); err != nil || len(r.families) != 1 {
		t.Errorf("at the bound: %v", err)
	}
	for what, answer := range map[string]string{
		"samples": many(maxSamples + 1), "wanted bytes": many(40000),
		"bytes": strings.Repeat("unwanted 1\n", maxAnswer/10), "a line": strings.Repeat("x", maxLine+1),
	} {
		if _, err := newIndex(false).read(strings.NewReader(answer), []string{"m"}); !errors.Is(err, errTooMuch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, answer := range map[string]string{"not text": "vllm:num_requests_running{ 1\n", "a label twice": `vllm:num_requests_running{model="m",a="1",a="2"} 1` + "\n",
		"bytes that are none": "vllm:num_requests_running{model=\"m\",a=\"\xff\"} 1\n", "a reserved label": `vllm:num_requests_running{model="m",__name__="up"} 1` + "\n",
		"no number": "vllm:num_requests_running{model=\"m\"} many\n"} {
		if _, err := newIndex(false).read(strings.NewReader(answer), []string{"m"}); err == nil {
			t.Errorf("%s passed", what)
		}
	}
}

func TestWorkersThatDisagreeAreOutvoted(t *testing.T) {
	read := func(text string) *reading {
		r, err := newIndex(true).read(strings.NewReader(text), []string{"m"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	odd := read("# TYPE vllm:new histogram\n" + whole("vllm:new"))
	fair := read("# TYPE vllm:new gauge\nvllm:new{model=\"m\"} 1\n")
	expect(t, "one against two", served(t, odd, fair, fair),
		`gpuscale_worker_vllm_new{claim="claim-1",…,model="m"} 1`, `gpuscale_worker_vllm_new{claim="claim-2",…,model="m"} 1`)
}

// FuzzAnswer: whatever a worker answers, what is served of it and of its neighbour is valid, and the neighbour's is whole.
func FuzzAnswer(f *testing.F) {
	f.Add("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model=\"m\"} 1\n")
	f.Add("# TYPE vllm:time_to_first_token_seconds histogram\n" + whole("vllm:time_to_first_token_seconds", `engine="0"`))
	f.Add("# TYPE vllm:x counter\nvllm:x{model=\"m\",a=\"\\\"\\n\"} +Inf\n{\"vllm:x\",model=\"m\"} 1\n")
	f.Add("# TYPE gpuscale_agent_gpu_info gauge\ngpuscale_agent_gpu_info{gpu=\"0\",name=\"a\\\\\"} 1 12\n")
	good, err := newIndex(true).read(strings.NewReader("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model=\"m\"} 1\n"), []string{"m"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		r, err := newIndex(true).read(strings.NewReader(answer), []string{"m"})
		if err != nil {
			return
		}
		lines := served(t, r, good)
		if !slices.Contains(lines, `gpuscale_worker_vllm_num_requests_running{claim="claim-1",…,model="m"} 1`) {
			t.Errorf("the neighbour is lost: %q", lines)
		}
	})
}

func TestTheCatalogueIsSound(t *testing.T) {
	names, sources, inCore := map[string]bool{}, map[string]bool{}, 0
	for _, f := range append(Catalogue(), Own()...) {
		if names[f.Name] || f.Help == "" || strings.ContainsAny(f.Help, "\n\\") {
			t.Errorf("%s is there twice or its help is none", f.Name)
		}
		names[f.Name] = true
		for _, s := range f.Sources {
			if sources[s] {
				t.Errorf("%s is taken twice", s)
			}
			sources[s] = true
		}
		if f.Core {
			inCore++
		}
		for _, suffix := range suffixes {
			if strings.HasSuffix(f.Name, suffix) {
				t.Errorf("%s could be taken for a histogram's series", f.Name)
			}
		}
	}
	if inCore > 35 {
		t.Errorf("%d families are core: of %v", inCore, slices.Sorted(maps.Keys(names)))
	}
}
