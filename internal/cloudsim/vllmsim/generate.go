package vllmsim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// generation is one validated request and its answers, decided before it runs.
type generation struct {
	server       *Server
	ordinal      int64
	chat         bool
	params       params
	id           string
	model        string
	created      int64
	prompts      []string // one for a chat
	promptTokens int
	maxTokens    int
	answers      []answer
}

// prepare validates a request and composes its answers.
func (s *Server) prepare(r *http.Request, chat bool) (*generation, *apiError) {
	p, bad := decode(r)
	if bad != nil {
		return nil, bad
	}
	g := &generation{server: s, chat: chat, params: p}
	model, known := s.modelName(p.Model)
	if !known {
		return nil, unknownModel(p.Model)
	}
	g.model = model
	if s.cfg.Pooling {
		return nil, badRequest("", "The model does not support %s API", map[bool]string{true: "Chat Completions", false: "Completions"}[chat])
	}
	if bad := p.validate(); bad != nil {
		return nil, bad
	}
	if chat && len(p.Tools) > 0 && string(p.ToolChoice) != `"none"` && !s.cfg.AutoToolChoice {
		return nil, badRequest("", `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)
	}
	if bad := g.compose(); bad != nil {
		return nil, bad
	}
	g.ordinal = s.served.Add(1)
	g.created = s.cfg.Clock.Now().Unix()
	g.id = g.identity(r.Header.Get("X-Request-Id"))
	return g, nil
}

func (g *generation) identity(requestID string) string {
	if requestID == "" {
		seq := newSequence(g.model, g.server.started.String(), fmt.Sprint(g.ordinal))
		requestID = fmt.Sprintf("%016x%016x", seq.next(), seq.next())
	}
	if g.chat {
		return "chatcmpl-" + requestID
	}
	return "cmpl-" + requestID + "-0"
}

// compose reads the prompts, checks them against the context and decides the
// answers.
func (g *generation) compose() *apiError {
	p := g.params
	stops, bad := p.stops()
	if bad != nil {
		return bad
	}
	quotes := []string{""}
	if g.chat {
		g.prompts = make([]string, 1)
		g.prompts[0], quotes[0], bad = p.chatPrompt()
	} else {
		g.prompts, bad = prompts(p.Prompt, "prompt")
		quotes = g.prompts
	}
	if bad != nil {
		return bad
	}
	longest := 0
	for _, prompt := range g.prompts {
		tokens := len(tokenSplit(prompt))
		g.promptTokens += tokens
		longest = max(longest, tokens)
	}
	if bad := g.bound(longest); bad != nil {
		return bad
	}
	for _, quote := range quotes {
		for choice := range p.choices() {
			g.answers = append(g.answers, compose(wording{model: g.model, prompt: quote, seed: p.seed(),
				index: choice, least: p.MinTokens, most: g.maxTokens, endless: p.IgnoreEOS, stops: stops}))
		}
	}
	return nil
}

// bound decides maxTokens from the request and the model's context.
func (g *generation) bound(prompt int) *apiError {
	room := g.server.cfg.MaxModelLen
	if prompt >= room {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.",
			room, prompt)
	}
	g.maxTokens = room - prompt
	if !g.chat {
		g.maxTokens = min(16, g.maxTokens) // the default of the completions API
	}
	limit := g.params.limit()
	if limit == nil {
		return nil
	}
	if *limit > room-prompt {
		return badRequest("max_tokens", "'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens and your request has %d input tokens (%d > %d - %d).",
			*limit, room, prompt, *limit, room, prompt)
	}
	g.maxTokens = *limit
	return nil
}

func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	s.generate(w, r, true) //nolint:contextcheck // r brings its context: see request.
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	s.generate(w, r, false) //nolint:contextcheck // r brings its context: see request.
}

func (s *Server) generate(w http.ResponseWriter, r *http.Request, chat bool) {
	if bad := s.refuse(); bad != nil {
		writeError(w, bad)
		return
	}
	g, bad := s.prepare(r, chat)
	if bad != nil {
		writeError(w, bad)
		return
	}
	if s.failing(FailUnhealthy, g.ordinal) {
		writeError(w, engineDead())
		return
	}
	ctx, release := s.request(r)
	defer release()
	if g.params.Stream {
		g.stream(ctx, w)
		return
	}
	j, err := g.run(ctx, func(int) error { return nil })
	if err == nil {
		j.finish(g.reason())
		writeJSON(w, http.StatusOK, g.whole())
		return
	}
	if errors.Is(err, errEngineDead) {
		writeError(w, engineDead())
		return
	}
	panic(http.ErrAbortHandler)
}

// refuse is the answer to new generation requests when there is no engine for
// them.
func (s *Server) refuse() *apiError {
	if dead, _ := s.deadSince(); dead {
		return engineDead()
	}
	if s.draining.Load() {
		return shuttingDown()
	}
	return nil
}

// steps is how many times run emits: once per token of the longest answer.
func (g *generation) steps() int {
	longest := 0
	for _, a := range g.answers {
		longest = max(longest, len(a.tokens))
	}
	return longest
}

// reason is the finished_reason that the request is counted under.
func (g *generation) reason() string { return g.answers[0].reason }

// run queues the request and calls emit for each step as its time comes. On
// success the caller finishes the job; on failure it is finished already, and
// the error is errEngineDead, what emit returned, or a cancellation.
func (g *generation) run(ctx context.Context, emit func(step int) error) (*job, error) {
	s := g.server
	if s.failing(FailFreeze, g.ordinal) {
		s.frozen.Store(true)
	}
	if s.frozen.Load() { // The front end takes it, and no loop is there to count it.
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	j, err := s.engineFor(g.ordinal).start(ctx, g.promptTokens, g.maxTokens, g.params.choices())
	if err != nil {
		return nil, context.Cause(ctx)
	}
	if s.failing(FailCrash, g.ordinal) {
		s.die()
		j.finish(reasonNames[reasonError])
		return nil, errEngineDead
	}
	if err := g.produce(ctx, j, emit); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		j.finish(g.failureReason(ctx, err))
		return nil, err
	}
	return j, nil
}

func (g *generation) failureReason(ctx context.Context, err error) string {
	if errors.Is(err, errEngineDead) || (ctx.Err() == nil && errors.Is(err, errInjected)) {
		return reasonNames[reasonError]
	}
	return reasonNames[reasonAbort]
}

func (g *generation) produce(ctx context.Context, j *job, emit func(step int) error) error {
	cfg := g.server.cfg
	for step := range max(1, g.steps()) {
		due := j.started.Add(cfg.TTFT)
		if cfg.TokensPerSecond > 0 {
			due = due.Add(time.Duration(float64(step) / cfg.TokensPerSecond * float64(time.Second)))
		}
		if err := cfg.Clock.Wait(ctx, due.Sub(cfg.Clock.Now())); err != nil {
			return err
		}
		if g.server.frozen.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		count := 0
		for _, a := range g.answers {
			if step < len(a.tokens) {
				count++
			}
		}
		if count > 0 {
			j.token(count)
		}
		if err := emit(step); err != nil {
			return err
		}
	}
	return nil
}
