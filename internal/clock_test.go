package internal

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// clockMark allows a use of the real clock or of chance, on its line or the line above, and says why:
//
//	//gpuscale:clock the process's one clock
const clockMark = "//gpuscale:clock"

// The uses that make behaviour depend on when and how often it runs. Sleeping is among them, since nothing can
// interrupt it.
var clockUses = map[string][]string{
	"time":               {"Now", "Since", "Until", "Sleep"},
	"k8s.io/utils/clock": {"RealClock"},
	"math/rand":          nil, // any use, so the import itself
	"math/rand/v2":       nil,
}

// Timers wait, they do not decide, so they need no mark; but a package whose clock also waits may mark them.
var clockMayMark = map[string][]string{
	"time": {"NewTimer", "NewTicker", "After", "AfterFunc", "Tick"},
}

// clockFiles are whole files that may use the clock, with the reason. Prefer the mark.
var clockFiles = map[string]string{
	"internal/localkube/cluster.go": "certificates are dated from the real day, for the real API server that checks them",
}

func TestClock(t *testing.T) {
	repo := repository(t, false)
	for _, offence := range checkClock(repo, clockFiles) {
		t.Error(offence)
	}
}

func TestClockCatchesOffences(t *testing.T) {
	const head = "package p\n\nimport \"time\"\n\n"
	for name, c := range map[string]struct {
		source string
		want   string
	}{
		"call":                     {head + "var x = time.Now()\n", "time.Now"},
		"value":                    {head + "var now = time.Now\n", "time.Now"},
		"renamed":                  {"package p\n\nimport clock \"time\"\n\nvar x = clock.Now()\n", "time.Now"},
		"dotted":                   {"package p\n\nimport . \"time\"\n\nvar x = Now()\n", "dot import"},
		"since":                    {head + "var x = time.Since(time.Time{})\n", "time.Since"},
		"sleep":                    {head + "func f() { time.Sleep(1) }\n", "time.Sleep"},
		"real clock":               {"package p\n\nimport \"k8s.io/utils/clock\"\n\nvar x = clock.RealClock{}\n", "RealClock"},
		"rand":                     {"package p\n\nimport _ \"math/rand/v2\"\n", "math/rand/v2"},
		"mark without reason":      {head + "//gpuscale:clock\nvar x = time.Now()\n", "needs a reason"},
		"mark too far up":          {head + "//gpuscale:clock why\n\nvar x = time.Now()\n", "time.Now"},
		"mark that allows nothing": {head + "//gpuscale:clock why\nvar x time.Time\n", "allows nothing"},

		"marked above":   {head + "//gpuscale:clock why\nvar x = time.Now()\n", ""},
		"marked beside":  {head + "var x = time.Now() //gpuscale:clock why\n", ""},
		"marked import":  {"package p\n\nimport _ \"math/rand\" //gpuscale:clock why\n", ""},
		"other package":  {"package p\n\nimport time \"example.com/clock\"\n\nvar x = time.Now()\n", ""},
		"local variable": {"package p\n\nfunc f(time clock) { time.Now() }\n", ""},
		"marked timer":   {head + "//gpuscale:clock why\nvar x = time.After(1)\n", ""},
		"timer":          {head + "var x = time.After(1)\n", ""},
	} {
		got := checkClock(loadTree(t, fstest.MapFS{"p/x.go": {Data: []byte(c.source)}}), nil)
		if c.want == "" && len(got) != 0 || c.want != "" && (len(got) == 0 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
	bad := loadTree(t, fstest.MapFS{"p/x.go": {Data: []byte(head + "var x = time.Now()\n")}})
	if got := checkClock(bad, map[string]string{"p/x.go": "why"}); len(got) != 0 {
		t.Errorf("a listed file: %q", got)
	}
	if got := checkClock(bad, map[string]string{"p/x.go": "why", "p/gone.go": "why"}); len(got) != 1 {
		t.Errorf("a listed file that needs no listing: %q", got)
	}
}

func checkClock(repo *tree, listed map[string]string) []string {
	var out []string
	unused := map[string]bool{}
	for name := range listed {
		unused[name] = true
	}
	for _, p := range repo.paths() {
		for _, f := range repo.packages[p].files {
			offences := f.clockOffences()
			if listed[f.name] == "" {
				out = append(out, offences...)
			} else if len(offences) > 0 {
				delete(unused, f.name)
			}
		}
	}
	for name := range unused {
		out = append(out, name+": listed as using the clock and does not")
	}
	return out
}

// clockOffences are the file's uses without a mark, and its marks without a use or a reason.
func (f *file) clockOffences() []string {
	var out []string
	marks := map[int]bool{} // by line; true once it has allowed something
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			reason, ok := strings.CutPrefix(c.Text, clockMark)
			if !ok {
				continue
			}
			marks[f.line(c.Pos())] = false
			if strings.TrimSpace(reason) == "" {
				out = append(out, fmt.Sprintf("%s:%d: %s needs a reason", f.name, f.line(c.Pos()), clockMark))
			}
		}
	}
	for _, use := range f.clockUses() {
		allowed := false
		for _, line := range []int{use.line, use.line - 1} {
			if _, ok := marks[line]; ok {
				marks[line], allowed = true, true
			}
		}
		if !allowed && !use.optional {
			out = append(out, fmt.Sprintf("%s:%d: %s: take the time or the source of chance from whoever calls, or say %s and why",
				f.name, use.line, use.what, clockMark))
		}
	}
	for line, used := range marks {
		if !used {
			out = append(out, fmt.Sprintf("%s:%d: this %s allows nothing", f.name, line, clockMark))
		}
	}
	return out
}

type clockUse struct {
	line     int
	what     string
	optional bool
}

func (f *file) clockUses() []clockUse {
	var out []clockUse
	local := map[string]string{} // name in this file → package
	for _, spec := range f.ast.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		funcs, watched := clockUses[imported]
		switch {
		case err != nil || !watched:
		case funcs == nil:
			out = append(out, clockUse{line: f.line(spec.Pos()), what: imported})
		case spec.Name == nil:
			local[path.Base(imported)] = imported
		case spec.Name.Name == ".":
			out = append(out, clockUse{line: f.line(spec.Pos()), what: "dot import of " + imported})
		default:
			local[spec.Name.Name] = imported
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok {
			from := local[x.Name]
			optional := slices.Contains(clockMayMark[from], sel.Sel.Name)
			if optional || slices.Contains(clockUses[from], sel.Sel.Name) {
				out = append(out, clockUse{f.line(sel.Pos()), from + "." + sel.Sel.Name, optional})
			}
		}
		return true
	})
	return out
}

func (f *file) line(pos token.Pos) int { return f.fset.Position(pos).Line }
