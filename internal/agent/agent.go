package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
)

// Config is what an Agent is made of. Boot and Runner are required.
type Config struct {
	Boot   agentapi.Boot
	Runner Runner
	// Probe reads the GPUs; nil means NvidiaSMI.
	Probe Probe
	// Telemetry reads the GPUs while the agent runs; nil means an SMITelemetry.
	Telemetry Telemetry
	// Clock is the source of time; nil means RealClock.
	Clock Clock
	// Command is the engine's where no setting names another (agentapi.EnvEngineCommand); nil means DefaultCommand.
	Command []string
	// Machine holds the agent's settings (agentapi.EnvEngineCommand and its neighbours) where a desired set has none.
	Machine map[string]string
	// Getenv reads what the provider tells its instances; nil means os.Getenv. PowerOff turns the machine off; nil means
	// HostPowerOff. Metadata is the address of the metadata service where it is not the clouds' own.
	Getenv   func(string) string
	PowerOff PowerOff
	Metadata string
	// Version is reported in the status.
	Version string
	// Log takes the agent's own few lines; nil drops them.
	Log      *slog.Logger
	Settings Settings
}

// Settings are the agent's patience. The zero value of each means its default, in brackets.
type Settings struct {
	// LoadTimeout bounds the time to Ready from an engine's start or, if its weights are downloaded, from their last byte
	// (30 min), where the model does not say.
	LoadTimeout time.Duration
	// DownloadStall bounds the time for which no byte comes while a file is unfinished (5 min), DownloadPoll is how often
	// it is looked (2 s).
	DownloadStall, DownloadPoll time.Duration
	// WarmTimeout bounds the first completion, which pays for what engines do lazily (10 min).
	WarmTimeout time.Duration
	// ProbeInterval is how often a loading engine is asked whether it serves (500 ms), HealthInterval how often a
	// serving one is asked for its health (10 s).
	ProbeInterval, HealthInterval time.Duration
	// HangAfter is how long a serving engine with requests in flight may send no byte before it is asked for a token
	// (10 min), HangProbe how long that may take (5 min): see hangs.
	HangAfter, HangProbe time.Duration
	// DeathTime is how long an engine that failed its first completion is given to end by itself (8 s): vLLM's watchdog
	// takes five.
	DeathTime time.Duration
	// BackOff is the wait before the first restart of an engine (2 s); it doubles each time, up to a minute.
	BackOff time.Duration
	// StableAfter is how long an engine must have served for earlier restarts to be forgotten (10 min).
	StableAfter time.Duration
	// HeaderTimeout bounds the time that a connection may take to its handshake, and then to a request's headers (10 s).
	HeaderTimeout time.Duration
	// BodyTimeout bounds the time that a request's body may take to arrive (2 min), WriteTimeout the time in which a
	// caller may take nothing of an answer (5 min).
	BodyTimeout, WriteTimeout time.Duration
	// DrainTimeout bounds the wait for the requests of a model that is no longer desired (5 min).
	DrainTimeout time.Duration
	// ShutdownDrain bounds the wait for all requests when the agent is told to end (25 s).
	ShutdownDrain time.Duration
	// StopGrace is how long an engine may take to end before it is killed (20 s).
	StopGrace time.Duration
	// SelfEndBackOff is the wait before the end of the rental is asked for a second time (5 s); it doubles each time, up to
	// five minutes.
	SelfEndBackOff time.Duration
	// NoticePoll is how often a metadata service that cannot wait for a change is asked for interruption notices (5 s).
	NoticePoll time.Duration
}

func (s Settings) withDefaults() Settings {
	return Settings{
		LoadTimeout:    cmp.Or(s.LoadTimeout, 30*time.Minute),
		DownloadStall:  cmp.Or(s.DownloadStall, 5*time.Minute),
		DownloadPoll:   cmp.Or(s.DownloadPoll, 2*time.Second),
		WarmTimeout:    cmp.Or(s.WarmTimeout, 10*time.Minute),
		ProbeInterval:  cmp.Or(s.ProbeInterval, 500*time.Millisecond),
		HealthInterval: cmp.Or(s.HealthInterval, 10*time.Second),
		HangAfter:      cmp.Or(s.HangAfter, 10*time.Minute),
		HangProbe:      cmp.Or(s.HangProbe, 5*time.Minute),
		DeathTime:      cmp.Or(s.DeathTime, 8*time.Second),
		BackOff:        cmp.Or(s.BackOff, 2*time.Second),
		StableAfter:    cmp.Or(s.StableAfter, 10*time.Minute),
		HeaderTimeout:  cmp.Or(s.HeaderTimeout, 10*time.Second),
		BodyTimeout:    cmp.Or(s.BodyTimeout, 2*time.Minute),
		WriteTimeout:   cmp.Or(s.WriteTimeout, 5*time.Minute),
		DrainTimeout:   cmp.Or(s.DrainTimeout, 5*time.Minute),
		ShutdownDrain:  cmp.Or(s.ShutdownDrain, 25*time.Second),
		StopGrace:      cmp.Or(s.StopGrace, 20*time.Second),
		SelfEndBackOff: cmp.Or(s.SelfEndBackOff, 5*time.Second),
		NoticePoll:     cmp.Or(s.NoticePoll, 5*time.Second),
	}
}

// Agent is one worker's agent. Make it with New, run it once with Serve.
type Agent struct {
	cfg    Config
	bootID string
	tls    *tls.Config
	probed chan struct{} // closed once the GPUs were looked at and the Runner is prepared
	placer *placer       // set before probed is closed

	lease   *lease
	ender   ender  // nil where the lease cannot be acted on
	noLease string // why

	// life ends when engines must stop, hard when they must without grace.
	life context.Context
	end  context.CancelFunc
	hard context.Context
	kill context.CancelFunc
	work sync.WaitGroup

	held atomic.Int64 // bytes of the bodies of requests in flight

	mu         sync.Mutex
	steps      []agentapi.Step
	preparing  string // what models wait for before probed is closed
	failure    *agentapi.Failure
	inventory  Inventory
	units      []*unit // desired and retiring, in order of arrival
	generation int64
	env        map[string]string
	maxBody    int64
	draining   bool
	ended      bool // no new goroutine may join work
	inFlight   int
	last       time.Time
	idle       chan struct{} // closed when inFlight becomes 0, nil if nobody waits
	notices    []*agentapi.Notice
	told       *agentapi.Notice // by Announce
}

// New checks the configuration and makes an Agent that does nothing yet.
func New(cfg Config) (*Agent, error) {
	if cfg.Runner == nil {
		return nil, errors.New("agent without a runner")
	}
	if cfg.Boot.Version != 1 {
		return nil, fmt.Errorf("boot data of version %d are not understood", cfg.Boot.Version)
	}
	config, err := pki.ServerTLS(cfg.Boot)
	if err != nil {
		return nil, fmt.Errorf("boot data: %w", err)
	}
	if cfg.Clock == nil {
		cfg.Clock = RealClock()
	}
	if cfg.Probe == nil {
		cfg.Probe = NvidiaSMI
	}
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	if cfg.PowerOff == nil {
		cfg.PowerOff = HostPowerOff
	}
	if cfg.Telemetry == nil {
		cfg.Telemetry = &SMITelemetry{Clock: cfg.Clock, Log: cfg.Log}
	}
	if cfg.Command == nil {
		cfg.Command = DefaultCommand()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if _, err := optionsOf(nil, cfg.Machine); err != nil {
		return nil, err
	}
	cfg.Settings = cfg.Settings.withDefaults()
	config.Time = steady(cfg.Clock, config.Certificates[0].Leaf)
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, tls: config, bootID: hex.EncodeToString(id), probed: make(chan struct{})}
	a.adopt(nil)
	a.life, a.end = context.WithCancel(context.Background())
	a.hard, a.kill = context.WithCancel(context.Background())
	a.setLease()
	return a, nil
}

const (
	// idleTimeout is above the clients' (package workerclient), who so never write on a connection that just closed.
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	// closeTimeout bounds the wait for handlers once their engines are gone.
	closeTimeout = 2 * time.Second
)

// Serve runs the agent on a listener until ctx ends or Kill is called. When ctx ends it refuses new work, lets requests
// finish for a bounded time, stops the engines and returns nil. No engine outlives it.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           a.routes(),
		ReadHeaderTimeout: a.cfg.Settings.HeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         newDoorway().changed,
		// Strangers who try the port are nothing to log each time.
		ErrorLog: log.New(logLines{a.cfg.Log}, "", 0),
	}
	a.step(agentapi.StepBooted, "")
	a.work.Go(func() { //nolint:contextcheck // It is the agent's life that bounds it.
		good := a.findGPUs()
		a.work.Go(func() {
			defer close(a.probed)
			if good {
				a.prepare()
			}
		})
		// Only now: on a machine without persistence mode the first look at a GPU sets it up, and two would get in each
		// other's way.
		a.cfg.Telemetry.Run(a.life)
	})
	a.watchLease()
	a.watchNotices() //nolint:contextcheck // It asks for as long as the agent lives.
	var err error    // written before ended is closed
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = server.Serve(tls.NewListener(listener, a.tls))
	}()
	select {
	case <-ctx.Done():
		a.drainAll()
		a.awaitIdle()
	case <-a.hard.Done():
	case <-ended:
	}
	if a.hard.Err() != nil {
		_ = server.Close() // Breaking the connections is all that is asked.
	}
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.end()
	a.work.Wait()
	a.close(server) //nolint:contextcheck // ctx has ended; closing has a limit of its own.
	<-ended
	a.kill() // Releases what watches for it.
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Kill ends the agent without grace: connections break, engines are killed. It is what a machine that is taken away
// does. Serve then returns.
func (a *Agent) Kill() { a.kill() }

// close ends the server once its engines are gone: what handlers are left can only fail, and do at once.
func (a *Agent) close(server *http.Server) {
	ctx, cancel := within(a.hard, a.cfg.Clock, closeTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // Nothing else can be done for connections that do not end.
	}
}

// awaitIdle waits until no request is in flight, for the time that a shutdown has.
func (a *Agent) awaitIdle() {
	a.mu.Lock()
	if a.inFlight == 0 {
		a.mu.Unlock()
		return
	}
	if a.idle == nil {
		a.idle = make(chan struct{})
	}
	idle := a.idle
	a.mu.Unlock()
	ctx, cancel := within(a.hard, a.cfg.Clock, a.cfg.Settings.ShutdownDrain)
	defer cancel()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

func (a *Agent) step(name, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps = append(a.steps, agentapi.Step{Name: name, At: a.cfg.Clock.Now(), Message: message})
}

// findGPUs compares what is there with what was bought; on another machine no engine ever starts.
func (a *Agent) findGPUs() bool {
	ctx, cancel := within(a.life, a.cfg.Clock, probeTimeout)
	defer cancel()
	have, err := a.cfg.Probe(ctx)
	want := a.cfg.Boot.GPUs
	a.placer = newPlacer(len(have.GPUs))
	var failure *agentapi.Failure
	switch {
	case want.Count == 0: // No GPU was paid for, so none is missed, and one that is there is welcome.
	case err != nil:
		failure = &agentapi.Failure{Step: agentapi.StepGPUsFound, Exit: agentapi.ExitNoDriver, Message: err.Error()}
	default:
		if message := mismatch(want, have); message != "" {
			failure = &agentapi.Failure{Step: agentapi.StepGPUsFound, Exit: agentapi.ExitGPUMismatch, Message: message}
		}
	}
	a.mu.Lock()
	a.inventory, a.failure = have, failure
	a.mu.Unlock()
	if failure != nil {
		a.cfg.Log.Error("GPUs are not what was bought", "exit", failure.Exit, "reason", failure.Message)
		return false
	}
	message := fmt.Sprintf("%d GPUs", len(have.GPUs))
	if len(have.GPUs) > 0 {
		message = fmt.Sprintf("%d × %s, driver %s", len(have.GPUs), have.GPUs[0].Name, have.Driver)
	}
	a.step(agentapi.StepGPUsFound, message)
	return true
}

// prepare has the Runner make the machine ready for engines.
func (a *Agent) prepare() {
	p, ok := a.cfg.Runner.(Preparer)
	if !ok {
		return
	}
	doing := func(message string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.preparing = message
	}
	failure := p.Prepare(a.life, Progress{Step: a.step, Doing: doing})
	doing("")
	if failure == nil || a.life.Err() != nil {
		return
	}
	a.cfg.Log.Error("machine cannot run engines", "step", failure.Step, "exit", failure.Exit, "reason", failure.Message)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failure = failure
}

// within is ctx, ended after d on the clock too. The caller calls cancel, which frees what watches the time.
func within(ctx context.Context, clock Clock, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		if clock.Wait(ctx, d) == nil {
			cancel()
		}
	}()
	return ctx, cancel
}

// steady is the time by which certificates are judged: the clock's at the start and what has passed since, so that a wall
// clock that jumps shuts nobody out. A clock that is already wrong, by the worker's own certificate, is set by that: it was
// made just before the machine was.
func steady(clock Clock, leaf *x509.Certificate) func() time.Time {
	start := clock.Now()
	begin := start
	if leaf != nil && (start.Before(leaf.NotBefore) || start.After(leaf.NotAfter)) {
		begin = leaf.NotBefore
	}
	return func() time.Time { return begin.Add(clock.Now().Sub(start)) }
}

// logLines passes a log.Logger's lines on at debug level.
type logLines struct{ log *slog.Logger }

// Write logs one line.
func (l logLines) Write(p []byte) (int, error) {
	l.log.Debug("connection", "reason", string(p[:max(0, len(p)-1)]))
	return len(p), nil
}
