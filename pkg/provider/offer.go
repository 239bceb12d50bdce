package provider

import (
	"time"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
)

// Name is a provider's name as a pool spells it.
type Name string

// The seven providers.
const (
	AWS        Name = "aws"
	Azure      Name = "azure"
	GCP        Name = "gcp"
	RunPod     Name = "runpod"
	TensorDock Name = "tensordock"
	VastAI     Name = "vast.ai"
	Verda      Name = "verda"
)

// CapacityType is how an instance is paid for.
type CapacityType string

// Spot may be reclaimed at any time; OnDemand may not.
const (
	Spot     CapacityType = "spot"
	OnDemand CapacityType = "on-demand"
)

// OfferQuery is the shape that prices are asked for.
type OfferQuery struct {
	// CapacityType is required.
	CapacityType CapacityType
	// DiskGB (10^9 bytes) is the disk that will be rented, and so is part of the price. At least 1.
	DiskGB int
	// Regions restricts the search where the provider can; empty means everywhere. Spelled as the provider does.
	Regions []string
}

// Offer is what a provider will rent to us now at an all-in price.
//
// A pointer that is nil, and an empty string, mean "the provider did not say": such an attribute never satisfies a
// minimum.
type Offer struct {
	Provider Name
	// ID is what CreateInstance needs. It may be usable once only, and means nothing to anyone else.
	ID           string
	CapacityType CapacityType

	// GPU is the canonical name; gpu.Unknown names are surfaced and never bought. GPUCount counts whole GPUs.
	GPU      gpu.Name
	GPUCount int
	// VRAMGB is nominal GB per GPU (a 4090 that reports 24564 MB has 24).
	VRAMGB int

	VCPU  float64
	RAMGB *int
	// DiskGB is the disk that Price includes; MaxDiskGB the largest that could be had.
	DiskGB    int
	MaxDiskGB int
	Region    string
	// CPUArch is "amd64" or "arm64".
	CPUArch string

	// Price is all that bills by the hour for the shape asked: GPU, disk, RAM, vCPU, address. For bids it includes Bid.
	Price money.Dollars
	// Bid is what CreateInstance will bid for the GPU part; zero where there is no bidding.
	Bid money.Dollars
	// TrafficPerGB is the mean of inbound and outbound $/GB in micro-dollars, for ranking only.
	TrafficPerGB int64

	// Reliability is the provider's own score from 0 to 1.
	Reliability *float64
	// MaxCUDA is the highest CUDA version that the host's driver serves (12.8 is {12, 8}).
	MaxCUDA *[2]int
	// ComputeCapability as reported or, failing that, as the GPU's name implies.
	ComputeCapability *[2]int
	// AvailableFor is how long the host promises to be there; nil where there is no such limit.
	AvailableFor *time.Duration

	// RestKeys are the stable scopes that can be left alone after a failure, narrowest first, for example
	// "machine/4411" then "host/90". IDs live once, so they are no rest keys.
	RestKeys []RestKey
}

// RestKey names a stable scope of supply within one provider ("machine/4411", "zone/us-east-1a/g6e.xlarge/spot").
type RestKey string

// TotalVRAMGB is nominal VRAM over all GPUs of the offer.
func (o Offer) TotalVRAMGB() int { return o.VRAMGB * o.GPUCount }
