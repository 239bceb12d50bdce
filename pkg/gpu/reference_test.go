package gpu

import (
	"fmt"
	"strings"
	"testing"
)

// row is one canonical name as the provider reference writes it down, apart from the production tables. A spelling may
// end in @ and the memory of one GPU in MB.
type row struct {
	name Name
	vram int
	bw   [2]int // the range the reference gives
	cc   [2]int
	mig  int
	// Spellings of each provider, separated by commas; "" where none is known.
	aws, azure, gcp, runpod, vast, tensordock, verda string
}

var reference = []row{
	{"T4", 16, [2]int{300, 320}, [2]int{7, 5}, 0,
		"T4@16384", "NC4as_T4_v3,NC64as_T4_v3", "nvidia-tesla-t4", "Tesla T4", "Tesla T4@15360", "", ""},
	{"T4G", 16, [2]int{300, 320}, [2]int{7, 5}, 0,
		"T4g@16384", "", "", "", "", "", ""},
	{"V100-16GB", 16, [2]int{900, 900}, [2]int{7, 0}, 0,
		"V100@16384", "NC6s_v3,NC24rs_v3", "nvidia-tesla-v100", "Tesla V100-PCIE-16GB,Tesla V100-FHHL-16GB,Tesla V100-SXM2-16GB", "Tesla V100@16160",
		"v100-pcie-16gb,v100-sxm2-16gb,v100-nvlink-16gb", "Tesla V100 16GB,1x Tesla V100 16GB,1V100.6V,8V100.48V"},
	{"V100-32GB", 32, [2]int{900, 900}, [2]int{7, 0}, 0,
		"V100@32768", "ND40rs_v2", "", "Tesla V100-SXM2-32GB", "Tesla V100@32510", "v100-sxm2-32gb,v100-sxm3-32gb", ""},
	{"L4", 24, [2]int{300, 300}, [2]int{8, 9}, 0,
		"L4@22888", "", "nvidia-l4", "NVIDIA L4", "L4@23034", "l4-pcie-24gb", ""},
	{"L40", 48, [2]int{864, 864}, [2]int{8, 9}, 0,
		"", "", "", "NVIDIA L40", "L40@46068", "l40-pcie-48gb", ""},
	{"L40S", 48, [2]int{864, 864}, [2]int{8, 9}, 0,
		"L40S@45776", "", "", "NVIDIA L40S", "L40S@46068", "l40s-pcie-48gb", "L40S 48GB,1x L40S 48GB,1L40S.20V"},
	{"A10", 24, [2]int{600, 600}, [2]int{8, 6}, 0,
		"", "NC16ads_A10_v4,NC32ads_A10_v4,NV36ads_A10_v5,NV36adms_A10_v5,NV72ads_A10_v5", "", "", "A10@23028", "", ""},
	{"A10G", 24, [2]int{600, 600}, [2]int{8, 6}, 0,
		"A10G@22888", "", "", "", "A10g@23028", "", ""},
	{"A16", 16, [2]int{200, 200}, [2]int{8, 6}, 0, "", "", "", "", "A16@15356", "", ""},
	{"A30", 24, [2]int{933, 933}, [2]int{8, 0}, 4, "", "", "", "NVIDIA A30", "A30@24576", "", ""},
	{"A40", 48, [2]int{696, 696}, [2]int{8, 6}, 0, "", "", "", "NVIDIA A40", "A40@46068", "a40-pcie-48gb", ""},
	{"A100-40GB-PCIE", 40, [2]int{1555, 1555}, [2]int{8, 0}, 7,
		"", "", "", "", "A100 PCIE@40960", "a100-pcie-40gb", ""},
	{"A100-40GB-SXM", 40, [2]int{1555, 1555}, [2]int{8, 0}, 7,
		"A100@40960", "ND96asr_v4", "nvidia-tesla-a100", "NVIDIA A100-SXM4-40GB", "A100 SXM4@40536,A100 SXM@40960", "a100-nvlink-40gb",
		"A100 SXM4 40GB,8x A100 SXM4 40GB,1A100.40S.22V"},
	{"A100-80GB-PCIE", 80, [2]int{1935, 1935}, [2]int{8, 0}, 7,
		"", "NC24ads_A100_v4,NC48ads_A100_v4,NC96ads_A100_v4", "", "NVIDIA A100 80GB PCIe", "A100 PCIE@81920", "a100-pcie-80gb", ""},
	{"A100-80GB-SXM", 80, [2]int{2039, 2039}, [2]int{8, 0}, 7,
		"A100@81920", "ND96amsr_A100_v4", "nvidia-a100-80gb", "NVIDIA A100-SXM4-80GB", "A100 SXM4@81920,A100 SXM@81251", "a100-sxm4-80gb",
		"A100 SXM4 80GB,1A100.22V,8A100.176V"},
	{"H100-PCIE", 80, [2]int{2000, 2039}, [2]int{9, 0}, 7, "", "", "", "NVIDIA H100 PCIe", "H100 PCIE@81559", "", ""},
	{"H100-SXM", 80, [2]int{3350, 3350}, [2]int{9, 0}, 7,
		"H100@81920", "ND96isr_H100_v5", "nvidia-h100-80gb,nvidia-h100-mega-80gb", "NVIDIA H100 80GB HBM3", "H100 SXM@81559", "h100-sxm5-80gb",
		"H100 SXM5 80GB,1H100.80S.22V,1H100.80S.30V,1H100.80S.32V"},
	{"H100-NVL", 94, [2]int{3938, 3938}, [2]int{9, 0}, 7,
		"", "NC40ads_H100_v5,NC80adis_H100_v5", "", "NVIDIA H100 NVL", "H100 NVL@95830", "", ""},
	{"H200", 141, [2]int{4800, 4800}, [2]int{9, 0}, 7,
		"H200@144384", "ND96isr_H200_v5", "nvidia-h200-141gb", "NVIDIA H200", "H200@143771", "", "H200 SXM5 141GB"},
	{"H200-NVL", 141, [2]int{4800, 4800}, [2]int{9, 0}, 7, "", "", "", "NVIDIA H200 NVL", "H200 NVL@143771", "", ""},
	{"B200", 180, [2]int{7700, 8000}, [2]int{10, 0}, 7,
		"B200@183359", "", "nvidia-b200", "NVIDIA B200", "B200@183359", "", "B200 SXM6 180GB"},
	{"B300", 268, [2]int{8000, 8000}, [2]int{10, 3}, 7,
		"B300@275040", "", "", "NVIDIA B300 SXM6 AC@294912", "B300@275040,B300 SXM6 AC@275040", "", "B300 SXM6 268GB,8B300.240V"},
	{"GB200", 186, [2]int{8000, 8000}, [2]int{10, 0}, 7,
		"GB200@189471", "ND128isr_NDR_GB200_v6", "nvidia-gb200", "", "", "", ""},
	{"GH200", 96, [2]int{4000, 4900}, [2]int{9, 0}, 7, "", "", "", "", "GH200 SXM@97871,GH200 SXM@146831", "", ""},
	{"RTX3090", 24, [2]int{936, 936}, [2]int{8, 6}, 0,
		"", "", "", "NVIDIA GeForce RTX 3090", "RTX 3090@24576", "geforcertx3090-pcie-24gb", ""},
	{"RTX4090", 24, [2]int{1008, 1008}, [2]int{8, 9}, 0,
		"", "", "", "NVIDIA GeForce RTX 4090", "RTX 4090@24564", "geforcertx4090-pcie-24gb", ""},
	{"RTX5090", 32, [2]int{1792, 1792}, [2]int{12, 0}, 0,
		"", "", "", "NVIDIA GeForce RTX 5090", "RTX 5090@32607", "geforcertx5090-pcie-32gb", ""},
	{"RTXA4000", 16, [2]int{448, 448}, [2]int{8, 6}, 0,
		"", "", "", "NVIDIA RTX A4000", "RTX A4000@16376", "rtxa4000-pcie-16gb", ""},
	{"RTXA5000", 24, [2]int{768, 768}, [2]int{8, 6}, 0,
		"", "", "", "NVIDIA RTX A5000", "RTX A5000@24564", "rtxa5000-pcie-24gb", ""},
	{"RTXA6000", 48, [2]int{768, 768}, [2]int{8, 6}, 0,
		"", "", "", "NVIDIA RTX A6000", "RTX A6000@49140", "rtxa6000-pcie-48gb", "RTX A6000 48GB,1A6000.10V"},
	{"RTX6000ADA", 48, [2]int{960, 960}, [2]int{8, 9}, 0,
		"", "", "", "NVIDIA RTX 6000 Ada Generation", "RTX 6000Ada@49140", "rtx6000ada-pcie-48gb",
		"RTX6000 Ada 48GB,RTX 6000 Ada 48GB,1RTX6000ADA.10V"},
	{"RTXPRO6000", 96, [2]int{1597, 1792}, [2]int{12, 0}, 4,
		"RTX PRO Server 6000@98304", "NC128ds_xl_RTXPRO6000BSE_v6,NC320lds_xl_RTXPRO6000BSE_v6", "nvidia-rtx-pro-6000",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition,NVIDIA RTX PRO 6000 Blackwell Workstation Edition," +
			"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
		"RTX PRO 6000@97887,RTX PRO 6000 S@97887,RTX PRO 6000 WS@97887,RTX PRO 6000 Max-Q@97887", "", "RTX PRO 6000 96GB"},
	{"MI300X", 192, [2]int{5300, 5300}, [2]int{}, 0, "", "ND96isr_MI300X_v5", "", "AMD Instinct MI300X OAM", "", "", ""},
}

// spelled calls visit for every spelling in the reference.
func spelled(visit func(provider, raw string, mb int, want Name)) {
	for _, r := range reference {
		for provider, list := range map[string]string{
			"aws": r.aws, "azure": r.azure, "gcp": r.gcp, "runpod": r.runpod, "vast.ai": r.vast,
			"tensordock": r.tensordock, "verda": r.verda,
		} {
			for item := range strings.SplitSeq(list, ",") {
				if item == "" {
					continue
				}
				raw, size, _ := strings.Cut(item, "@")
				mb := 0
				if size != "" {
					if _, err := fmt.Sscan(size, &mb); err != nil {
						panic(err)
					}
				}
				if provider == "azure" {
					raw = "Standard_" + raw
				}
				visit(provider, raw, mb, r.name)
			}
		}
	}
}

func TestSpecificationTable(t *testing.T) {
	if len(reference) != len(Names()) {
		t.Errorf("%d names in the reference, %d here", len(reference), len(Names()))
	}
	for _, r := range reference {
		s, ok := SpecOf(r.name)
		if !ok {
			t.Errorf("%s has no specification", r.name)
			continue
		}
		if s.VRAMGB != r.vram || s.BandwidthGBs < r.bw[0] || s.BandwidthGBs > r.bw[1] || s.ComputeCapability != r.cc || s.MIGInstances != r.mig {
			t.Errorf("%s: %+v; the reference says %+v", r.name, s, r)
		}
		if s.Arch == "" {
			t.Errorf("%s has no architecture", r.name)
		}
		if arm := r.name == "T4G" || r.name == "GH200" || r.name == "GB200"; s.Arm64 != arm {
			t.Errorf("%s: Arm64 is %v", r.name, s.Arm64)
		}
	}
}

func TestEverySpelling(t *testing.T) {
	spelled(func(provider, raw string, mb int, want Name) {
		if got := Canonical(provider, raw, mb); got != want {
			t.Errorf("%s %q with %d MB is %s; want %s", provider, raw, mb, got, want)
		}
		// Memory in decimal MB, where no size was given, changes nothing.
		spec, _ := SpecOf(want)
		if got := Canonical(provider, raw, spec.VRAMGB*1000); got != want {
			t.Errorf("%s %q with %d MB is %s; want %s", provider, raw, spec.VRAMGB*1000, got, want)
		}
	})
	if got := Canonical("vastai", "RTX 4090", 24564); got != "RTX4090" {
		t.Errorf("vastai's RTX 4090 is %s", got)
	}
}

// No spelling is in the production tables that the reference does not give.
func TestNoSpellingWithoutReference(t *testing.T) {
	type use struct {
		provider string
		raw      string
		name     Name
	}
	seen := map[use]bool{}
	tokens := map[string]bool{}
	spelled(func(provider, raw string, _ int, want Name) {
		for _, s := range spellings[provider] {
			if s.matches(provider, raw) {
				seen[use{provider, s.raw, want}] = true
			}
		}
		if m := verdaType.FindStringSubmatch(raw); provider == "verda" && m != nil {
			tokens[m[1]] = true
		}
	})
	for provider, list := range spellings {
		for _, s := range list {
			for _, n := range s.names {
				if !seen[use{provider, s.raw, n}] {
					t.Errorf("%s %q as %s is not in the reference table", provider, s.raw, n)
				}
			}
		}
	}
	for token := range verdaTokens {
		if !tokens[token] {
			t.Errorf("verda's %s is not in the reference table", token)
		}
	}
}

// A search that asks for what SpellingsFor says meets every spelling of every name, and every answer it can get is a
// spelling of a name that the entry matches.
func TestSpellingsForCoverTheTable(t *testing.T) {
	spelled(func(provider, raw string, _ int, want Name) {
		if provider == "verda" && (verdaType.MatchString(raw) || verdaCount.MatchString(raw)) {
			return
		}
		found := false
		for _, s := range SpellingsFor(provider, string(want)) {
			found = found || is(s).matches(provider, raw)
		}
		if !found {
			t.Errorf("%s: %q is not asked for by %s: %q", provider, raw, want, SpellingsFor(provider, string(want)))
		}
	})
	for provider, list := range spellings {
		for _, n := range Names() {
			asked := 0
			for _, s := range list {
				for _, named := range s.names {
					if named == n {
						asked++
					}
				}
			}
			if n != "H200" && len(SpellingsFor(provider, string(n))) != asked {
				t.Errorf("%s: %s asks for %q", provider, n, SpellingsFor(provider, string(n)))
			}
		}
	}
}
