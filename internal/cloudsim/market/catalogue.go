package market

import (
	"fmt"
	"time"
)

// promiseKey in Offer.Extra holds how long a host promises to stay, counted from the opening of the market, because a
// catalogue does not know when that is.
const promiseKey = "promise"

func promise(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0
	}
	return d
}

// kind is a GPU as a marketplace sells it: what it is and about what it costs.
type kind struct {
	name, driverName string
	memoryMB, cc     int
	bandwidth        float64
	price            float64 // $/h for one, the median in mid-2026
	machines         int     // how many the catalogue has
	sizes            []int   // GPUs per machine, picked from
	arm              bool
}

// kinds is what a marketplace has most of, with a few oddities that a careful buyer must refuse.
func kinds() []kind {
	return []kind{
		{"RTX 3090", "NVIDIA GeForce RTX 3090", 24576, 860, 936, 0.16, 19, []int{1, 1, 2, 4}, false},
		{"RTX 4090", "NVIDIA GeForce RTX 4090", 24564, 890, 1008, 0.32, 24, []int{1, 1, 1, 2, 4, 8}, false},
		{"RTX 5090", "NVIDIA GeForce RTX 5090", 32607, 1200, 1792, 0.44, 12, []int{1, 1, 2, 4}, false},
		{"RTX A5000", "NVIDIA RTX A5000", 24564, 860, 768, 0.19, 7, []int{1, 2, 4}, false},
		{"RTX A6000", "NVIDIA RTX A6000", 49140, 860, 768, 0.40, 6, []int{1, 2, 4}, false},
		{"RTX 6000Ada", "NVIDIA RTX 6000 Ada Generation", 49140, 890, 960, 0.62, 4, []int{1, 2}, false},
		{"L40S", "NVIDIA L40S", 46068, 890, 864, 0.58, 6, []int{1, 2, 4}, false},
		{"A100 PCIE", "NVIDIA A100-PCIE-40GB", 40960, 800, 1555, 0.52, 4, []int{1, 2}, false},
		{"A100 PCIE", "NVIDIA A100 80GB PCIe", 81920, 800, 1935, 0.78, 4, []int{1, 2, 4}, false},
		{"A100 SXM4", "NVIDIA A100-SXM4-40GB", 40960, 800, 1555, 0.55, 2, []int{4, 8}, false},
		{"A100 SXM4", "NVIDIA A100-SXM4-80GB", 81920, 800, 2039, 0.86, 3, []int{1, 4, 8}, false},
		{"H100 PCIE", "NVIDIA H100 PCIe", 81559, 900, 2039, 1.72, 2, []int{1, 2}, false},
		{"H100 SXM", "NVIDIA H100 80GB HBM3", 81559, 900, 3350, 1.95, 3, []int{1, 8}, false},
		{"H200", "NVIDIA H200", 143771, 900, 4800, 2.45, 2, []int{1, 8}, false},
		{"RTX PRO 6000 WS", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, 1200, 1792, 1.05, 2,
			[]int{1, 2}, false},
		{"RTX 3060", "NVIDIA GeForce RTX 3060", 12288, 860, 360, 0.07, 7, []int{1, 2}, false},
		{"Tesla V100", "Tesla V100-SXM2-32GB", 32768, 700, 900, 0.22, 3, []int{1, 4}, false},
		{"Q RTX 6000", "Quadro RTX 6000", 24576, 750, 672, 0.17, 2, []int{1}, false},
		{"GH200 SXM", "NVIDIA GH200 480GB", 97871, 900, 4000, 1.60, 2, []int{1}, true},
		{"CMP 170HX", "NVIDIA CMP 170HX", 8192, 800, 1493, 0.09, 2, []int{1}, false},
		{"RTX 7090 Ti", "NVIDIA GeForce RTX 7090 Ti", 49152, 1300, 2400, 0.38, 2, []int{1}, false},
	}
}

// DefaultOffers is a marketplace of about two hundred offers at prices like those of mid-2026. Some cost more than they
// should, some are unverified, some have too little disk, memory or time, some are arm64, some have a GPU that no
// catalogue of ours knows; machines with several GPUs are sold whole and in parts.
func DefaultOffers(seed int64) []Offer {
	c := chance{seed: seed, provider: "catalogue"}
	var out []Offer
	n := 0
	for _, k := range kinds() {
		for range k.machines {
			out = append(out, k.machine(c, n)...)
			n++
		}
	}
	return out
}

// machine is the offers of the nth machine.
func (k kind) machine(c chance, n int) []Offer {
	id := fmt.Sprintf("%d", 4001+7*n)
	at := func(lo, hi float64, what string) float64 { return c.between(lo, hi, what, id, 0) }
	odd := func(share float64, what string) bool { return c.at(what, id, 0) < share }
	total := k.sizes[c.pick(len(k.sizes), "size", id)]

	o := Offer{
		Machine: id, Host: fmt.Sprintf("%d", 60+n/3), GPU: k.name, DriverGPU: k.driverName, MachineGPUs: total,
		GPUMemoryMB: k.memoryMB, ComputeCap: k.cc, MemoryBW: k.bandwidth * at(0.82, 0.97, "bw"),
		Driver: "570.86.15", CUDA: 12.8, CPUArch: "amd64",
		Cores: 16 * max(1, total) * (1 + c.pick(2, "cores", id)), RAMMB: 64000 * (total + c.pick(3, "ram", id)),
		DiskGB: float64(int(at(120, 1800, "disk"))), Region: regions()[c.pick(len(regions()), "region", id)],
		Ports: 8 + c.pick(200, "ports", id), DownMbps: at(250, 4000, "down"), UpMbps: at(150, 2500, "up"),
		StorageMonth: USD(float64(int(at(8, 30, "storage"))) / 100),
		UpPerGB:      USD(float64(int(at(0, 24, "up-cost"))) / 1000),
		DownPerGB:    USD(float64(int(at(0, 20, "down-cost"))) / 1000),
		Reliability:  at(0.955, 0.9995, "reliability"), Verification: "verified",
		Datacenter: odd(0.3, "datacenter"), StaticIP: odd(0.4, "static"),
		Extra: map[string]string{promiseKey: fmt.Sprintf("%dh", 24*int(at(6, 300, "promise")))},
	}
	if k.arm {
		o.CPUArch = "arm64"
	}
	k.oddities(&o, odd, at)

	perGPU := k.price * at(0.8, 1.45, "price")
	var out []Offer
	for size := total; size >= 1; size /= 2 {
		part := o
		part.GPUs = size
		part.EffectiveCores = float64(o.Cores) * float64(size) / float64(total)
		part.OnDemand = scaled(USD(perGPU), float64(size))
		part.MinBid = scaled(part.OnDemand, at(0.4, 0.7, "bid"))
		out = append(out, part)
	}
	return out
}

// oddities are the flaws that an offer shows to whoever reads it.
func (k kind) oddities(o *Offer, odd func(float64, string) bool, at func(lo, hi float64, what string) float64) {
	if odd(0.15, "unverified") {
		o.Verification, o.Reliability = "unverified", at(0.6, 0.95, "unreliable")
	}
	if odd(0.02, "deverified") {
		o.Verification = "deverified"
	}
	if odd(0.08, "small disk") {
		o.DiskGB = float64(int(at(12, 45, "small")))
	}
	if odd(0.06, "old cuda") && k.cc < 1000 {
		o.Driver, o.CUDA = "535.86.05", 12.2
	}
	if odd(0.05, "little memory") {
		o.RAMMB = 16000
	}
	if odd(0.05, "no ports") {
		o.Ports = 0
	}
	if odd(0.05, "slow") {
		o.DownMbps = at(20, 90, "slow down")
	}
	if odd(0.04, "short") {
		o.Extra[promiseKey] = "5h"
	}
}

func regions() []string {
	return []string{"Oslo, NO", "Quebec, CA", "Texas, US", "California, US", "Washington, US", "Ohio, US", "Poland, PL",
		"Sofia, BG", "Frankfurt, DE", "Paris, FR", "Iceland, IS", "Tokyo, JP", "Seoul, KR", "Taiwan, TW", "Mumbai, IN",
		", US", "Prague, CZ", "Stockholm, SE"}
}
