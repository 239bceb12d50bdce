// Package body is what stands behind a simulated instance's address. A simulated market knows when a machine starts,
// stops and is taken away; a body is the software on it. Bodies are interchangeable, so that the same market can serve a
// handful of real agent processes or hundreds of in-process ones.
package body

import (
	"context"
	"strings"
	"time"
)

// GPU is what the machine's driver reports, which on a broken host is not what was offered.
type GPU struct {
	// Name is the driver's own spelling, as nvidia-smi prints it ("NVIDIA GeForce RTX 4090").
	Name string
	// MemoryMB is per GPU.
	MemoryMB int
	Count    int
	// Driver and CUDA are versions ("570.86.15", "12.8").
	Driver, CUDA string
	// ComputeCap is as nvidia-smi prints it ("8.9").
	ComputeCap string
}

// Spec is one start of an instance's software. A restart is a new start with the same InstanceID.
type Spec struct {
	InstanceID string
	// Image, Command and Env are as the tenant gave them, with what the provider adds to the environment.
	Image   string
	Command []string
	Env     map[string]string
	// UserData is the VM's start-up document; empty for containers. Bodies do not run it: BootData reads it.
	UserData string
	// Port is the one TCP port that the tenant asked to publish; zero when none.
	Port int
	// OwnAddress: the machine has an address to itself, at which Port is reached as it is. It is one of loopback's many,
	// which Linux has without being told.
	OwnAddress bool
	// PortEnv and HostEnv name variables which the body sets to the outside port and address, because a provider tells
	// its tenant those and only the body knows them.
	PortEnv, HostEnv []string
	GPU              GPU
}

// bootMark ends the line before the boot data in a VM's start-up script, as internal/bootstrap writes it.
const bootMark = "<<'BOOT'"

// BootData are the boot data with which the tenant starts its agent: the variable GPUSCALE_BOOT, or what the start-up
// script writes to the agent's file. Empty: it starts none.
func (s Spec) BootData() string {
	if data := s.Env["GPUSCALE_BOOT"]; data != "" || s.UserData == "" {
		return data
	}
	_, after, _ := strings.Cut(s.UserData, bootMark)
	_, after, _ = strings.Cut(after, "\n")
	data, _, _ := strings.Cut(after, "\n")
	return data
}

// ExitInfo says how a body ended.
type ExitInfo struct {
	// Code is the exit status; -1 when there is none.
	Code int
	// Killed: Kill was called before the end.
	Killed bool
	// Message is for people.
	Message string
}

// Body is the software of one running instance. All methods may be called concurrently and none blocks.
type Body interface {
	// Address is where Spec.Port is reached, constant for the life of the body.
	Address() (host string, port int)
	// Done is closed when the software has ended, whoever ended it.
	Done() <-chan struct{}
	// ExitInfo is meaningful once Done is closed.
	ExitInfo() ExitInfo
	// Kill ends the body without notice, as a provider that takes a machine away does. It only begins the end: Done
	// tells when it is over. Killing twice is harmless.
	Kill()
}

// Factory starts bodies.
type Factory interface {
	// Start begins one. It returns promptly, before the software answers; it must not call back into the market. The
	// context ends only when the market does.
	Start(ctx context.Context, s Spec) (Body, error)
}

// FactoryFunc is a function as a Factory.
type FactoryFunc func(ctx context.Context, s Spec) (Body, error)

// Start calls f.
func (f FactoryFunc) Start(ctx context.Context, s Spec) (Body, error) { return f(ctx, s) }

// Logger is a body whose output can be read, as a provider's log call does. It works after the end too.
type Logger interface {
	// Logs is the last lines of what the software wrote, all that is kept when tail is 0.
	Logs(tail int) []byte
}

// Noticed is a body that can be told of its reclaim, as a hyperscaler's metadata service does.
type Noticed interface {
	// Notice says that the machine will be taken at the given time.
	Notice(at time.Time)
}

// Disk is a body that leaves something behind between starts.
type Disk interface {
	// RemoveDisk is called once, when the instance is destroyed and the body is Done.
	RemoveDisk()
}

// Pausable is a body that can stop answering and go on later, as a host that loses its network does.
type Pausable interface {
	// Pause holds the body still, or lets it go on.
	Pause(on bool)
}
