package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// Runner starts engines, as processes or otherwise. It is safe for concurrent use.
type Runner interface {
	// Start starts one engine and returns at once, long before it serves. ErrNoEngine means that there is nothing to
	// start on this machine.
	Start(spec EngineSpec) (Engine, error)
}

// Preparer is a Runner that has to make the machine ready before its first engine.
type Preparer interface {
	// Prepare returns when engines can be started, nil, or says why they never can be, or why it gave up when ctx ended.
	Prepare(ctx context.Context, report Progress) *agentapi.Failure
}

// Progress is where a Preparer says how far it is.
type Progress struct {
	// Step records a boot step that was reached.
	Step func(name, message string)
	// Doing says, for people, what is being waited for.
	Doing func(message string)
}

// ErrNoEngine says that the machine lacks the engine's program, ErrNoRuntime that it lacks what runs it.
var (
	ErrNoEngine  = errors.New("engine program not found")
	ErrNoRuntime = errors.New("no container runtime")
)

// PortWord stands in a command for the loopback port that the Runner chooses.
const PortWord = "{port}"

// EngineSpec is one start of an engine.
type EngineSpec struct {
	// Name is the served model's, for people.
	Name string
	// Command is the program and its arguments, with PortWord where the port goes.
	Command []string
	// Env is added to what the Runner gives every engine. It holds secrets.
	Env map[string]string
	// Log takes what the engine writes. It is safe for concurrent use and never fails.
	Log io.Writer
}

// Engine is one engine that was started. All methods may be called concurrently.
type Engine interface {
	// Transport carries requests to its HTTP server whatever their URL's host. It fails while the server is not up.
	Transport() http.RoundTripper
	// Done is closed once the engine and all it started are gone, and its log is complete.
	Done() <-chan struct{}
	// Exit is meaningful once Done is closed.
	Exit() Exit
	// Stop asks the engine to end, ends it by force after grace or when ctx ends, and returns once Done is closed.
	Stop(ctx context.Context, grace time.Duration)
}

// Exit is how an engine ended.
type Exit struct {
	// Code is the exit status, -1 when a signal ended it.
	Code int
	// Signal names that signal.
	Signal string
}

// String is for messages: "exit status 1", "signal killed".
func (e Exit) String() string {
	if e.Signal != "" {
		return "signal " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
