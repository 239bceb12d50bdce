package internal

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// checklist is the page that says how a provider is added.
const checklist = "docs/checklists/add-a-provider.md"

// driverFiles are in every driver's folder, in the order in which the checklist has them; the first has the folder's
// name. driverExtras may be there too, each for its reason.
var (
	driverFiles  = []string{"", "wire.go", "errors.go", "search.go", "create.go", "instances.go"}
	driverTests  = []string{"contract_test.go", "quirks_test.go", "broken_test.go"}
	driverExtras = map[string]string{
		"charges.go":   "the account of charges that a vendor publishes (provider.Accountant)",
		"token.go":     "a login that is exchanged for a token of short life",
		"leftovers.go": "what a rental makes besides the instance, and what of it bills on",
	}
	// fromTheVendor are the kinds that only a vendor's answer can mean.
	fromTheVendor = []string{"OfferGone", "NoCapacity", "Quota", "RateLimited"}
)

func TestDriverFolders(t *testing.T) {
	root := os.DirFS("..")
	offences, n := checkDriverFolders(t, root)
	for _, offence := range offences {
		t.Error(offence)
	}
	if n < 3 {
		t.Errorf("only %d drivers found: the test looks in the wrong place", n)
	}
}

func TestDriverFoldersCatchOffences(t *testing.T) {
	good := func() fstest.MapFS {
		out := fstest.MapFS{
			"internal/cloudsim/acme/server.go": {Data: []byte("// Package acme is.\npackage acme\n")},
			"internal/cloudsim/acme/doc.go":    {Data: []byte("package acme\n")},
			"pkg/provider/rest/rest.go":        {Data: []byte("// Package rest is.\npackage rest\n")},
		}
		page := ""
		for _, name := range slices.Concat(driverFiles, driverTests) {
			page += "| `" + shownName(name) + "` | x |\n"
			if name == "" {
				name = "acme.go"
			}
			out["pkg/provider/acme/"+name] = &fstest.MapFile{Data: []byte("package acme\n")}
		}
		for name := range driverExtras {
			page += "| `" + name + "` | x |\n"
		}
		out[checklist] = &fstest.MapFile{Data: []byte(page)}
		return out
	}
	for name, c := range map[string]struct{ path, source, want string }{
		"good":                    {},
		"an extra":                {"pkg/provider/acme/charges.go", "package acme\n", ""},
		"a test of its own":       {"pkg/provider/acme/odd_test.go", "package acme\n", ""},
		"a file too many":         {"pkg/provider/acme/client.go", "package acme\n", "client.go"},
		"a file is missing":       {"pkg/provider/acme/wire.go", "", "wire.go"},
		"a test is missing":       {"pkg/provider/acme/quirks_test.go", "", "quirks_test.go"},
		"a type of the wire":      {"pkg/provider/acme/create.go", "package acme\ntype a struct{ B int `json:\"b\"` }\n", "wire.go"},
		"a type inside":           {"pkg/provider/acme/create.go", "package acme\nfunc f() { var a struct{ B int `json:\"b\"` }; _ = a }\n", "wire.go"},
		"a kind elsewhere":        {"pkg/provider/acme/create.go", "package acme\nimport \"x/provider\"\nvar a = provider.Quota\n", "errors.go"},
		"no façade":               {"internal/cloudsim/acme/server.go", "", "façade"},
		"the page leaves one out": {checklist, "| `wire.go` |\n", "no line"},
	} {
		root := good()
		switch {
		case c.source != "":
			root[c.path] = &fstest.MapFile{Data: []byte(c.source)}
		case c.path != "":
			delete(root, c.path)
		}
		got, _ := checkDriverFolders(t, root)
		if c.want == "" && len(got) > 0 || c.want != "" && !strings.Contains(strings.Join(got, "\n"), c.want) {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
}

// shownName is a file's name as the checklist has it.
func shownName(name string) string {
	if name == "" {
		return "<name>.go"
	}
	return name
}

// checkDriverFolders wants the same files in every driver's folder, and in each what belongs there. It returns how many
// drivers there are.
func checkDriverFolders(t *testing.T, root fs.FS) (offences []string, drivers int) {
	t.Helper()
	page, err := fs.ReadFile(root, checklist)
	if err != nil {
		t.Fatal(err)
	}
	extras := []string{}
	for name := range driverExtras {
		extras = append(extras, name)
	}
	for _, name := range slices.Concat(driverFiles, driverTests, extras) {
		if !strings.Contains(string(page), "| `"+shownName(name)+"` |") {
			offences = append(offences, fmt.Sprintf("%s has no line for %s", checklist, shownName(name)))
		}
	}
	repo := loadTree(t, root)
	for _, dir := range repo.paths() {
		if !matches("./pkg/provider/*", dir) || matchesAny(notDrivers, dir) {
			continue
		}
		drivers++
		offences = append(offences, checkDriverNames(t, root, strings.TrimPrefix(dir, "./"))...)
		for _, f := range repo.packages[dir].files {
			offences = append(offences, checkDriverFile(f)...)
		}
		if repo.packages["./internal/cloudsim/"+path.Base(dir)] == nil || !exists(root, "internal/cloudsim/"+path.Base(dir)+"/server.go") {
			offences = append(offences, dir+" has no façade: internal/cloudsim/"+path.Base(dir)+"/server.go")
		}
	}
	return offences, drivers
}

func exists(root fs.FS, name string) bool {
	_, err := fs.Stat(root, name)
	return err == nil
}

// checkDriverNames wants every file of the list, and no source file that the list does not have.
func checkDriverNames(t *testing.T, root fs.FS, dir string) (offences []string) {
	t.Helper()
	own := path.Base(dir) + ".go"
	for _, name := range slices.Concat(driverFiles, driverTests) {
		if name == "" {
			name = own
		}
		if !exists(root, path.Join(dir, name)) {
			offences = append(offences, fmt.Sprintf("%s has no %s (%s)", dir, name, checklist))
		}
	}
	entries, err := fs.ReadDir(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		known := name == own || slices.Contains(driverFiles, name) || driverExtras[name] != ""
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !known {
			offences = append(offences, fmt.Sprintf("%s/%s is in no other driver: name it as the others do, or give it a reason in %s",
				dir, name, checklist))
		}
	}
	return offences
}

// checkDriverFile wants types of the wire in wire.go, and in errors.go the kinds that only a vendor's answer can mean.
func checkDriverFile(f *file) (offences []string) {
	base := path.Base(f.name)
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			for _, field := range n.Fields.List {
				if field.Tag != nil && strings.Contains(field.Tag.Value, `json:"`) && base != "wire.go" {
					offences = append(offences, f.name+" has a type of the vendor's JSON, which belongs in wire.go")
					return false
				}
			}
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && x.Name == "provider" && slices.Contains(fromTheVendor, n.Sel.Name) && base != "errors.go" {
				offences = append(offences, fmt.Sprintf("%s decides on %s, which belongs in errors.go", f.name, n.Sel.Name))
			}
		}
		return true
	})
	return offences
}
