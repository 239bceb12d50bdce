package internal

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/yaml"
)

// The pages of docs/spec, each with the CRD that it describes.
const (
	claimPage = "docs/spec/gpunodeclaim.md"
	poolPage  = "docs/spec/gpunodepool.md"
	podPage   = "docs/spec/pods.md"
	claimCRD  = "config/crd/gpuscale.io_gpunodeclaims.yaml"
	poolCRD   = "config/crd/gpuscale.io_gpunodepools.yaml"
	typesDir  = "./api/v1alpha1"
)

// documented says on which pages a constant of the API has its line, by the start of its name. A Reason's page is the
// one that the comment of its block names.
var documented = []struct {
	prefix string
	pages  []string
}{
	{"PodReason", []string{podPage}},
	{"PodCondition", []string{podPage}},
	{"Annotation", []string{podPage}},
	{"Finalizer", []string{podPage}},
	{"Label", []string{podPage}},
	{"SchedulingGate", []string{podPage}},
	{"Condition", []string{claimPage, poolPage}},
	{"Phase", []string{claimPage}},
}

// nowhere is the page of a reason whose block names none, which is an offence of its own.
const nowhere = ""

// borrowed are fields of a claim that are a pool's, and described there.
var borrowed = []string{"spec.providers[].", "spec.requirements.", "spec.bootstrap."}

func TestDocs(t *testing.T) {
	for _, offence := range checkDocs(t, os.DirFS("..")) {
		t.Error(offence)
	}
}

func TestDocsCatchOffences(t *testing.T) {
	for name, c := range map[string]struct{ file, old, new, want string }{
		"nothing":                {poolPage, "", "", ""},
		"reason without a line":  {claimPage, "| `Gone` |", "| Gone |", "Gone has no line"},
		"reason on another page": {claimPage, "| `Gone` |", "", "Gone has no line"},
		"reason that is gone":    {claimPage, "| `Gone` |", "| `Gone` | x |\n| `Went` |", "Went is no reason"},
		"reason that is unused":  {"internal/x.go", "v1alpha1.ReasonGone", "1", "ReasonGone is used nowhere"},
		"only in a list":         {"internal/x.go", "func f() any { return v1alpha1.ReasonGone }", "var l = []string{v1alpha1.ReasonGone}", "ReasonGone is used nowhere"},
		"block without a page":   {"api/v1alpha1/x.go", "docs/spec/gpunodeclaim.md", "somewhere", "names no page"},
		"pod reason":             {podPage, "| `Served` |", "", "Served has no line"},
		"annotation":             {podPage, "| `gpuscale.io/model` |", "", "gpuscale.io/model has no line"},
		"condition":              {claimPage, "| `Idle` |", "", "Idle has no line"},
		"field":                  {poolPage, "| `spec.list[].name` |", "", "spec.list[].name has no line"},
		"field that is gone":     {poolPage, "| `spec.list` |", "| `spec.list` |\n| `spec.lists` |", "spec.lists is no field"},
		"status field":           {claimPage, "| `status.phase` |", "", "status.phase has no line"},
	} {
		root := fstest.MapFS{
			"api/v1alpha1/x.go": {Data: []byte("// Package v1alpha1 is.\npackage v1alpha1\n\n// Reasons, in docs/spec/gpunodeclaim.md.\n" +
				"const (\n\tReasonGone = \"Gone\"\n)\n\nconst (\n\tPodReasonServed = \"Served\"\n\tAnnotationModel = \"gpuscale.io/model\"\n\tConditionIdle = \"Idle\"\n)\n")},
			"internal/x.go": {Data: []byte("// Package internal is.\npackage internal\n\nfunc f() any { return v1alpha1.ReasonGone }\n\nfunc g() any { return v1alpha1.PodReasonServed }\n")},
			claimPage:       {Data: []byte("| `status.phase` |\n| `Idle` |\n## Reasons and events\n| `Gone` |\n")},
			poolPage:        {Data: []byte("| `spec.list` |\n| `spec.list[].name` |\n")},
			podPage:         {Data: []byte("| `gpuscale.io/model` |\n## Reasons and events\n| `Served` |\n")},
			claimCRD:        {Data: []byte(crdOf("status", "phase: {type: string}"))},
			poolCRD:         {Data: []byte(crdOf("spec", "list: {type: array, items: {properties: {name: {type: string}}}}"))},
		}
		if !strings.Contains(string(root[c.file].Data), c.old) {
			t.Fatalf("%s: nothing to plant the offence in", name)
		}
		root[c.file] = &fstest.MapFile{Data: []byte(strings.Replace(string(root[c.file].Data), c.old, c.new, 1))}
		got := checkDocs(t, root)
		if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
}

func crdOf(part, fields string) string {
	return "spec: {versions: [{schema: {openAPIV3Schema: {properties: {" + part + ": {properties: {" + fields + "}}}}}}]}"
}

// checkDocs compares docs/spec with the API's constants and the CRDs.
func checkDocs(t *testing.T, root fs.FS) []string {
	t.Helper()
	pages := map[string]string{}
	for _, page := range []string{claimPage, poolPage, podPage} {
		pages[page] = read(t, root, page)
	}
	repo := loadTree(t, root)
	constants, out := declared(repo)
	for _, c := range constants {
		if !slices.ContainsFunc(c.pages, func(page string) bool { return page == nowhere || hasRow(pages[page], c.value) }) {
			out = append(out, fmt.Sprintf("%s: %s has no line in a table", strings.Join(c.pages, ", "), c.value))
		}
	}
	out = append(out, unused(repo, constants)...)
	for _, page := range []string{claimPage, poolPage, podPage} {
		out = append(out, strays(page, pages[page], constants)...)
	}
	out = append(out, checkFields(claimPage, pages[claimPage], fields(t, root, claimCRD), borrowed)...)
	return append(out, checkFields(poolPage, pages[poolPage], fields(t, root, poolCRD), nil)...)
}

func read(t *testing.T, root fs.FS, name string) string {
	t.Helper()
	data, err := fs.ReadFile(root, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// firstCell finds the first cell of a table's row where it is one piece of code.
var firstCell = regexp.MustCompile("(?m)^\\| `([^`]+)`[^|]*\\|")

func hasRow(page, value string) bool { return slices.Contains(rows(page), value) }

func rows(page string) []string {
	var out []string
	for _, m := range firstCell.FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	return out
}

// constant is one of the API's words.
type constant struct {
	name, value string
	pages       []string
}

func (c constant) reason() bool {
	return strings.HasPrefix(c.name, "Reason") || strings.HasPrefix(c.name, "PodReason")
}

var pageNamed = regexp.MustCompile(`docs/spec/[a-z]+\.md`)

// declared are the constants that must be documented, and the blocks of reasons that do not say where.
func declared(repo *tree) (found []constant, offences []string) {
	for _, f := range repo.packages[typesDir].files {
		for _, d := range f.ast.Decls {
			block, ok := d.(*ast.GenDecl)
			if !ok || block.Tok != token.CONST {
				continue
			}
			own := pageNamed.FindString(block.Doc.Text())
			nameless := false
			for _, c := range constantsOf(block) {
				if strings.HasPrefix(c.name, "Reason") {
					nameless = nameless || own == nowhere
					c.pages = []string{own}
				}
				if len(c.pages) > 0 {
					found = append(found, c)
				}
			}
			if nameless {
				offences = append(offences, fmt.Sprintf("%s:%d: a block of reasons whose comment names no page of docs/spec",
					f.name, f.fset.Position(block.Pos()).Line))
			}
		}
	}
	return found, offences
}

func constantsOf(block *ast.GenDecl) []constant {
	var out []constant
	for _, s := range block.Specs {
		spec, ok := s.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			continue
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			continue
		}
		c := constant{name: spec.Names[0].Name}
		if value, err := strconv.Unquote(lit.Value); err == nil {
			c.value = value
		}
		for _, d := range documented {
			if strings.HasPrefix(c.name, d.prefix) && c.name != "AnnotationPrefix" && len(c.pages) == 0 {
				c.pages = d.pages
			}
		}
		out = append(out, c)
	}
	return out
}

// unused are the reasons that no code gives. A list at the top of a file, such as that of the reasons to warn of, gives
// none.
func unused(repo *tree, constants []constant) []string {
	given := map[string]bool{}
	for path, p := range repo.packages {
		if path == typesDir {
			continue
		}
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				if block, ok := d.(*ast.GenDecl); ok && block.Tok == token.VAR {
					continue
				}
				ast.Inspect(d, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok {
						given[s.Sel.Name] = true
					}
					return true
				})
			}
		}
	}
	var out []string
	for _, c := range constants {
		if c.reason() && !given[c.name] {
			out = append(out, fmt.Sprintf("%s: %s is used nowhere", typesDir, c.name))
		}
	}
	return out
}

// strays are rows under "Reasons" that document what does not exist.
func strays(page, text string, constants []constant) []string {
	_, after, _ := strings.Cut(text, "\n## Reasons and events\n")
	section, _, _ := strings.Cut(after, "\n## ")
	var out []string
	for _, value := range rows(section) {
		if !slices.ContainsFunc(constants, func(c constant) bool {
			return c.value == value && c.reason() && (slices.Contains(c.pages, page) || slices.Contains(c.pages, nowhere))
		}) {
			out = append(out, fmt.Sprintf("%s: %s is no reason", page, value))
		}
	}
	return out
}

// schema is the part of a CRD's schema that names fields.
type schema struct {
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// fields are the paths of everything below spec and status, lists as name[]. What Kubernetes itself defines, the fields
// of a condition, is left out.
func fields(t *testing.T, root fs.FS, name string) []string {
	t.Helper()
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(read(t, root, name)), &crd); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var out []string
	for _, version := range crd.Spec.Versions {
		for _, part := range []string{"spec", "status"} {
			out = version.Schema.OpenAPIV3Schema.Properties[part].collect(out, part)
		}
	}
	slices.Sort(out)
	return out
}

func (s schema) collect(out []string, path string) []string {
	if s.Items != nil {
		return s.Items.collect(out, path+"[]")
	}
	for name, field := range s.Properties {
		full := path + "." + name
		out = append(out, full)
		if full != "status.conditions" {
			out = field.collect(out, full)
		}
	}
	return out
}

func checkFields(page, text string, want, elsewhere []string) []string {
	var out []string
	for _, field := range want {
		if slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(field, prefix) }) {
			continue
		}
		if !hasRow(text, field) {
			out = append(out, fmt.Sprintf("%s: the field %s has no line in a table", page, field))
		}
	}
	for _, row := range rows(text) {
		if (strings.HasPrefix(row, "spec.") || strings.HasPrefix(row, "status.")) && !slices.Contains(want, row) {
			out = append(out, fmt.Sprintf("%s: %s is no field", page, row))
		}
	}
	return out
}
