package vllmsim

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

var (
	// errInjected is the end of a stream by a stream failure.
	errInjected = errors.New("injected stream failure")
	// errGone is a client that cannot be written to.
	errGone = errors.New("client gone")
)

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	TotalTokens      int `json:"total_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

func (g *generation) usage(step int) *usage {
	completion := 0
	for _, a := range g.answers {
		completion += min(step, len(a.tokens))
	}
	return &usage{PromptTokens: g.promptTokens, CompletionTokens: completion, TotalTokens: g.promptTokens + completion}
}

// chunk is an event of a stream and, with other choices, a whole answer.
type chunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices"`
	Usage   *usage `json:"usage,omitempty"`
}

type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type deltaChoice struct {
	Index        int     `json:"index"`
	Delta        delta   `json:"delta"`
	Logprobs     *int    `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
	StopReason   *string `json:"stop_reason,omitempty"`
}

type textChoice struct {
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	Logprobs     *int    `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
	StopReason   *string `json:"stop_reason"`
}

type messageChoice struct {
	Index        int           `json:"index"`
	Message      answerMessage `json:"message"`
	Logprobs     *int          `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   *string       `json:"stop_reason"`
}

type answerMessage struct {
	Role      string  `json:"role"`
	Content   string  `json:"content"`
	Refusal   *string `json:"refusal"`
	ToolCalls []any   `json:"tool_calls"`
}

func (g *generation) chunk(choices ...any) chunk {
	object := "text_completion"
	if g.chat {
		object = "chat.completion.chunk"
	}
	if choices == nil {
		choices = []any{}
	}
	return chunk{ID: g.id, Object: object, Created: g.created, Model: g.model, Choices: choices}
}

// whole is the answer to a request that does not stream.
func (g *generation) whole() chunk {
	c := g.chunk()
	if g.chat {
		c.Object = "chat.completion"
	}
	for i, a := range g.answers {
		text := strings.Join(a.tokens, "")
		if g.chat {
			c.Choices = append(c.Choices, messageChoice{Index: i, FinishReason: a.reason, StopReason: a.stopString,
				Message: answerMessage{Role: "assistant", Content: text, ToolCalls: []any{}}})
			continue
		}
		c.Choices = append(c.Choices, textChoice{Index: i, Text: g.echo(i) + text, FinishReason: &a.reason, StopReason: a.stopString})
	}
	c.Usage = g.usage(g.steps())
	return c
}

// echo is the prompt of a choice if the request wants it repeated.
func (g *generation) echo(choice int) string {
	if !g.params.Echo || g.chat {
		return ""
	}
	return g.prompts[choice/g.params.choices()]
}

// streamer writes the events of one stream.
type streamer struct {
	g       *generation
	ctx     context.Context
	w       http.ResponseWriter
	control *http.ResponseController
	failure Failure // the stream failure to show, or ""
}

// stream answers with server-sent events. As in vLLM the status is sent before
// the request is even queued, so every later failure comes under status 200.
func (g *generation) stream(ctx context.Context, w http.ResponseWriter) {
	t := &streamer{g: g, ctx: ctx, w: w, control: http.NewResponseController(w)}
	for _, failure := range []Failure{FailStreamError, FailStreamEOF, FailStreamHang} {
		if t.failure == "" && g.server.failing(failure, g.ordinal) {
			t.failure = failure
		}
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	if t.flush() != nil {
		panic(http.ErrAbortHandler)
	}
	j, err := g.run(ctx, t.step)
	switch {
	case err == nil:
		j.finish(g.reason()) // before the last event: who has read it sees it counted
		t.end()
	case errors.Is(err, errEngineDead):
		t.fail(engineDead())
	case errors.Is(err, errInjected) && t.failure == FailStreamError:
		t.fail(internalError("simulated failure of a running request"))
	case errors.Is(err, errInjected) && t.failure == FailStreamEOF:
		return
	default:
		panic(http.ErrAbortHandler)
	}
}

// fail sends an error event. vLLM follows it with [DONE], so [DONE] alone does
// not prove success.
func (t *streamer) fail(e *apiError) {
	if t.send(marshal(e.body())) == nil {
		_ = t.send([]byte("[DONE]")) // a client that left needs no more
	}
}

func (t *streamer) send(data []byte) error {
	if _, err := t.w.Write([]byte("data: " + string(data) + "\n\n")); err != nil {
		return errGone
	}
	return t.flush()
}

func (t *streamer) flush() error {
	if t.control.Flush() != nil {
		return errGone
	}
	return nil
}

// step sends the events of one step and shows the stream failure when its
// time has come.
func (t *streamer) step(step int) error {
	g := t.g
	if step == 0 {
		if err := t.open(); err != nil {
			return err
		}
	}
	for i, a := range g.answers {
		last := step == len(a.tokens)-1
		// A length stop comes on the last token, any other in a chunk of its own.
		attach := last && a.reason == reasonNames[reasonLength] && t.failure == ""
		if step < len(a.tokens) {
			if err := t.token(i, a.tokens[step], attach, step+1); err != nil {
				return err
			}
		}
	}
	if t.failure == "" {
		return nil
	}
	if sent := step + 1; sent < min(g.server.cfg.FailAtToken, g.steps()) {
		return nil
	}
	if t.failure == FailStreamHang {
		<-t.ctx.Done()
		return t.ctx.Err()
	}
	return errInjected
}

// open sends what comes before the first token.
func (t *streamer) open() error {
	for i := range t.g.answers {
		var choice any
		switch {
		case t.g.chat:
			empty := ""
			choice = deltaChoice{Index: i, Delta: delta{Role: "assistant", Content: &empty}}
		case t.g.params.Echo:
			choice = textChoice{Index: i, Text: t.g.echo(i)}
		default:
			continue
		}
		if err := t.event(0, choice); err != nil {
			return err
		}
	}
	return nil
}

func (t *streamer) token(index int, text string, attach bool, step int) error {
	var reason *string
	if attach {
		reason = &t.g.answers[index].reason
	}
	if t.g.chat {
		return t.event(step, deltaChoice{Index: index, Delta: delta{Content: &text}, FinishReason: reason})
	}
	return t.event(step, textChoice{Index: index, Text: text, FinishReason: reason})
}

// event sends one chunk, with usage so far if the client asked for that.
func (t *streamer) event(step int, choice any) error {
	c := t.g.chunk(choice)
	if options := t.g.params.StreamOptions; options != nil && options.IncludeUsage && options.ContinuousUsageStats {
		c.Usage = t.g.usage(step)
	}
	return t.send(marshal(c))
}

// end sends the finish reasons still owed, usage and [DONE]. A client that
// leaves here has had its whole answer.
func (t *streamer) end() {
	g := t.g
	steps := g.steps()
	for i, a := range g.answers {
		if a.reason == reasonNames[reasonLength] {
			continue
		}
		empty := ""
		var choice any = textChoice{Index: i, FinishReason: &a.reason, StopReason: a.stopString}
		if g.chat {
			choice = deltaChoice{Index: i, Delta: delta{Content: &empty}, FinishReason: &a.reason, StopReason: a.stopString}
		}
		if t.event(steps, choice) != nil {
			return
		}
	}
	options := g.params.StreamOptions
	if g.server.cfg.ForceUsage || (options != nil && options.IncludeUsage) {
		c := g.chunk()
		c.Usage = g.usage(steps)
		if t.send(marshal(c)) != nil {
			return
		}
	}
	_ = t.send([]byte("[DONE]")) // as above
}
