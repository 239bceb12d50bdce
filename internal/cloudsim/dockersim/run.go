package dockersim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// shimCommand is how the program calls itself to be what stands between Docker's daemon and a container.
const shimCommand = "containerd-shim"

// order is what "docker run" was told.
type order struct {
	name, label, entrypoint, image string
	env                            []string
	args                           []string
	gpus                           bool
}

// parse takes the options that the agent uses and no others.
func (s sim) parse(args []string) (order, error) {
	o := order{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "--init" {
			args = args[1:]
			continue
		}
		if len(args) < 2 {
			return o, fmt.Errorf("flag needs an argument: %s", args[0])
		}
		value := args[1]
		switch args[0] {
		case "--name":
			o.name = value
		case "--label":
			o.label = value
		case "--entrypoint":
			o.entrypoint = value
		case "--env":
			if strings.Contains(value, "=") {
				return o, errors.New("docker-sim takes no values on the command line, which everyone can read")
			}
			o.env = append(o.env, value+"="+s.getenv(value))
		case "--gpus":
			o.gpus = value == "all"
		case "--network", "--ipc":
			if value != "host" {
				return o, fmt.Errorf("docker-sim knows the host's %s only", args[0])
			}
		case "--volume", "--log-driver":
		default:
			return o, fmt.Errorf("unknown flag: %s", args[0])
		}
		args = args[2:]
	}
	if len(args) == 0 || o.entrypoint == "" || o.name == "" {
		return o, errors.New("docker-sim needs --name, --entrypoint and an image")
	}
	o.image, o.args = args[0], args[1:]
	return o, nil
}

// run starts a container and is its client: it prints what the container writes, passes SIGTERM on, and ends with it.
func (s sim) run(args []string) int {
	daemon := func(format string, args ...any) int {
		s.fail("docker: Error response from daemon: "+format, args...)
		return exitDaemon
	}
	o, err := s.parse(args)
	if err != nil {
		s.fail("%v", err)
		return exitDaemon
	}
	if s.is("broken") && o.gpus {
		return daemon(`could not select device driver "" with capabilities: [[gpu]].`)
	}
	dir := s.container(o.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return daemon("Conflict. The container name %q is already in use.", "/"+o.name)
	}
	path, err := exec.LookPath(o.entrypoint)
	if err != nil {
		daemon(`failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: `+
			`unable to start container process: error during container init: exec: %q: executable file not found in $PATH: unknown.`, o.entrypoint)
		return exitNotFound
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := s.launch(dir, path, o); err != nil {
		return daemon("%v", err)
	}
	return s.attend(o.name, signals)
}

// launch starts the shim, in a process group of its own and with the container's environment, and returns once it is there.
func (s sim) launch(dir, path string, o order) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "label"), []byte(o.label), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // The shim has its own.
	//nolint:noctx // It outlives whoever starts it.
	shim := exec.Command(self, append([]string{shimCommand, dir, path}, o.args...)...)
	shim.Args[0] = "docker"
	// Of the machine it has what every image brings, and what the simulated engine is told by the test.
	shim.Env = []string{"PATH=" + s.getenv("PATH"), "HOME=" + s.getenv("HOME")}
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "VLLM_SIM_") {
			shim.Env = append(shim.Env, entry)
		}
	}
	shim.Env = append(shim.Env, o.env...)
	shim.Stdout, shim.Stderr = log, log
	shim.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := shim.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(shim.Process.Pid)), 0o600); err != nil {
		return err
	}
	go func() { _ = shim.Wait() }() // Its outcome is in a file.
	return nil
}

// shim runs the container's process to its end and notes how it was.
func (s sim) shim(args []string) int {
	dir, path, args := args[0], args[1], args[2:]
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	//nolint:noctx // It lives until it is removed.
	engine := exec.Command(path, args...)
	engine.Stdout, engine.Stderr = os.Stdout, os.Stderr
	code := exitNotFound
	if err := engine.Start(); err == nil {
		go func() {
			for range signals {
				_ = engine.Process.Signal(syscall.SIGTERM) // It may have just ended.
			}
		}()
		_ = engine.Wait() // Its outcome is in ProcessState.
		code = engine.ProcessState.ExitCode()
		if status, ok := engine.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
		}
	}
	ended := filepath.Join(dir, "exit")
	if err := os.WriteFile(ended+".new", []byte(strconv.Itoa(code)), 0o600); err != nil {
		return exitFailure // It was removed.
	}
	if os.Rename(ended+".new", ended) != nil {
		return exitFailure
	}
	return 0
}

// attend is the attached client.
func (s sim) attend(name string, signals <-chan os.Signal) int {
	dir := s.container(name)
	log, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		return s.fail("%v", err)
	}
	defer func() { _ = log.Close() }() // It was only read.
	tick := time.NewTicker(poll)       //gpuscale:clock the client of a simulated daemon polls in real time
	defer tick.Stop()
	for {
		text, err := os.ReadFile(filepath.Join(dir, "exit"))
		_, _ = io.Copy(s.out, log) // What came until now, and after the end all that there is.
		if code, bad := strconv.Atoi(string(text)); err == nil && bad == nil {
			return code
		}
		if _, err := os.Stat(dir); err != nil {
			return 128 + int(syscall.SIGKILL) // It was removed by force.
		}
		select {
		case <-signals:
			if pid := s.pid(name); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGTERM) // It may have just ended.
			}
		case <-tick.C:
		}
	}
}

func (s sim) pid(name string) int {
	text, err := os.ReadFile(filepath.Join(s.container(name), "pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		return 0
	}
	return pid
}

// kill ends a container's processes by force and returns when they are gone.
func (s sim) kill(name string) {
	pid := s.pid(name)
	if pid <= 0 {
		return
	}
	for deadline := 1000; deadline > 0 && syscall.Kill(-pid, syscall.SIGKILL) == nil; deadline-- {
		if !running(pid) {
			return
		}
		time.Sleep(poll) //gpuscale:clock a process takes real time to end
	}
}

// running reports whether any process of a group is more than a zombie.
func running(group int) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return false
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid pgrp …, where the name may hold anything.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}
