package v1alpha1_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type some = map[string]any

// ruleCase has what a rule refuses and its nearest neighbours that it accepts: for a rule about an object, fields to set
// in the full object at the rule's place; for any other, the whole value.
type ruleCase struct{ refused, accepted []any }

// fixed is the message of the one rule that compares with what was there; see TestClaimSpecIsFixed.
const fixed = "a claim's spec cannot be changed (only its placements, by the controller); delete the claim and let the pool make another"

// ruleCases are by the rule's message. A case is tried at every place that has the rule.
var ruleCases = map[string]ruleCase{
	"providers: the same name and capacityType are listed twice; merge the two entries": {
		refused: []any{
			[]any{entry("vast.ai", "spot"), entry("vast.ai", "spot")},
			[]any{entry("vast.ai", "spot"), some{"name": "vast.ai", "maxPrice": 0.6}}, // by default
		},
		accepted: []any{[]any{entry("vast.ai", "spot"), entry("vast.ai", "on-demand")}, everyProvider()},
	},
	"maxPrice is required and must be above 0: the most that one instance may cost, in $/h, for example 0.50": {
		refused:  []any{some{"maxPrice": absent{}}, some{"maxPrice": int64(0)}, some{"maxPrice": -0.000001}, some{"maxPrice": int64(-1)}},
		accepted: []any{some{"maxPrice": 0.000001}, some{"maxPrice": int64(1)}, some{"maxPrice": int64(1_000_000_000)}},
	},
	"at most six decimals: the smallest step is 0.000001": {
		refused:  []any{0.1234567, 0.0000001, 1.0000005},
		accepted: []any{0.123456, 0.000001, 3.0, int64(3), 999_999.999999},
	},
	"unknown provider; use one of vast.ai, runpod, tensordock, verda, aws, gcp, azure": {
		refused:  []any{"vastai", "Vast.ai", ""},
		accepted: []any{"vast.ai", "runpod", "tensordock", "verda", "aws", "gcp", "azure"},
	},
	"minVRAM (the instance's total) is above maxVRAM (per GPU) times gpuCount, so no offer can satisfy both; lower minVRAM, or raise maxVRAM or gpuCount": {
		refused: []any{some{"minVRAM": int64(49), "maxVRAM": int64(24), "gpuCount": int64(2)}},
		accepted: []any{some{"minVRAM": int64(48), "maxVRAM": int64(24), "gpuCount": int64(2)},
			some{"minVRAM": int64(49), "maxVRAM": int64(24), "gpuCount": absent{}}, some{"minVRAM": int64(49), "maxVRAM": int64(24), "gpuCount": int64(0)},
			some{"minVRAM": int64(49), "maxVRAM": int64(0), "gpuCount": int64(2)}, some{"minVRAM": int64(49), "maxVRAM": absent{}}, some{"minVRAM": absent{}}},
	},
	`must be a score from 0 to 1 with at most four decimals, in quotes, for example "0.98"`: {
		refused:  []any{"95%", "1.0001", "0.98765", "-0.1", ".9", "2", ""},
		accepted: []any{"0", "1", "1.0000", "0.9876"},
	},
	`must be a CUDA version of two numbers, in quotes, for example "12.8"`: {
		refused:  []any{"12", "12.8.1", "v12.8", "123.1", ""},
		accepted: []any{"12.8", "9.0", "13.10"},
	},
	"must be the SHA-256 of the file at agentURL: 64 digits from 0 to 9 and a to f, as sha256sum prints them": {
		refused:  []any{"latest", "sha256:" + sum, strings.ToUpper(sum), sum[1:], sum + "0", ""},
		accepted: []any{strings.Repeat("0", 64)},
	},
	"agentURL and agentSHA256 belong together, since a binary is run only when its hash is known; set both or neither": {
		refused:  []any{some{"agentURL": absent{}, "agentSHA256ARM64": absent{}}, some{"agentSHA256": absent{}}},
		accepted: []any{some{"agentURL": absent{}, "agentSHA256": absent{}, "agentSHA256ARM64": absent{}}},
	},
	"agentSHA256ARM64 needs an agentURL with {arch} in it, which stands for amd64 or arm64": {
		refused:  []any{some{"agentURL": "https://example.com/gpuscale-agent"}},
		accepted: []any{some{"agentURL": "https://example.com/gpuscale-agent", "agentSHA256ARM64": absent{}}, some{"agentSHA256ARM64": absent{}}},
	},
	"agentURL must be an http:// or https:// address with a path and without a user, a password, quotes, dollar signs or spaces": {
		refused: []any{"ftp://example.com/{arch}", "https://me:secret@example.com/{arch}", "https://example.com/$(reboot){arch}",
			"https://example.com/it's/{arch}", "https://example.com", "-K/etc/passwd", ""},
		accepted: []any{"http://10.0.0.1:8443/v1.2/agent-{arch}?x=1&y=%20"},
	},
	"must be a variable's name: letters, digits and _, not beginning with a digit, for example VLLM_LOGGING_LEVEL": {
		refused:  []any{"1A", "A-B", "A=B", "A B", ""},
		accepted: []any{"_", "a1", "A_B"},
	},
	"minNodes is above maxNodes; lower minNodes or raise maxNodes": {
		refused:  []any{some{"minNodes": int64(7)}, some{"minNodes": int64(11), "maxNodes": absent{}}}, // 10 by default
		accepted: []any{some{"minNodes": int64(6)}, some{"minNodes": int64(10), "maxNodes": absent{}}, some{"minNodes": absent{}}},
	},
	`must be a duration such as "90s", "10m" or "1h30m"`: {
		refused: []any{"2 minutes", "10", "-10s", "1d", "1.2345s", "1234567s", "h", "1h2m3s4ms5s", "100000h", ""},
		// The longest is one that a time.Duration can hold.
		accepted: []any{"0s", "90s", "10m", "1h30m", "1.5h", "100ms", "999999s", "99999.999h99999.999h99999h99999h"},
	},
	"must not be negative: the least saving that justifies a move, in $/h, for example 0.10": {
		refused: []any{-0.000001, int64(-1)}, accepted: []any{int64(0), 0.000001},
	},
	"must not be negative: the most that all instances of the pool may cost together, in $/h, for example 3.00": {
		refused: []any{-0.000001, int64(-3)}, accepted: []any{int64(0), 0.000001},
	},
	"minReplicas is above maxReplicas; lower minReplicas or raise maxReplicas": {
		refused:  []any{some{"minReplicas": int64(3)}},
		accepted: []any{some{"minReplicas": int64(2)}, some{"minReplicas": int64(3), "maxReplicas": absent{}}, some{"minReplicas": absent{}}},
	},
	fixed: {},
}

const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func entry(name, capacity string) some {
	return some{"name": name, "capacityType": capacity, "maxPrice": 0.5}
}

func everyProvider() []any {
	var out []any
	for _, name := range []string{"vast.ai", "runpod", "tensordock", "verda", "aws", "gcp", "azure"} {
		out = append(out, entry(name, "spot"), entry(name, "on-demand"))
	}
	return out
}

// TestEveryRuleOfTheCRDsHolds asks the API server for both sides of every rule, at every place that has it.
func TestEveryRuleOfTheCRDsHolds(t *testing.T) {
	s := newServer(t)
	for kind, def := range definitions(t) {
		full := fullOf(t, kind)
		kept := s.keep(full)
		for _, n := range rulesIn(def) {
			if strings.HasPrefix(n.path, "status.") {
				continue // Only the controllers write it, in Go's types; the same rules are tried where users do.
			}
			for _, r := range n.schema.XValidations {
				t.Run(kind+" "+n.path+" "+r.Message, func(t *testing.T) {
					for _, v := range ruleCases[r.Message].refused {
						s.refuses(t, kept, altered(t, full, n, v), n.where(), r.Message)
					}
					for _, v := range ruleCases[r.Message].accepted {
						s.accepts(t, altered(t, full, n, v))
					}
				})
			}
		}
	}
}

// altered sets a value at a place, or some fields of the object there.
func altered(t *testing.T, full *unstructured.Unstructured, n node, v any) *unstructured.Unstructured {
	t.Helper()
	fields, ok := v.(some)
	if !ok {
		return with(t, full, n.at, v)
	}
	for name, value := range fields {
		full = with(t, full, append(slices.Clone(n.at), name), value)
	}
	return full
}

// TestNoRuleIsWithoutACase also holds in the other direction: a case whose rule is gone tests nothing.
func TestNoRuleIsWithoutACase(t *testing.T) {
	for _, complaint := range uncovered(definitions(t), ruleCases) {
		t.Error(complaint)
	}
}

// uncovered says which rules have no case on both sides or no message, and which cases have no rule.
func uncovered(defs map[string]schema, cases map[string]ruleCase) []string {
	var out []string
	idle := maps.Clone(cases)
	for kind, def := range defs {
		for _, n := range rulesIn(def) {
			for _, r := range n.schema.XValidations {
				place := kind + " " + n.path + ": "
				c, ok := cases[r.Message]
				delete(idle, r.Message)
				switch {
				case r.Message == "":
					out = append(out, place+"the rule "+r.Rule+" has no message")
				case !ok:
					out = append(out, place+"no case for "+r.Message)
				case strings.Contains(r.Rule, "oldSelf") != (r.Message == fixed):
					out = append(out, place+"a rule about changes needs a test like TestClaimSpecIsFixed: "+r.Message)
				case r.Message != fixed && (len(c.refused) == 0 || len(c.accepted) == 0):
					out = append(out, place+"nothing refused or nothing accepted for "+r.Message)
				}
			}
		}
	}
	for message := range idle {
		out = append(out, "no rule says "+message)
	}
	slices.Sort(out)
	return out
}

// TestAForgottenRuleIsFound plants each offence that uncovered is there for.
func TestAForgottenRuleIsFound(t *testing.T) {
	rule := func(rule, message string) apiextensionsv1.ValidationRules {
		return apiextensionsv1.ValidationRules{{Rule: rule, Message: message}}
	}
	def := schema{Properties: map[string]schema{
		"status": {Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &schema{XValidations: rule("self > 0", "new")}}},
		"a":      {XValidations: rule("self > 0", "")},
		"b":      {XValidations: rule("self > 0", "half")},
		"c":      {XValidations: rule("self == oldSelf", "changed")},
	}}
	both := ruleCase{refused: []any{0}, accepted: []any{1}}
	got := uncovered(map[string]schema{"K": def}, map[string]ruleCase{"half": {refused: []any{0}}, "changed": both, "stale": both})
	want := []string{"K a: the rule self > 0 has no message", "K b: nothing refused or nothing accepted for half",
		"K c: a rule about changes needs a test like TestClaimSpecIsFixed: changed", "K status[]: no case for new", "no rule says stale"}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// TestClaimSpecIsFixed changes every field of a claim's spec: only placements may.
func TestClaimSpecIsFixed(t *testing.T) {
	s := newServer(t)
	full := fullOf(t, "GPUNodeClaim")
	kept := s.keep(full)
	changes := map[string][]any{
		"pool":         {"other"},
		"maxPrice":     {int64(9), 0.440001},
		"providers":    {[]any{entry("vast.ai", "spot")}, everyProvider()},
		"requirements": {some{"gpuCount": int64(1), "minDisk": int64(50)}},
		"bootstrap":    {some{"image": "vllm/vllm-openai:latest"}, some{}, absent{}},
	}
	for name := range definitions(t)["GPUNodeClaim"].Properties["spec"].Properties {
		if name == "placements" {
			continue
		}
		if len(changes[name]) == 0 {
			t.Errorf("nothing tries to change %s", name)
		}
		for _, v := range changes[name] {
			s.leaves(t, kept, with(t, full, []any{"spec", name}, v), "spec", fixed)
		}
	}
	for _, v := range []any{absent{}, []any{some{"workload": "other", "source": "acme/other", "gpus": int64(2), "gpuFraction": int64(1), "since": "2026-01-02T03:04:05Z"}}} {
		s.changes(t, kept, with(t, full, []any{"spec", "placements"}, v))
	}
}
