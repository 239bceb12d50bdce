package agent

import (
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// DefaultCommand starts vLLM. {source} and {name} stand for the model's.
func DefaultCommand() []string { return []string{"vllm", "serve", "{source}"} }

// ours are the arguments that the agent alone sets or forbids, with whether they take values: where the engine listens,
// who may call it, how much memory it takes, and whether it tells its metrics.
var ours = map[string]bool{
	"--host": true, "--port": true, "--uds": true, "--root-path": true, "--api-key": true,
	"--ssl-keyfile": true, "--ssl-certfile": true, "--ssl-ca-certs": true, "--ssl-cert-reqs": true,
	"--served-model-name": true, "--gpu-memory-utilization": true, "--kv-cache-memory-bytes": true,
	"--disable-log-stats": false, "--no-disable-log-stats": false,
}

// parallel are the arguments by which a user says how an engine spans GPUs; without any, the agent does.
var parallel = []string{"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"}

// commandFor is the command line of a model's engine. The agent's arguments come last, since of two the last one wins.
func commandFor(template []string, m agentapi.DesiredModel) []string {
	fill := strings.NewReplacer("{source}", m.Source, "{name}", m.Name)
	command := make([]string, 0, len(template)+len(m.Args)+10)
	for _, word := range template {
		command = append(command, fill.Replace(word))
	}
	command = append(command, passed(m.Args)...)
	if m.GPUs > 1 && !slices.ContainsFunc(m.Args, func(a string) bool { return slices.Contains(parallel, flagOf(a)) }) {
		command = append(command, "--tensor-parallel-size", strconv.Itoa(m.GPUs))
	}
	if m.GPUFraction > 0 {
		command = append(command, "--gpu-memory-utilization", utilization(m.GPUFraction))
	}
	return append(command, "--served-model-name", m.Name, "--host", "127.0.0.1", "--port", PortWord)
}

// usable is the share of a GPU that engines may take together; the driver and CUDA contexts need the rest.
const usable = 0.9

// utilization is vLLM's memory fraction for a share in thousandths of a GPU: all shares together come to usable.
func utilization(thousandths int) string {
	return strconv.FormatFloat(float64(thousandths)*usable/wholeGPU, 'f', 4, 64)
}

// passed drops the agent's own arguments, with their values, from a user's.
func passed(args []string) []string {
	var out []string
	dropping := false
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") || len(arg) > 1 && arg[1] >= '0' && arg[1] <= '9' {
			if !dropping {
				out = append(out, arg)
			}
			continue
		}
		takesValue, mine := ours[flagOf(arg)]
		dropping = mine && takesValue && !strings.Contains(arg, "=")
		if !mine {
			out = append(out, arg)
		}
	}
	return out
}

// flagOf is the name of "--a_flag=value" as vLLM reads it: underscores count as dashes.
func flagOf(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return strings.ReplaceAll(name, "_", "-")
}

// forbidden in an engine's environment: boot data with the worker's key, and what would make the engine listen or ask for
// a key otherwise than the agent expects.
func forbidden(key string) bool {
	return strings.HasPrefix(key, "GPUSCALE_") || key == "VLLM_PORT" || key == "VLLM_API_KEY" || key == "VLLM_HOST_IP"
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
