package agent

import (
	"regexp"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const (
	// lookBack is how many last lines are searched for the reason of an exit: more than vLLM's longest traceback.
	lookBack   = 400
	maxMessage = 300
	// tailLines and tailWidth bound the part of a log that a status carries.
	tailLines = 20
	tailWidth = 400
)

// reason ties words in an engine's log to how it failed.
type reason struct {
	exit  string
	words *regexp.Regexp
}

// reasons in order: the first that any line matches wins, since one failure's text quotes another's words (a missing
// repository's speaks of gated ones, and every engine failure ends in the same RuntimeError).
var reasons = []reason{
	// Docker's own words, before an engine has any.
	{agentapi.ExitNoEngine, regexp.MustCompile(`^docker: Error response from daemon: .*exec: "[^"]*": (executable file not found|stat |permission denied)`)},
	{agentapi.ExitNoRuntime, regexp.MustCompile(`^docker: (Error response from daemon|Cannot connect to the Docker daemon|.*permission denied while trying to connect)`)},
	{agentapi.ExitWeightsDenied, regexp.MustCompile(`GatedRepoError|trying to access a gated repo|403 Client Error|403 Forbidden`)},
	{agentapi.ExitWeightsNotFound, regexp.MustCompile(`(Repository|Revision|Entry)NotFoundError|404 Client Error|not a valid model identifier`)},
	{agentapi.ExitWeightsDenied, regexp.MustCompile(`401 Client Error|401 Unauthorized|Invalid user token|LocalTokenNotFoundError`)},
	{agentapi.ExitOutOfMemory, regexp.MustCompile(`(?i)CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|` +
		`larger than the available KV cache memory|no available memory for the cache blocks|less than desired GPU memory utilization`)},
	{agentapi.ExitBadArgument, regexp.MustCompile(`^(usage: )?\S+( serve)?: error: |error: (argument|unrecognized arguments|the following arguments)|` +
		`World size \(\d+\) is larger than|architectures .* are not supported|` +
		`must be divisible by tensor parallel size`)},
	{agentapi.ExitNoEngine, regexp.MustCompile(`No module named '?vllm'?$|vllm: (command )?not found`)},
}

// notRun are the statuses by which a shell says that a program is not there or cannot be run.
var notRun = []int{126, 127}

// classify says how an engine that ended by itself failed, from its exit and what it last wrote. The message is the
// line that says so.
func classify(exit Exit, lines []string) (kind, message string) {
	lines = lines[max(0, len(lines)-lookBack):]
	for _, r := range reasons {
		// The last such line: an earlier attempt to reach the hub, say, may have been repeated with success.
		for _, line := range slices.Backward(lines) {
			if r.words.MatchString(line) {
				return r.exit, shorten(plain(line), maxMessage)
			}
		}
	}
	if slices.Contains(notRun, exit.Code) {
		return agentapi.ExitNoEngine, "engine program cannot be run"
	}
	return agentapi.ExitCrashed, shorten(exit.String()+": "+telling(lines), maxMessage)
}

var (
	errorLine = regexp.MustCompile(`[A-Za-z]*(Error|Exception)\b.*: `)
	// prefix is what vLLM puts before a line: process, level, time and source.
	prefix = regexp.MustCompile(`^(\([A-Za-z0-9_ ]+ pid=\d+\) )?((INFO|WARNING|ERROR|DEBUG) )?(\d\d-\d\d [\d:]+ )?(\[[\w.]+:\d+\] )?`)
)

// telling is the line that most likely says why: the first error in the log's last traceback is the root, but vLLM
// reports it again in its own words, so the first of all is taken, else the last line.
func telling(lines []string) string {
	for _, line := range lines {
		if errorLine.MatchString(line) && !strings.Contains(line, "See root cause above") {
			return plain(line)
		}
	}
	if len(lines) == 0 {
		return "nothing was logged"
	}
	return plain(lines[len(lines)-1])
}

func plain(line string) string { return strings.TrimSpace(prefix.ReplaceAllString(line, "")) }

func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// tailOf is the end of a log as a status carries it.
func tailOf(lines []string) []string {
	lines = lines[max(0, len(lines)-tailLines):]
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = shorten(line, tailWidth)
	}
	return out
}

// lasting reports whether starting the same engine again would end the same way.
func lasting(exit string) bool {
	switch exit {
	case agentapi.ExitBadArgument, agentapi.ExitWeightsDenied, agentapi.ExitWeightsNotFound, agentapi.ExitNoEngine,
		agentapi.ExitTimeout:
		return true
	}
	return false
}

var (
	loadingLine  = regexp.MustCompile(`Loading safetensors checkpoint|Time spent downloading weights|Loading weights took|Model loading took`)
	progressLine = regexp.MustCompile(`\d+%|Completed \||torch\.compile|Capturing CUDA graphs|Dynamo bytecode`)
)

// progress reads an engine's line while it loads: whether the weights are there now, and what to show people.
func progress(line string) (loading bool, message string) {
	if progressLine.MatchString(line) {
		message = shorten(plain(line), 120)
	}
	return loadingLine.MatchString(line), message
}
