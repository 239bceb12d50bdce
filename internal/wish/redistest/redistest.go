// Package redistest gives a test a real Redis server, run from the PATH's redis-server (Debian's package redis-server) on
// a free port of the loopback interface, which keeps nothing on disk. It can be killed, started again empty, and stopped
// in the middle of everything as a hung server is.
//
// Without the program tests fail and say which package has it; with -short they are skipped. No server outlives its test,
// nor on Linux the test binary.
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/child"
)

// Password of the servers: what no error and no log may show.
const Password = "redis-pass-0123456789"

const startTimeout = 20 * time.Second

// Server is one Redis server. Its methods are for one goroutine at a time.
type Server struct {
	port   int
	cmd    *exec.Cmd
	exited <-chan struct{}
}

// Start is a server for this test alone, ended with it.
func Start(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Redis server, left out by -short")
	}
	s := &Server{}
	var err error
	// More than once: another process may take the port in between.
	for range 3 {
		if s.port, err = child.FreePort(); err != nil {
			break
		}
		if err = s.run(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

// URL is the server's, with its password.
func (s *Server) URL() string { return "redis://:" + Password + "@" + s.addr() }

// Kill ends the server at once, and all of its data with it.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.kill()
}

// Restart starts a killed server again, empty, on the same port, and returns when it answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
}

// Pause stops the server where it is: connections are accepted by the kernel and nothing is answered, until Resume.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
}

// Resume lets a paused server go on, with all that reached it meanwhile.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
}

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *Server) run() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("redistest: no redis-server in the PATH; install the package redis-server, or run with -short")
	}
	var log strings.Builder
	s.cmd = exec.Command(path, "-") //nolint:noctx // it outlives the call
	// By standard input, since a process list shows arguments.
	s.cmd.Stdin = strings.NewReader(fmt.Sprintf("bind 127.0.0.1\nport %d\nsave \"\"\nappendonly no\nrequirepass %s\n", s.port, Password))
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.SysProcAttr = &log, &log, child.Attr(syscall.SIGKILL)
	if s.exited, err = child.Start(s.cmd, nil); err != nil {
		s.cmd = nil
		return fmt.Errorf("redistest: %w", err)
	}
	return s.await(&log)
}

// await returns when the server answers.
func (s *Server) await(log *strings.Builder) error {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	for {
		err := s.ping()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("redistest: the server ended (%s): %s", s.cmd.ProcessState, log)
		case <-deadline.C:
			s.kill()
			return fmt.Errorf("redistest: the server does not answer within %s: %w: %s", startTimeout, err, log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *Server) ping() error {
	conn, err := net.DialTimeout("tcp", s.addr(), time.Second) //nolint:noctx // bounded
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\nPING\r\n", Password); err != nil {
		return err
	}
	answers := bufio.NewReader(conn)
	for _, want := range []string{"+OK", "+PONG"} {
		line, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.TrimSpace(line) != want {
			return fmt.Errorf("redistest: the server says %q", strings.TrimSpace(line))
		}
	}
	return nil
}

func (s *Server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // gone already is what is wanted; it ends a stopped process too
	<-s.exited
	s.cmd = nil
}
