package internal

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestEveryControllerTestHasTheStatusChecker: tests that run the controllers have what they say checked in the end.
func TestEveryControllerTestHasTheStatusChecker(t *testing.T) {
	for _, offence := range unchecked(t, os.DirFS("..")) {
		t.Error(offence)
	}
}

func TestAControllerTestWithoutTheStatusCheckerIsFound(t *testing.T) {
	got := unchecked(t, fstest.MapFS{
		"a/x_test.go":        {Data: []byte("operator.Run(")},
		"a/y_test.go":        {Data: []byte("package a")},
		"b/x_test.go":        {Data: []byte("operator.Run(")},
		"b/y_test.go":        {Data: []byte("statuscheck.Watch(")},
		"c/x_test.go":        {Data: []byte("localkubetest.Start(")},
		"d/x.go":             {Data: []byte("operator.Run(")},
		"vendor/v/x_test.go": {Data: []byte("package v")},
	})
	if len(got) != 1 || !strings.Contains(got[0], "a:") {
		t.Errorf("found %q, want a alone", got)
	}
}

func unchecked(t *testing.T, root fs.FS) []string {
	t.Helper()
	const runs, checks = "operator.Run(", "statuscheck.Watch("
	has := map[string]map[string]bool{runs: {}, checks: {}}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") || name == "internal/harness_test.go" {
			return err
		}
		text, err := fs.ReadFile(root, name)
		for word, in := range has {
			if strings.Contains(string(text), word) {
				in[path.Dir(name)] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for dir := range has[runs] {
		if !has[checks][dir] {
			out = append(out, fmt.Sprintf("%s: runs the controllers without statuscheck.Watch: a status that contradicts itself would go unseen", dir))
		}
	}
	slices.Sort(out)
	return out
}
