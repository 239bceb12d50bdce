package agent

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const (
	dockerPatience = 2 * time.Minute
	dockerPoll     = 2 * time.Second
	// pullTries with growing waits between them, since registries and their networks have bad moments.
	pullTries = 4
	pullWait  = 15 * time.Second
)

// Prepare waits for Docker, looks for the NVIDIA runtime, removes containers of this claim that an earlier agent left, and
// pulls the image.
func (r DockerRunner) Prepare(ctx context.Context, report Progress) *agentapi.Failure {
	found, err := r.findRuntime(ctx, report)
	if err != nil {
		return &agentapi.Failure{Step: agentapi.StepRuntimeFound, Exit: agentapi.ExitNoRuntime, Message: shorten(err.Error(), maxMessage)}
	}
	if err := r.reap(ctx); err != nil {
		return &agentapi.Failure{Step: agentapi.StepRuntimeFound, Exit: agentapi.ExitNoRuntime,
			Message: shorten("a container of an earlier agent cannot be removed: "+err.Error(), maxMessage)}
	}
	report.Step(agentapi.StepRuntimeFound, found)
	if failure := r.pull(ctx, report); failure != nil {
		return failure
	}
	report.Step(agentapi.StepImagePulled, r.Image)
	return nil
}

// findRuntime says which Docker is there, or what is missing of what the machine's image has to have.
func (r DockerRunner) findRuntime(ctx context.Context, report Progress) (string, error) {
	if _, err := exec.LookPath(dockerProgram); err != nil {
		return "", errors.New("docker is not on this machine")
	}
	patience := cmp.Or(r.Patience, dockerPatience)
	report.Doing("waiting for Docker")
	bounded, cancel := within(ctx, r.clock(), patience)
	defer cancel()
	var last error
	for {
		version, runtimes, err := r.info(bounded)
		if bounded.Err() == nil || last == nil { // A call that was broken off says nothing.
			last = err
		}
		if err == nil && r.GPUs && !runtimes["nvidia"] && !toolkit() {
			return "", fmt.Errorf("docker %s has no NVIDIA Container Toolkit", version)
		}
		if err == nil {
			return "Docker " + version, nil
		}
		if r.clock().Wait(bounded, min(dockerPoll, patience)) != nil {
			return "", fmt.Errorf("docker does not answer: %w", last)
		}
	}
}

// info is Docker's version and the names of its runtimes.
func (r DockerRunner) info(ctx context.Context) (version string, runtimes map[string]bool, err error) {
	out, err := r.docker(ctx, "info", "--format", `{"version":{{json .ServerVersion}},"runtimes":{{json .Runtimes}}}`)
	if err != nil {
		return "", nil, err
	}
	var info struct {
		Version  string                     `json:"version"`
		Runtimes map[string]json.RawMessage `json:"runtimes"`
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil || info.Version == "" {
		return "", nil, errors.New("docker info says nothing of its server")
	}
	runtimes = map[string]bool{}
	for name := range info.Runtimes {
		runtimes[name] = true
	}
	return info.Version, runtimes, nil
}

// toolkit reports whether the NVIDIA Container Toolkit is there, which Docker finds by these names though it is told of no
// runtime.
func toolkit() bool {
	for _, name := range []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-ctk"} {
		if _, err := exec.LookPath(name); err == nil {
			return true
		}
	}
	return false
}

// reap removes what carries this claim's label: no engine of this agent runs yet.
func (r DockerRunner) reap(ctx context.Context) error {
	out, err := r.docker(ctx, "ps", "--all", "--quiet", "--filter", "label="+claimLabel+"="+r.Claim)
	if names := strings.Fields(out); err == nil && len(names) > 0 {
		err = r.remove(ctx, names...)
	}
	return err
}

// notInRegistry is how registries and Docker say that nobody can pull an image by that name.
var notInRegistry = regexp.MustCompile(`manifest unknown|manifest for .* not found|: not found$|pull access denied|repository does not exist|` +
	`invalid reference format|denied: requested access|unauthorized: |no matching manifest`)

// pull gets the image unless it is there.
func (r DockerRunner) pull(ctx context.Context, report Progress) *agentapi.Failure {
	if _, err := r.docker(ctx, "image", "inspect", "--format", "{{.Id}}", r.Image); err == nil {
		return nil
	}
	var err error
	for try := range pullTries {
		if try > 0 && r.clock().Wait(ctx, cmp.Or(r.PullWait, pullWait)<<(try-1)) != nil {
			break
		}
		report.Doing("pulling " + r.Image)
		if err = r.pullOnce(ctx, report); err == nil {
			return nil
		}
		if notInRegistry.MatchString(err.Error()) {
			return &agentapi.Failure{Step: agentapi.StepImagePulled, Exit: agentapi.ExitNoEngine,
				Message: shorten("image cannot be pulled: "+err.Error(), maxMessage)}
		}
		report.Doing(shorten(fmt.Sprintf("pulling %s again after %v", r.Image, err), maxMessage))
	}
	return &agentapi.Failure{Step: agentapi.StepImagePulled, Exit: agentapi.ExitTimeout,
		Message: shorten(fmt.Sprintf("image could not be pulled in %d attempts: %v", pullTries, err), maxMessage)}
}

// pullOnce counts layers as Docker names them, since their sizes are told to terminals only.
func (r DockerRunner) pullOnce(ctx context.Context, report Progress) error {
	var complaint strings.Builder
	command := exec.CommandContext(ctx, dockerProgram, "pull", r.Image)
	command.WaitDelay = time.Second
	command.Stderr = &complaint
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	layers, done := map[string]bool{}, 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		layer, state, ok := strings.Cut(lines.Text(), ": ")
		if !ok || strings.ContainsAny(layer, " /") {
			continue
		}
		if whole := state == "Pull complete" || state == "Already exists"; whole && !layers[layer] {
			layers[layer] = true
			done++
		} else if _, known := layers[layer]; !known && state == "Pulling fs layer" {
			layers[layer] = false
		}
		if len(layers) > 0 {
			report.Doing(fmt.Sprintf("pulling %s: %d of %d layers", r.Image, done, len(layers)))
		}
	}
	_, _ = io.Copy(io.Discard, out) // A line too long for the scanner does not stop the pull.
	if err := command.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, shorten(strings.Join(strings.Fields(complaint.String()), " "), maxMessage))
	}
	return nil
}
