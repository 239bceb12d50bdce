package gpu

import (
	"slices"
	"testing"
)

func TestMatches(t *testing.T) {
	a100s := []Name{"A100-40GB-PCIE", "A100-40GB-SXM", "A100-80GB-PCIE", "A100-80GB-SXM"}
	for entry, want := range map[string][]Name{
		"RTX 4090": {"RTX4090"}, "rtx-4090": {"RTX4090"}, "RTX4090": {"RTX4090"}, "rtx_4090": {"RTX4090"},
		"RTX 3090": {"RTX3090"}, "A100": a100s, "a100": a100s, "A100-80GB": a100s[2:], "A100 80GB": a100s[2:],
		"A100-80GB-SXM": a100s[3:], "a100 40gb pcie": a100s[:1],
		"A10": {"A10"}, "A10G": {"A10G"}, "L4": {"L4"}, "L40": {"L40"}, "L40S": {"L40S"}, "T4": {"T4"}, "T4G": {"T4G"},
		"H100": {"H100-PCIE", "H100-SXM", "H100-NVL"}, "H100 SXM": {"H100-SXM"}, "H200": {"H200", "H200-NVL"},
		"H200-NVL": {"H200-NVL"}, "V100": {"V100-16GB", "V100-32GB"}, "B200": {"B200"}, "GB200": {"GB200"},
		"RTX A6000": {"RTXA6000"}, "RTX 6000 Ada": {"RTX6000ADA"}, "RTX PRO 6000": {"RTXPRO6000"}, "MI300X": {"MI300X"},
		// Typing errors, other parts and what would be too wide.
		"": nil, " ": nil, "-": nil, "RTX": nil, "RTX 6000": nil, "6000": nil, "A1": nil, "A100-": a100s, "A100-8": nil,
		"A100-SXM": nil, "RTX 4090 Ti": nil, "4090": nil, "H100-80GB": nil, "unknown:": nil, "unknown:Foo": nil, "*": nil,
	} {
		if got := Expand(entry); !slices.Equal(got, want) {
			t.Errorf("%q is %q; want %q", entry, got, want)
		}
		for _, n := range Names() {
			if Matches(entry, n) != slices.Contains(want, n) {
				t.Errorf("%q matches %s: %v", entry, n, Matches(entry, n))
			}
		}
	}
	for _, entry := range []string{"Foo", "unknown:Foo", "UNKNOWN", "unknown", "unknown:"} {
		if Matches(entry, Unknown("Foo")) || Matches(entry, Unknown("")) || Matches(entry, Name(entry)) {
			t.Errorf("%q matches an unknown GPU", entry)
		}
	}
	for _, n := range Names() {
		if !Matches(string(n), n) || !n.Known() {
			t.Errorf("%s does not match itself", n)
		}
	}
}

func TestTrapSimilarNames(t *testing.T) {
	for _, c := range []struct {
		provider, raw string
		want          Name
	}{
		{"vast.ai", "Q RTX 6000", Unknown("Q RTX 6000")},
		{"vast.ai", "RTX A6000", "RTXA6000"},
		{"vast.ai", "RTX 6000Ada", "RTX6000ADA"},
		{"vast.ai", "RTX PRO 6000", "RTXPRO6000"},
		{"vast.ai", "RTX 6000 Ada", Unknown("RTX 6000 Ada")},
		{"vast.ai", "RTX 6000", Unknown("RTX 6000")},
		{"vast.ai", "RTX_4090", Unknown("RTX_4090")},
		{"vast.ai", "rtx 4090", Unknown("rtx 4090")},
		{"vast.ai", "RTX 4090 D", Unknown("RTX 4090 D")},
		{"vast.ai", "A10G", Unknown("A10G")},
		{"vast.ai", "A100X", Unknown("A100X")},
		{"vast.ai", "", Unknown("")},
		{"runpod", "RTX 4090", Unknown("RTX 4090")},
		{"runpod", "NVIDIA A10", Unknown("NVIDIA A10")},
		{"tensordock", "RTX 4090", Unknown("RTX 4090")},
		{"gcp", "nvidia-tesla-p4", Unknown("nvidia-tesla-p4")},
		{"gcp", "nvidia-tesla-t4-vws", Unknown("nvidia-tesla-t4-vws")},
		{"verda", "H100", Unknown("H100")},
		{"verda", "CPU.4V.16G", Unknown("CPU.4V.16G")},
		{"verda", "1A100.20S.22V", Unknown("1A100.20S.22V")},
		{"nobody", "RTX 4090", Unknown("RTX 4090")},
		{"", "L4", Unknown("L4")},
	} {
		if got := Canonical(c.provider, c.raw, 0); got != c.want {
			t.Errorf("%s %q is %s; want %s", c.provider, c.raw, got, c.want)
		}
	}
}

func TestTrapSizeNotInTheName(t *testing.T) {
	for _, c := range []struct {
		provider, raw string
		mb            int
	}{
		{"aws", "A100", 0}, {"aws", "V100", 0}, {"vast.ai", "A100 PCIE", 0}, {"vast.ai", "A100 SXM4", 0},
		{"vast.ai", "Tesla V100", 0}, {"vast.ai", "A100 SXM4", 20096}, {"vast.ai", "A100 SXM4", 60000}, {"aws", "A100", -1},
	} {
		if got := Canonical(c.provider, c.raw, c.mb); got != Unknown(c.raw) {
			t.Errorf("%s %q with %d MB is %s; want it unknown", c.provider, c.raw, c.mb, got)
		}
	}
}

func TestTrapFractions(t *testing.T) {
	for _, c := range []struct {
		provider, raw string
		mb            int
	}{
		{"azure", "Standard_NV6ads_A10_v5", 0}, {"azure", "Standard_NV12ads_A10_v5", 0}, {"azure", "Standard_NV18ads_A10_v5", 0},
		{"azure", "Standard_NV18adms_A10_v5", 0}, {"azure", "Standard_NC16ads_A10_v4", 12288},
		{"aws", "L4", 2861}, {"aws", "L4", 11444},
		{"runpod", "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", 24576},
		{"runpod", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 24576},
		{"vast.ai", "H100 SXM", 40448}, {"gcp", "nvidia-rtx-pro-6000", 49152},
	} {
		if got := Canonical(c.provider, c.raw, c.mb); got != Unknown(c.raw) {
			t.Errorf("%s %q with %d MB is %s; want it unknown", c.provider, c.raw, c.mb, got)
		}
	}
	// A card that was given more memory is still that card.
	if got := Canonical("vast.ai", "RTX 4090", 49140); got != "RTX4090" {
		t.Errorf("a 4090 with 48 GB is %s", got)
	}
}

func TestAzureSKUs(t *testing.T) {
	for raw, want := range map[string]Name{
		"standard_nc24ads_a100_v4": "A100-80GB-PCIE", "STANDARD_NC4AS_T4_V3": "T4", "Standard_NC6s_v3": "V100-16GB",
		"NC24ads_A100_v4": Unknown("NC24ads_A100_v4"), "Standard_NCads_A100_v4": Unknown("Standard_NCads_A100_v4"),
		"Standard_NC24ads_A100_v4x": Unknown("Standard_NC24ads_A100_v4x"), "Standard_NC6s_v2": Unknown("Standard_NC6s_v2"),
		"Standard_NC24xads_A100_v4": Unknown("Standard_NC24xads_A100_v4"), "Standard_NCs_v3": Unknown("Standard_NCs_v3"),
		"Standard_NCC40ads_H100_v5": Unknown("Standard_NCC40ads_H100_v5"), "Standard_D4s_v3": Unknown("Standard_D4s_v3"),
		"Standard_NC128lds_xl_RTXPRO6000BSE_v6": "RTXPRO6000",
	} {
		if got := Canonical("azure", raw, 0); got != want {
			t.Errorf("%s is %s; want %s", raw, got, want)
		}
	}
}

func TestAWSFamilies(t *testing.T) {
	for _, c := range []struct {
		instance, name string
		mib            int
		want           Name
	}{
		{"g4dn.xlarge", "T4", 16384, "T4"}, {"g5g.xlarge", "T4g", 16384, "T4G"}, {"p3.2xlarge", "V100", 16384, "V100-16GB"},
		{"p3dn.24xlarge", "V100", 32768, "V100-32GB"}, {"g6.xlarge", "L4", 22888, "L4"}, {"gr6.4xlarge", "L4", 22888, "L4"},
		{"g6.48xlarge", "L4", 2861, "L4"}, // misreported: the family rents whole GPUs
		{"g6f.large", "L4", 2861, Unknown("L4")}, {"gr6f.4xlarge", "L4", 11444, Unknown("L4")}, {"g6f.large", "L4", 22888, Unknown("L4")},
		{"g6e.xlarge", "L40S", 45776, "L40S"}, {"g5.xlarge", "A10G", 22888, "A10G"},
		{"p4d.24xlarge", "A100", 40960, "A100-40GB-SXM"}, {"p4de.24xlarge", "A100", 81920, "A100-80GB-SXM"},
		{"p4d.24xlarge", "A100", 0, "A100-40GB-SXM"}, {"p5.4xlarge", "H100", 81920, "H100-SXM"}, {"p5.48xlarge", "H100", 81920, "H100-SXM"},
		{"p5e.48xlarge", "H200", 144384, "H200"}, {"p5en.48xlarge", "H200", 144384, "H200"}, {"p6-b200.48xlarge", "B200", 183359, "B200"},
		{"p6-b300.48xlarge", "B300", 275040, "B300"}, {"p6e-gb200.36xlarge", "GB200", 189471, "GB200"},
		{"g7e.2xlarge", "RTX PRO Server 6000", 98304, "RTXPRO6000"},
		{"p4d.24xlarge", "V520", 40960, Unknown("V520")}, {"g6.xlarge", "L40S", 45776, Unknown("L40S")},
		// Families to come: a name with one form factor is enough, one with several is not.
		{"g9.xlarge", "L4", 22888, "L4"}, {"g9f.xlarge", "L4", 11444, Unknown("L4")}, {"p9.xlarge", "H100", 81920, Unknown("H100")},
		{"p9.xlarge", "A100", 81920, Unknown("A100")}, {"p9.xlarge", "R100", 300000, Unknown("R100")},
	} {
		if got := CanonicalAWS(c.instance, c.name, c.mib); got != c.want {
			t.Errorf("%s with %s of %d MiB is %s; want %s", c.instance, c.name, c.mib, got, c.want)
		}
	}
}

func TestNominalGB(t *testing.T) {
	for mb, want := range map[int]int{
		24564: 24, 22888: 24, 24576: 24, 24000: 24, 23034: 24, 15360: 16, 16384: 16, 16160: 16, 32510: 32, 32607: 32, 40960: 40,
		40536: 40, 45776: 48, 46068: 48, 49140: 48, 81920: 80, 81559: 80, 80000: 80, 95830: 94, 97871: 96, 97887: 96, 98304: 96,
		143771: 141, 144384: 141, 141000: 141, 146831: 144, 183359: 180, 189471: 186, 196592: 192, 275040: 268, 268 * 1024: 268,
		288 * 1024: 288,
		0:          0, -24564: 0, 1: 0, 8192: 0, 10240: 0, 11264: 0, 12288: 0, 20475: 0, 22800: 0, 65536: 0, 1 << 40: 0,
	} {
		if got, ok := NominalGB(mb); got != want || ok != (want != 0) {
			t.Errorf("%d MB is %d, %v; want %d", mb, got, ok, want)
		}
	}
}

func TestUnknownSatisfiesNothing(t *testing.T) {
	n := Unknown("RTX 9999")
	if n != "unknown:RTX 9999" || n.Known() {
		t.Errorf("%s, known %v", n, n.Known())
	}
	if s, ok := SpecOf(n); ok || s != (Spec{}) || s.AtLeast(0, 0) {
		t.Errorf("%+v, %v", s, ok)
	}
}

func TestAtLeast(t *testing.T) {
	for n, want := range map[Name][2]bool{ // bf16, FP8
		"T4": {false, false}, "V100-16GB": {false, false}, "A100-80GB-SXM": {true, false}, "RTX3090": {true, false},
		"L4": {true, true}, "RTX4090": {true, true}, "H100-SXM": {true, true}, "B200": {true, true}, "RTX5090": {true, true},
		"MI300X": {false, false},
	} {
		s, _ := SpecOf(n)
		if s.AtLeast(8, 0) != want[0] || s.AtLeast(8, 9) != want[1] {
			t.Errorf("%s: bf16 %v, FP8 %v", n, s.AtLeast(8, 0), s.AtLeast(8, 9))
		}
	}
}

func TestSpellingsFor(t *testing.T) {
	for _, c := range []struct {
		provider, entry string
		want            []string
	}{
		{"vast.ai", "RTX 4090", []string{"RTX 4090"}},
		{"vastai", "rtx-4090", []string{"RTX 4090"}},
		{"vast.ai", "A100", []string{"A100 PCIE", "A100 SXM", "A100 SXM4"}},
		{"vast.ai", "A100-40GB-PCIE", []string{"A100 PCIE"}},
		{"runpod", "A100", []string{"NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"}},
		{"runpod", "H200", []string{"NVIDIA H200", "NVIDIA H200 NVL"}},
		{"aws", "A100-80GB", []string{"A100"}},
		{"gcp", "H100", []string{"nvidia-h100-80gb", "nvidia-h100-mega-80gb"}},
		{"azure", "H100-NVL", []string{"Standard_NC40ads_H100_v5", "Standard_NC80adis_H100_v5"}},
		{"verda", "RTX 6000 Ada", []string{"RTX 6000 Ada 48GB", "RTX6000 Ada 48GB"}},
		{"aws", "RTX 4090", nil}, {"vast.ai", "RTX 4909", nil}, {"nobody", "A100", nil}, {"vast.ai", "", nil},
	} {
		if got := SpellingsFor(c.provider, c.entry); !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %q; want %q", c.provider, c.entry, got, c.want)
		}
	}
}

func TestNamesIsACopy(t *testing.T) {
	Names()[0] = "X"
	if Names()[0] == "X" {
		t.Error("the caller can change the table")
	}
}
