package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
)

// roll is a log file that keeps about the last so many bytes, in two files of half of them.
type roll struct {
	path string
	half int

	mu      sync.Mutex
	file    *os.File
	written int
}

var errClosed = errors.New("the log is closed")

// newRoll goes on where an earlier start of the same instance ended.
func newRoll(path string, size int) (*roll, error) {
	r := &roll{path: path, half: max(1, size/2)}
	if err := r.open(os.O_APPEND); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *roll) open(flag int) error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|flag, 0o600)
	if err != nil {
		return err
	}
	r.file, r.written = f, 0
	if info, err := f.Stat(); err == nil {
		r.written = int(info.Size())
	}
	return nil
}

// Write keeps b, and forgets the oldest half where there is no more room.
func (r *roll) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return 0, errClosed
	}
	if r.written > 0 && r.written+len(b) > r.half {
		if err := errors.Join(r.file.Close(), os.Rename(r.path, r.path+".1")); err != nil {
			return 0, err
		}
		if err := r.open(os.O_TRUNC); err != nil {
			return 0, err
		}
	}
	n, err := r.file.Write(b)
	r.written += n
	return n, err
}

// Close ends the writing; what is there can still be read.
func (r *roll) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// drain copies from until its end. What cannot be kept is dropped, since a writer that is not read would stop.
func (r *roll) drain(from io.ReadCloser) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		_, _ = r.Write(buf[:n])
		if err != nil {
			_ = from.Close()
			return
		}
	}
}

// tail is the last lines, or everything that is kept when lines is 0.
func (r *roll) tail(lines int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []byte
	for _, path := range []string{r.path + ".1", r.path} {
		if b, err := os.ReadFile(path); err == nil {
			out = append(out, b...)
		}
	}
	if lines <= 0 {
		return out
	}
	end := len(bytes.TrimRight(out, "\n"))
	for at := end; at > 0; {
		at = bytes.LastIndexByte(out[:at], '\n')
		if lines--; lines == 0 || at < 0 {
			return out[at+1:]
		}
	}
	return out
}
