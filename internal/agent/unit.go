package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// unit is one desired model from the moment it is asked for until its engine is gone. A model that is asked for anew
// with other arguments is a new unit; the old one retires.
type unit struct {
	agent *Agent
	spec  agentapi.DesiredModel
	log   *ring
	// stop ends when the unit must end now: retired and drained, or the agent ends.
	stop context.Context
	end  context.CancelFunc

	// heard counts the pieces of answers that came from the engine.
	heard atomic.Int64

	// Guarded by agent.mu.
	state    string
	since    time.Time
	message  string
	failure  *agentapi.Failure
	logTail  []string
	restarts int
	steps    []agentapi.Step
	proxy    *httputil.ReverseProxy // set while Ready
	engine   Engine                 // set while Ready
	drained  bool                   // POST /drain named it
	retiring bool
	inFlight int
	most     int // requests in flight at once
	requests int64
	refused  int64 // for want of room
	last     time.Time
	download *download // of the present engine
}

const maxRestarts = 3

// newUnit makes a unit that is not running yet. The agent is locked.
func (a *Agent) newUnit(spec agentapi.DesiredModel) *unit {
	u := &unit{agent: a, spec: spec, state: agentapi.StatePending, since: a.cfg.Clock.Now(), download: &download{}}
	u.log = newRing(u.observe)
	u.log.blank(a.env)
	if o, err := optionsOf(a.env, a.cfg.Machine); err == nil {
		u.most = o.mostInFlight(spec.Args)
	}
	u.stop, u.end = context.WithCancel(a.life)
	return u
}

// run is the unit's whole life.
func (u *unit) run() {
	defer u.agent.forget(u)
	defer u.end()
	select {
	case <-u.agent.probed:
	case <-u.stop.Done():
		return
	}
	if u.agent.starts() {
		for u.stop.Err() == nil {
			failure, served := u.live()
			if u.stop.Err() != nil || !u.again(failure, served) {
				break
			}
		}
	}
	// A failed model stays, so that its failure can be read, until it is no longer asked for.
	<-u.stop.Done()
}

// live runs one engine from start to end and says how it failed, and how long it had served. What it returns means
// nothing once u.stop has ended.
func (u *unit) live() (agentapi.Failure, time.Duration) {
	share, err := u.agent.placer.take(u.stop, u.spec.GPUs, u.spec.GPUFraction, func() {
		u.set(agentapi.StatePending, "waiting for GPU memory or for another engine to start")
	})
	if err != nil {
		return agentapi.Failure{Step: agentapi.StepDownloading, Exit: agentapi.ExitOutOfMemory, Message: err.Error()}, 0
	}
	defer share.release()
	mark := u.log.mark()
	u.step(agentapi.StepDownloading, agentapi.StateDownloading, "")
	options, env, err := u.agent.startOf(share.gpus)
	if err != nil {
		return agentapi.Failure{Step: agentapi.StepDownloading, Exit: agentapi.ExitBadArgument, Message: shorten(err.Error(), maxMessage)}, 0
	}
	command, dropped := commandFor(options.command, u.spec)
	if len(dropped) > 0 {
		// The log is where whoever misses them looks. It never fails, and values may be secrets.
		_, _ = fmt.Fprintf(u.log, "gpuscale: not passed on, since gpuscale decides them: %s\n", strings.Join(dropped, " "))
	}
	engine, err := u.agent.cfg.Runner.Start(EngineSpec{Name: u.spec.Name, Command: command, Env: env, Log: u.log})
	if err != nil {
		return u.notStarted(err), 0
	}
	// Before the share is released, the engine is gone.
	defer engine.Stop(u.agent.hard, u.agent.cfg.Settings.StopGrace)

	if failure := u.untilReady(engine, env, foreign(options.command), mark); failure != nil {
		return *failure, 0
	}
	share.up()
	began := u.agent.cfg.Clock.Now()
	u.ready(engine)
	failure := u.whileReady(engine, mark)
	return failure, u.agent.cfg.Clock.Now().Sub(began)
}

func (u *unit) notStarted(err error) agentapi.Failure {
	exit := agentapi.ExitCrashed
	switch {
	case errors.Is(err, ErrNoEngine):
		exit = agentapi.ExitNoEngine
	case errors.Is(err, ErrNoRuntime):
		exit = agentapi.ExitNoRuntime
	}
	return agentapi.Failure{Step: agentapi.StepDownloading, Exit: exit, Message: shorten(err.Error(), maxMessage)}
}

// whileReady waits for the engine to end, to say that it is dead or to hang, or for the unit's end.
func (u *unit) whileReady(engine Engine, mark int) agentapi.Failure {
	defer u.unready()
	ctx, cancel := context.WithCancel(u.stop)
	defer cancel()
	failed := make(chan agentapi.Failure, 2)
	u.agent.work.Go(func() {
		if u.agent.sickens(ctx, engine) {
			failed <- agentapi.Failure{Step: agentapi.StepReady, Exit: agentapi.ExitCrashed, Message: "engine says that it is unhealthy"}
		}
	})
	u.agent.work.Go(func() {
		if failure := u.hangs(ctx, engine); failure != nil {
			failed <- *failure
		}
	})
	select {
	case <-engine.Done():
		exit, message := classify(engine.Exit(), u.log.since(mark))
		return agentapi.Failure{Step: agentapi.StepReady, Exit: exit, Message: message}
	case failure := <-failed:
		return failure
	case <-u.stop.Done():
		return agentapi.Failure{}
	}
}

// again settles a failure: it waits and says true if the engine should be started once more.
func (u *unit) again(failure agentapi.Failure, served time.Duration) bool {
	a := u.agent
	a.mu.Lock()
	if served >= a.cfg.Settings.StableAfter {
		u.restarts = 0
	}
	if failure.Exit == agentapi.ExitNoEngine && a.failure == nil {
		a.failure = &failure
	}
	if lasting(failure.Exit) || u.restarts >= maxRestarts || a.draining {
		u.failure, u.logTail = &failure, tailOf(u.log.since(0))
		u.to(agentapi.StateFailed, failure.Message)
		a.mu.Unlock()
		a.cfg.Log.Error("model failed", "model", u.spec.Name, "step", failure.Step, "exit", failure.Exit, "reason", failure.Message)
		return false
	}
	wait := min(a.cfg.Settings.BackOff<<u.restarts, time.Minute)
	u.restarts++
	u.to(agentapi.StatePending, fmt.Sprintf("restart %d of %d in %s, after %s", u.restarts, maxRestarts, wait, failure.Exit))
	a.mu.Unlock()
	a.cfg.Log.Warn("engine ended", "model", u.spec.Name, "exit", failure.Exit, "reason", failure.Message, "restartIn", wait)
	return a.cfg.Clock.Wait(u.stop, wait) == nil
}

// to changes the state. The agent is locked.
func (u *unit) to(state, message string) {
	if u.state != state {
		u.since = u.agent.cfg.Clock.Now()
	}
	u.state, u.message = state, message
}

func (u *unit) set(state, message string) {
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	u.to(state, message)
}

// step records that a boot step was reached, and changes the state. Reached again, after a restart, it has a new time.
func (u *unit) step(name, state, message string) {
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	u.record(name)
	u.to(state, message)
}

func (u *unit) record(name string) {
	step := agentapi.Step{Name: name, At: u.agent.cfg.Clock.Now(), Message: u.spec.Name}
	for i := range u.steps {
		if u.steps[i].Name == name {
			// What came after it is still to come again.
			u.steps = append(u.steps[:i], step)
			return
		}
	}
	u.steps = append(u.steps, step)
}

// observe reads a line of the engine's log for progress while it loads.
func (u *unit) observe(line string) {
	loading, message := progress(line)
	if !loading && message == "" {
		return
	}
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	if u.state != agentapi.StateDownloading && u.state != agentapi.StateLoading {
		return
	}
	if loading && u.state == agentapi.StateDownloading {
		u.record(agentapi.StepLoading)
		u.to(agentapi.StateLoading, message)
	} else if message != "" && (u.state != agentapi.StateDownloading || u.download.grown.IsZero()) {
		u.message = message // The bytes on the disk say more than a bar of one file.
	}
}

// ready opens the door.
func (u *unit) ready(engine Engine) {
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	u.proxy, u.engine = newProxy(engine, u.agent.cfg.Log), engine
	u.record(agentapi.StepReady)
	u.to(agentapi.StateReady, "")
	if u.drained || u.retiring {
		u.to(agentapi.StateDraining, "")
	}
}

// unready closes it, for requests to come.
func (u *unit) unready() {
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	u.proxy, u.engine = nil, nil
	if u.state == agentapi.StateReady {
		u.to(agentapi.StatePending, "engine ended")
	}
}

// retire begins the unit's end: at once, or when its last request has ended. The agent is locked.
func (u *unit) retire() {
	if u.retiring {
		return
	}
	u.retiring = true
	if u.inFlight == 0 || u.agent.ended {
		u.end()
		return
	}
	u.to(agentapi.StateDraining, "no longer asked for")
	u.agent.work.Go(func() {
		if u.agent.cfg.Clock.Wait(u.stop, u.agent.cfg.Settings.DrainTimeout) == nil {
			u.end()
		}
	})
}
