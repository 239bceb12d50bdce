package runpod

import (
	"fmt"
	"strconv"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Config is a realistic market with this vendor's habits: stable offers at list prices that do not move, no spot, and
// instances named as pods.
func Config(seed int64) market.Config {
	c := market.Realistic("runpod", seed)
	c.Offers, c.StableOfferIDs, c.InstanceID = DefaultOffers(), true, PodID
	c.Walk, c.Reclaim, c.LowBidStays = market.Walk{}, market.Reclaim{}, false
	return c
}

// PodID is the nth pod's name: ten letters and digits for every n from 0 on that a test or a clock will reach.
func PodID(n int64) string {
	const tenDigits = 101_559_956_668_416 // 36⁹
	return strconv.FormatInt(tenDigits+n, 36)
}

// diskMonth is $/GB/month for a container's disk.
var diskMonth = market.USD(0.10)

// rack is one type of GPU in one data centre.
type rack struct {
	gpu       string
	memoryGB  int // as listed
	memoryMB  int // as the driver reports
	cc        int
	bandwidth float64
	cloud     string
	place     string
	cuda      float64
	price     float64 // $/h for one GPU
	stock     int
}

// DefaultOffers is a catalogue of some thirty types and places at prices like those of mid-2026: two clouds, machines that
// name no data centre, a maker whose GPUs run no CUDA, hosts with old drivers. Each is sold by 1, 2, 4 and 8 GPUs as far as
// its stock goes.
func DefaultOffers() []market.Offer {
	var out []market.Offer
	for i, r := range racks() {
		out = append(out, r.offers(i)...)
	}
	return out
}

func racks() []rack {
	s, c := cloudSecure, cloudCommunity
	return []rack{
		{"NVIDIA GeForce RTX 4090", 24, 24564, 890, 1008, s, "EU-RO-1", 12.8, 0.59, 8},
		{"NVIDIA GeForce RTX 4090", 24, 24564, 890, 1008, s, "US-KS-2", 12.8, 0.59, 4},
		{"NVIDIA GeForce RTX 4090", 24, 24564, 890, 1008, s, "US-IL-1", 12.4, 0.59, 4},
		{"NVIDIA GeForce RTX 4090", 24, 24564, 890, 1008, c, "", 12.8, 0.34, 4},
		{"NVIDIA GeForce RTX 5090", 32, 32607, 1200, 1792, s, "EU-RO-1", 13.0, 0.89, 4},
		{"NVIDIA GeForce RTX 3090", 24, 24576, 860, 936, s, "CA-MTL-1", 12.8, 0.43, 4},
		{"NVIDIA GeForce RTX 3090", 24, 24576, 860, 936, c, "", 12.4, 0.22, 4},
		{"NVIDIA L4", 24, 23034, 890, 300, s, "EU-RO-1", 12.8, 0.39, 8},
		{"NVIDIA L4", 24, 23034, 890, 300, s, "US-TX-3", 12.8, 0.39, 2},
		{"NVIDIA L40S", 48, 46068, 890, 864, s, "EUR-IS-1", 12.8, 0.86, 8},
		{"NVIDIA A40", 48, 46068, 860, 696, s, "EUR-IS-1", 12.8, 0.40, 8},
		{"NVIDIA RTX A5000", 24, 24564, 860, 768, s, "US-IL-1", 12.8, 0.27, 4},
		{"NVIDIA RTX A5000", 24, 24564, 860, 768, c, "", 12.8, 0.16, 2},
		{"NVIDIA RTX A6000", 48, 49140, 860, 768, s, "US-KS-2", 12.8, 0.49, 8},
		{"NVIDIA A100 80GB PCIe", 80, 81920, 800, 1935, s, "CA-MTL-1", 12.8, 1.19, 8},
		{"NVIDIA A100-SXM4-80GB", 80, 81920, 800, 2039, s, "US-KS-2", 12.8, 1.39, 8},
		{"NVIDIA H100 PCIe", 80, 81559, 900, 2000, s, "US-TX-3", 12.8, 1.99, 4},
		{"NVIDIA H100 80GB HBM3", 80, 81559, 900, 3350, s, "EU-RO-1", 13.0, 2.69, 8},
		{"NVIDIA H200", 141, 143771, 900, 4800, s, "US-IL-1", 13.0, 3.59, 8},
		{"NVIDIA B200", 180, 183359, 1000, 7700, s, "US-KS-2", 13.0, 5.98, 8},
		{"NVIDIA RTX 6000 Ada Generation", 48, 49140, 890, 960, s, "EU-RO-1", 12.8, 0.77, 4},
		{"AMD Instinct MI300X OAM", 192, 196608, 942, 5300, s, "EU-RO-1", 0, 2.09, 8},
	}
}

func (r rack) offers(i int) []market.Offer {
	var out []market.Offer
	for _, n := range []int{1, 2, 4, 8} {
		if n > r.stock {
			break
		}
		name := fmt.Sprintf("rack-%d", i)
		o := market.Offer{
			ID: fmt.Sprintf("%s-%d", name, n), Machine: name, Host: name, GPU: r.gpu, DriverGPU: r.gpu, GPUs: n, MachineGPUs: r.stock,
			GPUMemoryMB: r.memoryMB, ComputeCap: r.cc, MemoryBW: r.bandwidth, Driver: "570.124.06", CUDA: r.cuda, CPUArch: "amd64",
			Cores: 128, EffectiveCores: float64(8 * n), RAMMB: 50_000 * n, DiskGB: 2000, Region: r.place, Ports: 10,
			OnDemand: market.USD(r.price) * market.Nano(n), StorageMonth: diskMonth, Reliability: 0.99, Datacenter: r.cloud == cloudSecure,
			Extra: map[string]string{extraCloud: r.cloud, extraMemory: strconv.Itoa(r.memoryGB)},
		}
		if r.cuda == 0 {
			o.Extra[extraMaker] = "AMD"
		}
		out = append(out, o)
	}
	return out
}
