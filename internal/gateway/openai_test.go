package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// official is OpenAI's own client for Go, told only the address.
func (w *world) official(options ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(w.url + "/v1/"), option.WithAPIKey("sk-alice"),
		option.WithMaxRetries(0), option.WithHTTPClient(w.client)}, options...)...)
}

func question(name string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: name, MaxCompletionTokens: openai.Int(12),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Why is the sky blue?")}}
}

func TestOpenAIsClient(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) { c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice"}} })
	w.add(nil)
	w.add(nil)
	w.publish(registry.Known{Name: "cold"})
	client := w.official()

	t.Run("chat", func(t *testing.T) {
		got, err := client.Chat.Completions.New(t.Context(), question(model))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Choices) != 1 || got.Choices[0].Message.Content == "" || got.Usage.CompletionTokens != 12 || got.Model != model {
			t.Errorf("%s", got.RawJSON())
		}
	})
	t.Run("chat, streaming", func(t *testing.T) {
		params := question(model)
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := client.Chat.Completions.NewStreaming(t.Context(), params)
		var whole openai.ChatCompletionAccumulator
		chunks := 0
		for stream.Next() {
			chunks++
			if !whole.AddChunk(stream.Current()) {
				t.Fatalf("a chunk does not follow: %s", stream.Current().RawJSON())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if chunks < 12 || whole.Choices[0].Message.Content == "" || whole.Usage.CompletionTokens != 12 {
			t.Errorf("%d chunks: %+v", chunks, whole.ChatCompletion)
		}
		w.wantMetric(`gpuscale_gateway_tokens_total{kind="completion",model="` + model + `",source="usage"} 24`)
	})
	t.Run("completion", func(t *testing.T) {
		params := openai.CompletionNewParams{Model: model, MaxTokens: openai.Int(5),
			Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("x")}}
		got, err := client.Completions.New(t.Context(), params)
		if err != nil || len(got.Choices) != 1 || got.Choices[0].Text == "" {
			t.Fatal(err, got)
		}
		stream, text := client.Completions.NewStreaming(t.Context(), params), ""
		for stream.Next() {
			for _, c := range stream.Current().Choices {
				text += c.Text
			}
		}
		if stream.Err() != nil || text == "" {
			t.Errorf("%q, %v", text, stream.Err())
		}
		if !strings.Contains(w.metrics(), `gpuscale_gateway_inter_token_seconds_count{model="`+model+`"} `) {
			t.Error("the time between tokens is not measured")
		}
	})
	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		warm := map[string]string{}
		for _, m := range page.Data {
			warm[m.ID] = m.JSON.ExtraFields["warm"].Raw()
		}
		if len(warm) != 2 || warm[model] != "true" || warm["cold"] != "false" {
			t.Errorf("%v", warm)
		}
		one, err := client.Models.Get(t.Context(), model)
		if err != nil || one.ID != model || one.Created == 0 {
			t.Errorf("%+v, %v", one, err)
		}
	})
}

func TestOpenAIsClientGetsEmbeddings(t *testing.T) {
	w := newWorld(t, nil)
	w.add(func(c *vllmsim.Config) { c.Pooling = true })
	client := w.official()
	got, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: model,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}})
	if err != nil || len(got.Data) != 2 || len(got.Data[1].Embedding) == 0 {
		t.Fatal(got, err)
	}
	eventually(t, "the prompt's tokens count", func() bool {
		return strings.Contains(w.metrics(), `gpuscale_gateway_tokens_total{kind="prompt",model="`+model+`",source="usage"}`)
	})
}

func TestOpenAIsClientUnderstandsTheErrors(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) {
		c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice"}, "busy": {Secret: "sk-busy", Concurrency: 1}}
	})
	a := w.add(nil)
	w.publish(registry.Known{Name: "cold"})
	want := func(t *testing.T, err error, status int, code, kind string) {
		t.Helper()
		var e *openai.Error
		if !errors.As(err, &e) {
			t.Fatalf("%T: %v", err, err)
		}
		if e.StatusCode != status || e.Code != code || e.Type != kind || e.Message == "" {
			t.Errorf("%d %q %q %q, want %d %q %q", e.StatusCode, e.Code, e.Type, e.Message, status, code, kind)
		}
		if retry := e.Response.Header.Get("Retry-After"); (retry != "") != (status == 429 || status == 503) {
			t.Errorf("Retry-After %q with %d", retry, status)
		}
	}
	for name, c := range map[string]struct {
		model, key string
		status     int
		code, kind string
	}{
		"no such model": {"none", "sk-alice", http.StatusNotFound, "model_not_found", "invalid_request_error"},
		"wrong key":     {model, "sk-wrong", http.StatusUnauthorized, "invalid_api_key", "invalid_request_error"},
		"at zero":       {"cold", "sk-alice", http.StatusServiceUnavailable, "model_not_ready", "server_error"},
	} {
		t.Run(name, func(t *testing.T) {
			client := w.official(option.WithAPIKey(c.key))
			_, err := client.Chat.Completions.New(t.Context(), question(c.model))
			want(t, err, c.status, c.code, c.kind)
			stream := client.Chat.Completions.NewStreaming(t.Context(), question(c.model))
			if stream.Next() {
				t.Error("an event")
			}
			want(t, stream.Err(), c.status, c.code, c.kind)
		})
	}
	held := make(chan struct{})
	a.hook(func(http.ResponseWriter, *http.Request) bool { <-held; return false })
	busy := w.official(option.WithAPIKey("sk-busy"))
	first := make(chan error, 1)
	go func() {
		_, err := busy.Chat.Completions.New(t.Context(), question(model))
		first <- err
	}()
	eventually(t, "it is under way", func() bool { return a.requests.Load() == 1 })
	_, err := busy.Chat.Completions.New(t.Context(), question(model))
	want(t, err, http.StatusTooManyRequests, "concurrency_limit", "rate_limit_error")
	close(held)
	if err := <-first; err != nil {
		t.Error(err)
	}
	a.refuse.Store(agentapi.RefusedFull)
	client := w.official()
	_, err = client.Chat.Completions.New(t.Context(), question(model))
	want(t, err, http.StatusTooManyRequests, "worker_busy", "rate_limit_error")
}

func TestOpenAIsClientThatCancelsEndsItAtTheWorker(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(func(c *vllmsim.Config) { c.TokensPerSecond = 5 })
	left := make(chan struct{})
	a.hook(func(_ http.ResponseWriter, r *http.Request) bool {
		context.AfterFunc(r.Context(), func() { close(left) })
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	client := w.official()
	params := question(model)
	params.MaxCompletionTokens = openai.Int(1000)
	stream := client.Chat.Completions.NewStreaming(ctx, params)
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	cancel()
	<-left // The engine's request would take minutes.
	for stream.Next() {
	}
	if !errors.Is(stream.Err(), context.Canceled) {
		t.Errorf("%v", stream.Err())
	}
	eventually(t, "it is logged as gone", func() bool { return strings.Contains(w.log.String(), "client_gone") })
}
