package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// drawJSON writes some value, in one of the many ways in which it can be written.
func drawJSON(t *rapid.T, depth int) string {
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t", "\r\n"})
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "literal")
	case 1:
		return rapid.SampledFrom([]string{"0", "-1.5e+3", "12345678901234567890"}).Draw(t, "number")
	case 2, 3:
		return drawString(t)
	case 4:
		var parts []string
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			parts = append(parts, space.Draw(t, "s")+drawJSON(t, depth-1)+space.Draw(t, "s"))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	var parts []string
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		parts = append(parts, space.Draw(t, "s")+drawString(t)+space.Draw(t, "s")+":"+space.Draw(t, "s")+drawJSON(t, depth-1)+
			space.Draw(t, "s"))
	}
	return "{" + space.Draw(t, "s") + strings.Join(parts, ",") + "}"
}

func drawString(t *rapid.T) string {
	return rapid.SampledFrom([]string{`""`, `"model"`, `"mo\u0064el"`, `"Model"`, `"stream"`, `"a\\"`, `"a\"b"`, `"{[,:]}"`, `"ü😀"`, `"\ud83d\ude00"`,
		`"bad ` + "\xff" + `"`}).Draw(t, "string")
}

// TestMembersAreWhatEncodingJSONFinds in every object, and whatever the text, it comes to an end.
func TestMembersAreWhatEncodingJSONFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := drawJSON(t, 3)
		got := map[string]string{}
		found := members([]byte(whole), func(name, value []byte) {
			key, ok := text(name)
			if !ok || !isName(name, key) && !strings.Contains(string(name), "\xff") {
				t.Fatalf("%q is read as %q, %v", name, key, ok)
			}
			got[key] = string(value)
		})
		var fields map[string]json.RawMessage
		err := json.Unmarshal([]byte(whole), &fields)
		if want := err == nil && fields != nil; found != want {
			t.Fatalf("%q: found %v, want %v", whole, found, want)
		}
		if !found {
			return
		}
		want := map[string]string{}
		for key, value := range fields {
			want[key] = string(value)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%q: %q, want %q", whole, got, want)
		}
		cut := whole[:rapid.IntRange(0, len(whole)-1).Draw(t, "cut")]
		if members([]byte(cut), func(_, _ []byte) {}) && json.Valid([]byte(whole)) {
			t.Fatalf("%q has an end", cut)
		}
		members([]byte(rapid.StringOf(rapid.SampledFrom([]rune(`{}[]":,\ a1`))).Draw(t, "garbage")), func(_, _ []byte) {})
	})
}

func TestUsageIsReadFromAnAnswersEnd(t *testing.T) {
	for answer, want := range map[string]string{
		`{"usage":{"prompt_tokens":10,"completion_tokens":16,"total_tokens":26}}`:                               "10 16 true",
		`x"},"usage": {"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":3},"prompt_tokens":7}}}`: "7 16 true",
		`{"usage":{"completion_tokens":null,"prompt_tokens":7}}`:                                                "7 0 true",
		`{"usage":null}`: "0 0 false",
		`{"usage":{"prompt_tokens":-1,"completion_tokens":1}}`:            "0 0 false",
		`{"usage":{"prompt_tokens":1.5}}`:                                 "0 0 false",
		`{"usage":{"prompt_tokens":"1"}}`:                                 "0 0 false",
		`{"usage":{"prompt_tokens":1`:                                     "0 0 false",
		`{"choices":[{"text":"\"usage\":{\"prompt_tokens\":1}"}]}`:        "0 0 false",
		`{"usage":{"prompt_tokens":99999999999999999999999999999999999}}`: "0 0 false",
	} {
		var u usage
		u.read([]byte(answer))
		if got := fmt.Sprint(u.prompt, u.completion, u.told); got != want {
			t.Errorf("%s: %s, want %s", answer, got, want)
		}
	}
}
