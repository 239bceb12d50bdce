package gpu

import (
	"slices"
	"strings"
)

// Name is a canonical GPU name such as "RTX4090" or "A100-80GB-SXM", or "unknown:" and a provider's own spelling.
type Name string

const unknownPrefix = "unknown:"

// Unknown names a GPU that is not known, keeping the provider's spelling for people to read. It has no Spec and
// satisfies nothing.
func Unknown(raw string) Name { return Name(unknownPrefix + raw) }

// Known reports whether n is one of Names.
func (n Name) Known() bool {
	_, ok := SpecOf(n)
	return ok
}

// Spec is what one whole GPU of a model offers.
type Spec struct {
	// VRAMGB is the nominal memory in GB: a 4090 that reports 24564 MB has 24. Where editions or sources differ, the
	// smallest.
	VRAMGB int
	// BandwidthGBs is the data sheet's memory bandwidth in GB/s; the slowest edition's. What marketplaces measure is
	// lower.
	BandwidthGBs int
	// ComputeCapability is CUDA's, as major and minor; {0, 0} for parts without CUDA, which need another engine image.
	ComputeCapability [2]int
	// Arch is the architecture, for people: "Ada".
	Arch string
	// MIGInstances is the most instances that the part can be cut into; 0 where it cannot. It says nothing about being
	// allowed to on a rented machine.
	MIGInstances int
	// Arm64 marks parts that only come with an Arm host, which need arm64 images.
	Arm64 bool
}

// AtLeast reports whether the part has CUDA of at least that compute capability: AtLeast(8, 9) is FP8 in hardware,
// AtLeast(8, 0) bf16.
func (s Spec) AtLeast(major, minor int) bool {
	have := s.ComputeCapability
	return have != [2]int{} && (have[0] > major || have[0] == major && have[1] >= minor)
}

// SpecOf returns a known model's figures, and false for any other name.
func SpecOf(n Name) (Spec, bool) {
	for i := range models {
		if models[i].name == n {
			return models[i].spec, true
		}
	}
	return Spec{}, false
}

// Names returns every canonical name, in the order of the provider reference. The slice is the caller's.
func Names() []Name {
	names := make([]Name, len(models))
	for i, m := range models {
		names[i] = m.name
	}
	return names
}

// Matches reports whether an entry of a pool's gpuTypes asks for n.
//
// Case, spaces, dashes and underscores in the entry do not count. It matches the whole canonical name or its beginning
// up to a dash: "A100" is all four, "A100-80GB" two, "A10" is not "A100". Names that are not known match nothing.
func Matches(entry string, n Name) bool {
	want := squash(entry)
	return want != "" && n.Known() && slices.Contains(heads(n), want)
}

// Expand returns the canonical names that an entry of a pool's gpuTypes asks for. None means that the entry matches
// nothing that can be rented, most likely a typing error, which is worth telling the user.
func Expand(entry string) []Name {
	var names []Name
	for _, m := range models {
		if Matches(entry, m.name) {
			names = append(names, m.name)
		}
	}
	return names
}

// heads returns the squashed beginnings of a name up to each dash, and the whole: A100, A10080GB, A10080GBSXM.
func heads(n Name) []string {
	var out []string
	head := ""
	for part := range strings.SplitSeq(string(n), "-") {
		head += squash(part)
		out = append(out, head)
	}
	return out
}

var separators = strings.NewReplacer(" ", "", "-", "", "_", "")

func squash(s string) string { return strings.ToUpper(separators.Replace(s)) }

// snapPercent is how far a reported size may be from the nominal one it stands for: an L4 reports 6.9 % less.
const snapPercent = 7

// NominalGB returns the nominal memory size in GB that a reported size in MB or MiB of one GPU stands for: the nearest
// size that is sold, when that is within 7 %. Reports lie below or about nominal (22888 is 24). False means no GPU of
// a known size: a slice of one, or a part not known here.
//
// Where the name is known, SpecOf is the better answer.
func NominalGB(reportedMB int) (int, bool) {
	best, bestOff := 0, 0
	for _, size := range sizesGB() {
		nominal := size * 1024
		off := max(nominal-reportedMB, reportedMB-nominal)
		if off*100 <= nominal*snapPercent && (best == 0 || off < bestOff) {
			best, bestOff = size, off
		}
	}
	return best, best > 0
}

// sizesGB are the sizes of all models, and those that some source gives for a model listed with a smaller one.
func sizesGB() []int {
	sizes := []int{144 /* GH200 */, 288 /* B300 */}
	for _, m := range models {
		sizes = append(sizes, m.spec.VRAMGB)
	}
	return sizes
}
