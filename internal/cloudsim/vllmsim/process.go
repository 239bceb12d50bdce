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

// say writes a line. When that fails, nobody is left to tell.
func say(w io.Writer, parts ...any) { _, _ = fmt.Fprintln(w, parts...) }

// Main is the whole program: it parses args (without the program name), loads,
// serves until SIGTERM or SIGINT, a failure or a crash, and returns the exit
// status. It takes over these signals and must run once per process.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-v") {
		say(stdout, orDefault(getenv("VLLM_SIM_VERSION"), defaultVersion))
		return exitOK
	}
	for _, arg := range args {
		if arg == "--help" || arg == "-h" {
			say(stdout, usageText)
			return exitOK
		}
	}
	cmd, err := ParseCommand(args, getenv)
	if err != nil {
		var usage *UsageError
		if errors.As(err, &usage) {
			say(stderr, usageText)
			say(stderr, err)
			return exitUsage
		}
		say(stderr, "vllm-sim:", err)
		return exitUsage
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT)
	defer release()
	if cmd.IgnoreSIGTERM {
		signal.Ignore(syscall.SIGTERM)
	} else {
		ctx, release = signal.NotifyContext(ctx, syscall.SIGTERM)
		defer release()
	}
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
	if cmd.HubHome != "" {
		go func() {
			if err := server.fillCache(ctx, cmd.HubHome); err != nil {
				say(logs, "WARNING ", err)
			}
		}()
	}
	if err := server.Boot(ctx, logs); err != nil {
		if ctx.Err() != nil {
			say(logs, "KeyboardInterrupt: terminated")
			return exitInterrupted
		}
		return exitFailure
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(cmd.Host, strconv.Itoa(cmd.Port)))
	if err != nil {
		say(logs, listenError(err))
		return exitFailure
	}
	say(logs, "(APIServer pid=1) INFO [api_server.py:1971] Starting vLLM API server 0 on http://"+listener.Addr().String())
	say(logs, "INFO:     Application startup complete.")
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
		server.stop(cmd, front) //nolint:contextcheck // ctx has ended; stopping has limits of its own.
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
	<-failed //nolint:errcheck // It says that front was closed.
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
