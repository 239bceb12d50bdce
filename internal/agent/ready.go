package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/munhq/gpuscale/internal/agentapi"
)

var (
	errLate   = errors.New("took longer than it may")
	errExited = errors.New("engine ended")
	// errStalled is said with how long and how far.
	errStalled = errors.New("no byte of the weights came")
)

// untilReady waits until the engine truly serves: it is healthy, lists the model, and has completed one token, which
// also pays for what the engine does lazily. Nil means ready.
//
// Another server than vLLM need not have /health or list the model under its name; the completion decides.
func (u *unit) untilReady(engine Engine, env map[string]string, foreign bool, mark int) *agentapi.Failure {
	u.agent.mu.Lock()
	u.download = &download{}
	u.agent.mu.Unlock()
	ctx, cancel := u.agent.whileAlive(u.stop, engine)
	defer cancel(nil)
	u.agent.work.Go(func() { u.whileInTime(ctx, cancel) })
	u.agent.work.Go(func() { u.follow(ctx, env) })
	client := &http.Client{Transport: engine.Transport()}

	asked := u.agent.untilListed(ctx, client, u.spec.Name, foreign)
	if ctx.Err() != nil {
		return u.failureOf(ctx, engine, mark, asked)
	}
	u.step(agentapi.StepLoading, agentapi.StateWarming, "")
	warm, done := within(ctx, u.agent.cfg.Clock, u.agent.cfg.Settings.WarmTimeout)
	defer done()
	if err := warmUp(warm, client, u.spec.Name); err != nil {
		if warm.Err() != nil && ctx.Err() == nil {
			return &agentapi.Failure{Step: agentapi.StepWarmed, Exit: agentapi.ExitTimeout,
				Message: fmt.Sprintf("no answer to the first completion within %s", u.agent.cfg.Settings.WarmTimeout)}
		}
		if ctx.Err() == nil && u.agent.dies(ctx, engine) {
			return u.failureOf(ctx, engine, mark, err)
		}
		if ctx.Err() != nil {
			return u.failureOf(ctx, engine, mark, err)
		}
		return &agentapi.Failure{Step: agentapi.StepWarmed, Exit: agentapi.ExitWarmupFailed, Message: shorten(err.Error(), maxMessage)}
	}
	u.step(agentapi.StepWarmed, agentapi.StateWarming, "")
	return nil
}

// whileAlive is a context that ends with the unit or the engine (errExited), or when it is cancelled for a reason.
func (a *Agent) whileAlive(stop context.Context, engine Engine) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(stop)
	a.work.Go(func() {
		select {
		case <-engine.Done():
			cancel(errExited)
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// dies waits a little for an engine that failed a completion to end by itself, since its log then says more than its
// answer did.
func (a *Agent) dies(ctx context.Context, engine Engine) bool {
	ctx, cancel := within(ctx, a.cfg.Clock, a.cfg.Settings.DeathTime)
	defer cancel()
	select {
	case <-engine.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// failureOf says why ctx ended before the engine was ready; last is what the engine was last seen to answer.
func (u *unit) failureOf(ctx context.Context, engine Engine, mark int, last error) *agentapi.Failure {
	u.agent.mu.Lock()
	state := u.state
	u.agent.mu.Unlock()
	f := &agentapi.Failure{Step: stepOf(state)}
	ended := false
	select {
	case <-engine.Done():
		ended = true
	default:
	}
	if cause := context.Cause(ctx); !ended && errors.Is(cause, errStalled) {
		f.Exit, f.Message = agentapi.ExitTimeout, cause.Error()
		return f
	}
	if !ended && errors.Is(context.Cause(ctx), errLate) {
		f.Exit, f.Message = agentapi.ExitTimeout, "not ready in time"
		if last != nil {
			f.Message = shorten("not ready in time: "+last.Error(), maxMessage)
		}
		return f
	}
	if !ended {
		return f // The unit is ending: nobody reads it.
	}
	f.Exit, f.Message = classify(engine.Exit(), u.log.since(mark))
	if f.Exit == agentapi.ExitCrashed && state == agentapi.StateWarming {
		f.Exit = agentapi.ExitWarmupFailed
	}
	return f
}

// stepOf is the step that a model in a state has not reached yet or is in.
func stepOf(state string) string {
	switch state {
	case agentapi.StateLoading:
		return agentapi.StepLoading
	case agentapi.StateWarming:
		return agentapi.StepWarmed
	}
	return agentapi.StepDownloading
}

// untilListed asks until the engine is healthy and lists the model, or ctx ends. It returns the last complaint.
func (a *Agent) untilListed(ctx context.Context, client *http.Client, name string, foreign bool) error {
	var last error
	for {
		err := listed(ctx, client, name, foreign)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if a.cfg.Clock.Wait(ctx, a.cfg.Settings.ProbeInterval) != nil {
			return last
		}
	}
}

func listed(ctx context.Context, client *http.Client, name string, foreign bool) error {
	if code, _, err := ask(ctx, client, http.MethodGet, "/health", nil); err != nil {
		return err
	} else if code != http.StatusOK && (!foreign || code != http.StatusNotFound) {
		return fmt.Errorf("/health answers %d", code)
	}
	if foreign {
		return nil
	}
	code, body, err := ask(ctx, client, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if code != http.StatusOK || json.Unmarshal(body, &list) != nil {
		return fmt.Errorf("/v1/models answers %d", code)
	}
	for _, m := range list.Data {
		if m.ID == name {
			return nil
		}
	}
	return fmt.Errorf("/v1/models does not list %s", name)
}

// warmUps are one-token requests, for engines of each kind. The first that the engine knows decides.
func warmUps(name string) []struct {
	path string
	body map[string]any
} {
	return []struct {
		path string
		body map[string]any
	}{
		{"/v1/completions", map[string]any{"model": name, "prompt": "Hi", "max_tokens": 1}},
		{"/v1/chat/completions", map[string]any{"model": name, "max_tokens": 1,
			"messages": []map[string]string{{"role": "user", "content": "Hi"}}}},
		{"/v1/embeddings", map[string]any{"model": name, "input": "Hi"}},
	}
}

// notServed are the answers by which engines say that they do not do such a thing, as opposed to failing at it.
var notServed = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented,
	http.StatusUnprocessableEntity}

func warmUp(ctx context.Context, client *http.Client, name string) error {
	var first error
	for _, w := range warmUps(name) {
		body, err := json.Marshal(w.body)
		if err != nil {
			return err
		}
		code, answer, err := ask(ctx, client, http.MethodPost, w.path, body)
		if err == nil && code == http.StatusOK {
			return complete(w.path, answer)
		}
		if err == nil {
			err = fmt.Errorf("%s answers %d: %s", w.path, code, shorten(string(answer), 120))
		}
		if first == nil {
			first = err
		}
		if !slices.Contains(notServed, code) {
			return err
		}
	}
	return first
}

// complete checks that a 200 is an answer and not an error in its place.
func complete(path string, answer []byte) error {
	var shape struct {
		Choices []json.RawMessage `json:"choices"`
		Data    []json.RawMessage `json:"data"`
	}
	if json.Unmarshal(answer, &shape) != nil || len(shape.Choices)+len(shape.Data) == 0 {
		return fmt.Errorf("%s answers 200 without a result: %s", path, shorten(string(answer), 120))
	}
	return nil
}

// maxProbeAnswer bounds what is read of an engine's answer to the agent itself.
const maxProbeAnswer = 1 << 20

func ask(ctx context.Context, client *http.Client, method, path string, body []byte) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }() // Nothing is left to do for an answer that was read.
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxProbeAnswer))
	return response.StatusCode, answer, err
}

// sickAfter is how many answers in a row must say that the engine is dead. An answer that does not come says nothing:
// a busy engine is slow, and a dead process is seen otherwise.
const sickAfter = 3

// sickens watches a serving engine's health and returns true once it says that it is dead, false when ctx ends.
func (a *Agent) sickens(ctx context.Context, engine Engine) bool {
	client := &http.Client{Transport: engine.Transport()}
	for bad := 0; bad < sickAfter; {
		if a.cfg.Clock.Wait(ctx, a.cfg.Settings.HealthInterval) != nil {
			return false
		}
		bounded, cancel := within(ctx, a.cfg.Clock, a.cfg.Settings.HealthInterval)
		code, _, err := ask(bounded, client, http.MethodGet, "/health", nil)
		cancel()
		switch {
		case err != nil:
		case code >= http.StatusInternalServerError:
			bad++
		default:
			bad = 0
		}
	}
	return true
}
