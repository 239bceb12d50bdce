package agentapi

import "time"

// How a worker can end its own rental.
const (
	// SelfEndVastAI: the container has a key to its own instance.
	SelfEndVastAI = "vast.ai"
	// SelfEndRunPod: the pod has a key to itself.
	SelfEndRunPod = "runpod"
	// SelfEndPowerOff: a machine that powers itself off is not billed any more, or for its disk alone.
	SelfEndPowerOff = "power-off"
)

// Metadata services that announce interruptions.
const (
	NoticesAWS   = "aws"
	NoticesGCP   = "gcp"
	NoticesAzure = "azure"
)

// Lease is how a worker stands with its lease. A caller who reads it has just renewed it.
type Lease struct {
	// Seconds is the lease, 0 when there is none.
	Seconds int `json:"seconds"`
	// SelfEnd is the way in which the worker can end its own rental, empty when there is none.
	SelfEnd string `json:"selfEnd,omitempty"`
	// State is one of the Lease constants.
	State string `json:"state"`
	// LongestSilence is for how many seconds at most nobody has called since the agent started.
	LongestSilence int `json:"longestSilence"`
	// Granted: a request to end the rental was granted, or may have been. The machine goes at any moment.
	Granted bool `json:"granted,omitempty"`
	// Tries counts the requests to end the rental, LastTry is when the latest was made, and LastError how it failed.
	Tries     int        `json:"tries,omitempty"`
	LastTry   *time.Time `json:"lastTry,omitempty"`
	LastError string     `json:"lastError,omitempty"`
	// Message says why there is no lease, or no way to act on it.
	Message string `json:"message,omitempty"`
}

// States of a lease.
const (
	// LeaseNone: the worker never ends its own rental; Message says why.
	LeaseNone = "None"
	// LeaseHeld: the worker serves. Tries above 0 say that the lease had run out and the provider refused to end the rental.
	LeaseHeld = "Held"
	// LeaseEnding: the end of the rental is being asked for, or was Granted: new work is refused. Once granted it is asked
	// for until the machine is gone, and no call cancels it.
	LeaseEnding = "Ending"
)

// Notice is an interruption notice.
type Notice struct {
	// Kind is one of the Notice constants.
	Kind string `json:"kind"`
	// At is when the machine goes, nil when that may be at any moment.
	At *time.Time `json:"at,omitempty"`
	// Message is the provider's own word.
	Message string `json:"message,omitempty"`
}

// What a provider can announce.
const (
	// NoticeInterrupted: the machine is taken back.
	NoticeInterrupted = "interrupted"
	// NoticeMaintenance: the machine is restarted, or moved to another host by a restart.
	NoticeMaintenance = "maintenance"
	// NoticeRebalance: it is likelier than usual to be taken back. It is a hint, and the machine may stay.
	NoticeRebalance = "rebalance"
)

// Goes says that the machine will be gone, as opposed to that it may be.
func (n *Notice) Goes() bool {
	return n != nil && (n.Kind == NoticeInterrupted || n.Kind == NoticeMaintenance)
}
