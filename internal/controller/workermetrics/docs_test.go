package workermetrics

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const page = "../../../docs/operating/worker-metrics.md"

// TestThePageHasEveryFamily compares the page's tables with the catalogue, row by row.
func TestThePageHasEveryFamily(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var have, want []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `gpuscale_worker_") {
			have = append(have, strings.TrimSpace(line))
		}
	}
	for _, f := range slices.Concat(Own(), Catalogue()) {
		want = append(want, row(f))
	}
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("%s lacks\n%s", page, line)
		}
	}
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("%s has what is no family, or not so:\n%s", page, line)
		}
	}
}

func row(f Family) string {
	labels := make([]string, 0, len(f.Labels)+1)
	if strings.HasPrefix(f.Name, VLLMPrefix) {
		labels = append(labels, "`model`")
	}
	for _, l := range f.Labels {
		labels = append(labels, "`"+l+"`")
	}
	set := "all"
	if f.Core {
		set = "core"
	}
	help := f.Help
	for _, source := range f.Sources[min(1, len(f.Sources)):] {
		help += " Before: `" + source + "`."
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |", f.Name, f.Type, set, strings.Join(labels, ", "), help)
}
