// Command cmd measures gpuscale: it runs the tests of the groups that are named (all without a name), one after the
// other and without the race detector, prints a table, and writes bench.json.
//
// It fails when a figure could not be measured. One that misses its aim is shown and written as such and is no failure:
// an aim is of the machine that docs/benchmarks.md names.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/internal/bench"
)

// result is where the figures are written, in the folder that the command runs in.
const result = "bench.json"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(names []string) (err error) {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpuscale-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	values := filepath.Join(dir, "values")
	var failed error
	for _, g := range chosen {
		fmt.Printf("== %s\n", g.Name)
		if err := measure(g, values); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", g.Name, err))
		}
	}
	figures, missing, err := bench.Read(values, chosen)
	if err != nil {
		return errors.Join(failed, err)
	}
	if len(missing) > 0 {
		failed = errors.Join(failed, fmt.Errorf("not measured: %s", strings.Join(missing, ", ")))
	}
	if err := bench.Table(os.Stdout, figures); err != nil {
		return err
	}
	text, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(failed, os.WriteFile(result, append(text, '\n'), 0o600))
}

func choose(names []string) ([]bench.Group, error) {
	if len(names) == 0 {
		return bench.Groups(), nil
	}
	var out []bench.Group
	for _, name := range names {
		i := slices.IndexFunc(bench.Groups(), func(g bench.Group) bool { return g.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("nothing is called %q", name)
		}
		out = append(out, bench.Groups()[i])
	}
	return out, nil
}

func measure(g bench.Group, values string) error {
	// The tag is the one that the controller's image is built with.
	//nolint:noctx // Both are from the list of groups; it runs until it is done, or is interrupted with this process.
	cmd := exec.Command("go", "test", "-tags=grpcnotrace", g.Package, "-run", "^"+g.Test+"$", "-count=1", "-timeout=20m", "-v")
	cmd.Env = append(os.Environ(), bench.Env+"="+values)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
