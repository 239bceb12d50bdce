package market

import (
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// State is the market's word for what an instance does. Façades translate; a test may set any word it likes.
type State string

// States.
const (
	// Accepted: ordered, the host has not reported (or waits for a GPU).
	Accepted State = "accepted"
	// Created: the container or VM exists and does not run.
	Created State = "created"
	// Loading: its image is pulled or starts.
	Loading State = "loading"
	// Running: up. Its GPU is billed.
	Running State = "running"
	// Rebooting: down for a moment, billed.
	Rebooting State = "rebooting"
	// Stopped: by the tenant or, with Instance.Reclaimed, by the market. Only its disk is billed.
	Stopped State = "stopped"
	// Frozen: paused with its GPU, billed in full.
	Frozen State = "frozen"
	// Exited: its software ended.
	Exited State = "exited"
	// Unknown: no heartbeat. Billed as it was.
	Unknown State = "unknown"
	// Offline: the host is away. Nothing is billed.
	Offline State = "offline"
	// Gone: destroyed.
	Gone State = "gone"
)

// gpuBilled: everything that holds a GPU is, and so is a word that nobody knows.
func gpuBilled(s State) bool {
	switch s {
	case Accepted, Created, Loading, Stopped, Exited, Offline, Gone:
		return false
	case Running, Rebooting, Frozen, Unknown:
		return true
	}
	return true
}

func storageBilled(s State) bool { return s != Offline && s != Gone }

// RentRequest is an order.
type RentRequest struct {
	Account string
	OfferID string
	// Spot rents at Bid, or at the floor where Bid is zero and the market's spot instances pay the floor.
	Spot bool
	Bid  Nano
	// Rate is $/h without disk where the tenant chose more than a slice has (vCPUs, memory); zero is the offer's.
	Rate Nano
	// DiskGB is fixed for the life of the instance.
	DiskGB float64
	Label  string
	// Token makes the order idempotent within the account.
	Token string
	// Wait accepts an order that cannot start now; it starts when there is stock.
	Wait bool
	// Stopped orders an instance that is not started.
	Stopped bool

	Image    string
	Command  []string
	Env      map[string]string
	UserData string
	// Port is the TCP port that reaches the software; Ports are all that the tenant named.
	Port  int
	Ports []int
	// Prepare lets the façade add to each start what its provider adds, such as variables. It must not call the market.
	Prepare func(Instance, *body.Spec)
	// Extra is kept for the façade.
	Extra map[string]string
}

// Instance is a rental at one moment.
type Instance struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Label   string `json:"label"`
	// Offer is what was rented, at the prices of that moment.
	Offer  Offer   `json:"offer"`
	Spot   bool    `json:"spot"`
	Bid    Nano    `json:"bid,omitempty"`
	DiskGB float64 `json:"diskGB"`

	State   State  `json:"state"`
	Message string `json:"message,omitempty"`
	// Wanted is the tenant's target: Running or Stopped.
	Wanted State `json:"wanted"`
	// Waiting: it has been told to run and there is no GPU.
	Waiting bool `json:"waiting,omitempty"`
	// Reclaimed: stopped or gone because the market took it. ReclaimAt is set from the notice on.
	Reclaimed bool      `json:"reclaimed,omitempty"`
	ReclaimAt time.Time `json:"reclaimAt,omitzero"`
	// Ending: its end was promised.
	Ending bool `json:"ending,omitempty"`
	// Broken is what is wrong with the host.
	Broken Breakage `json:"broken,omitempty"`

	CreatedAt time.Time `json:"createdAt"`
	// StartedAt and StoppedAt are of the last start and end of running; GoneAt ends the billing.
	StartedAt time.Time `json:"startedAt,omitzero"`
	StoppedAt time.Time `json:"stoppedAt,omitzero"`
	GoneAt    time.Time `json:"goneAt,omitzero"`
	Starts    int       `json:"starts"`
	// EndedBy is "tenant", "instance", "market" or "credit".
	EndedBy string `json:"endedBy,omitempty"`

	// Host and HostPort reach Port from outside, once it runs; empty and 0 until then.
	Host     string `json:"host,omitempty"`
	HostPort int    `json:"hostPort,omitempty"`
	Port     int    `json:"port,omitempty"`
	Ports    []int  `json:"ports,omitempty"`

	// GPURate and StorageRate are $/h while each is billed; Spent is the bill so far.
	GPURate     Nano `json:"gpuRate"`
	StorageRate Nano `json:"storageRate"`
	Spent       Nano `json:"spent"`
	// GPUSpent and StorageSpent are what Spent consists of.
	GPUSpent     Nano `json:"gpuSpent"`
	StorageSpent Nano `json:"storageSpent"`

	Image   string   `json:"image,omitempty"`
	Command []string `json:"-"`
	// Env and Key are secret: they are in no JSON.
	Env map[string]string `json:"-"`
	// Key is the instance's own key, which may end this instance only.
	Key   string            `json:"-"`
	Extra map[string]string `json:"-"`
}

// rental is an instance inside the market.
type rental struct {
	Instance
	prepare  func(Instance, *body.Spec)
	userData string
	ordinal  int64
	listed   Offer // at listed prices, which walk
	visible  time.Time
	hidden   bool // by a test
	// portsHeld: its address is not shown, by a test.
	portsHeld bool
	held      int // GPUs of its machine that it holds

	// run counts changes of course; whatever was planned before the last one no longer happens.
	run    int
	before State     // what it was before its host went offline
	body   body.Body // while it runs
	last   body.Body // the newest, for its output and disk

	gpu, storage meter
}

func (r *rental) live() bool { return r.State != Gone }

// rate is what it costs now, committed what it may cost while it lives.
func (r *rental) rate() Nano      { return r.gpu.rate + r.storage.rate }
func (r *rental) committed() Nano { return r.GPURate + r.StorageRate }

func (r *rental) snapshot(now time.Time) Instance {
	in := r.Instance
	if r.portsHeld {
		in.Host, in.HostPort = "", 0
	}
	in.GPUSpent, in.StorageSpent = r.gpu.upTo(now), r.storage.upTo(now)
	in.Spent = in.GPUSpent + in.StorageSpent
	return in
}
