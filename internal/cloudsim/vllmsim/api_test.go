package vllmsim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const chatPath = "/v1/chat/completions"

func chatBody(extra string) string {
	return `{"model":"alias","messages":[{"role":"user","content":"hello there"}]` + extra + `}`
}

func withAlias(c *Config) { c.ServedNames = []string{"front", "alias"} }

func TestStreamOrderIsRoleContentFinishUsageDone(t *testing.T) {
	_, front := ready(t, "acme/m", withAlias)
	data, status, err := events(t, front.URL+chatPath, chatBody(`,"stream":true,"stream_options":{"include_usage":true}`))
	if err != nil || status != 200 || len(data) < 6 {
		t.Fatalf("status %d, %d events, %v", status, len(data), err)
	}
	var stages []string
	var text string
	for _, d := range data {
		stage := "done"
		if d != "[DONE]" {
			stage = stageOf(t, d, &text)
		}
		if len(stages) == 0 || stages[len(stages)-1] != stage {
			stages = append(stages, stage)
		}
	}
	if got := strings.Join(stages, " "); got != "role content finish usage done" {
		t.Errorf("stages are %q", got)
	}
	_, whole := call(t, front.URL+chatPath, chatBody(""))
	choice := whole["choices"].([]any)[0].(map[string]any)
	if got := choice["message"].(map[string]any)["content"]; got != text {
		t.Errorf("streamed %q, whole %q", text, got)
	}
	if !strings.Contains(text, "front") || !strings.Contains(text, "simulated") || whole["model"] != "front" {
		t.Errorf("answer does not name the model: %q from %v", text, whole["model"])
	}
}

func stageOf(t *testing.T, data string, text *string) string {
	t.Helper()
	var c struct {
		Choices []struct {
			Delta        delta
			FinishReason *string `json:"finish_reason"`
		}
		Usage *usage
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	switch {
	case len(c.Choices) == 0 && c.Usage != nil && c.Usage.CompletionTokens > 0:
		return "usage"
	case c.Choices[0].FinishReason != nil:
		return "finish"
	case c.Choices[0].Delta.Role != "":
		return "role"
	}
	*text += *c.Choices[0].Delta.Content
	return "content"
}

func TestAnswersFollowTheRequest(t *testing.T) {
	_, front := ready(t, "acme/m", withAlias)
	ask := func(path, body string) (text, reason string, tokens float64) {
		status, value := call(t, front.URL+path, body)
		if status != 200 {
			t.Fatalf("%s: %d %v", body, status, value)
		}
		choice := value["choices"].([]any)[0].(map[string]any)
		if m, ok := choice["message"].(map[string]any); ok {
			text = m["content"].(string)
		} else {
			text = choice["text"].(string)
		}
		return text, choice["finish_reason"].(string), value["usage"].(map[string]any)["completion_tokens"].(float64)
	}
	one, reason, _ := ask(chatPath, chatBody(`,"seed":1`))
	again, _, _ := ask(chatPath, chatBody(`,"seed":1`))
	other, _, _ := ask(chatPath, chatBody(`,"seed":2`))
	if one != again || one == other || reason != "stop" {
		t.Errorf("seeds: %q %q %q, %s", one, again, other, reason)
	}
	if _, reason, tokens := ask(chatPath, chatBody(`,"max_tokens":2`)); reason != "length" || tokens != 2 {
		t.Errorf("max_tokens 2 gave %v tokens, %s", tokens, reason)
	}
	if _, reason, tokens := ask(chatPath, chatBody(`,"max_completion_tokens":500,"ignore_eos":true`)); reason != "length" || tokens != 500 {
		t.Errorf("ignore_eos gave %v tokens, %s", tokens, reason)
	}
	if text, reason, _ := ask(chatPath, chatBody(`,"stop":["simulated"]`)); reason != "stop" || strings.Contains(text, "simulated") {
		t.Errorf("stop gave %q, %s", text, reason)
	}
	if text, reason, tokens := ask("/v1/completions", `{"model":"front","prompt":"once upon","echo":true}`); reason != "length" || tokens != 16 || !strings.HasPrefix(text, "once upon") {
		t.Errorf("completion gave %q, %v tokens, %s", text, tokens, reason)
	}
}

func TestErrorsHaveVLLMsForm(t *testing.T) {
	_, front := ready(t, "acme/m", func(c *Config) { withAlias(c); c.MaxModelLen = 64 })
	long := strings.Repeat("word ", 80)
	cases := []struct {
		name, path, body, kind, part string
		code                         int
	}{
		{"unknown model", chatPath, `{"model":"nope","messages":[]}`, "NotFoundError", "The model `nope` does not exist.", 404},
		{"bad json", chatPath, `{"model":`, "BadRequestError", "json_invalid", 400},
		{"wrong type", chatPath, chatBody(`,"max_tokens":"many"`), "BadRequestError", "max_tokens", 400},
		{"no messages", chatPath, `{"model":"front"}`, "BadRequestError", "messages", 400},
		{"too long", chatPath, `{"model":"front","messages":[{"role":"user","content":"` + long + `"}]}`, "BadRequestError", "maximum context length is 64", 400},
		{"too many", chatPath, chatBody(`,"max_tokens":64`), "BadRequestError", "too large: 64", 400},
		{"zero tokens", chatPath, chatBody(`,"max_tokens":0`), "BadRequestError", "at least 1", 400},
		{"temperature", chatPath, chatBody(`,"temperature":-1`), "BadRequestError", "non-negative", 400},
		{"options", chatPath, chatBody(`,"stream_options":{}`), "BadRequestError", "stream=True", 400},
		{"tools", chatPath, chatBody(`,"tools":[{}]`), "BadRequestError", "--enable-auto-tool-choice", 400},
		{"no prompt", "/v1/completions", `{"model":"front"}`, "BadRequestError", "prompt", 400},
		{"not pooling", "/v1/embeddings", `{"model":"front","input":"x"}`, "BadRequestError", "does not support Embeddings", 400},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			status, value := call(t, front.URL+c.path, c.body)
			e, _ := value["error"].(map[string]any)
			if status != c.code || e["code"] != float64(c.code) || e["type"] != c.kind || !strings.Contains(fmt.Sprint(e["message"]), c.part) {
				t.Errorf("%d %v", status, value)
			}
			if _, has := e["param"]; !has {
				t.Error("no param")
			}
		})
	}
}

func TestSmallEndpoints(t *testing.T) {
	_, front := ready(t, "acme/m", func(c *Config) { withAlias(c); c.LoRAs = []LoRA{{"lora", "/l"}} })
	for path, part := range map[string]string{
		"/health": "", "/ping": "", "/version": `{"version":"0.33.0"}`, "/load": `{"server_load":0}`,
		"/v1/models": `"id":"lora","object":"model"`,
	} {
		if status, body := get(t, front.URL+path); status != 200 || !strings.Contains(body, part) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get(t, front.URL+"/sleepy"); status != 404 || body != `{"detail":"Not Found"}` {
		t.Errorf("unknown path: %d %s", status, body)
	}
	if status, _ := get(t, front.URL+chatPath); status != 405 {
		t.Errorf("GET chat: %d", status)
	}
	_, tokens := call(t, front.URL+"/tokenize", `{"model":"front","prompt":"a b c"}`)
	if tokens["count"] != 3.0 {
		t.Errorf("tokenize: %v", tokens)
	}
	_, embed := ready(t, "BAAI/bge-small", nil)
	status, value := call(t, embed.URL+"/v1/embeddings", `{"model":"BAAI/bge-small","input":["a","b"],"dimensions":8}`)
	data := value["data"].([]any)
	if status != 200 || len(data) != 2 || len(data[0].(map[string]any)["embedding"].([]any)) != 8 {
		t.Errorf("embeddings: %d %v", status, value)
	}
}

func TestKeyProtectsOnlyV1(t *testing.T) {
	_, front := ready(t, "m", func(c *Config) { c.APIKeys = []string{"k1", "k2"} })
	if status, body := get(t, front.URL+"/v1/models"); status != 401 || body != `{"error":"Unauthorized"}` {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get(t, front.URL+"/metrics"); status != 200 {
		t.Errorf("metrics: %d", status)
	}
	req := httptest.NewRequest(http.MethodGet, "/v1/models", nil)
	req.Header.Set("Authorization", "Bearer k2")
	w := httptest.NewRecorder()
	front.Config.Handler.ServeHTTP(w, req)
	if w.Code != 200 {
		t.Errorf("second key: %d", w.Code)
	}
}

func TestClientDisconnectIsAnAbort(t *testing.T) {
	s, front := ready(t, "m", func(c *Config) { c.TokensPerSecond = 0.001 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := post(ctx, t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}],"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if !bufio.NewScanner(resp.Body).Scan() {
		t.Fatal("no first event")
	}
	if got := s.Status().Running; got != 1 {
		t.Errorf("running %d", got)
	}
	cancel()
	eventually(t, "abort counted", func() bool { return finished(t, front.URL, "abort") == 1 })
	eventually(t, "place given back", func() bool { return s.Status().Running == 0 })
}

func TestRequestsQueueWithoutLimit(t *testing.T) {
	s, front := ready(t, "m", func(c *Config) { c.TTFT = time.Hour; c.MaxNumSeqs = 1; c.TrackLoad = true })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{}, 3)
	for range 3 {
		go func() {
			resp, err := post(ctx, t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}]}`)
			if err == nil {
				resp.Body.Close()
			}
			done <- struct{}{}
		}()
	}
	eventually(t, "one runs and two wait", func() bool { st := s.Status(); return st.Running == 1 && st.Waiting == 2 })
	if got := scrape(t, front.URL)["vllm:num_requests_waiting"].GetMetric()[0].GetGauge().GetValue(); got != 2 {
		t.Errorf("waiting gauge %v", got)
	}
	if _, body := get(t, front.URL+"/load"); body != `{"server_load":3}` {
		t.Errorf("load %s", body)
	}
	cancel()
	for range 3 {
		<-done
	}
	eventually(t, "all aborted", func() bool { return finished(t, front.URL, "abort") == 3 })
	if st := s.Status(); st.Running != 0 || st.Waiting != 0 {
		t.Errorf("left over: %+v", st)
	}
}
