package provider

import (
	"time"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
)

// CreateRequest is one rental.
type CreateRequest struct {
	Offer Offer
	// Tag is the owner tag "gs-<installation 8>-<token 16>", a DNS label, unique to this attempt. It is sent as the
	// idempotency key where the provider has one and as name or label everywhere.
	Tag string
	// MaxPrice is the all-in $/h that must not be passed. Sent where the provider takes a maximum.
	MaxPrice money.Dollars
	DiskGB   int
	Boot     Boot
}

// Boot is what runs first on the instance. Containers use Image, Command and Env; VMs use UserData.
type Boot struct {
	// Image is a container image with a tag.
	Image string
	// Command replaces the image's entrypoint and arguments.
	Command []string
	// Env is set in the container. It carries identity, never a user's secret.
	Env map[string]string
	// UserData is the VM's start-up document.
	UserData string
	// Port is the one TCP port to publish.
	Port int
}

// State is what a provider says of an instance. There is no state for "gone": that is the error NotFound.
type State string

// States. Anything a driver does not recognise is StateUnknown, never a guess.
const (
	// StatePending: accepted, not running yet.
	StatePending State = "Pending"
	// StateRunning: the provider says it runs; it may not be reachable yet.
	StateRunning State = "Running"
	// StateStopped: not running, still listed, usually still billed for disk.
	StateStopped State = "Stopped"
	// StateFailed: it ended or cannot start by itself.
	StateFailed State = "Failed"
	// StateLost: the provider cannot reach it.
	StateLost State = "Lost"
	// StateEnding: its end was asked for and is not done.
	StateEnding State = "Ending"
	// StateUnknown: the provider used a word that the driver does not know.
	StateUnknown State = "Unknown"
)

// Instance is what the provider says of one rental.
type Instance struct {
	Provider Name
	ID       string
	// Tag is the owner tag, empty where the instance carries none.
	Tag   string
	State State
	// Message is the provider's own words about the state.
	Message string
	// Interrupted: the provider took it back (outbid, reclaimed, preempted), as opposed to a stop or a crash.
	Interrupted bool

	CapacityType CapacityType
	GPU          gpu.Name
	GPUCount     int
	Region       string
	// Price is the all-in rate read back; nil where the provider does not say.
	Price *money.Dollars

	// Address and Port reach CreateRequest.Boot.Port from outside; empty and 0 until known.
	Address string
	Port    int

	// CreatedAt is the provider's time of creation; zero where it does not say.
	CreatedAt time.Time
	// EndsAt is when the host's promise ends; zero where there is none.
	EndsAt time.Time
	// RestKeys as in Offer, as far as the provider repeats them.
	RestKeys []RestKey
}
