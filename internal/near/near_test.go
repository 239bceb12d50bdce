package near

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	names := []string{"RTX3090", "RTX4090", "RTXA4000", "A100-80GB-SXM", "A100-40GB-SXM", "H100-SXM", "L4", "T4"}
	for written, want := range map[string][]string{
		"RTX 4091": {"RTX4090"}, "rtx4090": {"RTX4090"}, "RTX 40900": {"RTX4090"}, "RTX": {"RTX3090", "RTX4090", "RTXA4000"},
		"A100 80": {"A100-80GB-SXM"}, "H10": {"H100-SXM"}, "L5": {"L4"}, "GeForce": nil, "": nil,
		"RTX 4909": {"RTX4090"}, "H100 SMX": {"H100-SXM"}, "4090": {"RTX4090"}, "90": nil,
	} {
		if got := Names(written, names); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", written, got, want)
		}
	}
}
