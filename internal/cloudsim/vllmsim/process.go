package vllmsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Exit statuses of the process.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // Python's, for a SIGTERM that vLLM turns into KeyboardInterrupt
)

const usageText = "usage: vllm serve [model_tag] [options]"

// Main is the whole program: it parses args (without the program name), loads,
// serves until SIGTERM or SIGINT, a failure or a crash, and returns the exit
// status. It takes over these signals and must run once per process.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-v") {
		fmt.Fprintln(stdout, orDefault(getenv("VLLM_SIM_VERSION"), defaultVersion))
		return exitOK
	}
	for _, arg := range args {
		if arg == "--help" || arg == "-h" {
			fmt.Fprintln(stdout, usageText)
			return exitOK
		}
	}
	cmd, err := ParseCommand(args, getenv)
	if err != nil {
		var usage *UsageError
		if errors.As(err, &usage) {
			fmt.Fprintln(stderr, usageText)
			fmt.Fprintln(stderr, err)
			return exitUsage
		}
		fmt.Fprintln(stderr, "vllm-sim:", err)
		return exitUsage
	}
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	ctx, stop := context.WithCancel(context.Background())
	if cmd.IgnoreSIGTERM {
		signal.Ignore(syscall.SIGTERM)
		signals = signals[:1]
	}
	for _, s := range signals {
		var release context.CancelFunc
		ctx, release = signal.NotifyContext(ctx, s)
		defer release()
	}
	defer stop()
	return Run(ctx, cmd, stderr)
}

// lockedWriter makes lines of concurrent requests whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Run loads and serves cmd until ctx ends, which stands for SIGTERM, and
// returns the exit status. It writes vLLM's log to stderr. Every request has
// ended when it returns.
func Run(ctx context.Context, cmd Command, stderr io.Writer) int {
	logs := &lockedWriter{w: stderr}
	cmd.Log = logs
	server := New(cmd.Config)
	if err := server.Boot(ctx, logs); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(logs, "KeyboardInterrupt: terminated")
			return exitInterrupted
		}
		return exitFailure
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(cmd.Host, strconv.Itoa(cmd.Port)))
	if err != nil {
		fmt.Fprintln(logs, listenError(err))
		return exitFailure
	}
	fmt.Fprintf(logs, "(APIServer pid=1) INFO [api_server.py:1971] Starting vLLM API server 0 on http://%s\n", listener.Addr())
	fmt.Fprintln(logs, "INFO:     Application startup complete.")
	return serve(ctx, cmd, server, listener)
}

func listenError(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		return "OSError: [Errno 98] Address already in use"
	}
	return "OSError: " + err.Error()
}

func serve(ctx context.Context, cmd Command, server *Server, listener net.Listener) int {
	front := &http.Server{
		Handler:           server.Handler(),
		IdleTimeout:       cmd.KeepAlive,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- front.Serve(listener) }()
	code := exitOK
	select {
	case <-ctx.Done():
		server.stop(cmd, front)
	case <-server.EngineDied():
		// An interrupt does not save a dead engine, it only ends it sooner.
		_ = server.cfg.Clock.Wait(ctx, cmd.CrashDelay)
		server.logf("INFO:     Shutting down")
		code = exitFailure
	case err := <-failed:
		server.logf("%s", listenError(err))
		return exitFailure
	}
	_ = front.Close()
	<-failed
	return code
}

// stop is vLLM's shutdown: new work is refused, running work has the timeout
// (none by default), then it is aborted.
func (s *Server) stop(cmd Command, front *http.Server) {
	s.logf("INFO:     Shutting down")
	s.Drain()
	if cmd.ShutdownTimeout > 0 {
		patience, cancel := context.WithTimeout(context.Background(), cmd.ShutdownTimeout)
		defer cancel()
		if front.Shutdown(patience) == nil {
			s.logf("INFO:     Application shutdown complete.")
			return
		}
	}
	s.logf("INFO:     Aborting %d requests", s.InFlight())
	s.Abort()
	// Aborted handlers end at once; the bound is for one that cannot.
	settle, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := front.Shutdown(settle); err != nil {
		s.logf("WARNING:  %s", strings.TrimSpace(err.Error()))
	}
}
