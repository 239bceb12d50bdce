package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/http/httputil"
	"slices"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

var errOlder = errors.New("a newer desired set is known")

// put makes d the desired set. Units that are still asked for, unchanged, are left alone.
func (a *Agent) put(d agentapi.DesiredModels) error {
	if err := check(d); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.Generation < a.generation {
		return fmt.Errorf("%w: generation %d, this is %d", errOlder, a.generation, d.Generation)
	}
	newer := d.Generation > a.generation
	sameEnv := maps.Equal(d.Env, a.env)
	a.generation = d.Generation
	a.adopt(d.Env)
	for _, u := range a.units {
		u.log.blank(d.Env)
		i := slices.IndexFunc(d.Models, func(m agentapi.DesiredModel) bool { return same(m, u.spec) })
		// A failed model is tried again with a new environment, which may hold the token it lacked. A serving one keeps
		// the old: a restart would cost its users more than the new is worth.
		if i < 0 || u.state == agentapi.StateFailed && !sameEnv {
			u.retire()
		} else if newer {
			u.resume()
		}
	}
	for _, m := range d.Models {
		if a.current(m.Name) == nil && !a.ended {
			u := a.newUnit(m)
			a.units = append(a.units, u)
			a.work.Go(u.run)
		}
	}
	return nil
}

// adopt takes over an environment and the settings in it. A setting that cannot be read fails the engines that start with
// it, not those that run. The agent is locked, or not shared yet.
func (a *Agent) adopt(env map[string]string) {
	a.env = env
	o, err := optionsOf(env, a.cfg.Machine)
	if err != nil {
		return
	}
	a.maxBody = o.maxBody
	for _, u := range a.units {
		u.most = o.mostInFlight(u.spec.Args)
	}
}

// resume undoes POST /drain for one model. The agent is locked.
func (u *unit) resume() {
	if u.retiring || !u.drained {
		return
	}
	u.drained = false
	if u.state == agentapi.StateDraining && u.proxy != nil {
		u.to(agentapi.StateReady, "")
	}
}

// same reports whether the engine of one is the engine of the other. How long it may take to load is no part of it.
func same(a, b agentapi.DesiredModel) bool {
	return a.Name == b.Name && a.Source == b.Source && a.GPUs == b.GPUs && a.GPUFraction == b.GPUFraction &&
		slices.Equal(a.Args, b.Args)
}

// check refuses a set that no engine could be started for.
func check(d agentapi.DesiredModels) error {
	if d.Generation < 1 {
		return errors.New("generation must be at least 1")
	}
	seen := map[string]bool{}
	for _, m := range d.Models {
		switch {
		case m.Name == "" || m.Source == "":
			return errors.New("model without name or source")
		case len(m.Name) > maxModelName:
			return fmt.Errorf("model name is over %d bytes", maxModelName)
		case m.Name[0] == '-' || m.Source[0] == '-':
			// It would be read as an option of the engine.
			return errors.New("model name or source begins with a dash")
		case seen[m.Name]:
			return fmt.Errorf("model %s is there twice", m.Name)
		case m.GPUs < 0 || m.GPUFraction < 0 || m.LoadTimeoutSeconds < 0:
			return fmt.Errorf("model %s has a negative number", m.Name)
		}
		seen[m.Name] = true
	}
	return nil
}

// current is the unit that serves a name, nil if none is asked for. The agent is locked.
func (a *Agent) current(name string) *unit {
	for _, u := range a.units {
		if u.spec.Name == name && !u.retiring {
			return u
		}
	}
	return nil
}

// forget drops a unit whose engine is gone.
func (a *Agent) forget(u *unit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.units = slices.DeleteFunc(a.units, func(other *unit) bool { return other == u })
}

// starts reports whether engines may start at all.
func (a *Agent) starts() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return (a.failure == nil || !ofMachine(a.failure.Step)) && !a.draining
}

// ofMachine reports a step without which no engine can be started at all.
func ofMachine(step string) bool {
	return step == agentapi.StepGPUsFound || step == agentapi.StepRuntimeFound || step == agentapi.StepImagePulled
}

// startOf is what an engine that starts now is started with.
func (a *Agent) startOf(gpus []int) (options, map[string]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, err := optionsOf(a.env, a.cfg.Machine)
	if o.command == nil {
		o.command = a.cfg.Command
	}
	return o, envFor(a.env, gpus), err
}

// drain refuses new work from now on, for one model or for all. False means that the model is not known.
func (a *Agent) drain(model string) bool {
	if model == "" {
		a.drainAll()
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.current(model)
	if u == nil {
		return false
	}
	u.drained = true
	if u.state == agentapi.StateReady {
		u.to(agentapi.StateDraining, "")
	}
	return true
}

func (a *Agent) drainAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.draining = true
}

// admit counts a request for a model and returns what serves it, or why it is refused (an agentapi.Refused constant).
// The caller calls dismiss when the request has ended, however it did.
func (a *Agent) admit(model string) (*unit, *httputil.ReverseProxy, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed() {
		return nil, nil, agentapi.RefusedDraining
	}
	u := a.current(model)
	switch {
	case u == nil && a.retires(model):
		return nil, nil, agentapi.RefusedDraining
	case u == nil:
		return nil, nil, agentapi.RefusedNoModel
	case u.drained:
		return nil, nil, agentapi.RefusedDraining
	case u.proxy == nil:
		return nil, nil, agentapi.RefusedNotReady
	case u.inFlight >= u.most:
		u.refused++
		return nil, nil, agentapi.RefusedFull
	}
	now := a.cfg.Clock.Now()
	u.inFlight++
	u.requests++
	a.inFlight++
	u.last, a.last = now, now
	return u, u.proxy, ""
}

func (a *Agent) retires(model string) bool {
	return slices.ContainsFunc(a.units, func(u *unit) bool { return u.spec.Name == model })
}

// dismiss ends the count of an admitted request.
func (a *Agent) dismiss(u *unit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.cfg.Clock.Now()
	u.inFlight--
	a.inFlight--
	u.last, a.last = now, now
	if u.retiring && u.inFlight == 0 {
		u.end()
	}
	if a.inFlight == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
}

// status is the answer of GET /status.
func (a *Agent) status() agentapi.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := agentapi.Status{
		Version: a.cfg.Version, ClaimUID: a.cfg.Boot.ClaimUID, Now: a.cfg.Clock.Now(), BootID: a.bootID,
		Steps: slices.Clone(a.steps), Failure: copied(a.failure),
		GPUs: slices.Clone(a.inventory.GPUs), Driver: a.inventory.Driver, CUDA: a.inventory.CUDA,
		DesiredGeneration: a.generation,
		InFlight:          a.inFlight, LastRequest: moment(a.last), Draining: a.closed(),
		Notice: a.notice(), Lease: a.leaseStatus(),
		Models: make([]agentapi.ModelInfo, 0, len(a.units)),
	}
	if s.GPUs == nil {
		s.GPUs = []agentapi.GPU{}
	}
	for _, u := range a.units {
		if u.retiring && a.current(u.spec.Name) != nil {
			continue // Its successor speaks for the name.
		}
		s.Steps = append(s.Steps, u.steps...)
		s.Models = append(s.Models, u.info())
	}
	return s
}

// info is the unit as others see it. The agent is locked.
func (u *unit) info() agentapi.ModelInfo {
	state, message := u.state, u.message
	if state == agentapi.StatePending && message == "" {
		message = u.agent.preparing
	}
	if u.retiring || u.agent.closed() && state == agentapi.StateReady {
		state = agentapi.StateDraining
	}
	return agentapi.ModelInfo{
		Name: u.spec.Name, State: state, Since: u.since, Message: message,
		Failure: copied(u.failure), Restarts: u.restarts, InFlight: u.inFlight, LastRequest: moment(u.last),
		LogTail: slices.Clone(u.logTail), Download: u.download.info(),
	}
}

func copied(f *agentapi.Failure) *agentapi.Failure {
	if f == nil {
		return nil
	}
	c := *f
	return &c
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
