package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

type offersOptions struct {
	askOptions
	gpus, providers, regions []string
	count, minVRAM, maxVRAM  int
	disk, minRAM, limit      int
	maxPrice, minCUDA, arch  string
	minReliability           float64
	spot, onDemand, explain  bool
	sort                     string
}

func newOffers(c *console) *cobra.Command {
	var o offersOptions
	cmd := &cobra.Command{
		Use:   "offers",
		Short: "Show what can be rented now, without a cluster",
		Long: "Asks every provider that there are credentials for what it would rent out now, and shows what fits, at the price\n" +
			"that is paid for all of it: GPU, disk, RAM and vCPU. Nothing is rented.\n\n" +
			"Credentials are the controller's: " + strings.Join(credentialNames(), ", ") + ".\n" +
			"Without --spot and --on-demand both are shown.",
		Example: "  gpuscale offers --gpu \"RTX 4090,A100\" --min-vram 24 --max-price 0.50 --spot\n" +
			"  gpuscale offers --provider vast.ai,runpod --sort gpu-price --limit 10 -o wide\n" +
			"  gpuscale offers --gpu H100 --explain --market sim",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runOffers(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.gpus, "gpu", nil, "GPUs, as in a pool's gpuTypes: \"RTX 4090\", or A100 for every A100")
	f.IntVar(&o.count, "gpu-count", 0, "exact number of GPUs of an instance; 0 for any")
	f.IntVar(&o.minVRAM, "min-vram", 0, "least VRAM of the instance, in GB over all its GPUs")
	f.IntVar(&o.maxVRAM, "max-vram", 0, "most VRAM of one GPU, in GB")
	f.StringVar(&o.maxPrice, "max-price", "", "most that an instance may cost, all-in, in $/h")
	f.BoolVar(&o.spot, "spot", false, "spot instances")
	f.BoolVar(&o.onDemand, "on-demand", false, "on-demand instances")
	f.StringSliceVar(&o.providers, "provider", nil, "providers to ask (default: all that there are credentials for)")
	f.StringSliceVar(&o.regions, "region", nil, "regions, as the provider spells them")
	f.IntVar(&o.disk, "disk", offers.DefaultDiskGB, "disk to rent, in GB; it is part of the price")
	f.IntVar(&o.minRAM, "min-ram", 0, "least RAM of the instance, in GB")
	f.Float64Var(&o.minReliability, "min-reliability", 0, "least reliability score, from 0 to 1")
	f.StringVar(&o.minCUDA, "min-cuda", "", "least CUDA version that the driver must serve, like 12.8")
	f.StringVar(&o.arch, "arch", offers.DefaultCPUArch, "processor: amd64 or arm64")
	f.StringVar(&o.sort, "sort", "price", "order: "+strings.Join(sortNames(), ", "))
	f.IntVar(&o.limit, "limit", 0, "show the first so many only; 0 for all")
	f.BoolVar(&o.explain, "explain", false, "also say what was left out and why")
	o.flags(cmd)
	completeFrom(cmd, "gpu", gpuNames)
	completeFrom(cmd, "provider", driverNames)
	complete(cmd, "sort", sortNames()...)
	complete(cmd, "arch", "amd64", "arm64")
	return cmd
}

func runOffers(ctx context.Context, c *console, o *offersOptions) error {
	request, err := o.request()
	if err != nil {
		return err
	}
	s, err := o.open(ctx, c, nil)
	if err != nil {
		return err
	}
	defer s.close()
	found := s.Offers(ctx, request)
	s.settle()
	if err := interrupted(ctx, c); err != nil {
		return err
	}
	if len(found.Lists) == 0 && len(found.Failed) == 0 {
		return fmt.Errorf("there are no credentials: set %s, or try --market sim", strings.Join(credentialNames(), ", "))
	}
	o.order(found.Kept)
	if err := o.show(c, found); err != nil {
		return err
	}
	notes(c, found.Failed, found.Without)
	switch {
	case len(found.Lists) == 0:
		return errors.New("no provider answered")
	case len(found.Failed) > 0:
		return exitError(exitPartial)
	}
	return nil
}

// request is what the flags ask.
func (o *offersOptions) request() (quote.OffersRequest, error) {
	var r quote.OffersRequest
	if err := o.check(); err != nil {
		return r, err
	}
	var err error
	if r.Providers, err = providersOf("--provider", o.providers); err != nil {
		return r, err
	}
	for ct, wanted := range map[provider.CapacityType]bool{provider.Spot: o.spot, provider.OnDemand: o.onDemand} {
		if wanted || o.spot == o.onDemand {
			r.CapacityTypes = append(r.CapacityTypes, ct)
		}
	}
	slices.Sort(r.CapacityTypes)
	slices.Reverse(r.CapacityTypes) // spot first
	r.Need, err = o.need()
	return r, err
}

func (o *offersOptions) need() (offers.Need, error) {
	n := offers.Need{GPUCount: o.count, MinTotalVRAMGB: o.minVRAM, MaxVRAMGBPerGPU: o.maxVRAM, MinDiskGB: o.disk,
		MinRAMGB: o.minRAM, Regions: o.regions, CPUArch: o.arch, MaxPrice: offers.AnyPrice()}
	for flag, v := range map[string]int{"gpu-count": o.count, "min-vram": o.minVRAM, "max-vram": o.maxVRAM, "disk": o.disk - 1,
		"min-ram": o.minRAM, "limit": o.limit} {
		if v < 0 {
			return n, usageError{fmt.Errorf("--%s is too small", flag)}
		}
	}
	if _, ok := sorts[o.sort]; !ok {
		return n, usageError{fmt.Errorf("--sort %s: one of %s", o.sort, strings.Join(sortNames(), ", "))}
	}
	if o.arch != "amd64" && o.arch != "arm64" {
		return n, usageError{fmt.Errorf("--arch %s: amd64 or arm64", o.arch)}
	}
	for _, g := range o.gpus {
		if len(gpu.Expand(g)) == 0 {
			return n, usageError{fmt.Errorf("--gpu %q: there is no such GPU; %s", g, meant(g, gpuEntries()))}
		}
	}
	if len(o.gpus) > 0 {
		n.GPUTypeSets = [][]string{o.gpus}
	}
	if o.maxPrice != "" {
		most, err := money.Parse(o.maxPrice)
		if err != nil || most.Micros() <= 0 {
			return n, usageError{fmt.Errorf("--max-price %s: dollars per hour above 0 with at most six decimals, like 0.50", o.maxPrice)}
		}
		n.MaxPrice = most
	}
	if o.minReliability < 0 || o.minReliability > 1 {
		return n, usageError{fmt.Errorf("--min-reliability %v: a score from 0 to 1, like 0.98", o.minReliability)}
	}
	if o.minReliability > 0 {
		n.MinReliability = &o.minReliability
	}
	if o.minCUDA != "" {
		v, err := offers.ParseCUDA(o.minCUDA)
		if err != nil {
			return n, usageError{fmt.Errorf("--min-cuda %s: a version of two numbers, like 12.8", o.minCUDA)}
		}
		n.MinCUDA = &v
	}
	return n, nil
}

// sorts are the orders that can be asked for. What is equal stays in the order in which it would be bought.
var sorts = map[string]func(a, b provider.Offer) int{
	"price":       func(a, b provider.Offer) int { return a.Price.Cmp(b.Price) },
	"gpu-price":   func(a, b provider.Offer) int { return perGPU(a).Cmp(perGPU(b)) },
	"vram":        func(a, b provider.Offer) int { return cmp.Compare(b.TotalVRAMGB(), a.TotalVRAMGB()) },
	"reliability": func(a, b provider.Offer) int { return cmp.Compare(reliability(b), reliability(a)) },
	"provider":    func(a, b provider.Offer) int { return cmp.Compare(a.Provider, b.Provider) },
	"gpu":         func(a, b provider.Offer) int { return cmp.Compare(a.GPU, b.GPU) },
	"region":      func(a, b provider.Offer) int { return cmp.Compare(a.Region, b.Region) },
}

func sortNames() []string {
	return []string{"price", "gpu-price", "vram", "reliability", "provider", "gpu", "region"}
}

func (o *offersOptions) order(list []provider.Offer) { slices.SortStableFunc(list, sorts[o.sort]) }

// perGPU is a GPU's part of the price, rounded up.
func perGPU(o provider.Offer) money.Dollars { return o.Price.MulFrac(1, int64(max(1, o.GPUCount))) }

func reliability(o provider.Offer) float64 {
	if o.Reliability == nil {
		return -1
	}
	return *o.Reliability
}

func gpuNames() []string {
	var out []string
	for _, n := range gpu.Names() {
		out = append(out, string(n))
	}
	return out
}

// gpuEntries are what a pool's gpuTypes may name: every GPU, and those of several kinds also by the part that they share.
func gpuEntries() []string {
	var out []string
	for _, name := range gpuNames() {
		family, _, _ := strings.Cut(name, "-")
		for _, entry := range []string{family, name} {
			if !slices.Contains(out, entry) {
				out = append(out, entry)
			}
		}
	}
	return out
}

// driverNames are the providers that this release rents from.
func driverNames() []string {
	var out []string
	for _, name := range drivers.Names() {
		out = append(out, string(name))
	}
	return out
}

// credentialNames are the environment names of all credentials, by provider.
func credentialNames() []string {
	var out []string
	for _, name := range drivers.Names() {
		out = append(out, quote.EnvOf(name)...)
	}
	return out
}
