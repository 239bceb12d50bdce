package agent

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// DefaultCommand starts vLLM.
func DefaultCommand() []string { return []string{"vllm", "serve", "{source}"} }

// argsWord stands in a command for the user's arguments, which else come last.
const argsWord = "{args}"

// foreign reports whether a command is of another OpenAI-compatible server: it says itself where the port goes, and so all
// else that vLLM would be told by flags.
func foreign(template []string) bool {
	return slices.ContainsFunc(template, func(w string) bool { return strings.Contains(w, PortWord) })
}

// parallel are the arguments by which a user says how an engine spans GPUs; without any, the agent does.
var parallel = []string{"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"}

// commandFor is the command line of a model's engine, and which of the user's arguments are not in it. In the template
// {source} and {name} stand for the model's, {gpus} for how many it spans, {memory} for the fraction of each one's memory
// that it may take, {host} and {port} for where it must listen, and the word {args} for the user's arguments.
//
// A template without {port} is vLLM's, and gets its flags. They come last, since of two the last one wins.
func commandFor(template []string, m agentapi.DesiredModel) (command, dropped []string) {
	fill := strings.NewReplacer("{source}", m.Source, "{name}", m.Name, "{gpus}", strconv.Itoa(max(1, m.GPUs)),
		"{memory}", utilization(cmp.Or(m.GPUFraction, wholeGPU)), "{host}", loopbackHost)
	args, dropped := passed(m.Args)
	command = make([]string, 0, len(template)+len(args)+10)
	placed := false
	for _, word := range template {
		if word == argsWord {
			command, placed = append(command, args...), true
			continue
		}
		command = append(command, fill.Replace(word))
	}
	if !placed {
		command = append(command, args...)
	}
	if foreign(template) {
		return command, dropped
	}
	if m.GPUs > 1 && !slices.ContainsFunc(m.Args, func(a string) bool { return slices.Contains(parallel, flagOf(a)) }) {
		command = append(command, "--tensor-parallel-size", strconv.Itoa(m.GPUs))
	}
	if m.GPUFraction > 0 {
		command = append(command, "--gpu-memory-utilization", utilization(m.GPUFraction))
	}
	return append(command, "--served-model-name", m.Name, "--host", loopbackHost, "--port", PortWord), dropped
}

// loopbackHost is where engines listen and nowhere else: several of vLLM's routes ask for no key.
const loopbackHost = "127.0.0.1"

// usable is the share of a GPU that engines may take together; the driver and CUDA contexts need the rest.
const usable = 0.9

// utilization is vLLM's memory fraction for a share in thousandths of a GPU: all shares together come to usable.
func utilization(thousandths int) string {
	return strconv.FormatFloat(float64(thousandths)*usable/wholeGPU, 'f', 4, 64)
}

// passed drops the agent's own arguments, with their values, from a user's, and names those that it dropped.
func passed(args []string) (out, dropped []string) {
	room := 0 // How many values of a dropped flag may follow.
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") || len(arg) > 1 && arg[1] >= '0' && arg[1] <= '9' {
			if room == 0 {
				out = append(out, arg)
			}
			room = max(0, room-1)
			continue
		}
		room = 0
		name, long := strings.CutPrefix(flagOf(arg), "--")
		arity, mine := agentapi.OwnFlag(name)
		if !long || !mine {
			out = append(out, arg)
			continue
		}
		dropped = append(dropped, "--"+name)
		switch {
		case strings.Contains(arg, "="):
		case arity == agentapi.OneValue:
			room = 1
		case arity == agentapi.ManyValues:
			room = len(args)
		}
	}
	return out, dropped
}

// flagOf is the name of "--a_flag=value" as vLLM reads it: underscores count as dashes.
func flagOf(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return strings.ReplaceAll(name, "_", "-")
}

// forbidden in an engine's environment: boot data with the worker's key, the agent's settings, the keys to the rental, and
// what would make the engine listen, ask for a key, close connections or live on when it is dead otherwise than the agent
// expects.
func forbidden(key string) bool {
	switch key {
	case envVastKey, envRunPodKey, "VLLM_PORT", "VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
		"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH":
		return true
	}
	return strings.HasPrefix(key, "GPUSCALE_")
}

// envFor is what an engine's environment has beyond the machine's: the user's, and which GPUs are its own.
func envFor(user map[string]string, gpus []int) map[string]string {
	env := map[string]string{"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
	for key, value := range user {
		if !forbidden(key) {
			env[key] = value
		}
	}
	if len(gpus) > 0 {
		words := make([]string, len(gpus))
		for i, gpu := range gpus {
			words[i] = strconv.Itoa(gpu)
		}
		env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" // nvidia-smi's order, in which they were counted.
		env["CUDA_VISIBLE_DEVICES"] = strings.Join(words, ",")
	}
	return env
}
