package localstack

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/munhq/gpuscale/internal/librarylog"
)

// programs are the paths of what an instance runs.
type programs struct{ agent, vllm string }

func findPrograms(dir string) (programs, error) {
	if dir == "" {
		own, err := os.Executable()
		if err != nil {
			return programs{}, err
		}
		dir = filepath.Dir(own)
	}
	var p programs
	for name, path := range map[string]*string{"gpuscale-agent": &p.agent, "vllm-sim": &p.vllm} {
		*path = filepath.Join(dir, name)
		if info, err := os.Stat(*path); err == nil && info.Mode().IsRegular() {
			continue
		}
		found, err := exec.LookPath(name)
		if err != nil {
			return p, fmt.Errorf("%s is neither in %s nor in the PATH; `make build` makes it", name, dir)
		}
		*path = found
	}
	return p, nil
}

// openLog sends what controllers, gateway and client libraries log to a file: the terminal belongs to whoever started
// the stack.
func (s *Stack) openLog() error {
	s.LogFile = filepath.Join(s.dir, "gpuscale.log")
	f, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Not closed: libraries log to it until the process ends.
	librarylog.To(f, librarylog.Text)
	s.log = logr.FromSlogHandler(slog.NewTextHandler(f, nil))
	return nil
}

// removeDir removes the folder of a stack that leaves nothing behind, or all but the log.
func (s *Stack) removeDir() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		if !s.keepLog || path != s.LogFile {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	if !s.keepLog {
		errs = append(errs, os.Remove(s.dir))
	}
	return errors.Join(errs...)
}
