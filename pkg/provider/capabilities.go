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
	// BootDataLimit is the most bytes of command, or of VM start-up document, that one instance takes.
	BootDataLimit int
	// IdempotentCreate: a second create with the same tag returns the first one's instance.
	IdempotentCreate bool
	SelfEnd          SelfEnd
	// MinimumBilling is the shortest time that is charged; BillingGranularity the step above it.
	MinimumBilling     time.Duration
	BillingGranularity time.Duration
}
