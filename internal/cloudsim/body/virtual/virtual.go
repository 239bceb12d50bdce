// Package virtual is the instance body for scale: the agent of internal/agent in this process, with simulated engines
// beside it, behind the same HTTPS surface on a loopback port of its own. A thousand of them fit into one process.
//
// It does not run the image or the tenant's command. A tenant that does not send GPUSCALE_BOOT, or sends what the agent
// would not understand, is treated like one whose command fails.
package virtual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// Options say what bodies are made of. The zero value works.
type Options struct {
	// Env is set for every engine, under what the tenant sets; for settings of vllm-sim.
	Env map[string]string
	// Settings are the agents' patience.
	Settings agent.Settings
	// Clock is the agents' and engines' source of time; nil means the machine's.
	Clock agent.Clock
	// Version is what the agents report.
	Version string
	// LogBytes bounds what is kept of a body's output; 64 KiB when zero.
	LogBytes int
}

const (
	loopback   = "127.0.0.1"
	defaultLog = 64 << 10
	// Exit statuses, as the agent's process has them.
	exitFailure = 1
	exitUsage   = 2
)

// Factory starts virtual bodies.
type Factory struct{ opts Options }

// New makes a Factory.
func New(o Options) *Factory {
	if o.Clock == nil {
		o.Clock = agent.RealClock()
	}
	o.LogBytes = cmp.Or(o.LogBytes, defaultLog)
	return &Factory{opts: o}
}

// Start runs an agent in this process. The context's end kills it.
func (f *Factory) Start(ctx context.Context, s body.Spec) (body.Body, error) {
	b := &Body{host: loopback, logs: &tail{most: f.opts.LogBytes}, done: make(chan struct{})}
	if s.BootData() == "" {
		b.refuse(exitFailure, "bash: "+agentapi.EnvBoot+": parameter not set")
		return b, nil
	}
	if err := f.furnish(b, s); err != nil {
		b.refuse(exitUsage, "gpuscale-agent: "+err.Error())
		return b, nil //nolint:nilerr // The machine started; it is its software that failed.
	}
	var config net.ListenConfig
	wanted := 0
	if s.OwnAddress {
		b.host, wanted = body.LoopbackAddress(), s.Port
	}
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(b.host, strconv.Itoa(wanted)))
	if err != nil {
		return nil, fmt.Errorf("virtual body: %w", err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(errors.New("virtual body: not a TCP address"), listener.Close())
	}
	b.port = address.Port
	go b.run(ctx, listener)
	return b, nil
}

// furnish gives a body its agent.
func (f *Factory) furnish(b *Body, s body.Spec) error {
	boot, err := agent.DecodeBoot(s.BootData())
	if err != nil {
		return fmt.Errorf("boot data in %s: %w", agentapi.EnvBoot, err)
	}
	env := maps.Clone(f.opts.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, s.Env)
	a, err := agent.New(agent.Config{
		Boot: boot, Version: f.opts.Version, Clock: f.opts.Clock, Settings: f.opts.Settings,
		Runner: runner{env: env, clock: f.opts.Clock},
		Getenv: func(name string) string { return env[name] },
		PowerOff: func(context.Context) error {
			go b.Kill() // As a machine that goes down does, and not within the agent's own call.
			return nil
		},
		Probe:     func(context.Context) (agent.Inventory, error) { return inventory(s.GPU) },
		Telemetry: telemetry{s.GPU},
		Log:       slog.New(slog.NewTextHandler(b.logs, nil)),
	})
	b.agent = a
	return err
}

// inventory is what nvidia-smi would say on the machine.
func inventory(g body.GPU) (agent.Inventory, error) {
	if g.Count == 0 || g.Driver == "" {
		return agent.Inventory{}, fmt.Errorf("%w: nvidia-smi is not there", agent.ErrNoDriver)
	}
	out := agent.Inventory{Driver: g.Driver, CUDA: g.CUDA}
	for i := range g.Count {
		out.GPUs = append(out.GPUs, agentapi.GPU{Name: g.Name, MemoryMB: g.MemoryMB, UUID: fmt.Sprintf("GPU-%d", i)})
	}
	return out, nil
}

// telemetry is what nvidia-smi would go on to say: that the GPUs are there and do nothing.
type telemetry struct{ gpu body.GPU }

// Run has nothing to wait for.
func (telemetry) Run(context.Context) {}

// Latest is the same at all times.
func (t telemetry) Latest() (agent.Reading, bool) {
	have, err := inventory(t.gpu)
	if err != nil {
		return agent.Reading{}, false
	}
	out := agent.Reading{Driver: have.Driver, CUDA: have.CUDA}
	for _, g := range have.GPUs {
		out.GPUs = append(out.GPUs, agent.GPUReading{Name: g.Name, UUID: g.UUID, Values: map[string]float64{
			agentapi.GPUUtilization: 0, agentapi.GPUTemperature: 41,
			agentapi.GPUMemoryTotal: float64(g.MemoryMB) * (1 << 20), agentapi.GPUMemoryUsed: 1 << 20,
		}, Throttled: map[string]float64{"sw_power_cap": 0, "sw_thermal_slowdown": 0}})
	}
	return out, true
}

// Body is one agent and its engines.
type Body struct {
	agent *agent.Agent
	host  string
	port  int
	logs  *tail
	done  chan struct{}

	mu   sync.Mutex
	info body.ExitInfo
}

// refuse is a body whose command failed at once.
func (b *Body) refuse(code int, why string) {
	_, _ = b.logs.Write([]byte(why + "\n")) // It never fails.
	b.info = body.ExitInfo{Code: code, Message: why}
	close(b.done)
}

func (b *Body) run(ctx context.Context, listener net.Listener) {
	defer close(b.done)
	stop := context.AfterFunc(ctx, b.Kill)
	defer stop()
	// The agent's context never ends: a machine that is taken away gives no SIGTERM.
	err := b.agent.Serve(context.WithoutCancel(ctx), listener)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.info.Killed:
		b.info.Code, b.info.Message = -1, "killed"
	case err != nil:
		b.info.Code, b.info.Message = exitFailure, err.Error()
	}
}

// Address is the agent's port on loopback, or port 0 for a body that never listened.
func (b *Body) Address() (string, int) { return b.host, b.port }

// Done is closed when the agent and its engines are gone.
func (b *Body) Done() <-chan struct{} { return b.done }

// ExitInfo says how it ended.
func (b *Body) ExitInfo() body.ExitInfo {
	<-b.done
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info
}

// Kill breaks all connections and ends the engines at once.
func (b *Body) Kill() {
	if b.agent == nil {
		return
	}
	b.mu.Lock()
	select {
	case <-b.done:
	default:
		b.info.Killed = true
	}
	b.mu.Unlock()
	b.agent.Kill()
}

// Notice tells the agent that its machine is taken back.
func (b *Body) Notice(at time.Time) {
	if b.agent != nil {
		b.agent.Announce(agentapi.Notice{Kind: agentapi.NoticeInterrupted, At: &at, Message: "the market takes the machine back"})
	}
}

// Logs is the end of what the agent wrote.
func (b *Body) Logs(lines int) []byte { return b.logs.last(lines) }

// tail keeps the end of a log.
type tail struct {
	most int

	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - t.most; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// last is the last n lines, all when n is 0.
func (t *tail) last(n int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.SplitAfter(string(t.text), "\n")
	if n > 0 {
		lines = lines[max(0, len(lines)-1-n):] // What follows the last line break is no line yet.
	}
	return []byte(strings.Join(lines, ""))
}
