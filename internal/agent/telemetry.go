package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Telemetry is where readings of the GPUs come from.
type Telemetry interface {
	// Run reads until ctx ends. It returns early where there is nothing to read.
	Run(ctx context.Context)
	// Latest is the newest reading, false when there is none or it is too old to speak for now. It may be called at any
	// time, concurrently.
	Latest() (Reading, bool)
}

const (
	// telemetryInterval is how often nvidia-smi looks: often enough for every scrape to see news. Each look takes the
	// driver's lock for some milliseconds.
	telemetryInterval = 10 * time.Second
	// staleAfter is how many intervals a reading speaks for.
	staleAfter = 3
	// maxDocument bounds one report: eight GPUs with a thousand processes need half a megabyte.
	maxDocument = 4 << 20
	// maxTelemetryBackOff is the longest wait before nvidia-smi is started again.
	maxTelemetryBackOff = 5 * time.Minute
	// telemetryEnd is how long a killed nvidia-smi is waited for: one that hangs in the driver cannot be killed.
	telemetryEnd = 2 * time.Second
)

// SMITelemetry reads the reports of one long-lived nvidia-smi. The zero value works; a machine without the program has no
// readings.
type SMITelemetry struct {
	// Path of the program; empty means nvidia-smi in the PATH.
	Path string
	// Interval between reports (10 s), told to nvidia-smi in whole seconds, and Patience for each (90 s, as long as a first
	// report may take on a machine without persistence mode).
	Interval, Patience time.Duration
	// Clock times staleness and back-off; nil means RealClock.
	Clock Clock
	// Log takes a line for each time nvidia-smi ends; nil drops them.
	Log *slog.Logger

	mu     sync.Mutex
	latest Reading
	at     time.Time
}

var (
	errHangs    = errors.New("nvidia-smi reports nothing")
	errDocument = errors.New("nvidia-smi's report is not understood")
)

// Latest is the newest reading that is not older than three intervals.
func (t *SMITelemetry) Latest() (Reading, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at.IsZero() || t.clock().Now().Sub(t.at) > staleAfter*t.interval() {
		return Reading{}, false
	}
	return t.latest, true
}

// Run keeps one nvidia-smi running. When it ends, hangs or writes what is not understood, it is killed and started again,
// after a wait that doubles until a report is read.
func (t *SMITelemetry) Run(ctx context.Context) {
	path, err := exec.LookPath(t.program())
	if err != nil {
		t.log().Info("no nvidia-smi, so no readings of GPUs")
		return
	}
	wait := t.interval()
	for {
		read, gone, err := t.follow(ctx, path)
		if ctx.Err() != nil {
			return
		}
		if read {
			wait = t.interval()
		}
		t.log().Warn("nvidia-smi ended", "reason", err, "restartIn", wait)
		select {
		case <-gone: // Never two at once.
		case <-ctx.Done():
			return
		}
		if t.clock().Wait(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, maxTelemetryBackOff)
	}
}

// follow runs one nvidia-smi for as long as it reports. read says whether it ever did; gone is closed once the process is,
// which for one that hangs in the driver may be never.
func (t *SMITelemetry) follow(ctx context.Context, path string) (read bool, gone <-chan struct{}, err error) {
	output, reaped, kill, err := t.start(ctx, path)
	if err != nil {
		return false, closed(), err
	}
	defer func() {
		kill()
		ended, cancel := within(context.WithoutCancel(ctx), t.clock(), telemetryEnd)
		defer cancel()
		select {
		case <-reaped:
		case <-ended.Done():
		}
	}()
	documents := make(chan []byte)
	done := make(chan struct{})
	defer close(done)
	failed := make(chan error, 1)
	go func() { failed <- split(output, documents, done) }()
	for {
		patience, cancel := within(ctx, t.clock(), t.patience())
		select {
		case document := <-documents:
			cancel()
			reading, perr := parseReading(document)
			if perr != nil {
				return read, reaped, perr
			}
			t.keep(reading)
			read = true
		case err := <-failed:
			cancel()
			return read, reaped, err
		case <-patience.Done():
			cancel()
			return read, reaped, errHangs
		}
	}
}

// start starts the program. kill ends it with all that it started, and its output; reaped is closed once it is gone.
func (t *SMITelemetry) start(ctx context.Context, path string) (output io.Reader, reaped <-chan struct{}, kill func(), err error) {
	seconds := max(1, int((t.interval()+time.Second-1)/time.Second))
	//nolint:noctx // It is killed with its group below, and waited for no longer than it deserves.
	cmd := exec.Command(path, "-q", "-x", "-l", strconv.Itoa(seconds))
	cmd.SysProcAttr = childAttr()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		// The kernel takes the death of the thread that started a process for the death of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_, _ = cmd.Process.Wait() // How it ended is nothing to anyone.
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, nil, err
	}
	kill = func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // It may be gone already.
		_ = pipe.Close()                                    // Ends the reader, also when a grandchild holds the other end.
	}
	if ctx.Err() != nil {
		kill()
	}
	return pipe, ended, kill, nil
}

// split cuts a stream into documents until it ends, fails, or has one that is too long.
func split(output io.Reader, documents chan<- []byte, done <-chan struct{}) error {
	scanner := bufio.NewScanner(output)
	scanner.Buffer(make([]byte, 0, 64<<10), maxDocument)
	scanner.Split(cutDocument)
	for scanner.Scan() {
		select {
		case documents <- bytes.Clone(scanner.Bytes()):
		case <-done:
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("%w: %w", errDocument, err)
	}
	return io.EOF
}

const (
	documentBegin = "<nvidia_smi_log>"
	documentEnd   = "</nvidia_smi_log>"
)

// cutDocument is a bufio.SplitFunc of reports without what stands between them. An incomplete one at the end is dropped.
func cutDocument(data []byte, atEOF bool) (advance int, token []byte, err error) {
	end := bytes.Index(data, []byte(documentEnd))
	if end < 0 {
		if atEOF {
			return len(data), nil, nil
		}
		return 0, nil, nil
	}
	end += len(documentEnd)
	begin := max(0, bytes.Index(data[:end], []byte(documentBegin)))
	return end, data[begin:end], nil
}

func (t *SMITelemetry) keep(r Reading) {
	now := t.clock().Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest, t.at = r, now
}

func (t *SMITelemetry) program() string {
	if t.Path != "" {
		return t.Path
	}
	return "nvidia-smi"
}

func (t *SMITelemetry) interval() time.Duration {
	if t.Interval > 0 {
		return t.Interval
	}
	return telemetryInterval
}

func (t *SMITelemetry) patience() time.Duration {
	if t.Patience > 0 {
		return t.Patience
	}
	return probeTimeout
}

func (t *SMITelemetry) clock() Clock {
	if t.Clock != nil {
		return t.Clock
	}
	return RealClock()
}

func (t *SMITelemetry) log() *slog.Logger {
	if t.Log != nil {
		return t.Log
	}
	return slog.New(slog.DiscardHandler)
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
