package internal

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/munhq/gpuscale"

// The checks below take a tree, so that each can be shown a planted offence as well as the repository.

// tree is the Go source of a module, without nested modules and testdata.
type tree struct {
	packages map[string]*pkg // by path as in rules: ./pkg/money
	// deps are everything that a package needs, other modules' imports included, where the go command was asked.
	deps map[string][]string
}

type pkg struct {
	path  string
	files []*file
}

// file is one source file that is not a test.
type file struct {
	name  string // from the module's root
	ast   *ast.File
	fset  *token.FileSet
	lines int
}

func loadTree(t *testing.T, root fs.FS) *tree {
	t.Helper()
	out := &tree{packages: map[string]*pkg{}}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipDir(root, name)
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		return out.add(root, name)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func skipDir(root fs.FS, name string) error {
	base := path.Base(name)
	if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "vendor") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && name != "." {
		return fs.SkipDir
	}
	return nil
}

func (t *tree) add(root fs.FS, name string) error {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	f := &file{name: name, fset: token.NewFileSet(), lines: bytes.Count(data, []byte("\n"))}
	if f.ast, err = parser.ParseFile(f.fset, name, data, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return err
	}
	dir := "./" + path.Dir(name)
	if t.packages[dir] == nil {
		t.packages[dir] = &pkg{path: dir}
	}
	t.packages[dir].files = append(t.packages[dir].files, f)
	return nil
}

// paths are the packages' paths, sorted.
func (t *tree) paths() []string {
	var out []string
	for p := range t.packages {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// imports are what the package's own files import, ours as ./path.
func (p *pkg) imports() []string {
	var out []string
	for _, f := range p.files {
		for _, spec := range f.ast.Imports {
			if name, err := strconv.Unquote(spec.Path.Value); err == nil {
				out = append(out, ours(name))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ours(importPath string) string {
	if importPath == module {
		return "./."
	}
	if rest, ok := strings.CutPrefix(importPath, module+"/"); ok {
		return "./" + rest
	}
	return importPath
}

var generatedLine = regexp.MustCompile(`^// Code generated .* DO NOT EDIT\.$`)

// generated reports Go's own mark of generated source.
func (f *file) generated() bool {
	for _, group := range f.ast.Comments {
		if group.Pos() > f.ast.Package {
			return false
		}
		for _, c := range group.List {
			if generatedLine.MatchString(c.Text) {
				return true
			}
		}
	}
	return false
}

// repository is the module that this test belongs to, with the dependencies of other modules too if deep.
func repository(t *testing.T, deep bool) *tree {
	t.Helper()
	out := loadTree(t, os.DirFS(".."))
	if len(out.packages) < 5 {
		t.Fatalf("only %d packages found: the test looks in the wrong place", len(out.packages))
	}
	if deep {
		out.deps = goListDeps(t)
	}
	return out
}

// goListDeps asks the go command, since only it knows what other modules import. -e: a package that does not compile
// at the moment fails its own build, not this test.
func goListDeps(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Deps", "./...")
	cmd.Dir = ".."
	data, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := map[string][]string{}
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var p struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			return deps
		} else if err != nil {
			t.Fatal(err)
		}
		for _, d := range p.Deps {
			deps[ours(p.ImportPath)] = append(deps[ours(p.ImportPath)], ours(d))
		}
	}
}
