package agent

import (
	"bytes"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var update = flag.Bool("update", false, "write the golden files anew; read them before you believe them")

// text is a reading as GET /metrics has it.
func (r Reading) text(t *testing.T) string {
	t.Helper()
	all := families{}
	gpuMetrics(all, r)
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(all[name].Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&out, all[name]); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// TestReportsOfEveryDriver compares samples of nvidia-smi's report over ten years of drivers with what is made of them.
func TestReportsOfEveryDriver(t *testing.T) {
	samples, err := filepath.Glob("testdata/smi/*.xml")
	if err != nil || len(samples) != 5 {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	for _, path := range samples {
		document, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		reading, err := parseReading(document)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		golden := strings.TrimSuffix(path, ".xml") + ".prom"
		got := reading.text(t)
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is read as\n%s\nwant\n%s", path, got, want)
		}
	}
}

func TestWhatIsNotANumberIsAbsent(t *testing.T) {
	for _, text := range []string{"", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "GPU is lost", "-3 %", "NaN %", "Inf %", "1e300 %", "7", "7 W", "% 7", "7 %%"} {
		if v, ok := quantity(text, "%"); ok {
			t.Errorf("%q is %v", text, v)
		}
	}
	for text, want := range map[string]float64{"0 %": 0, "7 %": 7, " 100 % ": 100, "7%": 7, "0.5 %": 0.5} {
		if v, ok := quantity(text, "%"); !ok || v != want {
			t.Errorf("%q is %v, %v", text, v, ok)
		}
	}
	if scaled(7, 0.01) != 0.07 || scaled(29, 0.01) != 0.29 {
		t.Error("per cents are not exact")
	}
}

func TestReportsThatAreNone(t *testing.T) {
	many := "<nvidia_smi_log>" + strings.Repeat("<gpu/>", maxGPUs+1) + "</nvidia_smi_log>"
	for _, document := range []string{"", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "<nvidia_smi_log>", "<other/>", many} {
		if r, err := parseReading([]byte(document)); err == nil {
			t.Errorf("%.60q is %+v", document, r)
		}
	}
}

// FuzzReading: whatever a program called nvidia-smi writes, a reading is bounded, has no number that is not one, and its
// metrics are text that a strict parser takes.
func FuzzReading(f *testing.F) {
	samples, err := filepath.Glob("testdata/smi/*.xml")
	if err != nil || len(samples) == 0 {
		f.Fatal("no samples", err)
	}
	for _, path := range samples {
		document, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(document)
	}
	f.Add([]byte(`<nvidia_smi_log><driver_version>"\` + "\n" + `</driver_version><gpu><uuid>[x]</uuid><clocks_event_reasons><clocks_event_reason_a.b>Active</clocks_event_reason_a.b></clocks_event_reasons></gpu></nvidia_smi_log>`))
	f.Fuzz(func(t *testing.T, document []byte) {
		for rest := document; ; {
			advance, token, err := cutDocument(rest, true)
			if err != nil || advance > len(rest) || len(token) > advance {
				t.Fatalf("%d of %d, %d, %v", advance, len(rest), len(token), err)
			}
			if rest = rest[advance:]; advance == 0 || len(rest) == 0 {
				break
			}
		}
		reading, err := parseReading(document)
		if err != nil {
			return
		}
		for _, g := range reading.GPUs {
			for _, values := range []map[string]float64{g.Values, g.ECC, g.Throttled} {
				for name, v := range values {
					if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
						t.Errorf("%s is %v", name, v)
					}
				}
			}
			if len(g.Throttled) > maxReasons || len(g.UUID) > maxWord+4 {
				t.Errorf("%d reasons, UUID of %d", len(g.Throttled), len(g.UUID))
			}
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		if _, err := parser.TextToMetricFamilies(strings.NewReader(reading.text(t))); err != nil {
			t.Errorf("%v\n%s", err, reading.text(t))
		}
	})
}
