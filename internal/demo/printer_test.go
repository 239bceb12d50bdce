package demo

import (
	"bytes"
	"strings"
	"testing"
)

func TestPrinter(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out, Width: 90, Start: start}
	p.Heading("Buying")
	p.Pair("gateway", "http://127.0.0.1:1")
	p.Command(at(1.25), "kubectl delete pod x")
	p.Output("pod \"x\" deleted\nnext\n")
	p.Line(at(12.34), Line{Name: "pod pending", Source: Kubernetes, Sighting: Sighting{
		Text: "pod x: Unschedulable, no nodes available to schedule pods and more"}})
	p.Failed(at(123.4), &Unmet{Expectation: Expectation{Name: "spent", Source: Books}, Why: "the time is up"})
	want := `
Buying
  gateway    http://127.0.0.1:1
   1.2s $ kubectl delete pod x
          pod "x" deleted
          next
  12.3s ✓ pod pending              kubernetes  pod x: Unschedulable, no nodes available to
                                               schedule pods and more
 123.4s ✗ spent                    market      not seen: the time is up
`
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestPrinterColoursOnlyWhereToldTo(t *testing.T) {
	for _, colour := range []bool{true, false} {
		var out bytes.Buffer
		p := &Printer{Out: &out, Colour: colour, Start: start}
		p.Line(start, Line{Name: "x"})
		if got := strings.Contains(out.String(), "\x1b["); got != colour {
			t.Errorf("colour %v: %q", colour, out.String())
		}
	}
}

func TestStreamFitsIntoLines(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out, Width: 40}
	for _, piece := range []string{"one", " two", " three", " four", " five", " six", " seven", " eight", "een"} {
		p.Stream(piece)
	}
	p.EndStream()
	p.EndStream()
	want := "          one two three four five six\n          seven eighteen\n\n"
	if got := out.String(); got != strings.TrimSuffix(want, "\n") {
		t.Errorf("got %q", got)
	}
}

func TestWrapKeepsWhatIsToBeCopied(t *testing.T) {
	url := "http://127.0.0.1:40000/a/very/long/address/that/does/not/fit/into/a/line"
	if got := wrap("see "+url+" there", 30); len(got) != 3 || got[1] != url {
		t.Errorf("%q", got)
	}
	if got := wrap("", 30); len(got) != 1 {
		t.Errorf("%q", got)
	}
}
