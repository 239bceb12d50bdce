// Package librarylog says where the Kubernetes libraries log. They have one logger for the whole process and read it
// without a lock, also from what goes on after whoever set it has ended, so that it can be set but once.
package librarylog

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

var (
	once sync.Once
	to   atomic.Pointer[io.Writer]
	log  logr.Logger
)

// To sends what the libraries log to w from now on, and returns a logger that goes there too, until the next call. The
// first call of a process decides the format. It may be called concurrently; w must be good for the life of the process.
func To(w io.Writer, format func(io.Writer) slog.Handler) logr.Logger {
	to.Store(&w)
	once.Do(func() {
		log = logr.FromSlogHandler(format(current{}))
		ctrllog.SetLogger(log)
		klog.SetLogger(log.WithName("kubernetes"))
	})
	return log
}

// current writes to the newest writer.
type current struct{}

// Write hands a record on.
func (current) Write(p []byte) (int, error) { return (*to.Load()).Write(p) }

// JSON is a record as one line of JSON, for machines.
func JSON(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) }

// Text is a record as a line to read.
func Text(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }
