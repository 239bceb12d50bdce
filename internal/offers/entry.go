package offers

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// DefaultDiskGB is rented when a pool asks for no disk: engine images alone take 20 to 30 GB.
const DefaultDiskGB = 50

// QueryOf is the search for what a pool's entry may buy: the shape that prices depend on.
func QueryOf(entry v1alpha1.ProviderSpec, req v1alpha1.Requirements) provider.OfferQuery {
	return provider.OfferQuery{CapacityType: provider.CapacityType(entry.CapacityType), DiskGB: diskOf(req), Regions: entry.Regions}
}

// NeedOf is what a pool's entry and requirements ask of every offer, at most at the entry's own price. A workload's
// conditions are added by the caller. It fails on a requirement that cannot be read, which the API's rules refuse.
func NeedOf(entry v1alpha1.ProviderSpec, req v1alpha1.Requirements, account string) (Need, error) {
	n := Need{
		Provider:        provider.Name(entry.Name),
		CapacityType:    provider.CapacityType(entry.CapacityType),
		Account:         account,
		GPUCount:        int(req.GPUCount),
		MinTotalVRAMGB:  int(req.MinVRAM),
		MaxVRAMGBPerGPU: int(req.MaxVRAM),
		MinDiskGB:       diskOf(req),
		MinRAMGB:        int(req.MinRAM),
		Regions:         entry.Regions,
		MaxPrice:        entry.MaxPrice,
	}
	if len(req.GPUTypes) > 0 {
		n.GPUTypeSets = [][]string{req.GPUTypes}
	}
	if req.MinReliability != "" {
		r, err := strconv.ParseFloat(req.MinReliability, 64)
		if err != nil {
			return n, fmt.Errorf("requirements.minReliability %q is not a number from 0 to 1", req.MinReliability)
		}
		n.MinReliability = &r
	}
	if req.MinCUDA != "" {
		v, err := ParseCUDA(req.MinCUDA)
		if err != nil {
			return n, err
		}
		n.MinCUDA = &v
	}
	return n, nil
}

// Within lowers the need's price limit.
func (n Need) Within(limit money.Dollars) Need {
	n.MaxPrice = money.Min(n.MaxPrice, limit)
	return n
}

func diskOf(req v1alpha1.Requirements) int {
	if req.MinDisk > 0 {
		return int(req.MinDisk)
	}
	return DefaultDiskGB
}

// ParseCUDA reads a version of two numbers, as in requirements.minCUDA.
func ParseCUDA(s string) (v [2]int, err error) {
	major, minor, _ := strings.Cut(s, ".")
	if v[0], err = strconv.Atoi(major); err == nil {
		v[1], err = strconv.Atoi(minor)
	}
	if err != nil {
		return v, fmt.Errorf("requirements.minCUDA %q is not of the form 12.8", s)
	}
	return v, nil
}
