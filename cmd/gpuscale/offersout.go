package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// show writes what was found, in the form that was asked for.
func (o *offersOptions) show(c *console, found quote.Offers) error {
	shown := found.Kept
	if o.limit > 0 && len(shown) > o.limit {
		shown = shown[:o.limit]
	}
	if o.output == "json" || o.output == "yaml" {
		return document(c.out, o.output, offersDocument(shown, found, o.explain))
	}
	if len(shown) == 0 && len(found.Lists) > 0 {
		c.note("No offers found that fit%s.", unlessExplained(o.explain))
	}
	if len(shown) > 0 {
		if err := offersTable(shown, o.output == "wide").write(c.out, o.headers); err != nil {
			return err
		}
	}
	if len(shown) < len(found.Kept) {
		c.note("The first %d of %d offers that fit.", len(shown), len(found.Kept))
	}
	if o.explain {
		return explainTable(c, found, len(shown) > 0, o.headers)
	}
	return nil
}

func unlessExplained(explained bool) string {
	if explained {
		return ""
	}
	return "; --explain says why"
}

func offersTable(list []provider.Offer, wide bool) *table {
	t := &table{headers: []string{"PROVIDER", "GPU", "COUNT", "VRAM", "TYPE", "$/H", "$/GPU-H", "REGION", "RELIABILITY", "DISK"}}
	if wide {
		t.headers = append(t.headers, "VCPU", "RAM", "CUDA", "MAX DISK", "TRAFFIC $/GB", "OFFER")
	}
	for _, o := range list {
		cells := []string{string(o.Provider), string(o.GPU), strconv.Itoa(o.GPUCount), vram(o), string(o.CapacityType),
			fixed(o.Price), fixed(perGPU(o)), o.Region, score(o.Reliability), gb(&o.DiskGB)}
		if wide {
			cells = append(cells, number(o.VCPU), gb(o.RAMGB), cuda(o.MaxCUDA), gb(&o.MaxDiskGB),
				fmt.Sprintf("%.4f", float64(o.TrafficPerGB)/1e6), o.ID)
		}
		// Offers that differ in what only the wide table has read as one.
		if n := len(t.rows); n == 0 || !slices.Equal(t.rows[n-1], cells) {
			t.row(cells...)
		}
	}
	return t
}

// explainTable says of each list what became of its offers.
func explainTable(c *console, found quote.Offers, below, noHeaders bool) error {
	if below {
		c.say("\n")
	}
	t := &table{headers: []string{"PROVIDER", "TYPE", "OFFERS", "FIT", "LEFT OUT"}}
	for _, l := range found.Lists {
		t.row(string(l.Provider), string(l.CapacityType), strconv.Itoa(l.Why.Total), strconv.Itoa(l.Why.Kept()), l.Why.LeftOut())
	}
	for _, f := range found.Failed {
		t.row(string(f.Provider), f.What, "", "", f.Message)
	}
	if err := t.write(c.out, noHeaders); err != nil {
		return err
	}
	var unknown []string
	over, cheapest := 0, money.Dollars{}
	for _, l := range found.LeftOut {
		if raw, ok := strings.CutPrefix(string(l.GPU), string(gpu.Unknown(""))); ok && !slices.Contains(unknown, raw) {
			unknown = append(unknown, raw)
		}
		if l.Reason == offers.OverPrice {
			if over++; over == 1 || l.Price.Less(cheapest) {
				cheapest = l.Price
			}
		}
	}
	if over > 0 {
		c.say("\nOf those over the price only, the cheapest costs $%s/h.\n", cheapest)
	}
	if len(unknown) > 0 {
		c.say("\nGPUs that this release does not know, and so never buys: %s.\n", strings.Join(unknown, ", "))
	}
	return nil
}

// fixed writes a price with all its decimals, so that those below each other can be compared.
func fixed(d money.Dollars) string {
	return fmt.Sprintf("%d.%06d", d.Micros()/1e6, d.Micros()%1e6)
}

// vram is a GPU's nominal VRAM, which is what pools ask for.
func vram(o provider.Offer) string {
	each := offers.NominalVRAMGB(o)
	return gb(&each)
}

// number leaves out what the provider did not say.
func number(v float64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func gb(v *int) string {
	if v == nil {
		return ""
	}
	return strconv.Itoa(*v) + "GB"
}

func score(r *float64) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%.4f", *r)
}

func cuda(v *[2]int) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", v[0], v[1])
}

// offerDocument is an offer for programs. Fields that the provider did not give are absent.
type offerDocument struct {
	Provider       string        `json:"provider"`
	ID             string        `json:"id"`
	GPU            string        `json:"gpu"`
	GPUCount       int           `json:"gpuCount"`
	VRAMGB         int           `json:"vramGB"`
	CapacityType   string        `json:"capacityType"`
	DollarsPerHour money.Dollars `json:"dollarsPerHour"`
	PerGPUHour     money.Dollars `json:"dollarsPerGPUHour"`
	Region         string        `json:"region,omitempty"`
	Reliability    *float64      `json:"reliability,omitempty"`
	DiskGB         int           `json:"diskGB"`
	MaxDiskGB      int           `json:"maxDiskGB,omitempty"`
	VCPU           float64       `json:"vcpu,omitempty"`
	RAMGB          *int          `json:"ramGB,omitempty"`
	MaxCUDA        string        `json:"maxCUDA,omitempty"`
	CPUArch        string        `json:"cpuArch,omitempty"`
	// LeftOut is why it does not fit.
	LeftOut string `json:"leftOut,omitempty"`
}

func offerOf(o provider.Offer) offerDocument {
	return offerDocument{Provider: string(o.Provider), ID: o.ID, GPU: string(o.GPU), GPUCount: o.GPUCount, VRAMGB: offers.NominalVRAMGB(o),
		CapacityType: string(o.CapacityType), DollarsPerHour: o.Price, PerGPUHour: perGPU(o), Region: o.Region,
		Reliability: o.Reliability, DiskGB: o.DiskGB, MaxDiskGB: o.MaxDiskGB, VCPU: o.VCPU, RAMGB: o.RAMGB,
		MaxCUDA: cuda(o.MaxCUDA), CPUArch: o.CPUArch}
}

type failureDocument struct {
	Provider string `json:"provider"`
	What     string `json:"what,omitempty"`
	Kind     string `json:"kind,omitempty"`
	Message  string `json:"message"`
}

func failuresOf(failed []quote.Failure) []failureDocument {
	out := []failureDocument{}
	for _, f := range failed {
		out = append(out, failureDocument{string(f.Provider), f.What, string(f.Kind), f.Message})
	}
	return out
}

func offersDocument(shown []provider.Offer, found quote.Offers, explain bool) any {
	d := struct {
		Offers   []offerDocument   `json:"offers"`
		LeftOut  []offerDocument   `json:"leftOut,omitempty"`
		Failed   []failureDocument `json:"failed"`
		NotAsked []provider.Name   `json:"notAsked,omitempty"`
	}{Offers: []offerDocument{}, Failed: failuresOf(found.Failed), NotAsked: found.Without}
	for _, o := range shown {
		d.Offers = append(d.Offers, offerOf(o))
	}
	if explain {
		for _, l := range found.LeftOut {
			o := offerOf(l.Offer)
			o.LeftOut = string(l.Reason)
			d.LeftOut = append(d.LeftOut, o)
		}
	}
	return d
}
