package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// hangs watches a serving engine whose processes live and whose /health may well say 200, and returns how it hangs, or
// nil when ctx ends. A busy engine must never be taken for one that hangs, so three signs are needed together:
//
//   - for Settings.HangAfter, counting only the time with requests in flight, no byte of an answer came from it, over all
//     its requests;
//   - then a one-token completion gets no answer of any kind for Settings.HangProbe;
//   - and meanwhile no byte came, and what its metrics say of tokens and of its KV cache did not change. That is what a
//     long prompt or a full queue of long answers that are not streamed looks like from inside. An engine without such
//     metrics is judged by the first two.
//
// Time is counted in waits, so that neither a jump of the wall clock nor a machine that was suspended counts as silence.
func (u *unit) hangs(ctx context.Context, engine Engine) *agentapi.Failure {
	settings := u.agent.cfg.Settings
	client := &http.Client{Transport: engine.Transport()}
	step := min(settings.HealthInterval, settings.HangAfter)
	silent, heard := time.Duration(0), u.heard.Load()
	for {
		if u.agent.cfg.Clock.Wait(ctx, step) != nil {
			return nil
		}
		now := u.heard.Load()
		switch waiting := u.waiting(); {
		case now != heard:
			silent, heard = 0, now
			continue
		case waiting == 0:
			continue
		}
		if silent += step; silent < settings.HangAfter {
			continue
		}
		silent = 0
		before := u.lifeSigns(ctx, client)
		answered := u.answers(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		if answered || u.heard.Load() != heard || u.lifeSigns(ctx, client) != before {
			continue
		}
		return &agentapi.Failure{Step: agentapi.StepReady, Exit: agentapi.ExitCrashed, Message: fmt.Sprintf(
			"engine hangs: %d requests without a byte for %s, and a one-token completion without an answer for %s",
			u.waiting(), settings.HangAfter, settings.HangProbe)}
	}
}

func (u *unit) waiting() int {
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	return u.inFlight
}

// answers asks for one token and reports whether anything came of it in time, an error included.
func (u *unit) answers(ctx context.Context, client *http.Client) bool {
	bounded, cancel := within(ctx, u.agent.cfg.Clock, u.agent.cfg.Settings.HangProbe)
	defer cancel()
	_ = warmUp(bounded, client, u.spec.Name) // That it came to an end is all that matters.
	return bounded.Err() == nil
}

// lifeSigns is what an engine's metrics say that only changes while it computes, empty if they say nothing.
func (u *unit) lifeSigns(ctx context.Context, client *http.Client) string {
	bounded, cancel := within(ctx, u.agent.cfg.Clock, u.agent.cfg.Settings.HealthInterval)
	defer cancel()
	code, text, err := ask(bounded, client, http.MethodGet, "/metrics", nil)
	if err != nil || code != http.StatusOK {
		return ""
	}
	var signs strings.Builder
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		if strings.Contains(name, "_tokens") || strings.Contains(name, "cache_usage") {
			signs.WriteString(line)
		}
	}
	return signs.String()
}
