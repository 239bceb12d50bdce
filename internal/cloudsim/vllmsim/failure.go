package vllmsim

import (
	"fmt"
	"strconv"
	"strings"
)

// Failure names one way in which the simulated engine breaks.
type Failure string

// Failures while loading. The process writes what vLLM would and exits 1,
// except FailHang, which stays in the download phase until it is killed.
const (
	// FailOOM runs out of GPU memory while the weights load.
	FailOOM Failure = "oom"
	// FailKVCache has no room for one sequence of the maximum length.
	FailKVCache Failure = "kv-cache"
	// FailNotFound is a repository the hub answers 404 for.
	FailNotFound Failure = "not-found"
	// FailGated is a repository the hub answers 401 for, whatever the token.
	FailGated Failure = "gated"
	// FailNeedsToken is FailGated unless HF_TOKEN is set.
	FailNeedsToken Failure = "needs-token"
	// FailDiskFull has no space for the weights.
	FailDiskFull Failure = "disk-full"
	// FailLoadError is a model whose architecture vLLM does not know.
	FailLoadError Failure = "load-error"
	// FailGPUs asks for more GPUs than the machine has. It also arises from
	// Config.GPUs.
	FailGPUs Failure = "gpus"
	// FailHang stops making progress while downloading.
	FailHang Failure = "hang"
)

// Failures while serving. Each takes "-after-N": the first N generation
// requests behave, so that a readiness probe can pass.
const (
	// FailCrash kills the engine on a generation request: a host with the
	// wrong CUDA lists its models and dies on the first completion.
	FailCrash Failure = "crash"
	// FailStreamError sends an error event within a stream, under status 200.
	FailStreamError Failure = "stream-error"
	// FailStreamEOF ends a stream cleanly without [DONE].
	FailStreamEOF Failure = "stream-eof"
	// FailStreamHang stops a stream and leaves the connection open.
	FailStreamHang Failure = "stream-hang"
	// FailFreeze stops the engine's loop on a generation request, as a wedged
	// GPU does: no token of any request comes any more, while /health says 200
	// and the metrics stand still.
	FailFreeze Failure = "freeze"
	// FailUnhealthy answers 503 on /health and 500 on generation.
	FailUnhealthy Failure = "unhealthy"
	// FailUnauthorized answers 401 with a string body under /v1.
	FailUnauthorized Failure = "unauthorized"
)

// Oddities: they change what is seen, from the start.
const (
	// FailOldMetrics exposes the metric names of vLLM before 0.10.
	FailOldMetrics Failure = "old-metrics"
	// FailIgnoreSIGTERM leaves only SIGKILL to end the process. It has no
	// effect in process.
	FailIgnoreSIGTERM Failure = "ignore-sigterm"
)

var loadFailures = []Failure{
	FailOOM, FailKVCache, FailNotFound, FailGated, FailNeedsToken,
	FailDiskFull, FailLoadError, FailGPUs, FailHang,
}

var servingFailures = []Failure{
	FailCrash, FailStreamError, FailStreamEOF, FailStreamHang, FailFreeze,
	FailUnhealthy, FailUnauthorized,
}

var oddities = []Failure{FailOldMetrics, FailIgnoreSIGTERM}

// Fault is a Failure and the number of generation requests that behave before
// it starts. After is zero for every failure that is not a serving one.
type Fault struct {
	Failure Failure
	After   int
}

// AllFailures lists every Failure in a fixed order; the slice is the caller's.
func AllFailures() []Failure {
	all := append([]Failure{}, loadFailures...)
	all = append(all, servingFailures...)
	return append(all, oddities...)
}

// ParseFaults reads a comma separated list of NAME or NAME-after-N. An empty
// text is no fault; an unknown name is an error, so that a typing error in a
// test does not pass as a healthy engine.
func ParseFaults(text string) ([]Fault, error) {
	var faults []Fault
	for _, word := range strings.Split(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		fault, rest, ok := cutFault(word)
		if !ok || rest != "" {
			return nil, fmt.Errorf("unknown failure %q", word)
		}
		faults = append(faults, fault)
	}
	return faults, nil
}

// FaultOfModel returns the fault that a model name asks for by containing
// "sim/NAME" or "sim/NAME-after-N". More text may follow the name if its first
// character is not a letter ("sim/oom-7b").
func FaultOfModel(model string) (Fault, bool) {
	_, tail, found := strings.Cut(strings.ToLower(model), "sim/")
	if !found {
		return Fault{}, false
	}
	fault, rest, ok := cutFault(tail)
	if !ok || (rest != "" && rest[0] >= 'a' && rest[0] <= 'z') {
		return Fault{}, false
	}
	return fault, true
}

// cutFault takes a fault from the front of text and returns what follows it.
func cutFault(text string) (fault Fault, rest string, ok bool) {
	for _, failure := range AllFailures() {
		tail, has := strings.CutPrefix(text, string(failure))
		if has && len(failure) > len(fault.Failure) {
			fault, rest, ok = Fault{Failure: failure}, tail, true
		}
	}
	if !ok || !oneOf(fault.Failure, servingFailures) {
		return fault, rest, ok
	}
	digits, has := strings.CutPrefix(rest, "-after-")
	if !has {
		return fault, rest, true
	}
	end := 0
	for end < len(digits) && digits[end] >= '0' && digits[end] <= '9' {
		end++
	}
	after, err := strconv.Atoi(digits[:end])
	if err != nil {
		return fault, rest, true
	}
	fault.After = after
	return fault, digits[end:], true
}

func oneOf(failure Failure, list []Failure) bool {
	for _, candidate := range list {
		if candidate == failure {
			return true
		}
	}
	return false
}
