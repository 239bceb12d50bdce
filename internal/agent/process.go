package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keepAlive is how long a connection to an engine is kept: below the five seconds after which vLLM closes it, since a
// request sent on a connection that is being closed fails.
const keepAlive = 4 * time.Second

// drainPipe is how long the output of an engine may stay open once its processes were killed.
const drainPipe = 2 * time.Second

// ProcessRunner starts engines as child processes. The zero value works.
type ProcessRunner struct {
	// Environ is the environment that engines inherit; nil means os.Environ. Boot data are never passed on.
	Environ func() []string
	// Clock times the grace of Stop; nil means RealClock.
	Clock Clock
}

// envRun marks all processes of one start of an engine, by which those are found that left its process group.
const envRun = "GPUSCALE_ENGINE_RUN"

type process struct {
	cmd       *exec.Cmd
	mark      string // the environment's entry
	clock     Clock
	transport *http.Transport
	done      chan struct{}
	exit      Exit // written before done is closed
}

// Start starts an engine in a process group of its own on a free loopback port. On Linux the kernel kills the engine
// when the agent dies.
func (r ProcessRunner) Start(spec EngineSpec) (Engine, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	words := onPort(spec.Command, port)
	path, err := exec.LookPath(words[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoEngine, err)
	}
	//nolint:noctx // An engine's life is its unit's, which calls Stop; no call's context bounds it.
	p := newProcess(exec.Command(path, words[1:]...), port, r.Clock)
	p.cmd.Args[0] = words[0]
	p.cmd.Env = append(r.environ(spec.Env), p.mark)
	if err := p.start(spec.Log); err != nil {
		return nil, err
	}
	return p, nil
}

func newProcess(cmd *exec.Cmd, port int, clock Clock) *process {
	if clock == nil {
		clock = RealClock()
	}
	cmd.SysProcAttr = childAttr()
	return &process{cmd: cmd, clock: clock, done: make(chan struct{}), mark: envRun + "=" + rand.Text(),
		transport: loopback(net.JoinHostPort(loopbackHost, strconv.Itoa(port)))}
}

// onPort is a command with the port in its place.
func onPort(command []string, port int) []string {
	words := slices.Clone(command)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], PortWord, strconv.Itoa(port))
	}
	return words
}

// start runs the process and, until it has ended, a goroutine on a thread of its own: the kernel takes the death of the
// thread that started a process for the death of its parent.
func (p *process) start(log io.Writer) error {
	output, input, err := os.Pipe()
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = input, input
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		_ = input.Close() // The child has its own descriptor.
		started <- err
		if err == nil {
			p.attend(output, log)
		}
	}()
	if err := <-started; err != nil {
		_ = output.Close()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.ENOEXEC) {
			return fmt.Errorf("%w: %w", ErrNoEngine, err)
		}
		return err
	}
	return nil
}

// attend copies the log and sees the process off, with all that it started.
func (p *process) attend(output *os.File, log io.Writer) {
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(log, output) // Ends with the last writer, or when it is closed below.
	}()
	_ = p.cmd.Wait() // Its outcome is in ProcessState.
	// An engine's workers hold GPU memory, and must not outlive it.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	killMarked(p.mark)
	// Something that hangs in the kernel may keep the pipe open.
	ctx, cancel := within(context.Background(), p.clock, drainPipe)
	select {
	case <-copied:
	case <-ctx.Done():
	}
	cancel()
	_ = output.Close()
	<-copied
	p.transport.CloseIdleConnections()
	p.exit = exitOf(p.cmd.ProcessState)
	close(p.done)
}

func exitOf(state *os.ProcessState) Exit {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return Exit{Code: -1, Signal: status.Signal().String()}
	}
	return Exit{Code: state.ExitCode()}
}

// Transport reaches the engine's port.
func (p *process) Transport() http.RoundTripper { return p.transport }

// Done is closed once the process group is gone.
func (p *process) Done() <-chan struct{} { return p.done }

// Exit is that of the engine's first process.
func (p *process) Exit() Exit {
	<-p.done
	return p.exit
}

// Stop sends SIGTERM to the engine, which tells its workers itself, and SIGKILL to the whole group after grace.
func (p *process) Stop(ctx context.Context, grace time.Duration) {
	ctx, cancel := within(ctx, p.clock, grace)
	defer cancel()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended already.
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

func (r ProcessRunner) environ(add map[string]string) []string {
	inherited := os.Environ
	if r.Environ != nil {
		inherited = r.Environ
	}
	return environ(inherited(), add)
}

// environ is the inherited environment with what is added, without what engines must not see.
func environ(inherited []string, add map[string]string) []string {
	var out []string
	for _, entry := range inherited {
		key, _, _ := strings.Cut(entry, "=")
		if _, replaced := add[key]; !replaced && !forbidden(key) {
			out = append(out, entry)
		}
	}
	for key, value := range add {
		out = append(out, key+"="+value)
	}
	slices.Sort(out)
	return out
}

// freePort is a loopback port that was free a moment ago. Another may take it before the engine does; the engine then
// ends, and its restart has another.
func freePort() (int, error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }() // It was open for its number only.
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// loopback is a transport to one address whatever the URL says.
func loopback(address string) *http.Transport {
	var dialer net.Dialer
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		},
		IdleConnTimeout:     keepAlive,
		MaxIdleConnsPerHost: 256,
		DisableCompression:  true,
		// An engine's headers are few.
		MaxResponseHeaderBytes: 256 << 10,
	}
}
