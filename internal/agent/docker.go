package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// DockerRunner starts engines as containers of one image, on the host's network and IPC namespace and with all its GPUs,
// of which an engine sees those in its environment. Its containers carry the claim's UID as a label, by which Prepare
// finds and removes what an earlier agent on this machine left running.
type DockerRunner struct {
	// Image is the container image. GPUs is false on a machine without any.
	Image string
	GPUs  bool
	// Claim is the claim's UID, a DNS label.
	Claim string
	// Cache is the folder of the Hub's client, the same inside and out, so that weights outlive an engine and their
	// download is seen. Empty: weights are in the container.
	Cache string
	// Patience is how long Docker may take to answer after the machine has booted (2 min), PullWait the wait before an image
	// is pulled for a second time (15 s), which doubles each time. 0 means the default in brackets.
	Patience, PullWait time.Duration
	// Clock times waits; nil means RealClock.
	Clock Clock
}

const (
	dockerProgram = "docker"
	// dockerTimeout bounds one short command of Docker's.
	dockerTimeout = time.Minute
	claimLabel    = "gpuscale.claim"
	// signalled plus a signal's number is the status of a container that a signal ended.
	signalled, lastSignal = 128, 64
)

func (r DockerRunner) clock() Clock {
	if r.Clock == nil {
		return RealClock()
	}
	return r.Clock
}

// container is an engine behind a "docker run" that is attached to it.
type container struct {
	*process
	runner DockerRunner
	name   string
	gone   chan struct{}
}

// Start runs a container on a free loopback port. It outlives an agent that is killed, until the next one prepares.
func (r DockerRunner) Start(spec EngineSpec) (Engine, error) {
	path, err := exec.LookPath(dockerProgram)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoRuntime, err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	name := "gpuscale-" + r.Claim + "-" + strings.ToLower(rand.Text()[:10])
	env := r.env(spec.Env)
	//nolint:noctx // An engine's life is its unit's, which calls Stop; no call's context bounds it.
	p := newProcess(exec.Command(path, r.words(name, env, onPort(spec.Command, port))...), port, r.Clock)
	p.cmd.Env = append(environ(os.Environ(), env), p.mark)
	c := &container{process: p, runner: r, name: name, gone: make(chan struct{})}
	if err := p.start(spec.Log); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoRuntime, err)
	}
	go func() {
		defer close(c.gone)
		<-p.done
		// Whatever ended the attached process: the container holds GPU memory.
		if err := r.remove(context.Background(), name); err != nil {
			_, _ = fmt.Fprintf(spec.Log, "gpuscale: container %s may be left: %v\n", name, err) // It never fails.
		}
	}()
	return c, nil
}

// env is what the container gets. Docker's own variables would turn its client elsewhere.
func (r DockerRunner) env(add map[string]string) map[string]string {
	env := map[string]string{}
	for key, value := range add {
		if !strings.HasPrefix(key, "DOCKER_") {
			env[key] = value
		}
	}
	if _, set := env[hubHome]; r.Cache != "" && !set {
		env[hubHome] = r.Cache
	}
	return env
}

// hubHome is where the Hub's client keeps its files.
const hubHome = "HF_HOME"

// words are the arguments of "docker run". Values of the environment are in none: command lines can be read by everyone.
func (r DockerRunner) words(name string, env map[string]string, command []string) []string {
	words := []string{"run", "--name", name, "--label", claimLabel + "=" + r.Claim, "--init", "--network", "host", "--ipc", "host",
		"--log-driver", "local"}
	if r.GPUs {
		words = append(words, "--gpus", "all")
	}
	if r.Cache != "" {
		words = append(words, "--volume", r.Cache+":"+r.Cache)
	}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		words = append(words, "--env", key)
	}
	return append(append(words, "--entrypoint", command[0], r.Image), command[1:]...)
}

// Done is closed once the container is removed.
func (c *container) Done() <-chan struct{} { return c.gone }

// Exit is that of the container's first process.
func (c *container) Exit() Exit {
	<-c.gone
	exit := c.exit
	if number := exit.Code - signalled; number > 0 && number <= lastSignal {
		return Exit{Code: -1, Signal: syscall.Signal(number).String()}
	}
	return exit
}

// Stop sends SIGTERM, which the attached process passes on, and removes the container by force after grace.
func (c *container) Stop(ctx context.Context, grace time.Duration) {
	ctx, cancel := within(ctx, c.clock, grace)
	defer cancel()
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // It may have ended already.
	select {
	case <-c.done:
	case <-ctx.Done():
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // The container is removed once it has ended.
	}
	<-c.gone
}

// remove ends containers by force, if they are there, though ctx has ended.
func (r DockerRunner) remove(ctx context.Context, names ...string) error {
	_, err := r.docker(context.WithoutCancel(ctx), append([]string{"rm", "--force", "--volumes"}, names...)...)
	if err != nil && !strings.Contains(err.Error(), "No such container") {
		return err
	}
	return nil
}

// docker runs one short command and returns what it wrote. Its error holds what Docker said.
func (r DockerRunner) docker(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := within(ctx, r.clock(), dockerTimeout)
	defer cancel()
	var complaint strings.Builder
	command := exec.CommandContext(ctx, dockerProgram, words...)
	command.WaitDelay = time.Second
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", words[0], err, shorten(strings.Join(strings.Fields(complaint.String()), " "), maxMessage))
	}
	return strings.TrimSpace(string(out)), nil
}
