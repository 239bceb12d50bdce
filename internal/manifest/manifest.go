// Package manifest reads what a user would apply, without a cluster: pools by the very schema and rules of their CRD, and
// pods and what makes pods. What the API server would refuse is refused here in the same words, with the line where it is.
package manifest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Set is what some files have. All of it has the defaults that the API server would give.
type Set struct {
	Pools  []*v1alpha1.GPUNodePool
	Claims []*v1alpha1.GPUNodeClaim
	// Pods are those of the files and those that Deployments, StatefulSets, ReplicaSets and Jobs would make.
	Pods    []*corev1.Pod
	Secrets []*corev1.Secret
	// PassedOver are the other documents, for people: "x.yaml:12: Service web".
	PassedOver []string
}

// Read reads files, folders (their *.yaml, *.yml and *.json), and standard input where a path is "-". Objects without a
// namespace are in the given one. The error joins everything that is wrong, each with its file and line.
func Read(paths []string, stdin io.Reader, namespace string) (*Set, error) {
	r := &reader{namespace: namespace, set: &Set{}, seen: map[string]string{}}
	for _, p := range paths {
		r.path(p, stdin)
	}
	return r.set, errors.Join(r.errs...)
}

type reader struct {
	namespace string
	set       *Set
	errs      []error
	// seen is where each object was.
	seen map[string]string
}

func (r *reader) path(path string, stdin io.Reader) {
	if path == "-" {
		text, err := io.ReadAll(stdin)
		r.text("standard input", text, err)
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		r.fail(err)
		return
	}
	files := []string{path}
	if info.IsDir() {
		if files = manifestsIn(path); len(files) == 0 {
			r.fail(fmt.Errorf("%s has no *.yaml, *.yml or *.json", path))
		}
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		r.text(f, text, err)
	}
}

func manifestsIn(dir string) []string {
	var out []string
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err == nil { // a pattern of ours is never malformed
			out = append(out, found...)
		}
	}
	slices.Sort(out)
	return out
}

func (r *reader) text(file string, text []byte, err error) {
	if err != nil {
		r.fail(err)
		return
	}
	for _, d := range split(file, string(text)) {
		r.document(d)
	}
}

func (r *reader) fail(err error) { r.errs = append(r.errs, err) }

// document is one of a file's.
type document struct {
	file string
	// line is that of its first line, from 1.
	line int
	text string
}

// split cuts a file at its lines of three dashes.
func split(file, text string) []document {
	var out []document
	d := document{file: file, line: 1}
	n := 0
	for line := range strings.Lines(text) {
		n++
		if strings.HasPrefix(line, "---") {
			out = append(out, d)
			d = document{file: file, line: n + 1}
			continue
		}
		d.text += line
	}
	return append(out, d)
}

// at is a place in the document, for people.
func (d document) at(line int) string { return fmt.Sprintf("%s:%d", d.file, line) }
