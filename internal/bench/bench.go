// Package bench is the list of what is measured of gpuscale, what it should come to, and how a test hands in a value.
//
// A figure is added by a line in groups, a line in docs/benchmarks.md (a test holds the two together) and a test that
// calls Record with its name. Tests measure at full size only while Recording; otherwise they run small, so that the
// measuring itself is tested with everything else.
package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Env names the file that values are appended to. Where it is not set nothing is recorded.
const Env = "GPUSCALE_BENCH"

// Spec is what is known of a figure before it is measured.
type Spec struct {
	// Name is unique, lower case, its parts joined by dots.
	Name string
	Unit string
	// Most is the highest value that is as it should be; 0 means that the figure has no aim and is there to be seen.
	Most float64
}

// Aim is Most in words, "" where there is none.
func (s Spec) Aim() string {
	if s.Most == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("≤ %s %s", number(s.Most), s.Unit))
}

// Group is the figures that one test measures.
type Group struct {
	// Name is what hack/bench.sh takes to measure this group alone.
	Name string
	// Package and Test are what go test is given.
	Package, Test string
	Figures       []Spec
}

// Command measures the group alone.
func (g Group) Command() string { return "hack/bench.sh " + g.Name }

// Figure is a measured figure, in the form of bench.json.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Aim is nil where there is none; such a figure always holds.
	Aim   *string `json:"aim"`
	Holds bool    `json:"holds"`
}

// Take is the figure of a value.
func (s Spec) Take(value float64) Figure {
	f := Figure{Name: s.Name, Value: value, Unit: s.Unit, Holds: s.Most == 0 || value <= s.Most}
	if aim := s.Aim(); aim != "" {
		f.Aim = &aim
	}
	return f
}

// Recording reports whether values are wanted: whether to measure at full size.
func Recording() bool { return os.Getenv(Env) != "" }

// TB is the part of testing.TB that Record needs.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// entry is a line of the file that Env names.
type entry struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Record hands in a value. A name that is not in the list ends the test. While nothing is Recording it is only logged.
func Record(t TB, name string, value float64) {
	t.Helper()
	spec, ok := find(name)
	if !ok {
		t.Fatalf("bench: no figure is called %q", name)
		return
	}
	t.Logf("%s: %s %s", name, number(value), spec.Unit)
	if !Recording() {
		return
	}
	if err := appendTo(os.Getenv(Env), entry{name, value}); err != nil {
		t.Fatalf("bench: %s is not recorded: %v", name, err)
	}
}

func find(name string) (Spec, bool) {
	for _, g := range groups {
		for _, s := range g.Figures {
			if s.Name == name {
				return s, true
			}
		}
	}
	return Spec{}, false
}

func appendTo(file string, e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Read is what was recorded of the groups, in the order of their figures, and the names of those that were not. Of a
// figure that was recorded twice the last value counts.
func Read(file string, of []Group) (figures []Figure, missing []string, err error) {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	values := map[string]float64{}
	for lines := json.NewDecoder(bytes.NewReader(data)); ; {
		var e entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
		values[e.Name] = e.Value
	}
	for _, g := range of {
		for _, s := range g.Figures {
			if v, ok := values[s.Name]; ok {
				figures = append(figures, s.Take(v))
			} else {
				missing = append(missing, s.Name)
			}
		}
	}
	return figures, missing, nil
}

// Table prints figures for people.
func Table(w io.Writer, figures []Figure) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "FIGURE\tVALUE\tUNIT\tAIM\tHOLDS") // Flush tells of what went wrong.
	for _, f := range figures {
		aim, holds := "-", "-"
		if f.Aim != nil {
			aim, holds = *f.Aim, "yes"
			if !f.Holds {
				holds = "NO"
			}
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", f.Name, number(f.Value), f.Unit, aim, holds)
	}
	return t.Flush()
}

// number has three digits that matter, and all of those before the point.
func number(v float64) string {
	switch {
	case v >= 100 || v == float64(int64(v)):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
