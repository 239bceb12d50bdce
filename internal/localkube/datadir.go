package localkube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	tempPrefix = "gpuscale-localkube-"
	lockName   = "lock"
)

// dataDir is a folder that this process alone uses until close.
type dataDir struct {
	path      string
	temporary bool
	lock      *os.File
}

// openDataDir takes the folder at path, made when missing, or a temporary one when path is empty.
func openDataDir(path string) (*dataDir, error) {
	if path == "" {
		return openTempDir()
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockDir(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s is in use by another local Kubernetes", path)
	}
	if err != nil {
		return nil, err
	}
	return &dataDir{path: path, lock: lock}, nil
}

func openTempDir() (*dataDir, error) {
	removeAbandoned()
	for {
		path, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return nil, err
		}
		lock, err := lockDir(path)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			continue // Another process took it for abandoned before it was locked.
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(path))
		}
		// The same, but that process has finished removing it.
		if _, err := os.Stat(filepath.Join(path, lockName)); err != nil {
			_ = lock.Close()
			continue
		}
		return &dataDir{path: path, temporary: true, lock: lock}, nil
	}
}

// removeAbandoned removes the temporary folders of processes that were killed: each has etcd's log in it, which
// reserves 64 MB or more at once. Nothing depends on it, so its failures are not reported.
func removeAbandoned() {
	paths, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		// A folder without a lock is being made at this moment.
		if _, err := os.Stat(filepath.Join(path, lockName)); err != nil {
			continue
		}
		if lock, err := lockDir(path); err == nil {
			_ = os.RemoveAll(path)
			_ = lock.Close()
		}
	}
}

// lockDir takes the folder's lock, which the kernel gives back when this process ends, however it ends.
func lockDir(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// close gives the folder up, and removes it when it was temporary.
func (d *dataDir) close() error {
	var err error
	if d.temporary {
		err = os.RemoveAll(d.path)
	}
	return errors.Join(err, d.lock.Close())
}
