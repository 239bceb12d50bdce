// Package dockersim is as much of Docker's command line as the agent uses, where there is no Docker: info, pull, image
// inspect, run, ps and rm, in Docker's words. A container is a real process, which its client does not own: it outlives a
// client that is killed, sees the environment that it was given and no other, and ends with rm. Its program is found in
// the PATH of the simulation, whatever the image, which is only ever looked at for its name: one with "no-such" in it is in
// no registry, one with "flaky" in it is there the second time.
//
// State is in the folder DOCKER_SIM_DIR, by default .docker-sim in HOME. A file "away" in it stands for a daemon that does
// not run, "bare" for one without the NVIDIA runtime, "broken" for a runtime that cannot give a container its GPUs. A
// folder pull-gate makes a pull wait before its last layer until it is gone.
package dockersim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Main is the program: args are without its name. It returns the exit status.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	s := sim{dir: getenv("DOCKER_SIM_DIR"), getenv: getenv, out: stdout, err: stderr}
	if s.dir == "" {
		s.dir = filepath.Join(getenv("HOME"), ".docker-sim")
	}
	if len(args) > 0 && args[0] == shimCommand {
		return s.shim(args[1:])
	}
	if err := os.MkdirAll(s.containers(), 0o700); err != nil {
		return s.fail("%v", err)
	}
	if s.is("away") {
		return s.fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
	}
	commands := map[string]func([]string) int{"info": s.info, "pull": s.pull, "image": s.image, "run": s.run, "ps": s.ps, "rm": s.rm}
	if len(args) == 0 || commands[args[0]] == nil {
		return s.fail("'%s' is not a docker command.", strings.Join(args, " "))
	}
	return commands[args[0]](args[1:])
}

const (
	exitFailure = 1
	// exitDaemon is what "docker run" ends with when there was no container to end.
	exitDaemon   = 125
	exitNotFound = 127
	poll         = 5 * time.Millisecond
)

type sim struct {
	dir      string
	getenv   func(string) string
	out, err io.Writer
}

func (s sim) containers() string        { return filepath.Join(s.dir, "containers") }
func (s sim) container(n string) string { return filepath.Join(s.containers(), n) }

func (s sim) is(file string) bool {
	_, err := os.Stat(filepath.Join(s.dir, file))
	return err == nil
}

func (s sim) fail(format string, args ...any) int {
	_, _ = fmt.Fprintf(s.err, format+"\n", args...) // There is nowhere else to say it.
	return exitFailure
}

// say prints for a reader who may have left.
func (s sim) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }

// info answers in the one format that the agent asks for.
func (s sim) info(args []string) int {
	if !slices.Equal(args, []string{"--format", `{"version":{{json .ServerVersion}},"runtimes":{{json .Runtimes}}}`}) {
		return s.fail("docker-sim does not know this format: %q", args)
	}
	nvidia := `,"nvidia":{"path":"nvidia-container-runtime"}`
	if s.is("bare") {
		nvidia = ""
	}
	s.say(`{"version":"28.5.1","runtimes":{"runc":{"path":"runc"}%s}}`, nvidia)
	return 0
}

func (s sim) imageFile(name string) string {
	return "image-" + strings.NewReplacer("/", "_", ":", "_").Replace(name)
}

// image is "image inspect --format {{.Id}} NAME".
func (s sim) image(args []string) int {
	if len(args) != 4 || args[0] != "inspect" || args[1] != "--format" {
		return s.fail("docker-sim does not know: image %q", args)
	}
	if !s.is(s.imageFile(args[3])) {
		return s.fail("Error response from daemon: No such image: %s", args[3])
	}
	s.say("sha256:0123")
	return 0
}

func (s sim) pull(args []string) int {
	if len(args) != 1 {
		return s.fail(`"docker pull" requires exactly 1 argument.`)
	}
	name := args[0]
	if strings.Contains(name, "no-such") {
		return s.fail("Error response from daemon: manifest for %s not found: manifest unknown: manifest unknown", name)
	}
	if strings.Contains(name, "flaky") && !s.is("tried") {
		if err := os.WriteFile(filepath.Join(s.dir, "tried"), nil, 0o600); err != nil {
			return s.fail("%v", err)
		}
		return s.fail("Error response from daemon: Get \"https://registry-1.docker.io/v2/\": net/http: TLS handshake timeout")
	}
	s.say("%s: Pulling from %s", "latest", name)
	for _, layer := range []string{"7a2b5c1d", "0f1e2d3c"} {
		s.say("%s: Pulling fs layer", layer)
	}
	s.say("7a2b5c1d: Pull complete")
	for s.is("pull-gate") {
		time.Sleep(poll) //gpuscale:clock a simulated download takes real time
	}
	s.say("0f1e2d3c: Pull complete")
	if err := os.WriteFile(filepath.Join(s.dir, s.imageFile(name)), nil, 0o600); err != nil {
		return s.fail("%v", err)
	}
	s.say("Status: Downloaded newer image for %s", name)
	return 0
}

// ps is "ps --all --quiet --filter label=KEY=VALUE": names, of which rm takes any.
func (s sim) ps(args []string) int {
	if len(args) != 4 || !slices.Equal(args[:3], []string{"--all", "--quiet", "--filter"}) {
		return s.fail("docker-sim does not know: ps %q", args)
	}
	entries, err := os.ReadDir(s.containers())
	if err != nil {
		return s.fail("%v", err)
	}
	for _, e := range entries {
		label, err := os.ReadFile(filepath.Join(s.container(e.Name()), "label"))
		if err == nil && "label="+string(label) == args[3] {
			s.say("%s", e.Name())
		}
	}
	return 0
}

// rm is "rm --force --volumes NAME…".
func (s sim) rm(args []string) int {
	if len(args) < 3 || args[0] != "--force" || args[1] != "--volumes" {
		return s.fail("docker-sim does not know: rm %q", args)
	}
	code := 0
	for _, name := range args[2:] {
		dir := s.container(name)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			code = s.fail("Error response from daemon: No such container: %s", name)
			continue
		}
		s.kill(name)
		if err := os.RemoveAll(dir); err != nil {
			code = s.fail("%v", err)
			continue
		}
		s.say("%s", name)
	}
	return code
}
