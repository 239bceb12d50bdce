package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const (
	// defaultSeqs is how many requests vLLM runs at once where --max-num-seqs does not say.
	defaultSeqs = 256
	// queueFactor: an engine may have as many requests waiting as running. vLLM itself would queue without limit, and what
	// waits longer than that is served sooner elsewhere.
	queueFactor = 2
	// defaultMaxBody bounds a request's body, which is held in memory until the engine has it.
	defaultMaxBody = 32 << 20
)

// options are the agent's settings as the installation or the machine gives them.
type options struct {
	// command is the engine's, nil for the default.
	command []string
	// maxInFlight per engine, 0 where its arguments decide.
	maxInFlight int
	maxBody     int64
}

// optionsOf reads the settings of a desired set, which win, and of the machine.
func optionsOf(env, machine map[string]string) (options, error) {
	value := func(name string) string {
		if v, ok := env[name]; ok {
			return v
		}
		return machine[name]
	}
	o := options{maxBody: defaultMaxBody}
	var errs []error
	if text := value(agentapi.EnvEngineCommand); text != "" {
		var err error
		if o.command, err = ParseCommand(text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", agentapi.EnvEngineCommand, err))
		}
	}
	if text := value(agentapi.EnvMaxInFlight); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			errs = append(errs, fmt.Errorf("%s: not a number of at least 1", agentapi.EnvMaxInFlight))
		}
		o.maxInFlight = max(n, 0)
	}
	if text := value(agentapi.EnvMaxBody); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			errs = append(errs, fmt.Errorf("%s: not a number of at least 1", agentapi.EnvMaxBody))
		} else {
			o.maxBody = n
		}
	}
	return o, errors.Join(errs...)
}

// ParseCommand reads an engine's command: a JSON list of words, or words between spaces. Quotes in the latter are refused,
// since whoever writes them expects a shell.
func ParseCommand(text string) ([]string, error) {
	var words []string
	switch {
	case strings.HasPrefix(strings.TrimSpace(text), "["):
		if json.Unmarshal([]byte(text), &words) != nil {
			return nil, errors.New("not a JSON list of words")
		}
	case strings.ContainsAny(text, `'"`+"`"):
		return nil, errors.New("quotes need the form of a JSON list of words")
	default:
		words = strings.Fields(text)
	}
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("no program is named")
	}
	if slices.ContainsFunc(words, func(w string) bool { return strings.ContainsRune(w, 0) }) {
		return nil, errors.New("a word holds a zero byte")
	}
	return words, nil
}

// mostInFlight is how many requests an engine with these arguments may have at once.
func (o options) mostInFlight(args []string) int {
	if o.maxInFlight > 0 {
		return o.maxInFlight
	}
	seqs, ranks := defaultSeqs, 1
	for i, arg := range args {
		into := map[string]*int{"--max-num-seqs": &seqs, "--data-parallel-size": &ranks, "-dp": &ranks}[flagOf(arg)]
		if into == nil {
			continue
		}
		_, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			*into = min(n, 1<<20)
		}
	}
	return queueFactor * seqs * min(ranks, 1<<10)
}
