package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// asked runs a command whose simulated markets are changed by hook, as at a terminal.
func asked(ctx context.Context, hook func(*market.Market), stdin string, args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = execute(ctx, &console{in: strings.NewReader(stdin), out: &o, errOut: &e, terminal: true,
		getenv: func(string) string { return "" }, simHook: hook}, append(args, "--market", "sim"))
	return code, o.String(), e.String()
}

// always makes every request at one provider meet a fault.
func always(provider string, f market.Fault, delay time.Duration) func(*market.Market) {
	return func(m *market.Market) {
		if provider == "" || m.Provider() == provider {
			m.SetFaultRates(market.FaultRates{Share: map[market.Fault]float64{f: 1}, Delay: delay})
		}
	}
}

const vast, examples = "vast.ai", "../../examples/"

func TestOffersAreSortedAndWithinWhatWasAsked(t *testing.T) {
	var doc struct {
		Offers []struct {
			Provider, GPU, CapacityType       string
			VRAMGB, GPUCount                  int
			DollarsPerHour, DollarsPerGPUHour float64
		}
		LeftOut []struct{ LeftOut string }
	}
	code, out, errOut := asked(t.Context(), nil, "", "offers", "--gpu", "RTX 4090,A100", "--min-vram", "24", "--max-price", "0.50",
		"--spot", "--provider", vast, "--sort", "gpu-price", "-o", "json", "--explain")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitOK || errOut != "" {
		t.Fatalf("exit code %d, %v, %s", code, err, errOut)
	}
	for i, o := range doc.Offers {
		if !strings.HasPrefix(o.GPU, "RTX4090") && !strings.HasPrefix(o.GPU, "A100") || o.DollarsPerHour > 0.5 ||
			o.CapacityType != "spot" || o.Provider != vast || o.VRAMGB*o.GPUCount < 24 {
			t.Errorf("not asked for: %+v", o)
		}
		if i > 0 && o.DollarsPerGPUHour < doc.Offers[i-1].DollarsPerGPUHour {
			t.Errorf("%+v comes after %+v", o, doc.Offers[i-1])
		}
	}
	reasons := map[string]int{}
	for _, l := range doc.LeftOut {
		reasons[l.LeftOut]++
	}
	if len(doc.Offers) < 5 || reasons["WrongGPU"] == 0 || reasons["OverPrice"] == 0 {
		t.Errorf("%d offers, left out %v", len(doc.Offers), reasons)
	}
	_, asYAML, _ := asked(t.Context(), nil, "", "offers", "--provider", vast, "--limit", "2", "-o", "yaml")
	if err := yaml.Unmarshal([]byte(asYAML), &doc); err != nil || len(doc.Offers) != 2 {
		t.Errorf("%v: %s", err, asYAML)
	}
	_, bare, _ := asked(t.Context(), nil, "", "offers", "--provider", vast, "--limit", "2", "--no-headers")
	if strings.Contains(bare, "PROVIDER") || strings.Count(bare, "\n") != 2 {
		t.Errorf("%q", bare)
	}
}

// TestBadInputIsRefusedWithWhatWouldBeRight covers flags and files.
func TestBadInputIsRefusedWithWhatWouldBeRight(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pod := write("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, image: i}]}\n")
	pool := write("pool.yaml", "apiVersion: gpuscale.io/v1alpha1\nkind: GPUNodePool\nmetadata: {name: p}\nspec:\n  providers: [{name: vast.ai}]\n  limits: {maxCostPerHour: 3}\n")
	service := write("service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"offers --gpu RTX_4091", exitUsage, `--gpu "RTX_4091": there is no such GPU; did you mean RTX4090?`},
		{"offers --gpu RTX4909", exitUsage, `--gpu "RTX4909": there is no such GPU; did you mean RTX4090?`},
		{"offers --gpu 4090", exitUsage, "did you mean RTX4090?"},
		{"offers --gpu A1000", exitUsage, "did you mean A100?"},
		{"offers --gpu pentium", exitUsage, "there is no such GPU; there are T4, "},
		{"offers --provider vastai", exitUsage, "--provider vastai: there is no such provider; did you mean vast.ai?"},
		{"offers --provider ovh", exitUsage, "there are runpod, "},
		{"offers --sort speed", exitUsage, "--sort speed: one of price, "},
		{"offers --max-price cheap", exitUsage, "like 0.50"},
		{"offers --max-price 0", exitUsage, "above 0"},
		{"offers --min-cuda 12", exitUsage, "like 12.8"},
		{"offers --min-reliability 98", exitUsage, "like 0.98"},
		{"offers --disk 0", exitUsage, "--disk is too small"},
		{"offers -o table", exitUsage, "-o table: wide, json or yaml"},
		{"offers --timeout 0s", exitUsage, "--timeout 0s"},
		{"offers cheap", exitUsage, `unknown command "cheap"`},
		{"check vast", exitUsage, "did you mean vast.ai?"},
		{"plan", exitUsage, "-f is required"},
		{"plan -f /nowhere.yaml", exitFailure, "no such file"},
		{"plan -f " + pod, exitFailure, "there is no GPUNodePool in " + pod},
		{"plan -f " + service, exitFailure, service + ":1: Service web is passed over: only GPUNodePool, "},
		{"plan -f " + pool, exitFailure, pool + `:5: GPUNodePool "p": spec.providers[0]: Invalid value: maxPrice is required and must be above 0`},
	} {
		code, out, errOut := asked(t.Context(), nil, "", strings.Fields(c.args)...)
		if code != c.code || out != "" || !strings.Contains(errOut, c.says) {
			t.Errorf("%s: exit code %d, output %q, error %q; want %d and %q", c.args, code, out, errOut, c.code, c.says)
		}
	}
	if code, _, errOut := try(t, nil, "offers", "--market", "real"); code != exitFailure || !strings.Contains(errOut, "there are no credentials: set ") ||
		!strings.Contains(errOut, "VASTAI_API_KEY") {
		t.Errorf("without credentials: exit code %d, %q", code, errOut)
	}
	if code, _, errOut := try(t, nil, "plan", "-f", examples); code != exitFailure || !strings.Contains(errOut, "no credentials: set VASTAI_API_KEY") ||
		!strings.HasSuffix(errOut, "for want of credentials; --market sim needs none\n") {
		t.Errorf("plan without credentials: exit code %d, %q", code, errOut)
	}
	if code, out, errOut := try(t, nil, "check"); code != exitFailure || !strings.Contains(out, "set VASTAI_API_KEY") || !strings.Contains(errOut, "no credentials in the environment") {
		t.Errorf("check without credentials: exit code %d, %q, %q", code, out, errOut)
	}
}

// TestAProviderThatFailsIsNamedAndTheOthersShown in every command.
func TestAProviderThatFailsIsNamedAndTheOthersShown(t *testing.T) {
	fails := always("runpod", market.ServerError, 0)
	code, out, errOut := asked(t.Context(), fails, "", "offers", "--limit", "3", "--timeout", "20s")
	if code != exitPartial || strings.Count(out, "\n") != 4 || !strings.Contains(errOut, "note: runpod on-demand is left out: ") {
		t.Errorf("offers: exit code %d\n%s\n%s", code, out, errOut)
	}
	code, out, _ = asked(t.Context(), fails, "", "check", "runpod", vast, "--timeout", "20s")
	if code != exitPartial || !regexp.MustCompile(`runpod +unclear`).MatchString(out) || !regexp.MustCompile(`vast\.ai +ok`).MatchString(out) {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
	code, out, errOut = asked(t.Context(), always("", market.ServerError, 0), "", "offers", "--timeout", "20s")
	if code != exitFailure || out != "" || !strings.HasSuffix(errOut, "gpuscale: no provider answered\n") {
		t.Errorf("all fail: exit code %d\n%s\n%s", code, out, errOut)
	}
}

// TestASlowProviderIsWaitedForInSight and no longer than was said; the others' offers are shown all the same.
func TestASlowProviderIsWaitedForInSight(t *testing.T) {
	slow := always("runpod", market.Slow, time.Minute)
	began := time.Now()
	code, out, errOut := asked(t.Context(), slow, "", "offers", "--provider", "runpod,vast.ai", "--limit", "3", "--timeout", "6s")
	if code != exitPartial || strings.Count(out, "\n") != 4 || !strings.Contains(errOut, "no answer within 6s (--timeout)") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errOut)
	}
	if !regexp.MustCompile(`\r\x1b\[KWaiting for runpod(, vast.ai)? \(\ds\)`).MatchString(errOut) || !strings.Contains(errOut, "\r\x1b[KThe first 3 of ") {
		t.Errorf("progress is not shown, or not taken away: %q", errOut)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestCtrlCEndsTheWait at once, with nothing shown as if it were all.
func TestCtrlCEndsTheWait(t *testing.T) {
	for _, args := range [][]string{{"offers"}, {"check"}, {"plan", "-f", examples}} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		began := time.Now()
		code, out, errOut := asked(ctx, always("", market.Slow, time.Minute), "", args...)
		if code != exitInterrupted || out != "" || !strings.HasSuffix(errOut, "gpuscale: interrupted\n") {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, errOut)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%v: it took %s", args, took)
		}
	}
}

// TestPlanIsWhatTheControllerWouldDo with the example, and says why of what it would not.
func TestPlanIsWhatTheControllerWouldDo(t *testing.T) {
	const vastPool, pod = examples + "gpunodepool-vast.yaml", examples + "sample-workload.yaml"
	code, out, errOut := asked(t.Context(), nil, "", "plan", "-f", vastPool, "-f", pod)
	for _, want := range []string{"qwen-qwen2-5-1-5b-instruct-496697-0   inference   vast.ai", "1×RTX3090", "cheapest of ", "Pool inference: 1 instance at $"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit code %d; no %q in\n%s%s", code, want, out, errOut)
		}
	}
	text, err := os.ReadFile(pod)
	if err != nil {
		t.Fatal(err)
	}
	dear := strings.Replace(string(text), `max-price: "0.40"`, `max-price: "0.01"`, 1)
	code, out, _ = asked(t.Context(), nil, dear, "plan", "-f", vastPool, "-f", "-")
	if code != exitUnmet || !regexp.MustCompile(`Not bought:\n  Qwen/Qwen2.5-1.5B-Instruct \(1 replica\): NoOffers: \d+ offers: .*over \$0.01.* \(cheapest of those over the price: \$`).MatchString(out) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, _ = asked(t.Context(), nil, strings.Replace(string(text), `"--model", "Qwen/Qwen2.5-1.5B-Instruct"`, "", 1), "plan", "-f", vastPool, "-f", "-")
	if code != exitUnmet || !strings.Contains(out, "pod default/sample-workload: NoModel: ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, errOut = asked(t.Context(), nil, strings.ReplaceAll(string(text), "gpuscale.io/", "example.com/"), "plan", "-f", vastPool, "-f", "-")
	if code != exitOK || out != "Nothing would be bought: nothing asks for a GPU.\n" || !strings.Contains(errOut, "without a gpuscale.io/ annotation a pod asks for nothing: default/sample-workload\n") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	_, out, _ = asked(t.Context(), nil, "", "plan", "-f", vastPool, "-f", pod, "--explain")
	if !regexp.MustCompile(`(?m)^inference +vast.ai +spot +\d+ +\d+ +.*\d+ wrong GPU`).MatchString(out) {
		t.Errorf("not explained:\n%s", out)
	}
	var doc struct {
		Buys []struct {
			Claim string
			Offer struct{ DollarsPerHour float64 }
		}
	}
	_, out, _ = asked(t.Context(), nil, "", "plan", "-f", vastPool, "-f", pod, "-o", "json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Buys) != 1 || doc.Buys[0].Offer.DollarsPerHour <= 0 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestCompletionHasRealValues(t *testing.T) {
	for args, want := range map[string]string{
		"offers --gpu RTX4":           "RTX4090",
		"offers --gpu H100-SXM,A100-": "H100-SXM,A100-80GB-SXM",
		"offers --provider v":         vast,
		"offers --sort gpu":           "gpu-price",
		"check ru":                    "runpod",
		"plan -o y":                   "yaml",
		"offers --market s":           "sim",
	} {
		code, out, _ := try(t, nil, append([]string{"__complete"}, strings.Fields(args)...)...)
		if code != exitOK || !slices.Contains(strings.Split(out, "\n"), want) {
			t.Errorf("%s: exit code %d, %q", args, code, out)
		}
	}
	if code, out, _ := try(t, nil, "completion", "bash"); code != exitOK || !strings.Contains(out, "__start_gpuscale") {
		t.Errorf("exit code %d", code)
	}
}

// TestExitCodesAreDocumented holds the page against the constants, both ways.
func TestExitCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, m := range regexp.MustCompile("(?m)^\\| `([0-9]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
	}
	if want := []int{exitOK, exitFailure, exitUsage, exitPartial, exitUnmet, exitInterrupted}; !slices.Equal(got, want) {
		t.Errorf("the page has %v, the program %v", got, want)
	}
}

var update = flag.Bool("update", false, "write what the README shows anew")

// shown finds the README's blocks of a simulated command and what it prints.
var shown = regexp.MustCompile("(?m)^\\$ gpuscale (.*--market sim.*)\n((?:[^$`].*\n|\n)*)")

// TestTheREADMEShowsRealOutput runs every command with --market sim that the README shows. Go test -run README -update
// ./cmd/gpuscale writes it anew.
func TestTheREADMEShowsRealOutput(t *testing.T) {
	const file = "../../README.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	n := 0
	fresh := shown.ReplaceAllStringFunc(string(text), func(block string) string {
		n++
		m := shown.FindStringSubmatch(block)
		var o bytes.Buffer // both streams, as at a terminal
		code := execute(t.Context(), &console{out: &o, errOut: &o, getenv: func(string) string { return "" }}, words(m[1]))
		if code != exitOK && code != exitUnmet {
			t.Errorf("%s: exit code %d", m[1], code)
		}
		if got := strings.TrimRight(o.String(), "\n"); got != strings.TrimRight(m[2], "\n") && !*update {
			t.Errorf("gpuscale %s prints\n%s\nand the README shows\n%s", m[1], got, m[2])
		}
		return "$ gpuscale " + m[1] + "\n" + strings.TrimRight(o.String(), "\n") + "\n"
	})
	if n < 3 {
		t.Errorf("%d commands found", n)
	}
	if t.Failed() {
		t.Log("go test ./cmd/gpuscale -run README -update writes it anew")
	}
	if *update {
		if err := os.WriteFile("README.md", []byte(fresh), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// words splits a command line at spaces outside double quotes.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}
