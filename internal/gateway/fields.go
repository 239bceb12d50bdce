package gateway

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// members calls f with the names and values of the JSON object that text begins with, in their order and as they are
// written there, and tells whether it found the object's end. It follows the structure only: text that is not known to be
// valid may give names and values that are none. Unlike encoding/json's structs it takes names as they are, as engines do,
// and unlike its maps it keeps nothing.
func members(text []byte, f func(name, value []byte)) bool {
	at := skipSpace(text, 0)
	if at >= len(text) || text[at] != '{' {
		return false
	}
	for {
		at = skipSpace(text, at+1)
		if at < len(text) && text[at] == '}' {
			return true
		}
		if at >= len(text) || text[at] != '"' {
			return false
		}
		nameEnd := stringEnd(text, at)
		colon := skipSpace(text, nameEnd)
		value := skipSpace(text, colon+1)
		if value >= len(text) || text[colon] != ':' {
			return false
		}
		end := valueEnd(text, value)
		next := skipSpace(text, end)
		if end == value || next >= len(text) {
			return false
		}
		f(text[at:nameEnd], text[value:end])
		if text[next] == '}' {
			return true
		}
		if text[next] != ',' {
			return false
		}
		at = next
	}
}

func skipSpace(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t') {
		at++
	}
	return at
}

// stringEnd is behind the string that begins at at, or at the end of text where it does not end.
func stringEnd(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(text)
}

// valueEnd is behind the value that begins at at, or at the end of text where it does not end.
func valueEnd(text []byte, at int) int {
	depth := 0
	for at < len(text) {
		switch text[at] {
		case '"':
			at = stringEnd(text, at)
		case '{', '[':
			depth++
			at++
		case '}', ']':
			if depth == 0 {
				return at // The end of a number or a literal, and of what it is in.
			}
			depth--
			at++
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return at
			}
			at++
			continue
		default:
			at++
			continue
		}
		if depth == 0 {
			return at
		}
	}
	return at
}

// isName tells whether a name, as it is written, means want.
func isName(written []byte, want string) bool {
	if bytes.IndexByte(written, '\\') < 0 {
		return len(written) == len(want)+2 && string(written[1:len(written)-1]) == want
	}
	meant, ok := text(written)
	return ok && meant == want
}

// text is what a value means that is a string.
func text(written []byte) (string, bool) {
	if len(written) < 2 || written[0] != '"' {
		return "", false
	}
	if inner := written[1 : len(written)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner), true
	}
	var meant string
	err := json.Unmarshal(written, &meant)
	return meant, err == nil
}
