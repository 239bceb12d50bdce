package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// breach is a value that a schema's constraint forbids at a place, with the parts that its refusal must have, and the
// neighbours that are still allowed.
type breach struct {
	name    string
	value   any
	says    []string
	allowed []any
}

// TestEveryConstraintOfASpecHolds derives from the CRDs themselves what each field refuses and just accepts, and asks the
// API server. A new bound, list of values or required field is covered by being there.
func TestEveryConstraintOfASpecHolds(t *testing.T) {
	s := newServer(t)
	for kind, def := range definitions(t) {
		full := fullOf(t, kind)
		kept := s.keep(full)
		for _, n := range specOf(def) {
			value, ok := get(full.Object, n.at)
			if !ok {
				t.Errorf("the full %s in testdata lacks %s", kind, n.path)
				continue
			}
			if n.schema.Pattern != "" {
				t.Errorf("%s %s: a pattern is refused without a word of what would be right; make it a rule with a message", kind, n.path)
			}
			for _, b := range breaches(n, value) {
				t.Run(strings.Join([]string{kind, n.path, b.name}, " "), func(t *testing.T) {
					s.refuses(t, kept, with(t, full, n.at, b.value), append(b.says, n.where())...)
					for _, v := range b.allowed {
						s.accepts(t, with(t, full, n.at, v))
					}
				})
			}
		}
	}
}

// breaches are all constraints of one place but its rules, broken.
func breaches(n node, value any) []breach {
	s, ruled := n.schema, len(n.schema.XValidations) > 0
	typed := s.Type
	if s.Format == "date-time" {
		typed = s.Format
	}
	out := []breach{{name: "type", value: otherType(s.Type), says: []string{"must be of type " + typed}}}
	if n.required {
		out = append(out, breach{name: "required", value: absent{}, says: []string{"Required value"}})
	}
	if len(s.Enum) > 0 {
		b := breach{name: "enum", value: "no-such-value", says: []string{"supported values: "}}
		for _, raw := range s.Enum {
			var v any
			_ = json.Unmarshal(raw.Raw, &v) // it was marshalled from YAML
			b.says, b.allowed = append(b.says, string(raw.Raw)), append(b.allowed, v)
		}
		out = append(out, b)
	}
	if s.Format == "int32" {
		out = append(out, breach{name: "int32", value: int64(math.MaxInt32) + 1, says: []string{"type integer with format int32"}})
	}
	if s.Format == "date-time" {
		out = append(out, breach{name: "date-time", value: "yesterday", says: []string{"date-time"}})
	}
	out = append(out, bounds(s)...)
	switch v := value.(type) {
	case map[string]any:
		extra := runtime.DeepCopyJSON(v)
		extra["noSuchField"] = int64(1)
		out = append(out, breach{name: "unknown field", value: extra, says: []string{"unknown field", "noSuchField"}})
	case []any:
		out = append(out, sizes(s, v)...)
	}
	if ruled { // whether a neighbour is allowed is the rule's to say, and its own cases'
		for i := range out {
			out[i].allowed = nil
		}
	}
	return out
}

func otherType(of string) any {
	if of == "string" {
		return int64(7)
	}
	return "a string"
}

// bounds are those of numbers and of lengths of strings.
func bounds(s schema) []breach {
	var out []breach
	number := func(f float64) any {
		if s.Type == "integer" {
			return int64(f)
		}
		return f
	}
	if s.Minimum != nil {
		out = append(out, breach{name: "minimum", value: number(*s.Minimum - 1), allowed: []any{number(*s.Minimum)},
			says: []string{"should be greater than or equal to " + plain(*s.Minimum)}})
	}
	if s.Maximum != nil {
		out = append(out, breach{name: "maximum", value: number(*s.Maximum + 1), allowed: []any{number(*s.Maximum)},
			says: []string{"should be less than or equal to " + plain(*s.Maximum)}})
	}
	if s.MinLength != nil {
		n := int(*s.MinLength)
		out = append(out, breach{name: "minLength", value: strings.Repeat("a", n-1), allowed: []any{strings.Repeat("a", n)},
			says: []string{fmt.Sprintf("should be at least %d chars long", n)}})
	}
	if s.MaxLength != nil {
		n := int(*s.MaxLength)
		out = append(out, breach{name: "maxLength", value: strings.Repeat("a", n+1), allowed: []any{strings.Repeat("a", n)},
			says: []string{fmt.Sprintf("may not be more than %d bytes", n)}})
	}
	return out
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// sizes are how many entries a list may have, and whether one may be there twice.
func sizes(s schema, list []any) []breach {
	var out []breach
	if s.MinItems != nil {
		n := int(*s.MinItems)
		out = append(out, breach{name: "minItems", value: list[:n-1], allowed: []any{list[:n]},
			says: []string{fmt.Sprintf("should have at least %d items", n)}})
	}
	if s.MaxItems != nil {
		n := int(*s.MaxItems)
		out = append(out, breach{name: "maxItems", value: copies(s, list[0], n+1), allowed: []any{copies(s, list[0], n)},
			says: []string{fmt.Sprintf("must have at most %d items", n)}})
	}
	if s.XListType != nil && *s.XListType != "atomic" {
		out = append(out, breach{name: "twice", value: []any{list[0], list[0]}, says: []string{"Duplicate value"}, allowed: []any{copies(s, list[0], 2)}})
	}
	return out
}

// copies are n entries like one, different in what a list tells its entries apart by.
func copies(s schema, like any, n int) []any {
	var out []any
	for i := range n {
		v := runtime.DeepCopyJSONValue(like)
		switch e := v.(type) {
		case string:
			v = fmt.Sprint(e, i)
		case map[string]any:
			for _, key := range s.XListMapKeys {
				e[key] = fmt.Sprint(e[key], i)
			}
		}
		out = append(out, v)
	}
	return out
}
