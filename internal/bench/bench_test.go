package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../../docs/benchmarks.md"

// row is a line of a table on the page whose first cell is a name: | `name` | what | aim | value |.
var row = regexp.MustCompile("(?m)^\\| `([a-z0-9.]+)` \\| [^|]+ \\| ([^|]+) \\| [^|]+ \\|$")

// offences are where page and groups do not say the same.
func offences(text string, groups []Group) []string {
	var out []string
	seen := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		seen[m[1]] = m[2]
	}
	for _, g := range groups {
		if !strings.Contains(text, "`"+g.Command()+"`") {
			out = append(out, fmt.Sprintf("%s: the command %q is not there", g.Name, g.Command()))
		}
		for _, s := range g.Figures {
			aim, ok := seen[s.Name]
			delete(seen, s.Name)
			want := s.Aim()
			if want == "" {
				want = "none"
			}
			switch {
			case !ok:
				out = append(out, s.Name+" has no line")
			case aim != want:
				out = append(out, fmt.Sprintf("%s: the aim is %q; want %q", s.Name, aim, want))
			}
		}
	}
	for name := range seen {
		out = append(out, name+" is no figure")
	}
	return out
}

func TestThePageAndTheListAgree(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offences(string(text), Groups()) {
		t.Error("docs/benchmarks.md:", o)
	}
}

func TestDisagreementIsFound(t *testing.T) {
	list := []Group{{Name: "g", Figures: []Spec{{Name: "a.b", Unit: "ms", Most: 5}, {Name: "c", Unit: "MB"}}}}
	good := "`hack/bench.sh g`\n| `a.b` | x | ≤ 5 ms | 1 |\n| `c` | x | none | 1 |\n"
	for name, c := range map[string]struct{ old, new, want string }{
		"none":         {"", "", ""},
		"no line":      {"| `c` | x | none | 1 |\n", "", "c has no line"},
		"no figure":    {"`c` |", "`c` | x | none | 1 |\n| `d` |", "d is no figure"},
		"another aim":  {"≤ 5", "≤ 6", "the aim is"},
		"none for one": {"≤ 5 ms", "none", "the aim is"},
		"no command":   {"bench.sh g", "bench.sh", "the command"},
	} {
		got := offences(strings.Replace(good, c.old, c.new, 1), list)
		if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	var names []string
	for _, g := range Groups() {
		for _, s := range g.Figures {
			if slices.Contains(names, s.Name) {
				t.Errorf("%s is there twice", s.Name)
			}
			names = append(names, s.Name)
		}
	}
}

func TestWhatIsRecordedIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values")
	t.Setenv(Env, file)
	if _, missing, err := Read(file, Groups()[:1]); err != nil || len(missing) != len(Groups()[0].Figures) {
		t.Errorf("nothing recorded: missing %v, error %v", missing, err)
	}
	Record(t, "plan.time", 900)
	Record(t, "plan.time", 501)
	Record(t, "plan.allocated", 12.345)
	figures, missing, err := Read(file, Groups()[:1])
	if err != nil || len(figures) != 2 || !slices.Equal(missing, []string{"plan.growth"}) {
		t.Fatalf("%+v, missing %v, error %v", figures, missing, err)
	}
	if f := figures[0]; f.Value != 501 || f.Holds || *f.Aim != "≤ 500 ms" {
		t.Errorf("%+v", f)
	}
	figures = append(figures, Spec{Name: "seen", Unit: "calls"}.Take(7))
	var out bytes.Buffer
	if err := Table(&out, figures); err != nil {
		t.Fatal(err)
	}
	want := `FIGURE          VALUE  UNIT   AIM       HOLDS
plan.time       501    ms     ≤ 500 ms  NO
plan.allocated  12.3   MB     ≤ 200 MB  yes
seen            7      calls  -         -
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// fatal notes that a test would have ended.
type fatal struct{ said string }

func (f *fatal) Helper()                   {}
func (f *fatal) Logf(string, ...any)       {}
func (f *fatal) Fatalf(s string, a ...any) { f.said = fmt.Sprintf(s, a...) }

func TestAnUnknownFigureIsRefused(t *testing.T) {
	f := &fatal{}
	if Record(f, "no.such", 1); !strings.Contains(f.said, "no.such") {
		t.Errorf("%q", f.said)
	}
}
