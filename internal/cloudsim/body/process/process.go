// Package process is the instance body that is real: a gpuscale-agent process on loopback, which supervises simulated
// engines as it would real ones. Around it is as much of a rented container as the agent can see: a folder of its own, a
// PATH with `vllm` and `nvidia-smi` on it, the provider's variables and the tenant's, and nothing of the parent's
// environment.
//
// It does not run the image, the tenant's command or its start-up script: fetching the agent is tested elsewhere. A tenant
// that sends no boot data is treated like one whose command fails. The agent of a virtual machine finds a simulated Docker
// on its PATH, and whoever powers the machine off ends the body.
package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// Options say what bodies are made of.
type Options struct {
	// Agent and VLLM are the paths of the gpuscale-agent and vllm-sim programs; the latter is the simulated Docker too.
	Agent, VLLM string
	// Root is an existing folder in which every instance gets one of its own.
	Root string
	// Env is set in every body, under what the tenant sets; for test settings such as those of vllm-sim.
	Env map[string]string
	// LogBytes bounds what is kept of a body's output; 1 MiB when zero.
	LogBytes int
}

const (
	// bootVariable is what the agent cannot run without.
	bootVariable = "GPUSCALE_BOOT"
	// listenVariable stands for the simulated host's port-forward: the agent listens where the outside will call.
	listenVariable = "GPUSCALE_LISTEN"
	loopback       = "127.0.0.1"
	defaultLog     = 1 << 20
	// powerOff ends the agent that asks for it, and so the body.
	powerOff = "#!/bin/sh\nkill -KILL $PPID\n"
)

// Factory starts process bodies.
type Factory struct {
	opts  Options
	ports ports
}

// New checks that the programs are there.
func New(o Options) (*Factory, error) {
	for _, path := range []*string{&o.Agent, &o.VLLM, &o.Root} {
		if _, err := os.Stat(*path); err != nil {
			return nil, fmt.Errorf("process bodies: %w", err)
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("process bodies: %w", err)
		}
	}
	if o.LogBytes == 0 {
		o.LogBytes = defaultLog
	}
	return &Factory{opts: o}, nil
}

// Start runs an agent. The context's end kills it.
func (f *Factory) Start(ctx context.Context, s body.Spec) (body.Body, error) {
	dir := filepath.Join(f.opts.Root, s.InstanceID)
	if err := f.furnish(dir, s.GPU); err != nil {
		return nil, err
	}
	logs, err := newRoll(filepath.Join(dir, "output.log"), f.opts.LogBytes)
	if err != nil {
		return nil, err
	}
	b := &Body{dir: dir, logs: logs, done: make(chan struct{}), host: loopback, freePort: f.ports.free}
	if s.BootData() == "" {
		b.refuse("bash: " + bootVariable + ": parameter not set")
		return b, nil
	}
	if s.OwnAddress {
		b.host, b.port = body.LoopbackAddress(), s.Port
	} else if b.port, err = f.ports.reserve(ctx); err != nil {
		return nil, errors.Join(err, logs.Close())
	}
	b.cmd = exec.Command(f.opts.Agent) //nolint:noctx // Its life is the body's, which kills it with all that it started.
	b.cmd.Dir = filepath.Join(dir, "root")
	b.cmd.Env = f.environment(dir, b.host, b.port, s)
	b.cmd.SysProcAttr = ownSession()
	// The agent may have nothing to say, and a person who asks for the log should see that it began.
	_, _ = fmt.Fprintf(logs, "simulated container %s: %s at port %d\n", s.InstanceID, filepath.Base(f.opts.Agent), b.port)
	if err := b.start(ctx); err != nil {
		f.ports.free(b.port)
		return nil, errors.Join(fmt.Errorf("start the agent: %w", err), logs.Close())
	}
	return b, nil
}

// furnish makes the container's folder: its root, its temporary files, and its PATH.
func (f *Factory) furnish(dir string, gpu body.GPU) error {
	for _, sub := range []string{"root", "tmp", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	for _, name := range []string{"vllm", "docker"} {
		if err := os.Symlink(f.opts.VLLM, filepath.Join(dir, "bin", name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// The agent's parent's machine is not the agent's to turn off.
	for _, name := range []string{"systemctl", "shutdown", "poweroff"} {
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte(powerOff), 0o700); err != nil { //nolint:gosec // It is a program.
			return err
		}
	}
	return writeSMI(filepath.Join(dir, "bin"), gpu)
}

func (f *Factory) environment(dir, host string, port int, s body.Spec) []string {
	env := map[string]string{}
	if s.GPU.Count > 0 { // So that a model too large for the machine fails as it would on a real one.
		env["VLLM_SIM_GPUS"] = strconv.Itoa(s.GPU.Count)
		env["VLLM_SIM_GPU_MEMORY_GIB"] = strconv.FormatFloat(float64(s.GPU.MemoryMB)/1024, 'f', 2, 64)
	}
	maps.Copy(env, f.opts.Env)
	maps.Copy(env, s.Env)
	for _, name := range s.PortEnv {
		env[name] = strconv.Itoa(port)
	}
	for _, name := range s.HostEnv {
		env[name] = host
	}
	env["PATH"] = filepath.Join(dir, "bin") + ":/usr/bin:/bin"
	env["HOME"] = filepath.Join(dir, "root")
	env["HF_HOME"] = filepath.Join(dir, "root", ".cache", "huggingface")
	env["HF_HUB_OFFLINE"] = "1" // Simulated models are on no Hub.
	env["TMPDIR"] = filepath.Join(dir, "tmp")
	env[bootVariable] = s.BootData()
	env[listenVariable] = fmt.Sprintf("%s:%d", host, port)
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// Body is one agent process and all that it starts.
type Body struct {
	dir      string
	host     string
	port     int
	cmd      *exec.Cmd
	logs     *roll
	done     chan struct{}
	freePort func(int)

	mu   sync.Mutex
	info body.ExitInfo
}

// refuse is a body whose command failed at once.
func (b *Body) refuse(why string) {
	_, _ = b.logs.Write([]byte(why + "\n")) // The log is for people; the exit status says it too.
	_ = b.logs.Close()
	b.info = body.ExitInfo{Code: 1, Message: why}
	close(b.done)
}

// start runs the process on a thread that lasts as long as it does, because Linux sends the parent-death signal when the
// thread that forked ends.
func (b *Body) start(ctx context.Context) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	b.cmd.Stdout, b.cmd.Stderr = write, write
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := b.cmd.Start()
		_ = write.Close() // The child has its own.
		started <- err
		if err != nil {
			return
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			b.logs.drain(read)
		}()
		err = b.cmd.Wait()
		// The first process of a container takes the rest with it.
		killSession(b.cmd.Process.Pid)
		<-drained
		b.finish(err)
	}()
	if err := <-started; err != nil {
		return errors.Join(err, read.Close())
	}
	stop := context.AfterFunc(ctx, b.Kill)
	go func() {
		<-b.done
		stop()
	}()
	return nil
}

func (b *Body) finish(err error) {
	_ = b.logs.Close()
	b.freePort(b.port)
	b.mu.Lock()
	b.info.Code = b.cmd.ProcessState.ExitCode()
	b.info.Message = b.cmd.ProcessState.String()
	if err != nil && b.info.Message == "" {
		b.info.Message = err.Error()
	}
	b.mu.Unlock()
	close(b.done)
}

// Address is where the agent listens.
func (b *Body) Address() (string, int) { return b.host, b.port }

// Done is closed when the agent and everything that it started are gone.
func (b *Body) Done() <-chan struct{} { return b.done }

// ExitInfo is the agent's.
func (b *Body) ExitInfo() body.ExitInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info
}

// Kill ends the agent by SIGKILL; what it started follows before Done is closed.
func (b *Body) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.done:
		return
	default:
	}
	b.info.Killed = true
	_ = b.cmd.Process.Kill() // It has gone, which is what is wanted.
}

// Pause holds the agent and its engines still, so that their address accepts and never answers, or lets them go on.
func (b *Body) Pause(on bool) {
	select {
	case <-b.done:
	default:
		pauseSession(b.cmd.Process.Pid, on)
	}
}

// Logs is what the agent and its engines wrote.
func (b *Body) Logs(tail int) []byte { return b.logs.tail(tail) }

// RemoveDisk removes the container's folder, and with it its logs.
func (b *Body) RemoveDisk() { _ = os.RemoveAll(b.dir) } // A folder of temporary files at worst stays behind.
