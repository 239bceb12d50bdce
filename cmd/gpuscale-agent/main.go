// Command gpuscale-agent runs first on a rented machine: in a container beside the engine, or on a virtual machine whose
// Docker runs the engines. It reads its boot data from GPUSCALE_BOOT, or from the file named by --boot-file, and serves
// until SIGTERM; GPUSCALE_LISTEN overrides where it listens. GPUSCALE_ENGINE_COMMAND, GPUSCALE_MAX_IN_FLIGHT and
// GPUSCALE_MAX_BODY_BYTES are its settings where those of the pool have none. On a virtual machine HF_HOME is the folder
// that its engines share for weights.
//
// "gpuscale-agent check" serves nothing: it prints what it sees of the machine and whether it could serve there, with -o
// json for programs, and exits 0 when it could and 1 when not.
//
// It exits 0 when it was told to end or asked for help, 1 when it cannot listen, and 2, with one line, when its arguments
// or boot data are missing or not understood.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// version is set by the build.
var version = "dev"

const usage = "usage: gpuscale-agent [--boot-file FILE] [--version], or gpuscale-agent check"

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	if os.Getpid() == 1 {
		os.Exit(asInit())
	}
	// An engine that crashes would fill the disk with an image of its memory. Where this fails it does.
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	// The machine's memory is the engines'. The agent's heap is small, and collecting it more often costs little.
	const collectAt = 50
	debug.SetGCPercent(collectAt)
	// The standard library writes there what an engine sends unasked, without bound.
	log.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "check" {
		return check(ctx, args[1:], getenv, stdout, stderr)
	}
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(stderr, "gpuscale-agent: "+format+"\n", args...) // There is nowhere else to say it.
	}
	flags := flag.NewFlagSet("gpuscale-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("boot-file", "", "file with the boot data, in place of GPUSCALE_BOOT")
	show := flags.Bool("version", false, "print the version")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintf(stdout, "%s\n%s\n", usage, checkUsage) // As above.
		return exitOK
	}
	if err != nil || flags.NArg() > 0 {
		say("%s", usage)
		return exitUsage
	}
	if *show {
		say("%s", version)
		return exitOK
	}
	boot, err := bootData(*file, getenv)
	if err != nil {
		say("%v", err)
		return exitUsage
	}
	a, err := agent.New(agent.Config{
		Boot: boot, Version: version, Runner: runnerFor(boot, getenv), Machine: settings(getenv),
		Getenv: getenv, Metadata: getenv(agentapi.EnvMetadata),
		Log: slog.New(slog.NewTextHandler(stderr, nil)).With("claim", boot.ClaimName),
	})
	if err != nil {
		say("%v", err)
		return exitUsage
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address(boot, getenv))
	if err != nil {
		say("%v", err)
		return exitFailure
	}
	if err := a.Serve(ctx, listener); err != nil {
		say("%v", err)
		return exitFailure
	}
	return exitOK
}

// runnerFor starts engines as the boot data say: in containers of an image, or as children in the agent's own.
func runnerFor(boot agentapi.Boot, getenv func(string) string) agent.Runner {
	if boot.Image == "" {
		return agent.ProcessRunner{}
	}
	return agent.DockerRunner{Image: boot.Image, GPUs: boot.GPUs.Count > 0, Claim: boot.ClaimUID, Cache: getenv("HF_HOME")}
}

// settings are the agent's own in the environment.
func settings(getenv func(string) string) map[string]string {
	out := map[string]string{}
	for _, name := range []string{agentapi.EnvEngineCommand, agentapi.EnvMaxInFlight, agentapi.EnvMaxBody} {
		if value := getenv(name); value != "" {
			out[name] = value
		}
	}
	return out
}

func bootData(file string, getenv func(string) string) (agentapi.Boot, error) {
	source, text := agentapi.EnvBoot, getenv(agentapi.EnvBoot)
	if file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return agentapi.Boot{}, err
		}
		source, text = file, string(raw)
	}
	if text == "" {
		return agentapi.Boot{}, errors.New("no boot data: set " + agentapi.EnvBoot + " or --boot-file")
	}
	boot, err := agent.DecodeBoot(text)
	if err != nil {
		return agentapi.Boot{}, fmt.Errorf("boot data in %s: %w", source, err)
	}
	return boot, nil
}

func address(boot agentapi.Boot, getenv func(string) string) string {
	if listen := getenv(agentapi.EnvListen); listen != "" {
		return listen
	}
	port := boot.Port
	if port == 0 {
		port = agentapi.DefaultPort
	}
	return net.JoinHostPort("", strconv.Itoa(port))
}
