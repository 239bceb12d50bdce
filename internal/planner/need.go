package planner

import (
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// needFor combines what a pool's entry and a workload ask of an instance: at least the GPUs that one replica spans, since
// others may share it.
func needFor(pool *v1alpha1.GPUNodePool, entry int, account string, w *demand.Workload) offers.Need {
	e, req := pool.Spec.Providers[entry], pool.Spec.Requirements
	n := machineNeed(pool, entry, account)
	n.Provider, n.CapacityType = provider.Name(e.Name), capacityOf(e)
	n.GPUTypeSets = [][]string{req.GPUTypes, w.GPUTypes}
	n.GPUCount, n.MinGPUCount = int(req.GPUCount), w.GPUCount
	n.MinTotalVRAMGB, n.MaxVRAMGBPerGPU = max(int(req.MinVRAM), w.VRAMGB), int(req.MaxVRAM)
	n.MaxPrice = mostFor(pool, entry, w)
	return n
}

// mostFor is what a pool's entry and a workload let an instance cost.
func mostFor(pool *v1alpha1.GPUNodePool, entry int, w *demand.Workload) money.Dollars {
	most := pool.Spec.Providers[entry].MaxPrice
	if w.MaxPrice != nil {
		most = money.Min(most, *w.MaxPrice)
	}
	return most
}

// reliability and cuda read what the schema has checked. What it would not have let through asks for more than any offer
// has, so that a pool that was never checked buys nothing rather than something worse than asked.
func reliability(s string) *float64 {
	if s == "" {
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		f = 2
	}
	return &f
}

func cuda(s string) *[2]int {
	if s == "" {
		return nil
	}
	major, minor, _ := strings.Cut(s, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if errA != nil || errB != nil {
		a, b = 1000, 0
	}
	return &[2]int{a, b}
}
