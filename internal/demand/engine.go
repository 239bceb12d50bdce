package demand

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// engineLine is what a command line says about the model that it serves.
type engineLine struct {
	source string
	// served has every name given by --served-model-name.
	served []string
	args   []string
	// tensor, pipeline and data are the parallel sizes that were given, 0 where they were not.
	tensor, pipeline, data int
}

// gpus is how many GPUs the line spans by its own account; 0 where it says nothing.
func (e engineLine) gpus() int {
	if e.tensor == 0 && e.pipeline == 0 && e.data == 0 {
		return 0
	}
	return max(e.tensor, 1) * max(e.pipeline, 1) * max(e.data, 1)
}

// argsFor is the line's arguments for a replica of count GPUs. The tensor-parallel size is left to the agent unless the
// line asks for one that is not the GPU count, as it does with pipeline or data parallelism.
func (e engineLine) argsFor(count int) []string {
	if e.gpus() == 0 || count == 0 || max(e.tensor, 1) == count {
		return e.args
	}
	return append(slices.Clone(e.args), "--tensor-parallel-size", strconv.Itoa(max(e.tensor, 1)))
}

// EngineArgs returns args without those that gpuscale sets itself (address, keys, memory share, statistics, names), for
// arguments that a pool gives. A tensor-parallel size other than gpus stays; gpus 0 means that it is not known yet.
func EngineArgs(args []string, gpus int) []string {
	line := parseFlags(args)
	if gpus == 0 {
		gpus = line.gpus()
	}
	return line.argsFor(gpus)
}

// ours reports whether a flag is never passed through: the agent sets it, or it would move the engine away from where the
// agent expects it. It also says what follows the flag.
func ours(name string) (agentapi.Arity, bool) {
	if name == "tensor-parallel-size" { // See argsFor.
		return agentapi.OneValue, true
	}
	return agentapi.OwnFlag(name)
}

var shortFlags = map[string]string{
	"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
}

// parseFlags sorts an engine's flags into those that are ours and those that pass.
func parseFlags(words []string) engineLine {
	var e engineLine
	for i := 0; i < len(words); {
		name, values, next := readFlag(words, i)
		if name == "" {
			e.args = append(e.args, words[i])
			i++
			continue
		}
		e.note(name, values)
		if _, own := ours(name); !own {
			e.args = append(e.args, words[i:next]...)
		}
		i = next
	}
	return e
}

// readFlag reads the flag at i with its values and returns where the next word stands. A word that is no flag has no
// name. As vLLM does, it takes '_' for '-' and "--x=v" for "--x v".
func readFlag(words []string, i int) (name string, values []string, next int) {
	word, value, joined := strings.Cut(words[i], "=")
	switch {
	case strings.HasPrefix(word, "--") && len(word) > 2:
		name = strings.ReplaceAll(word[2:], "_", "-")
	case shortFlags[word] != "":
		name = shortFlags[word]
	default:
		return "", nil, i + 1
	}
	if joined {
		return name, []string{value}, i + 1
	}
	most := len(words)
	switch arity, own := ours(name); {
	case own && arity == agentapi.Alone:
		most = 0
	case own && arity == agentapi.OneValue:
		most = 1
	}
	next = i + 1
	for next < len(words) && len(values) < most && !strings.HasPrefix(words[next], "-") {
		values = append(values, words[next])
		next++
	}
	return name, values, next
}

func (e *engineLine) note(name string, values []string) {
	if len(values) == 0 {
		return
	}
	n, _ := strconv.Atoi(values[0])
	switch name {
	case "model":
		e.source = values[0]
	case "served-model-name":
		e.served = values
	case "tensor-parallel-size":
		e.tensor = max(n, 0)
	case "pipeline-parallel-size":
		e.pipeline = max(n, 0)
	case "data-parallel-size":
		e.data = max(n, 0)
	}
}

// engineContainer picks the container whose command line is read: the first readable one of those that ask for a GPU, or
// of all where none asks. err says why there is none, for people.
func engineContainer(pod *corev1.Pod) (c *corev1.Container, line engineLine, err error) {
	asking := gpuLimit(pod) > 0
	for i := range pod.Spec.Containers {
		this := &pod.Spec.Containers[i]
		if asking && containerGPUs(this) == 0 {
			continue
		}
		found, why := readEngine(this)
		if why == nil {
			return this, found, nil
		}
		if c == nil {
			c, err = this, why
		}
	}
	return c, engineLine{}, err
}

// readEngine finds the engine in a container's command and arguments.
func readEngine(c *corev1.Container) (engineLine, error) {
	env := literals(c)
	var words []string
	for _, w := range slices.Concat(c.Command, c.Args) {
		words = append(words, expandKube(w, env))
	}
	if len(c.Command) == 0 && imageServes(c.Image) && len(words) > 0 && !strings.HasPrefix(words[0], "-") &&
		engineRest(words) == nil && checkSource(words[0]) == nil {
		words = slices.Concat([]string{"vllm", "serve"}, words)
	}
	script := commands(words, env)
	// An engine that is named beats any other command of a script that happens to have a --model.
	for _, find := range []func([]string) []string{engineRest, flagsRest} {
		for _, cmd := range script {
			if line := parseEngine(find(cmd)); line.source != "" {
				return line, line.check(c.Name)
			}
		}
	}
	return engineLine{}, fmt.Errorf("container %s does not say which model it serves", c.Name)
}

// imageServes recognises the image whose entrypoint is "vllm serve", where arguments alone start with the model.
func imageServes(image string) bool {
	base, _, _ := strings.Cut(path.Base(image), ":")
	base, _, _ = strings.Cut(base, "@")
	return base == "vllm-openai"
}

const apiServerModule = "vllm.entrypoints.openai.api_server"

// engineRest returns what follows "vllm serve" or the server's module; nil where neither is there.
func engineRest(words []string) []string {
	for i := 0; i+1 < len(words); i++ {
		if path.Base(words[i]) == "vllm" && words[i+1] == "serve" {
			return words[i+2:]
		}
	}
	if i := slices.Index(words, apiServerModule); i >= 0 {
		return words[i+1:]
	}
	return nil
}

// flagsRest returns the words from the first flag on, for images whose entrypoint is the server.
func flagsRest(words []string) []string {
	first := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "--") })
	if first < 0 {
		return nil
	}
	return words[first:]
}

// parseEngine reads a model, if the words start with one, and flags.
func parseEngine(words []string) engineLine {
	if len(words) == 0 || strings.HasPrefix(words[0], "-") {
		return parseFlags(words)
	}
	line := parseFlags(words[1:])
	line.source = words[0]
	return line
}

// check refuses a line with something in it that only the running container would know.
func (e engineLine) check(container string) error {
	for _, w := range slices.Concat([]string{e.source}, e.served, e.args) {
		if ref := unresolved(w); ref != "" {
			return fmt.Errorf("container %s: %q depends on %s, whose value is not in the pod's own env", container, w, ref)
		}
	}
	if err := checkSource(e.source); err != nil {
		return fmt.Errorf("container %s: the model %q %w", container, e.source, err)
	}
	for _, name := range e.served {
		if err := checkName(name); err != nil {
			return fmt.Errorf("container %s: --served-model-name %q %w", container, name, err)
		}
	}
	return nil
}
