package gateway

import (
	"bytes"
	"errors"
	"io"
	"strconv"
)

// usage is what an answer says, or shows, of its tokens.
type usage struct {
	prompt, completion int64

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
	prompt, completion := int64(0), int64(0)
	sound := members(text[at+len(usageKey):], func(name, value []byte) {
		switch {
		case isName(name, "prompt_tokens"):
			prompt = tokens(value)
		case isName(name, "completion_tokens"):
			completion = tokens(value)
		}
	})
	if sound && prompt >= 0 && completion >= 0 {
		u.prompt, u.completion, u.told = prompt, completion, true
	}
}

// tokens is a number of them, negative where the value is none. null is 0, as where it is missing.
func tokens(value []byte) int64 {
	if string(value) == "null" {
		return 0
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// count adds the tokens of a finished request.
func (m *metrics) count(rec *record) {
	switch u := rec.usage; {
	case u.told:
		m.tokens.WithLabelValues(rec.model, "prompt", "usage").Add(float64(u.prompt))
		m.tokens.WithLabelValues(rec.model, "completion", "usage").Add(float64(u.completion))
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
	if errors.Is(err, io.EOF) && len(a.tail) == 0 && a.ended != nil { // All of it, most often.
		a.ended(p[max(0, n-tailBytes):n], err)
		a.ended = nil
		return n, err
	}
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
