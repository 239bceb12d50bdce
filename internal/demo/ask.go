package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/utils/clock"
)

// prompt is what the demo asks.
const prompt = "Say what you are, in one sentence."

// askCommand is the same question as a user would ask it.
func askCommand(gateway string) string {
	return fmt.Sprintf(`curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d '%s'`, gateway, question())
}

func question() string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body, err := json.Marshal(struct {
		Model    string    `json:"model"`
		Stream   bool      `json:"stream"`
		Messages []message `json:"messages"`
	}{Model, true, []message{{"user", prompt}}})
	if err != nil {
		panic(err) // it is a constant
	}
	return string(body)
}

// chunk is one event of a streamed chat completion.
type chunk struct {
	Model   string `json:"model"`
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// ask streams one chat completion through the gateway and calls piece for every text in it.
func ask(ctx context.Context, gateway string, c clock.PassiveClock, piece func(string)) Answer {
	a := Answer{AskedAt: c.Now()}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", strings.NewReader(question()))
	if err != nil {
		a.Err = err.Error()
		return a
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.Err = err.Error()
		return a
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what there is of an explanation
		a.Err = fmt.Sprintf("%s: %s", resp.Status, strings.Join(strings.Fields(string(text)), " "))
		return a
	}
	a.read(resp.Body, c, piece)
	return a
}

// read takes a stream of server-sent events up to its end mark.
func (a *Answer) read(stream io.Reader, c clock.PassiveClock, piece func(string)) {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue // comments and the empty lines between events
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			a.Whole, a.DoneAt = true, c.Now()
			return
		}
		var e chunk
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			a.Err = "an event of the stream is not JSON: " + err.Error()
			return
		}
		if e.Error != nil {
			a.Err = e.Error.Message
			return
		}
		a.take(e, c, piece)
	}
	a.Err = "the stream ended without its end mark"
	if err := lines.Err(); err != nil {
		a.Err = err.Error()
	}
}

func (a *Answer) take(e chunk, c clock.PassiveClock, piece func(string)) {
	a.Model = e.Model
	for _, choice := range e.Choices {
		if choice.FinishReason != nil {
			a.Finish = *choice.FinishReason
		}
		if text := choice.Delta.Content; text != "" {
			if a.Chunks == 0 {
				a.FirstAt = c.Now()
			}
			a.Chunks++
			a.Text += text
			piece(text)
		}
	}
}
