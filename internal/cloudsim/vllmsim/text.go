package vllmsim

import (
	"fmt"
	"hash/fnv"
	"strings"
	"unicode"
)

// tokenRunes is the longest token, in characters without its leading space.
const tokenRunes = 6

// tokenSplit cuts text into tokens; joined they are the text again.
func tokenSplit(text string) []string {
	var tokens []string
	start, letters := 0, 0
	for i, r := range text {
		space := unicode.IsSpace(r)
		if letters >= tokenRunes || (space && letters > 0) {
			tokens = append(tokens, text[start:i])
			start, letters = i, 0
		}
		if !space {
			letters++
		}
	}
	if start < len(text) {
		tokens = append(tokens, text[start:])
	}
	return tokens
}

func tokenID(token string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(token))
	return int(h.Sum32() % 151643)
}

// sequence is a small deterministic generator (splitmix64).
type sequence uint64

func newSequence(parts ...string) sequence {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0})
	}
	return sequence(h.Sum64())
}

func (s *sequence) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

var lexicon = strings.Fields("the market offers a quiet machine near the river and every morning its fans " +
	"turn while small numbers walk through memory one after another until an answer stands where a question was")

// wording is what an answer depends on.
type wording struct {
	model, prompt string
	seed          int64
	index         int
	least, most   int  // bounds in tokens
	endless       bool // never stop before most
	stops         []string
}

// answer is the text of one choice as tokens, with vLLM's finish_reason and,
// if a stop string ended it, that string.
type answer struct {
	tokens     []string
	reason     string
	stopString *string
}

func compose(w wording) answer {
	seq := newSequence(w.model, w.prompt, fmt.Sprint(w.seed), fmt.Sprint(w.index))
	var text strings.Builder
	fmt.Fprintf(&text, "I am %s, simulated: no GPU made this answer.", w.model)
	if quote := clip(w.prompt, 12); quote != "" {
		fmt.Fprintf(&text, " You said: %q.", quote)
	}
	for range 4 + seq.next()%24 {
		text.WriteString(" " + lexicon[seq.next()%uint64(len(lexicon))])
	}
	text.WriteString(".")
	tokens := tokenSplit(text.String())
	want := w.least
	if w.endless {
		want = w.most
	}
	for len(tokens) < want {
		tokens = append(tokens, tokenSplit(" "+lexicon[seq.next()%uint64(len(lexicon))])...)
	}
	result := cutAtStop(answer{tokens: tokens, reason: reasonNames[reasonStop]}, w)
	if len(result.tokens) > w.most || (w.endless && result.stopString == nil) {
		result = answer{tokens: result.tokens[:min(w.most, len(result.tokens))], reason: reasonNames[reasonLength]}
	}
	return result
}

// cutAtStop ends an answer before the first stop string in it.
func cutAtStop(a answer, w wording) answer {
	text := strings.Join(a.tokens, "")
	cut := len(text)
	for _, stop := range w.stops {
		if at := strings.Index(text, stop); stop != "" && at >= 0 && at < cut {
			cut, a.stopString = at, &stop
		}
	}
	if a.stopString != nil {
		a.tokens = tokenSplit(text[:cut])
	}
	return a
}

// clip returns at most words words of text, on one line.
func clip(text string, words int) string {
	fields := strings.Fields(text)
	if len(fields) > words {
		return strings.Join(fields[:words], " ") + "…"
	}
	return strings.Join(fields, " ")
}
