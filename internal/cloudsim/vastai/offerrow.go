package vastai

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// integer is a market name as the number that it is on the wire; 0 where it is none.
func integer(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// tflops is a plausible figure, since clients print it.
func tflops(o market.Offer) float64 { return float64(o.GPUs) * o.MemoryBW / 20 }

// offerRow is an offer on the wire, priced for a disk of the given size.
func offerRow(o market.Offer, kind string, storage float64, now time.Time) object {
	disk := o.StorageRate(storage)
	hour := o.OnDemand
	if kind == "bid" {
		hour = o.MinBid
	}
	total := (hour + disk).Dollars()
	row := hardwareRow(o)
	for k, v := range (object{
		"id": integer(o.ID), "ask_contract_id": integer(o.ID), "bundle_id": integer(o.Machine) * 10,
		"bundled_results": nil, "is_bid": kind == "bid", "dph_base": o.OnDemand.Dollars(), "dph_total": total,
		"dph_total_adj": total, "min_bid": o.MinBid.Dollars(), "storage_total_cost": disk.Dollars(),
		"discount_rate": 0.0, "discounted_hourly": 0.0, "discounted_dph_total": total,
		"dlperf_per_dphtotal": tflops(o) / total, "flops_per_dphtotal": tflops(o) / total,
		"vram_costperhour": total / float64(max(1, o.GPUMemoryMB*o.GPUs)),
		"rentable":         true, "rented": false, "start_date": unix(now),
		"public_ipaddr": hostIP(o), "resource_type": "gpu", "rn": 1, "reliability": o.Reliability,
		"disk_space": o.DiskGB, "inet_down_cost": o.DownPerGB.Dollars(), "inet_up_cost": o.UpPerGB.Dollars(),
		"inet_down": round1(o.DownMbps), "inet_up": round1(o.UpMbps),
		"internet_up_cost_per_tb": o.UpPerGB.Dollars() * 1000, "internet_down_cost_per_tb": o.DownPerGB.Dollars() * 1000,
		"search": prices(hour, disk), "instance": prices(hour, disk),
	}) {
		row[k] = v
	}
	row["end_date"], row["duration"] = ends(o, now)
	return row
}

// ends is when the host's promise ends, and in how many seconds; a host without an end is shown with a far one.
func ends(o market.Offer, now time.Time) (at, left float64) {
	end := o.EndsAt
	if end.IsZero() {
		end = now.Add(365 * 24 * time.Hour)
	}
	return unix(end), math.Max(0, end.Sub(now).Seconds())
}

func prices(hour, disk market.Nano) object {
	total := (hour + disk).Dollars()
	return object{"gpuCostPerHour": hour.Dollars(), "diskHour": disk.Dollars(), "totalHour": total,
		"discountTotalHour": 0, "discountedTotalPerHour": total}
}

// hardwareRow is what an offer and an instance on it show alike.
func hardwareRow(o market.Offer) object {
	row := object{
		"machine_id": integer(o.Machine), "host_id": integer(o.Host), "gpu_name": o.GPU, "num_gpus": o.GPUs,
		"gpu_frac": float64(o.GPUs) / float64(max(1, o.MachineGPUs)), "gpu_ram": o.GPUMemoryMB,
		"gpu_mem_bw": round1(o.MemoryBW), "gpu_lanes": 16, "gpu_max_power": 450.0, "gpu_max_temp": 90.0,
		"gpu_arch": "nvidia", "gpu_display_active": false, "bw_nvlink": 0.0, "compute_cap": o.ComputeCap,
		"cuda_max_good": o.CUDA, "driver_version": o.Driver, "driver_vers": paddedDriver(o.Driver),
		"cpu_arch": o.CPUArch, "cpu_cores": o.Cores, "cpu_cores_effective": o.EffectiveCores,
		"cpu_name": "Simulated 64-Core Processor", "cpu_ram": o.RAMMB, "cpu_ghz": 3.2, "has_avx": 1,
		"disk_name": "Simulated NVMe", "disk_bw": 2400.5, "dlperf": tflops(o), "total_flops": tflops(o),
		"score": tflops(o) * 3, "reliability2": o.Reliability, "verification": o.Verification,
		"geolocation": o.Region, "direct_port_count": o.Ports, "static_ip": o.StaticIP,
		"hosting_type": btoi(o.Datacenter), "pci_gen": 4.0, "pcie_bw": 22.5, "mobo_name": "Simulated Board",
		"os_version": "22.04", "storage_cost": o.StorageMonth.Dollars(), "vms_enabled": false,
		"webpage": nil, "logo": "/static/logos/vastai_small2.png", "credit_discount_max": 0.1, "external": false,
		"time_remaining": "", "time_remaining_isbid": "",
	}
	row["gpu_total_ram"] = o.GPUMemoryMB * o.GPUs
	if o.Cores == 0 {
		row["cpu_cores"] = nil // Some hosts do not say.
	}
	return row
}

func round1(f float64) float64 { return math.Round(f*10) / 10 }

// paddedDriver is "535.86.5" as 535086005.
func paddedDriver(v string) int64 {
	var n int64
	parts := strings.SplitN(v, ".", 3)
	for i := range 3 {
		n *= 1000
		if i < len(parts) {
			n += integer(parts[i])
		}
	}
	return n
}

// hostIP is an address from the range for documentation, by machine.
func hostIP(o market.Offer) string {
	return "203.0.113." + strconv.FormatInt(integer(o.Machine)%254+1, 10)
}
