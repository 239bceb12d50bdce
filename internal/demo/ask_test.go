package demo

import (
	"strings"
	"testing"

	testclock "k8s.io/utils/clock/testing"
)

func TestAnswerIsReadToItsEnd(t *testing.T) {
	const hello = `data: {"model":"m","choices":[{"delta":{"role":"assistant","content":""}}]}

: a comment

data: {"model":"m","choices":[{"delta":{"content":"Hel"}}]}

data: {"model":"m","choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}

`
	for name, c := range map[string]struct {
		stream, err string
		whole       bool
	}{
		"whole":       {stream: hello + "data: [DONE]\n\n", whole: true},
		"cut":         {stream: hello, err: "without its end mark"},
		"error event": {stream: hello + "data: {\"error\":{\"message\":\"worker lost\"}}\n\n", err: "worker lost"},
		"garbage":     {stream: hello + "data: {nonsense\n\n", err: "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			var a Answer
			var pieces []string
			a.read(strings.NewReader(c.stream), testclock.NewFakePassiveClock(start), func(s string) { pieces = append(pieces, s) })
			if a.Whole != c.whole || !strings.Contains(a.Err, c.err) || (c.err == "") != (a.Err == "") {
				t.Errorf("whole %v, error %q", a.Whole, a.Err)
			}
			if a.Text != "Hello" || a.Chunks != 2 || a.Model != "m" || a.Finish != "stop" || strings.Join(pieces, "|") != "Hel|lo" {
				t.Errorf("%+v, pieces %q", a, pieces)
			}
		})
	}
}
