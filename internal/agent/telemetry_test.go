package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	pmodel "github.com/prometheus/common/model"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// fakeSMI is a program that does what a shell script says. $n is how often it was started before, and $report a report.
func fakeSMI(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	report := must(filepath.Abs("testdata/smi/h100-driver570.xml"))
	text := fmt.Sprintf("#!/bin/sh\ncd %q || exit 9\necho $$ >> pids\necho \"$@\" > args\nn=$(($(wc -l < pids) - 1))\nreport=%q\n%s\n", dir, report, script)
	path := filepath.Join(dir, "nvidia-smi")
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// smiStarts are the ids of the processes that a fakeSMI has been.
func smiStarts(path string) []string {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "pids"))
	return strings.Fields(string(text))
}

// runSMI runs a reader until the test ends, and then sees that nothing of it is left.
func runSMI(t *testing.T, s *agent.SMITelemetry) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		for _, text := range smiStarts(s.Path) {
			pid := must(strconv.Atoi(text))
			soon(t, "process group "+text+" gone", func() bool { return syscall.Kill(-pid, 0) == syscall.ESRCH })
		}
	})
}

func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

func draws(s *agent.SMITelemetry) func() bool {
	return func() bool {
		r, ok := s.Latest()
		return ok && len(r.GPUs) == 1 && r.GPUs[0].Values[agentapi.GPUPowerDraw] == 693.4
	}
}

func TestOneLongLivedReader(t *testing.T) {
	path := fakeSMI(t, `while :; do cat "$report"; echo >> reports; sleep 0.02; done`)
	s := &agent.SMITelemetry{Path: path, Interval: 20 * time.Second}
	if _, ok := s.Latest(); ok {
		t.Error("a reading before there was one")
	}
	runSMI(t, s)
	soon(t, "a reading", draws(s))
	soon(t, "many reports", func() bool {
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "reports"))
		return len(text) > 50
	})
	if n := len(smiStarts(path)); n != 1 {
		t.Errorf("started %d times", n)
	}
	args := must(os.ReadFile(filepath.Join(filepath.Dir(path), "args")))
	if string(args) != "-q -x -l 20\n" {
		t.Errorf("arguments %q", args)
	}
}

// TestAReaderThatFailsIsStartedAgain: each fake is useless at first, in a way of its own, and good when started anew.
func TestAReaderThatFailsIsStartedAgain(t *testing.T) {
	for name, bad := range map[string]string{
		"dies":               `exit 3`,
		"says what is wrong": `echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9`,
		"hangs":              `sleep 1000`,
		"hangs in a report":  `head -c 900 "$report"; sleep 1000`,
		"never ends":         `yes '<gpu><uuid>x</uuid>'`,
		"one long line":      `yes | tr -d '\n'`,
		"not XML":            `while :; do echo '<nvidia_smi_log><gpu></nvidia_smi_log>'; sleep 0.01; done`,
		"ignores signals":    `trap '' TERM INT HUP; sleep 1000; sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := fakeSMI(t, "if [ $n -lt 1 ]; then "+bad+"; fi\nwhile :; do cat \"$report\"; sleep 0.05; done")
			s := &agent.SMITelemetry{Path: path, Interval: 50 * time.Millisecond, Patience: 3 * time.Second}
			runSMI(t, s)
			soon(t, "a reading", draws(s))
			if n := len(smiStarts(path)); n != 2 {
				t.Errorf("started %d times", n)
			}
		})
	}
}

func TestAReadingGrowsStale(t *testing.T) {
	path := fakeSMI(t, `cat "$report"; sleep 1000`)
	s := &agent.SMITelemetry{Path: path, Interval: 100 * time.Millisecond}
	runSMI(t, s)
	soon(t, "a reading", draws(s))
	soon(t, "stale", func() bool { _, ok := s.Latest(); return !ok })
}

func TestWithoutNvidiaSMI(t *testing.T) {
	s := &agent.SMITelemetry{Path: filepath.Join(t.TempDir(), "nvidia-smi")}
	s.Run(t.Context()) // It returns.
	if _, ok := s.Latest(); ok {
		t.Error("a reading without a reader")
	}
}

// scrape is the agent's whole answer, which has to be valid.
func (k *worker) scrape() map[string]*dto.MetricFamily {
	k.t.Helper()
	code, text := do(k.t, k.gateway, "GET", "https://"+k.endpoint+"/metrics", "")
	if code != 200 {
		k.t.Fatalf("%d %s", code, text)
	}
	parser := expfmt.NewTextParser(pmodel.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewBufferString(text))
	if err != nil {
		k.t.Fatalf("%v\n%s", err, text)
	}
	return families
}

// seriesValue is that of the one series with these labels, in turn name and value.
func seriesValue(f *dto.MetricFamily, labels ...string) (float64, bool) {
	for _, m := range f.GetMetric() {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		fits := true
		for i := 0; i < len(labels); i += 2 {
			fits = fits && have[labels[i]] == labels[i+1]
		}
		if fits {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
		}
	}
	return 0, false
}

func TestOneScrapeHasGPUsAndAllEngines(t *testing.T) {
	path := fakeSMI(t, `while :; do cat "$report"; sleep 0.1; done`)
	k := newWorld(t).start(func(c *agent.Config) { c.Telemetry = &agent.SMITelemetry{Path: path, Interval: 5 * time.Second} })
	old := model("old")
	old.Source = "sim/old-metrics"
	k.put(1, model("new"), old)
	k.untilState("new", agentapi.StateReady)
	k.untilState("old", agentapi.StateReady)
	k.post("/v1/chat/completions", chat("new", 5, false))
	k.post("/v1/chat/completions", chat("old", 5, false))
	soon(t, "a reading of the GPU", func() bool { return k.scrape()["gpuscale_agent_gpu_power_draw_watts"] != nil })
	all := k.scrape()
	for _, c := range []struct {
		family string
		labels []string
		want   float64
	}{
		{"gpuscale_agent_gpu_power_draw_watts", []string{"gpu", "0", "uuid", "GPU-bbbbbbbb-0000-0000-0000-000000000001"}, 693.4},
		{"gpuscale_agent_gpu_info", []string{"driver_version", "570.86.15", "cuda_version", "12.8"}, 1},
		{"gpuscale_agent_engine_metrics_up", []string{"model", "new"}, 1},
		{"gpuscale_agent_engine_metrics_up", []string{"model", "old"}, 1},
		{"gpuscale_agent_requests_total", []string{"model", "old"}, 1},
		{"vllm:num_requests_running", []string{"model", "new", "model_name", "new", "engine", "0"}, 0},
		{"vllm:num_requests_running", []string{"model", "old", "model_name", "old", "engine", "0"}, 0},
		{"vllm:gpu_cache_usage_perc", []string{"model", "old"}, 0},
		{"vllm:kv_cache_usage_perc", []string{"model", "new"}, 0},
		// The warm-up is the engine's first request.
		{"vllm:time_to_first_token_seconds", []string{"model", "new"}, 2},
	} {
		if got, ok := seriesValue(all[c.family], c.labels...); !ok || got != c.want {
			t.Errorf("%s%v is %v, %v; want %v", c.family, c.labels, got, ok, c.want)
		}
	}
	for family, model := range map[string]string{"vllm:gpu_cache_usage_perc": "new", "vllm:kv_cache_usage_perc": "old"} {
		if _, ok := seriesValue(all[family], "model", model); ok {
			t.Errorf("%s of %s is there", family, model)
		}
	}
	if s := k.status(); find(s, "new").InFlight != 0 || s.InFlight != 0 {
		t.Error("a scrape counts as a request")
	}
}
