package gateway

import (
	"bytes"
	"encoding/json"
	"io"
)

// usage is what an answer says, or shows, of its tokens.
type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`

	// told: the engine said so. Otherwise events of the stream are counted.
	told   bool
	events int64
}

var usageKey = []byte(`"usage":`)

// read takes the numbers from text, a JSON object or its end, if it has a usage that is one. The key's quotes tell it from
// the same letters in a string.
func (u *usage) read(text []byte) {
	at := bytes.LastIndex(text, usageKey)
	if at < 0 {
		return
	}
	var found *usage
	err := json.NewDecoder(bytes.NewReader(text[at+len(usageKey):])).Decode(&found)
	if err != nil || found == nil || found.Prompt < 0 || found.Completion < 0 {
		return
	}
	u.Prompt, u.Completion, u.told = found.Prompt, found.Completion, true
}

// count adds the tokens of a finished request.
func (m *metrics) count(rec *record) {
	switch u := rec.usage; {
	case u.told:
		m.tokens.WithLabelValues(rec.model, "prompt", "usage").Add(float64(u.Prompt))
		m.tokens.WithLabelValues(rec.model, "completion", "usage").Add(float64(u.Completion))
	case u.events > 0:
		m.tokens.WithLabelValues(rec.model, "completion", "events").Add(float64(u.events))
	}
}

// tailBytes is where an answer's usage is: behind the choices, with little after it.
const tailBytes = 4 << 10

// wholeAnswer passes an answer on that is no stream, and keeps its end for the usage in it.
type wholeAnswer struct {
	body io.ReadCloser
	tail []byte
	// ended is called at the answer's end, with io.EOF when it came whole.
	ended func(tail []byte, err error)
}

// Read returns what the worker sent.
func (a *wholeAnswer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if n >= tailBytes {
		a.tail = append(a.tail[:0], p[n-tailBytes:n]...)
	} else if n > 0 {
		if over := len(a.tail) + n - tailBytes; over > 0 {
			a.tail = a.tail[:copy(a.tail, a.tail[over:])]
		}
		a.tail = append(a.tail, p[:n]...)
	}
	if err != nil && a.ended != nil {
		a.ended(a.tail, err)
		a.ended = nil
	}
	return n, err
}

// Close ends the worker's answer.
func (a *wholeAnswer) Close() error { return a.body.Close() }
