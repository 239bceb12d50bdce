package gpu

import (
	"regexp"
	"slices"
	"strings"
)

// wholePercent is the least share of a model's nominal memory that a whole GPU reports; less is a slice of one. It
// leaves room for the 7 % of drivers and firmware and for decimal megabytes.
const wholePercent = 88

// Canonical returns the canonical name for a provider's own spelling of one GPU, or Unknown(raw).
//
// provider is a pool's provider name ("vast.ai", "runpod", "tensordock", "verda", "aws", "gcp", "azure"). raw is, by
// provider: AWS the GpuInfo name ("A100"; prefer CanonicalAWS, which knows the families), Azure the SKU, GCP the
// accelerator type, RunPod the GPU id, Vast.ai gpu_name with spaces, TensorDock the v0Name, Verda the GPU's
// description (with or without "8x " in front) or the instance type.
//
// reportedMB is the memory of one GPU in MB or MiB as the provider reports it, 0 if it does not. It decides between
// the sizes that a spelling covers, so without it "A100" on AWS and "A100 PCIE" on Vast.ai are unknown; and a report
// well below nominal is a fraction of a GPU, which is unknown too.
func Canonical(provider, raw string, reportedMB int) Name {
	for _, n := range candidates(provider, raw) {
		spec, ok := SpecOf(n.name)
		if !ok {
			continue
		}
		if n.bySize {
			if size, ok := NominalGB(reportedMB); ok && size == spec.VRAMGB {
				return n.name
			}
			continue
		}
		if reportedMB <= 0 || reportedMB*100 >= spec.VRAMGB*1000*wholePercent {
			return n.name
		}
	}
	return Unknown(raw)
}

// candidate is a name that a spelling may mean; bySize where the memory has to confirm it.
type candidate struct {
	name   Name
	bySize bool
}

func candidates(provider, raw string) []candidate {
	provider = providerKey(provider)
	if provider == "verda" {
		raw = verdaCount.ReplaceAllString(raw, "")
		if token := verdaType.FindStringSubmatch(raw); token != nil {
			return candidatesOf(verdaTokens[token[1]])
		}
	}
	for _, s := range spellings[provider] {
		if s.matches(provider, raw) {
			return candidatesOf(s.names)
		}
	}
	return nil
}

func candidatesOf(names []Name) []candidate {
	out := make([]candidate, len(names))
	for i, n := range names {
		out[i] = candidate{n, len(names) > 1}
	}
	return out
}

var (
	// verdaCount is the number of GPUs that Verda writes before a description.
	verdaCount = regexp.MustCompile(`^[0-9]+x `)
	// verdaType takes the GPU out of an instance type: {n}{GPU}[.{memory}S].{vcpu}V.
	verdaType = regexp.MustCompile(`^[1-9][0-9]?([A-Z][A-Z0-9]*(?:\.[0-9]+S)?)\.[0-9]+V$`)
)

// matches compares exactly, but for Azure: a SKU comes in either case, and * stands for the number of vCPUs.
func (s spelling) matches(provider, raw string) bool {
	if provider != "azure" {
		return s.raw == raw
	}
	pattern, sku := strings.ToLower(s.raw), strings.ToLower(raw)
	before, after, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == sku
	}
	middle, ok := strings.CutPrefix(sku, before)
	if !ok {
		return false
	}
	middle, ok = strings.CutSuffix(middle, after)
	return ok && middle != "" && strings.Trim(middle, "0123456789") == ""
}

// SpellingsFor returns every name under which a provider may list what an entry of a pool's gpuTypes asks for, sorted;
// none if the provider does not sell it or the entry matches nothing.
//
// It is for narrowing a search: a spelling can cover a second memory size, so each answer still goes through Canonical
// and Matches. Azure's are SKU patterns in which * stands for digits, and Verda's are descriptions without the count:
// neither has a search to narrow.
func SpellingsFor(provider, entry string) []string {
	var raws []string
	for _, s := range spellings[providerKey(provider)] {
		if slices.ContainsFunc(s.names, func(n Name) bool { return Matches(entry, n) }) {
			raws = append(raws, s.raw)
		}
	}
	slices.Sort(raws)
	return raws
}

// providerKey maps the second spelling of a provider, its package's, to the one in pools.
func providerKey(provider string) string {
	if provider == "vastai" {
		return "vast.ai"
	}
	return provider
}

// CanonicalAWS is Canonical for an EC2 instance type such as "g6.xlarge", its GPU's name and memory in MiB.
//
// The family settles what the name leaves open. Fractional families (g6f, gr6f) are unknown; families known to rent
// whole GPUs are believed over a misreported memory size; a family not known here that carries a name sold in several
// form factors is unknown, since AWS never gives the form factor.
func CanonicalAWS(instanceType, gpuName string, mib int) Name {
	family, _, _ := strings.Cut(instanceType, ".")
	if n, ok := awsFamilies[family]; ok {
		if slices.ContainsFunc(candidates("aws", gpuName), func(c candidate) bool { return c.name == n }) {
			return n
		}
		return Unknown(gpuName)
	}
	n := Canonical("aws", gpuName, mib)
	if slices.Contains(awsFractions, family) || len(Expand(string(n.model()))) > 1 {
		return Unknown(gpuName)
	}
	return n
}

// model is the name up to its first dash: the part, whatever its memory and form.
func (n Name) model() Name {
	head, _, _ := strings.Cut(string(n), "-")
	return Name(head)
}
