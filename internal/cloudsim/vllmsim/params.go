package vllmsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
)

// message is one turn of a chat.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// params are the fields that the simulator reads of a generation request;
// vLLM, and so the simulator, ignores fields that it does not know.
type params struct {
	Model               string            `json:"model"`
	Messages            []message         `json:"messages"`
	Prompt              json.RawMessage   `json:"prompt"`
	Input               json.RawMessage   `json:"input"`
	MaxTokens           *int              `json:"max_tokens"`
	MaxCompletionTokens *int              `json:"max_completion_tokens"`
	MinTokens           int               `json:"min_tokens"`
	IgnoreEOS           bool              `json:"ignore_eos"`
	N                   *int              `json:"n"`
	Seed                *int64            `json:"seed"`
	Stop                json.RawMessage   `json:"stop"`
	Temperature         *float64          `json:"temperature"`
	TopP                *float64          `json:"top_p"`
	Echo                bool              `json:"echo"`
	Stream              bool              `json:"stream"`
	StreamOptions       *streamOptions    `json:"stream_options"`
	Tools               []json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage   `json:"tool_choice"`
	EncodingFormat      string            `json:"encoding_format"`
	Dimensions          *int              `json:"dimensions"`
}

type streamOptions struct {
	IncludeUsage         bool `json:"include_usage"`
	ContinuousUsageStats bool `json:"continuous_usage_stats"`
}

// decode reads the body of a request.
func decode(r *http.Request) (params, *apiError) {
	var p params
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return p, &apiError{Message: "Unsupported Media Type: Only 'application/json' is allowed",
			Type: "Unsupported Media Type", Code: http.StatusUnsupportedMediaType}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return p, badRequest("", "%v", err)
	}
	var wrong *json.UnmarshalTypeError
	switch err := json.Unmarshal(body, &p); {
	case errors.As(err, &wrong):
		return p, badRequest(wrong.Field, "[{'type': 'type_error', 'loc': ('body', '%s'), 'msg': 'Input should be a valid %s'}]",
			wrong.Field, wrong.Type)
	case err != nil:
		return p, badRequest("", "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'ctx': {'error': '%v'}}]", err)
	}
	return p, nil
}

// validate checks what chat and completions have in common.
func (p params) validate() *apiError {
	switch {
	case p.StreamOptions != nil && !p.Stream:
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	case p.Temperature != nil && *p.Temperature < 0:
		return badRequest("temperature", "temperature must be non-negative, got %v.", *p.Temperature)
	case p.TopP != nil && (*p.TopP <= 0 || *p.TopP > 1):
		return badRequest("top_p", "top_p must be in (0, 1], got %v.", *p.TopP)
	case p.N != nil && *p.N < 1:
		return badRequest("n", "n must be at least 1, got %d.", *p.N)
	case p.limit() != nil && *p.limit() < 1:
		return badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *p.limit())
	case p.MinTokens < 0:
		return badRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.", p.MinTokens)
	case p.limit() != nil && p.MinTokens > *p.limit():
		return badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.",
			*p.limit(), p.MinTokens)
	}
	return nil
}

// limit is the number of tokens asked for, if any.
func (p params) limit() *int {
	if p.MaxCompletionTokens != nil {
		return p.MaxCompletionTokens
	}
	return p.MaxTokens
}

func (p params) choices() int {
	if p.N == nil {
		return 1
	}
	return *p.N
}

func (p params) seed() int64 {
	if p.Seed == nil {
		return 0
	}
	return *p.Seed
}

// stops reads "stop", a string or a list of strings.
func (p params) stops() ([]string, *apiError) {
	var one string
	if len(p.Stop) == 0 || json.Unmarshal(p.Stop, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if json.Unmarshal(p.Stop, &many) != nil {
		return nil, badRequest("stop", "Input should be a valid string or list of strings")
	}
	return many, nil
}

// chatPrompt renders messages as a chat template would, and returns what the
// user said last.
func (p params) chatPrompt() (rendered, last string, bad *apiError) {
	if len(p.Messages) == 0 {
		return "", "", badRequest("messages", "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]")
	}
	var b strings.Builder
	for i, m := range p.Messages {
		text, err := m.text()
		if err != nil || m.Role == "" {
			return "", "", badRequest("messages", "Invalid message at index %d", i)
		}
		fmt.Fprintf(&b, "<|%s|> %s\n", m.Role, text)
		if m.Role == "user" {
			last = text
		}
	}
	return b.String(), last, nil
}

// text is the content of a message: a string, or the text parts of a list.
func (m message) text() (string, error) {
	if len(m.Content) == 0 || string(m.Content) == "null" {
		return "", nil // an assistant turn with tool calls has no content
	}
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", fmt.Errorf("content of a %s message: %w", m.Role, err)
	}
	var texts []string
	for _, part := range parts {
		if part.Type == "text" {
			texts = append(texts, part.Text)
		}
	}
	return strings.Join(texts, "\n"), nil
}

// prompts reads "prompt" or "input": a string, token ids, or a list of either.
func prompts(raw json.RawMessage, field string) ([]string, *apiError) {
	var one string
	if len(raw) == 0 || string(raw) == "null" {
		return nil, badRequest(field, "[{'type': 'missing', 'loc': ('body', '%s'), 'msg': 'Field required'}]", field)
	}
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil && len(many) > 0 {
		return many, nil
	}
	var ids []int
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return []string{idText(ids)}, nil
	}
	var batches [][]int
	if json.Unmarshal(raw, &batches) == nil && len(batches) > 0 {
		for _, batch := range batches {
			many = append(many, idText(batch))
		}
		return many, nil
	}
	return nil, badRequest(field, "Either a non-empty string, a list of strings or token ids is required for `%s`", field)
}

// idText stands for the text of token ids, with as many tokens as ids.
func idText(ids []int) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = fmt.Sprintf("t%d", id%10000)
	}
	return strings.Join(words, " ")
}
