package demand

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Bounds of what an annotation may say, as the claim's schema has them.
const (
	maxNameLength   = 253
	maxSourceLength = 1024
	maxVRAMGB       = 100000
)

// ownAnnotations are set by gpuscale itself and make no pod ours.
var ownAnnotations = map[string]bool{v1alpha1.AnnotationDrain: true}

var providerNames = []provider.Name{provider.AWS, provider.Azure, provider.GCP, provider.RunPod, provider.TensorDock,
	provider.VastAI, provider.Verda}

// asked is what the annotations of one pod say.
type asked struct {
	model, served string
	needs         needs
	maxPrice      *money.Dollars
	priority      int
}

// parsers has one entry for each annotation that a pod may carry. A parser's error completes the sentence
// `gpuscale.io/x: "value" …`.
var parsers = map[string]func(a *asked, v string) error{
	v1alpha1.AnnotationModel:      func(a *asked, v string) error { a.model = v; return checkSource(v) },
	v1alpha1.AnnotationServedName: func(a *asked, v string) error { a.served = v; return checkName(v) },
	v1alpha1.AnnotationGPUVRAM:    parseVRAM,
	v1alpha1.AnnotationGPUType:    parseGPUTypes,
	v1alpha1.AnnotationMaxPrice:   parseMaxPrice,
	v1alpha1.AnnotationProvider:   parseProvider,
	v1alpha1.AnnotationPriority:   parsePriority,
	v1alpha1.AnnotationPool:       parsePool,
}

// parseAnnotations reads every annotation of ours and returns a sentence for each that is wrong, in order of name.
func parseAnnotations(annotations map[string]string) (asked, []string) {
	var a asked
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(name, v1alpha1.AnnotationPrefix) || ownAnnotations[name] {
			continue
		}
		parse, known := parsers[name]
		if !known {
			wrong = append(wrong, fmt.Sprintf("%s is not an annotation of gpuscale; known are %s", name, knownAnnotations()))
			continue
		}
		if err := parse(&a, strings.TrimSpace(annotations[name])); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %q %s", name, annotations[name], err))
		}
	}
	return a, wrong
}

func knownAnnotations() string {
	names := slices.Sorted(maps.Keys(parsers))
	for i, n := range names {
		names[i] = strings.TrimPrefix(n, v1alpha1.AnnotationPrefix)
	}
	return v1alpha1.AnnotationPrefix + "{" + strings.Join(names, ",") + "}"
}

var vramUnit = regexp.MustCompile(`^([0-9]+) ?(?i:g|gb|gi|gib)$`)

func parseVRAM(a *asked, v string) error {
	if m := vramUnit.FindStringSubmatch(v); m != nil {
		return fmt.Errorf("must be a whole number of GB without a unit; write %q", m[1])
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > maxVRAMGB {
		return fmt.Errorf("must be the VRAM of one replica over all its GPUs, a whole number of GB above 0, such as \"24\"")
	}
	a.needs.vramGB = n
	return nil
}

func parseGPUTypes(a *asked, v string) error {
	for entry := range strings.SplitSeq(v, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			return fmt.Errorf("must be GPU names separated by commas, such as \"RTX 4090,A100\"")
		}
		if len(gpu.Expand(entry)) == 0 {
			return fmt.Errorf("names the unknown GPU %q; use names such as RTX 4090, L40S, A100, A100-80GB or H100", entry)
		}
		if !slices.Contains(a.needs.gpuTypes, entry) {
			a.needs.gpuTypes = append(a.needs.gpuTypes, entry)
		}
	}
	slices.Sort(a.needs.gpuTypes)
	return nil
}

func parseMaxPrice(a *asked, v string) error {
	d, err := money.Parse(v)
	if err != nil || d.Cmp(money.Dollars{}) <= 0 {
		return fmt.Errorf("must be dollars per hour for the whole instance, above 0 and with at most six decimals, such as \"0.50\"")
	}
	a.maxPrice = &d
	return nil
}

func parseProvider(a *asked, v string) error {
	if !slices.Contains(providerNames, provider.Name(v)) {
		names := make([]string, len(providerNames))
		for i, n := range providerNames {
			names[i] = string(n)
		}
		return fmt.Errorf("is not a provider; use one of %s", strings.Join(names, ", "))
	}
	a.needs.provider = provider.Name(v)
	return nil
}

// parsePriority also takes a capacity type, because the annotation has meant that in clusters that gpuscale moves into.
func parsePriority(a *asked, v string) error {
	switch c := provider.CapacityType(v); c {
	case provider.Spot, provider.OnDemand:
		a.needs.capacity = c
		return nil
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return fmt.Errorf("must be a whole number (higher is served first when ceilings bind), or \"spot\" or \"on-demand\"")
	}
	a.priority = int(n)
	return nil
}

var poolName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

func parsePool(a *asked, v string) error {
	if !poolName.MatchString(v) || len(v) > maxNameLength {
		return fmt.Errorf("must be the name of a GPUNodePool: lower-case letters, digits, '-' and '.'")
	}
	a.needs.pool = v
	return nil
}

// checkSource refuses what an engine could take for a flag or a shell could take apart.
func checkSource(v string) error {
	if v == "" || len(v) > maxSourceLength || strings.HasPrefix(v, "-") || strings.ContainsFunc(v, notInName) {
		return fmt.Errorf("must be what the engine loads, such as \"Qwen/Qwen2.5-7B-Instruct\": without spaces, not starting with '-', at most %d characters", maxSourceLength)
	}
	return nil
}

func checkName(v string) error {
	if v == "" || len(v) > maxNameLength || strings.HasPrefix(v, "-") || strings.ContainsFunc(v, notInName) {
		return fmt.Errorf("must be the model name that requests use, such as \"llama-3-8b\": without spaces, not starting with '-', at most %d characters", maxNameLength)
	}
	return nil
}

func notInName(r rune) bool {
	return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune("\"'`\\$", r)
}
