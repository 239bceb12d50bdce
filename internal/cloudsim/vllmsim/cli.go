package vllmsim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Command is a parsed `vllm serve` command line.
type Command struct {
	Config
	// Host and Port to listen on. An empty Host is every interface, as in
	// vLLM; port 0 lets the system choose.
	Host string
	Port int
	// ShutdownTimeout is how long SIGTERM lets running requests go on.
	ShutdownTimeout time.Duration
	// KeepAlive is how long an idle connection stays open.
	KeepAlive time.Duration
	// HubHome is the Hub client's folder, in which the weights appear while they are downloaded; empty keeps them off the
	// disk.
	HubHome string
	// IgnoreSIGTERM leaves only SIGKILL to end the process.
	IgnoreSIGTERM bool
}

// UsageError is a command line that vLLM would refuse with exit status 2.
type UsageError struct {
	// Program is "vllm" or "vllm serve", after which part of it complains.
	Program string
	Problem string
}

// Error is the last line that argparse writes.
func (e *UsageError) Error() string { return e.Program + ": error: " + e.Problem }

// word is one flag of the command line and its values.
type word struct {
	name   string
	values []string
	off    bool // --no-NAME
}

// ParseCommand reads what follows the program name ("serve MODEL --port 8000")
// and the environment of the package comment. Errors in args are *UsageError.
func ParseCommand(args []string, getenv func(string) string) (Command, error) {
	if len(args) == 0 || args[0] != "serve" {
		given := ""
		if len(args) > 0 {
			given = args[0]
		}
		return Command{}, &UsageError{"vllm", fmt.Sprintf("argument subparser: invalid choice: '%s' (choose from 'chat', 'complete', 'serve', 'bench', 'collect-env', 'run-batch')", given)}
	}
	words, positional, err := scan(args[1:])
	if err != nil {
		return Command{}, err
	}
	cmd := Command{Config: DefaultConfig(""), Port: 8000, KeepAlive: 5 * time.Second}
	// What depends on flags is filled by New.
	cmd.ServedNames, cmd.Model, cmd.KVBlocks = nil, defaultModel, 0
	for _, w := range words {
		if err := cmd.apply(w); err != nil {
			return Command{}, &UsageError{"vllm serve", err.Error()}
		}
	}
	if len(positional) > 0 {
		cmd.Model = positional[0]
	}
	r := envReader{getenv: getenv}
	r.duration("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", &cmd.KeepAlive)
	if len(r.errs) > 0 {
		return Command{}, r.errs[0]
	}
	cmd.Config, err = ConfigFromEnv(cmd.Config, getenv)
	if err != nil {
		return Command{}, err
	}
	cmd.HubHome = getenv("HF_HOME")
	if fault, ok := FaultOfModel(cmd.Model); ok && fault.Failure == FailIgnoreSIGTERM {
		cmd.IgnoreSIGTERM = true
	}
	for _, fault := range cmd.Faults {
		cmd.IgnoreSIGTERM = cmd.IgnoreSIGTERM || fault.Failure == FailIgnoreSIGTERM
	}
	return cmd, nil
}

// scan splits args into flags and positionals, and refuses what argparse would.
func scan(args []string) (words []word, positional []string, err error) {
	var unknown []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !isFlag(arg) {
			if len(positional) > 0 {
				unknown = append(unknown, arg)
				continue
			}
			positional = append(positional, arg)
			continue
		}
		w, kind, known := parseFlag(arg)
		if !known {
			unknown = append(unknown, arg)
			continue
		}
		for len(w.values) < most(kind, len(w.values)) && i+1 < len(args) && !isFlag(args[i+1]) {
			i++
			w.values = append(w.values, args[i])
		}
		if len(w.values) == 0 && (kind == takesOne || kind == takesMany) {
			return nil, nil, &UsageError{"vllm serve", fmt.Sprintf("argument --%s: expected %s", w.name,
				map[arity]string{takesOne: "one argument", takesMany: "at least one argument"}[kind])}
		}
		words = append(words, w)
	}
	if len(unknown) > 0 {
		return nil, nil, &UsageError{"vllm", "unrecognized arguments: " + strings.Join(unknown, " ")}
	}
	return words, positional, nil
}

// most is how many values a flag that has some already may have.
func most(kind arity, have int) int {
	switch kind {
	case takesNone:
		return 0
	case takesMany:
		return have + 1
	}
	return 1
}

// isFlag tells a flag from a value; a negative number is a value.
func isFlag(arg string) bool {
	if len(arg) < 2 || arg[0] != '-' {
		return false
	}
	_, err := strconv.ParseFloat(arg, 64)
	return err != nil
}

// parseFlag reads --name, --name=value, --no-name, --name.key, -tp and -O3.
func parseFlag(arg string) (w word, kind arity, known bool) {
	name, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if level, ok := strings.CutPrefix(name, "O"); ok && !strings.HasPrefix(arg, "--") && level != "" && !strings.HasPrefix(level, ".") {
		name, value, hasValue = "O", level, true
	}
	name, _, _ = strings.Cut(strings.ReplaceAll(name, "_", "-"), ".")
	if full, ok := flagAliases[name]; ok {
		name = full
	}
	if hasValue {
		w.values = []string{value}
	}
	w.name = name
	if kind, known = knownFlags[name]; known {
		return w, kind, true
	}
	positive, ok := strings.CutPrefix(name, "no-")
	if kind = knownFlags[positive]; !ok || kind != takesNone {
		return w, 0, false
	}
	w.name, w.off = positive, true
	return w, kind, true
}

// apply sets what the simulator honours of a flag; all others are accepted and
// ignored.
func (c *Command) apply(w word) error {
	switch w.name {
	case "model":
		c.Model = w.values[0]
	case "served-model-name":
		c.ServedNames = w.values
	case "host":
		c.Host = w.values[0]
	case "api-key":
		c.APIKeys = append(c.APIKeys, w.values...)
	case "hf-token":
		c.HubToken = true
	case "lora-modules":
		return c.loras(w.values)
	case "enforce-eager":
		c.EnforceEager = !w.off
	case "enable-auto-tool-choice":
		c.AutoToolChoice = !w.off
	case "enable-force-include-usage":
		c.ForceUsage = !w.off
	case "enable-server-load-tracking":
		c.TrackLoad = !w.off
	case "runner", "task":
		c.Pooling = w.values[0] == "pooling" || w.values[0] == "embed"
	case "max-model-len":
		return c.modelLength(w.values[0])
	default:
		return c.applyNumber(w)
	}
	return nil
}

func (c *Command) applyNumber(w word) error {
	counts := map[string]*int{
		"port": &c.Port, "tensor-parallel-size": &c.TensorParallel, "pipeline-parallel-size": &c.PipelineParallel,
		"data-parallel-size": &c.DataParallel, "max-num-seqs": &c.MaxNumSeqs, "num-gpu-blocks-override": &c.KVBlocks,
	}
	if into, ok := counts[w.name]; ok {
		value, err := strconv.Atoi(w.values[0])
		if err != nil || value < 0 || (value == 0 && w.name != "port") {
			return fmt.Errorf("argument --%s: invalid int value: '%s'", w.name, w.values[0])
		}
		*into = value
		return nil
	}
	if w.name != "gpu-memory-utilization" && w.name != "shutdown-timeout" {
		return nil
	}
	value, err := strconv.ParseFloat(w.values[0], 64)
	if err != nil {
		return fmt.Errorf("argument --%s: invalid float value: '%s'", w.name, w.values[0])
	}
	if w.name == "shutdown-timeout" {
		c.ShutdownTimeout = time.Duration(value * float64(time.Second))
		return nil
	}
	c.GPUMemoryUtilization = value
	return nil
}

// modelLength reads 4096, 32k (thousands), 32K (1024s), auto and -1.
func (c *Command) modelLength(text string) error {
	if text == "auto" || text == "-1" {
		return nil
	}
	factors := map[byte]float64{'k': 1000, 'm': 1e6, 'K': 1024, 'M': 1 << 20}
	digits, factor := text, 1.0
	if text != "" && factors[text[len(text)-1]] != 0 {
		digits, factor = text[:len(text)-1], factors[text[len(text)-1]]
	}
	value, err := strconv.ParseFloat(digits, 64)
	if err != nil || value < 1 {
		return fmt.Errorf("argument --max-model-len: invalid human_readable_int_or_auto value: '%s'", text)
	}
	c.MaxModelLen = int(value * factor)
	return nil
}

func (c *Command) loras(values []string) error {
	for _, value := range values {
		name, path, ok := strings.Cut(value, "=")
		if !ok {
			return fmt.Errorf("argument --lora-modules: Invalid fields: %s", value)
		}
		c.LoRAs = append(c.LoRAs, LoRA{Name: name, Path: path})
	}
	return nil
}
