package offers

import (
	"math"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// DefaultCPUArch is the architecture of a need that names none: engine images exist for it everywhere, for arm64 not.
const DefaultCPUArch = "amd64"

// Need is what one instance must be: a pool entry's conditions and a workload's, combined by the caller. The zero value
// of every field but MaxPrice asks nothing.
type Need struct {
	// Provider and CapacityType as in the pool's entry; empty means any.
	Provider     provider.Name
	CapacityType provider.CapacityType
	// Account is the credential's fingerprint: while it rests, so does everything that it could buy.
	Account string

	// GPUTypeSets are lists of entries as in a pool's gpuTypes; every list that is not empty must match, so a pool's
	// and a pod's list are both given as they are. Without any list every known GPU with CUDA will do; a part without
	// CUDA needs another engine image and so must be named.
	GPUTypeSets [][]string
	// GPUCount is the exact number of GPUs, 0 for any; MinGPUCount the least.
	GPUCount    int
	MinGPUCount int

	// MinTotalVRAMGB is over all GPUs of the instance, the other two are for each GPU. All are nominal; 0 is no limit.
	MinTotalVRAMGB  int
	MinVRAMGBPerGPU int
	MaxVRAMGBPerGPU int

	// MinDiskGB is compared with the disk that the price includes, not with what could be had for more.
	MinDiskGB int
	MinRAMGB  int
	// MinReliability is from 0 to 1; nil is no limit.
	MinReliability *float64
	// MinCUDA is the CUDA version that the host's driver must serve ({12, 8} is 12.8); nil is no limit.
	MinCUDA *[2]int

	// Regions as the provider spells them, in either case; empty means all.
	Regions []string
	// CPUArch is "amd64" or "arm64"; empty means DefaultCPUArch.
	CPUArch string

	// MaxPrice is the most that the instance may cost all-in. Zero admits nothing, so that a limit that was forgotten
	// buys nothing; AnyPrice is the way to say that there is none.
	MaxPrice money.Dollars
}

// AnyPrice is a MaxPrice without a limit, for showing offers rather than buying them.
func AnyPrice() money.Dollars { return money.FromMicros(math.MaxInt64) }
