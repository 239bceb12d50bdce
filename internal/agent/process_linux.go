package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// childAttr gives an engine a process group of its own, by which it is killed with all its workers, and has the kernel
// kill it when the agent dies without having done so.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killMarked kills every process that has entry in its environment: what an engine started and what then left its group.
// It looks again until none is left, since one may have started another meanwhile, but not for ever: a process that
// cannot be killed hangs in the kernel.
func killMarked(entry string) {
	const passes = 5
	for range passes {
		found := false
		paths, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return
		}
		for _, path := range paths {
			// One that has ended, or is another user's, cannot be read and is none of ours. A zombie's is empty.
			text, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(text, []byte(entry)) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && pid != os.Getpid() {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL) // It may have just ended.
			}
		}
		if !found {
			return
		}
	}
}
