package virtual

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
)

// runner starts simulated engines in this process.
type runner struct {
	env   map[string]string
	clock agent.Clock
}

const (
	// enginePort is what an engine is told; nothing listens there.
	enginePort = "8000"
	// exitInterrupted is how vLLM ends on SIGTERM.
	exitInterrupted   = 130
	keepAlive         = 4 * time.Second
	readHeaderTimeout = time.Minute
)

// Start parses the command as vllm-sim would, and fails as it would.
func (r runner) Start(spec agent.EngineSpec) (agent.Engine, error) {
	env := maps.Clone(r.env)
	maps.Copy(env, spec.Env)
	args := make([]string, 0, len(spec.Command))
	for _, word := range spec.Command[1:] {
		args = append(args, strings.ReplaceAll(word, agent.PortWord, enginePort))
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &engine{clock: r.clock, log: spec.Log, end: cancel, done: make(chan struct{})}
	e.pipe = newPipe(e.serving)
	e.transport = &http.Transport{DialContext: e.pipe.dial, IdleConnTimeout: keepAlive, DisableCompression: true,
		MaxIdleConnsPerHost: 64}
	command, err := vllmsim.ParseCommand(args, func(key string) string { return env[key] })
	if err != nil {
		_, _ = fmt.Fprintf(spec.Log, "usage: vllm serve [model_tag] [options]\n%v\n", err) // A Log never fails.
		e.finish(agent.Exit{Code: 2})
		return e, nil
	}
	command.Clock, command.Log = r.clock, spec.Log
	e.server, e.command = vllmsim.New(command.Config), command
	go e.run(ctx)
	return e, nil
}

// engine is one simulated vLLM behind connections in memory.
type engine struct {
	clock     agent.Clock
	log       io.Writer
	server    *vllmsim.Server
	command   vllmsim.Command
	pipe      *pipe
	transport *http.Transport
	end       context.CancelFunc
	done      chan struct{}
	exit      agent.Exit // written before done is closed
}

// serving reports whether the engine's port would take a connection.
func (e *engine) serving() bool {
	if e.server == nil {
		return false
	}
	phase := e.server.Status().Phase
	return phase == vllmsim.PhaseServing || phase == vllmsim.PhaseDead
}

func (e *engine) run(ctx context.Context) {
	if err := e.server.Boot(ctx, e.log); err != nil {
		code := 1
		if ctx.Err() != nil {
			code = exitInterrupted
		}
		e.finish(agent.Exit{Code: code})
		return
	}
	front := &http.Server{Handler: e.server.Handler(), ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = front.Serve(e.pipe) // It ends when it is closed.
	}()
	exit := agent.Exit{}
	select {
	case <-ctx.Done():
		e.server.Abort()
	case <-e.server.EngineDied():
		_ = e.clock.Wait(ctx, e.command.CrashDelay) // An interrupt only ends it sooner.
		exit.Code = 1
	}
	_ = front.Close() // Breaking the connections is all that is asked.
	<-served
	e.finish(exit)
}

func (e *engine) finish(exit agent.Exit) {
	e.end()
	_ = e.pipe.Close() // It never fails.
	e.transport.CloseIdleConnections()
	e.exit = exit
	close(e.done)
}

// Transport reaches the engine without a socket.
func (e *engine) Transport() http.RoundTripper { return e.transport }

// Done is closed once the engine serves no more.
func (e *engine) Done() <-chan struct{} { return e.done }

// Exit is what the process's would be.
func (e *engine) Exit() agent.Exit {
	<-e.done
	return e.exit
}

// Stop ends the engine at once, as vLLM ends on SIGTERM: grace is never needed, but for an engine that ignores SIGTERM.
func (e *engine) Stop(ctx context.Context, grace time.Duration) {
	if e.command.IgnoreSIGTERM {
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-e.done:
			case <-ctx.Done():
			}
			cancel()
		}()
		_ = e.clock.Wait(ctx, grace) // It ends early when there is nothing left to wait for.
		cancel()
	}
	e.end()
	<-e.done
}

// pipe is a listener without an address: what is dialled here arrives there.
type pipe struct {
	open   func() bool
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipe(open func() bool) *pipe {
	return &pipe{open: open, conns: make(chan net.Conn), closed: make(chan struct{})}
}

var errRefused = &net.OpError{Op: "dial", Net: "pipe", Err: syscall.ECONNREFUSED}

func (p *pipe) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if !p.open() {
		return nil, errRefused
	}
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept waits for a dial.
func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close refuses dials from now on.
func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr says nothing of use.
func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: "engine", Net: "pipe"} }
