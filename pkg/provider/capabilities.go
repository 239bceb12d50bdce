package provider

import "time"

// SelfEnd says how far an instance can end its own rental.
type SelfEnd string

// SelfEndFull ends all billing, SelfEndCompute leaves the disk billed, SelfEndNone is not possible.
const (
	SelfEndFull    SelfEnd = "full"
	SelfEndCompute SelfEnd = "compute"
	SelfEndNone    SelfEnd = "none"
)

// SelfEndBy is how an instance ends its own rental, in the words of the boot data.
type SelfEndBy string

// SelfEndByVastKey: the container has a key to its own instance, CONTAINER_API_KEY. SelfEndByRunPodKey: the pod has a key
// to itself, RUNPOD_API_KEY. SelfEndByPowerOff: a machine that powers itself off is ended, as the driver asked for when it
// created it.
const (
	SelfEndByVastKey   SelfEndBy = "vast.ai"
	SelfEndByRunPodKey SelfEndBy = "runpod"
	SelfEndByPowerOff  SelfEndBy = "power-off"
)

// Notices is the metadata service in which an instance reads that it is about to be taken back.
type Notices string

// NoticesNone: the machine is taken without a word, or says so to its tenant in no way that is known.
const (
	NoticesNone  Notices = ""
	NoticesAWS   Notices = "aws"
	NoticesGCP   Notices = "gcp"
	NoticesAzure Notices = "azure"
)

// BootKind is how software gets onto an instance.
type BootKind string

// BootContainer: the provider runs a container image. BootVM: the provider boots a VM with a start-up document.
const (
	BootContainer BootKind = "container"
	BootVM        BootKind = "vm"
)

// Capabilities are a provider's powers and habits as data. The contract suite proves that claimed powers work and that
// unclaimed ones answer Unsupported.
type Capabilities struct {
	Spot     bool
	OnDemand bool
	Boot     BootKind

	// ListLag is the longest that an instance may stay invisible to GetInstance and ListInstances after its creation.
	ListLag time.Duration
	// CreateTimeout is the longest after which a create request that was sent can still take effect.
	CreateTimeout time.Duration
	// MinPollInterval is the shortest pause between two lists of the same account.
	MinPollInterval time.Duration
	// SearchInterval is the shortest pause between two searches of the same account.
	SearchInterval time.Duration
	// OffersOnce: an offer's ID can be rented once. What remains of its machine is another offer, with an ID of its own.
	OffersOnce bool
	// BootDataLimit is the most bytes of command, or of VM start-up document, that one instance takes.
	BootDataLimit int
	// IdempotentCreate: a second create with the same tag returns the first one's instance.
	IdempotentCreate bool
	// SelfEnd says how far an instance can end its own rental and SelfEndBy how; the latter is empty with SelfEndNone.
	SelfEnd   SelfEnd
	SelfEndBy SelfEndBy
	// Notices is where an instance reads of its interruption.
	Notices Notices
	// MinimumBilling is the shortest time that is charged; BillingGranularity the step above it.
	MinimumBilling     time.Duration
	BillingGranularity time.Duration
}
