// Package postgrestest gives a test binary real Postgres servers, run from the programs of the distribution's package
// on free ports of the loopback interface with data in a temporary folder.
//
// A package that uses URL has
//
//	func TestMain(m *testing.M) { postgrestest.Main(m) }
//
// which ends the server that all of its tests share. Start gives a test a server of its own, to stop and start again.
// Without the programs tests fail and say which package has them; with -short they are skipped. No server outlives the
// test binary (on Linux; elsewhere not its being killed).
package postgrestest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver called "pgx"

	"github.com/munhq/gpuscale/internal/child"
)

// Password of the servers: what no error, log or process list may show.
const Password = "pg-pass-0123456789"

const (
	superuser    = "gpuscale"
	startTimeout = time.Minute
)

// Server is one Postgres server.
type Server struct {
	bin, dir string
	as       *syscall.Credential
	port     int

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited <-chan struct{}
	count  int
}

// shared is the server of this test binary.
var shared struct {
	sync.Mutex
	underMain bool
	server    *Server
}

// Main runs the tests, ends the shared server and exits with the tests' status. It does not return.
func Main(m *testing.M) {
	shared.Lock()
	shared.underMain = true
	shared.Unlock()
	code := m.Run()
	shared.Lock()
	if s := shared.server; s != nil {
		s.remove()
	}
	os.Exit(code)
}

// URL is that of a new, empty database on the server that all tests of this binary share.
func URL(t testing.TB) string {
	t.Helper()
	need(t)
	shared.Lock()
	defer shared.Unlock()
	if !shared.underMain {
		t.Fatal("postgrestest: this package needs `func TestMain(m *testing.M) { postgrestest.Main(m) }`")
	}
	if shared.server == nil {
		s, err := newServer()
		if err != nil {
			t.Fatal(err)
		}
		shared.server = s
	}
	return shared.server.Database(t)
}

// Start is a server for this test alone, ended with it.
func Start(t testing.TB) *Server {
	t.Helper()
	need(t)
	s, err := newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.remove)
	return s
}

// Database is the URL of a new, empty database.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	s.count++
	name := fmt.Sprintf("test%d", s.count)
	s.mu.Unlock()
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(context.Background(), "CREATE DATABASE "+name)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return s.url(name)
}

// Stop ends the server at once, as a crash would: what it was doing is cut off, what it had committed is kept.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.stop()
}

// Restart starts a stopped server again, on the same port with the same data, and returns when it answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(superuser, Password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: database, RawQuery: "sslmode=disable"}
	return u.String()
}

func need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Postgres server, left out by -short")
	}
}

// programs finds the folder with initdb and postgres: the newest of Debian's, else that of the PATH.
func programs() (string, error) {
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range dirs {
		if executable(dir, "initdb") && executable(dir, "postgres") {
			return dir, nil
		}
	}
	return "", errors.New("postgrestest: no initdb and postgres in /usr/lib/postgresql/*/bin or the PATH; install the " +
		"package postgresql, or run with -short")
}

func version(dir string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	if err != nil {
		return 0
	}
	return n
}

func executable(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// newServer makes a server and starts it.
func newServer() (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	as, err := notRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "gpuscale-postgres-")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, as: as}
	if err := errors.Join(s.initialise(), s.start()); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// notRoot is whom the server runs as: Postgres refuses to run as root. Nil is whoever runs the tests.
func notRoot() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
	}
	return nil, errors.New("postgrestest: Postgres does not run as root, and there is neither a user postgres nor nobody")
}

// attr runs a program as someone else where that must be, and ends it with the test binary: SIGQUIT is Postgres's immediate
// shutdown, which takes its children along.
func (s *Server) attr() *syscall.SysProcAttr {
	attr := child.Attr(syscall.SIGQUIT)
	attr.Credential = s.as
	return attr
}

func (s *Server) initialise() error {
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte(Password), 0o600); err != nil {
		return err
	}
	if s.as != nil {
		for _, path := range []string{s.dir, password} {
			if err := os.Chown(path, int(s.as.Uid), int(s.as.Gid)); err != nil {
				return err
			}
		}
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(s.bin, "initdb"), "--pgdata", s.data(), "--username", superuser,
		"--pwfile", password, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = s.dir, s.attr()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("postgrestest: initdb: %w\n%s", err, out)
	}
	return nil
}

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// start runs the server and waits until it answers. The first time it looks for a free port, more than once: another
// process may take it in between.
func (s *Server) start() error {
	if s.port != 0 {
		return s.run()
	}
	var err error
	for range 3 {
		if s.port, err = child.FreePort(); err != nil {
			return err
		}
		if err = s.run(); err == nil {
			return nil
		}
	}
	return err
}

func (s *Server) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	s.cmd = exec.CommandContext(context.Background(), filepath.Join(s.bin, "postgres"), "-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200", "-c", "shared_buffers=16MB",
		// What a server that is killed had written survives in the kernel; only the machine's end would lose it.
		"-c", "fsync=off")
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr = s.dir, s.attr(), log, log
	if s.exited, err = child.Start(s.cmd, func() { _ = log.Close() }); err != nil { // the child has its own descriptor
		s.cmd = nil
		return fmt.Errorf("postgrestest: %w", err)
	}
	return s.await()
}

func (s *Server) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // nothing was written
	for {
		if err = db.PingContext(ctx); err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("postgrestest: the server ended (%s)%s", s.cmd.ProcessState, s.tail())
		case <-ctx.Done():
			return fmt.Errorf("postgrestest: the server does not answer within %s: %w%s", startTimeout, err, s.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) tail() string {
	const most = 2000
	text, err := os.ReadFile(s.logFile())
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return "; it logged nothing"
	}
	return "; the end of its log:\n" + strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	// Immediate shutdown: no checkpoint, recovery at the next start. The postmaster ends its children itself.
	_ = s.cmd.Process.Signal(syscall.SIGQUIT) // gone already is what is wanted
	<-s.exited
	s.cmd = nil
}

func (s *Server) remove() {
	s.stop()
	_ = os.RemoveAll(s.dir) // a temporary folder
}
