package localkube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/munhq/gpuscale/internal/child"
)

// process is one running component. Its output goes to a file, so that a failure can be explained after the fact and
// a chatty component never blocks on a pipe.
type process struct {
	name    string
	logPath string
	cmd     *exec.Cmd
	exited  <-chan struct{} // closed when the process is gone
	// expected is set where the process is about to be ended by us alone; the cluster's lock guards it.
	expected bool
}

// startProcess runs bin and calls onExit, if it started, once it is gone.
func startProcess(name, bin string, args []string, dir string, onExit func(*process)) (*process, error) {
	p := &process{name: name, logPath: filepath.Join(dir, name+".log")}
	logFile, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(bin, args...) //nolint:noctx // Its life is the cluster's, which calls stop; no call's context bounds it.
	p.cmd.Stdout, p.cmd.Stderr = logFile, logFile
	p.cmd.Dir = dir
	p.cmd.SysProcAttr = child.Attr(syscall.SIGKILL)
	if p.exited, err = child.Start(p.cmd, func() { _ = logFile.Close() }); err != nil { // The child has its own descriptor.
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		<-p.exited
		onExit(p)
	}()
	return p, nil
}

// stop ends the process and returns once it is gone. With a grace it is asked first; without, it is killed.
func (p *process) stop(grace time.Duration) error {
	if grace > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // Already gone is what is wanted.
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.exited:
			return nil
		case <-timer.C:
		}
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s (pid %d): %w", p.name, p.cmd.Process.Pid, err)
	}
	<-p.exited
	return nil
}

// failure says how a process that has exited ended, with the end of its log.
func (p *process) failure() error {
	return fmt.Errorf("%s ended unexpectedly (%s)%s", p.name, p.cmd.ProcessState, p.logTail())
}

const (
	tailBytes = 8 << 10
	tailLines = 15
)

// logTail is the end of the component's log in a form to append to an error.
func (p *process) logTail() string {
	f, err := os.Open(p.logPath)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // It was only read.
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(f)
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return "; it logged nothing"
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	lines = lines[max(0, len(lines)-tailLines):]
	return fmt.Sprintf("; the end of its log:\n  %s", bytes.Join(lines, []byte("\n  ")))
}
