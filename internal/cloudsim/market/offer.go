package market

import "time"

// Breakage is what is wrong with a host, hidden from whoever reads its offers.
type Breakage string

// The ways in which a host disappoints.
const (
	Sound Breakage = ""
	// DiesBooting: the container ends with a runtime error while it starts.
	DiesBooting Breakage = "dies-booting"
	// StuckCreated: the container is made and never starts; the message tells of a runtime error.
	StuckCreated Breakage = "stuck-created"
	// StuckLoading: the image is pulled for ever.
	StuckLoading Breakage = "stuck-loading"
	// NoAddress: it runs, and no port is ever published.
	NoAddress Breakage = "no-address"
	// Unreachable: it runs and has an address at which nothing answers.
	Unreachable Breakage = "unreachable"
	// WrongGPU: its GPU is a lesser one than offered.
	WrongGPU Breakage = "wrong-gpu"
	// OldDriver: its driver serves less CUDA than offered.
	OldDriver Breakage = "old-driver"
)

// Breakages lists every way but Sound.
func Breakages() []Breakage {
	return []Breakage{DiesBooting, StuckCreated, StuckLoading, NoAddress, Unreachable, WrongGPU, OldDriver}
}

// Offer is a slice of a machine that can be rented: some of its GPUs, part of its cores and memory, and disk. Prices are
// those of the moment at which it was read.
type Offer struct {
	// ID is what Rent takes. It lives for one rental, unless the market's offer ids are stable.
	ID string `json:"id"`
	// Machine and Host are stable names of the supply behind the offer. In clouds without machines it is what has
	// stock, such as "us-east-1a/g6e.xlarge".
	Machine string `json:"machine"`
	Host    string `json:"host"`

	// GPU is the provider's spelling. Empty means a machine without one.
	GPU string `json:"gpu"`
	// DriverGPU is nvidia-smi's spelling.
	DriverGPU string `json:"driverGPU,omitempty"`
	GPUs      int    `json:"gpus"`
	// MachineGPUs is the stock: the machine's GPUs, of which the offer is a part.
	MachineGPUs int `json:"machineGPUs"`
	// GPUMemoryMB is per GPU, as reported.
	GPUMemoryMB int `json:"gpuMemoryMB"`
	// ComputeCap is compute capability × 100.
	ComputeCap int     `json:"computeCap"`
	MemoryBW   float64 `json:"memoryBW"`
	Driver     string  `json:"driver"`
	// CUDA is the newest version that the driver serves.
	CUDA float64 `json:"cuda"`

	CPUArch string `json:"cpuArch"`
	// Cores and RAMMB are the whole machine's; EffectiveCores the offer's share.
	Cores          int     `json:"cores"`
	EffectiveCores float64 `json:"effectiveCores"`
	RAMMB          int     `json:"ramMB"`
	// DiskGB is the most that may be asked for.
	DiskGB float64 `json:"diskGB"`
	// Region is the provider's spelling ("Oslo, NO", "us-east-1a").
	Region string `json:"region"`
	// Ports is how many can be forwarded.
	Ports int `json:"ports"`
	// DownMbps and UpMbps are measured.
	DownMbps float64 `json:"downMbps"`
	UpMbps   float64 `json:"upMbps"`

	// OnDemand and MinBid are $/h for the whole slice without disk. Zero means not offered that way.
	OnDemand Nano `json:"onDemand"`
	MinBid   Nano `json:"minBid"`
	// StorageMonth is $/GB/month.
	StorageMonth Nano `json:"storageMonth"`
	// UpPerGB and DownPerGB price traffic.
	UpPerGB   Nano `json:"upPerGB"`
	DownPerGB Nano `json:"downPerGB"`

	Reliability float64 `json:"reliability"`
	// Verification is "verified", "unverified" or "deverified".
	Verification string `json:"verification"`
	Datacenter   bool   `json:"datacenter"`
	StaticIP     bool   `json:"staticIP"`
	// EndsAt is when the host's promise ends; zero means never.
	EndsAt time.Time `json:"endsAt,omitzero"`

	// Extra is for a façade's own attributes.
	Extra map[string]string `json:"extra,omitempty"`
	// Broken is known to the market only: it is in its books, never in an answer.
	Broken Breakage `json:"-"`
}

// storageRate is $/h for a disk of the given size; a month has 30 days.
func (o Offer) storageRate(diskGB float64) Nano {
	return share(Nano(float64(o.StorageMonth)*diskGB), 1, 30*24)
}

// StorageRate is what a disk of that size costs per hour.
func (o Offer) StorageRate(diskGB float64) Nano { return o.storageRate(diskGB) }
