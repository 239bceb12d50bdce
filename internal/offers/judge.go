package offers

import (
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Rejection is why an offer does not fit a need. Fits is the empty one.
type Rejection string

// The closed list of rejections. An offer gets the first that applies, in the order of Rejections.
const (
	Fits              Rejection = ""
	WrongProvider     Rejection = "WrongProvider"
	WrongCapacityType Rejection = "WrongCapacityType"
	UnknownGPU        Rejection = "UnknownGPU"
	WrongGPU          Rejection = "WrongGPU"
	NoCUDA            Rejection = "NoCUDA"
	WrongArch         Rejection = "WrongArch"
	WrongGPUCount     Rejection = "WrongGPUCount"
	TooLittleVRAM     Rejection = "TooLittleVRAM"
	TooMuchVRAM       Rejection = "TooMuchVRAM"
	TooLittleDisk     Rejection = "TooLittleDisk"
	TooLittleRAM      Rejection = "TooLittleRAM"
	Unreliable        Rejection = "Unreliable"
	LeavesSoon        Rejection = "LeavesSoon"
	OldCUDA           Rejection = "OldCUDA"
	WrongRegion       Rejection = "WrongRegion"
	NoPrice           Rejection = "NoPrice"
	OverPrice         Rejection = "OverPrice"
	Resting           Rejection = "Resting"
)

// criterion is one question to an offer.
type criterion struct {
	rejection Rejection
	// phrase follows a number: "22 wrong GPU".
	phrase string
	fails  func(provider.Offer, Need) bool
}

// criteria are in the order in which they are judged. What cannot change comes first, price after everything that the
// machine is, and rest last: "180 over $0.50" then counts exactly what a higher ceiling would let in, and "12 resting"
// what waiting would. An unknown GPU is told apart before a wrong one, since it may be the one that is wanted, under a
// spelling not known here.
//
// No criterion is met by an attribute that the provider did not give.
var criteria = []criterion{
	{WrongProvider, "at another provider", func(o provider.Offer, n Need) bool {
		return n.Provider != "" && o.Provider != n.Provider
	}},
	{WrongCapacityType, "wrong capacity type", func(o provider.Offer, n Need) bool {
		return n.CapacityType != "" && o.CapacityType != n.CapacityType
	}},
	{UnknownGPU, "unknown GPU", func(o provider.Offer, _ Need) bool { return !o.GPU.Known() }},
	{WrongGPU, "wrong GPU", func(o provider.Offer, n Need) bool { return !asksFor(n.GPUTypeSets, o.GPU) }},
	{NoCUDA, "without CUDA", func(o provider.Offer, n Need) bool { return !named(n.GPUTypeSets) && !hasCUDA(o.GPU) }},
	{WrongArch, "wrong CPU architecture", func(o provider.Offer, n Need) bool { return o.CPUArch != n.cpuArch() }},
	{WrongGPUCount, "wrong GPU count", func(o provider.Offer, n Need) bool {
		return o.GPUCount < max(1, n.MinGPUCount) || n.GPUCount != 0 && o.GPUCount != n.GPUCount
	}},
	{TooLittleVRAM, "too little VRAM", func(o provider.Offer, n Need) bool {
		each := NominalVRAMGB(o)
		return each < n.MinVRAMGBPerGPU || each*o.GPUCount < n.MinTotalVRAMGB
	}},
	{TooMuchVRAM, "too much VRAM per GPU", func(o provider.Offer, n Need) bool {
		return n.MaxVRAMGBPerGPU > 0 && NominalVRAMGB(o) > n.MaxVRAMGBPerGPU
	}},
	{TooLittleDisk, "too little disk", func(o provider.Offer, n Need) bool { return o.DiskGB < n.MinDiskGB }},
	{TooLittleRAM, "too little RAM", func(o provider.Offer, n Need) bool {
		return n.MinRAMGB > 0 && (o.RAMGB == nil || *o.RAMGB < n.MinRAMGB)
	}},
	{Unreliable, "less reliable than asked", func(o provider.Offer, n Need) bool {
		// Written so that a score that is not a number fails.
		return n.MinReliability != nil && (o.Reliability == nil || !(*o.Reliability >= *n.MinReliability))
	}},
	{LeavesSoon, "whose host leaves within the hour", func(o provider.Offer, _ Need) bool {
		return o.AvailableFor != nil && *o.AvailableFor < shortestStay
	}},
	{OldCUDA, "older CUDA than asked", func(o provider.Offer, n Need) bool {
		return n.MinCUDA != nil && (o.MaxCUDA == nil || slices.Compare(o.MaxCUDA[:], n.MinCUDA[:]) < 0)
	}},
	{WrongRegion, "in other regions", func(o provider.Offer, n Need) bool { return !inRegion(n.Regions, o.Region) }},
	// Nobody gives GPUs away: a price of nothing is one that was not understood, and would come first in every ranking.
	{NoPrice, "without a price", func(o provider.Offer, _ Need) bool { return o.Price.Cmp(money.Dollars{}) <= 0 }},
	{OverPrice, "over price", func(o provider.Offer, n Need) bool { return n.MaxPrice.Less(o.Price) }},
}

// shortestStay: on a host that leaves sooner the boot is most of what is paid for.
const shortestStay = time.Hour

// Rejections lists every rejection but Fits, in the order in which they are judged.
func Rejections() []Rejection {
	out := make([]Rejection, 0, len(criteria)+1)
	for _, c := range criteria {
		out = append(out, c.rejection)
	}
	return append(out, Resting)
}

// Phrase is the rejection in words that follow a number of offers: "wrong GPU". It is empty for Fits.
func (r Rejection) Phrase() string {
	if r == Resting {
		return "resting"
	}
	for _, c := range criteria {
		if c.rejection == r {
			return c.phrase
		}
	}
	return string(r)
}

// Judge returns the first reason for which o does not satisfy n at now, or Fits.
func Judge(o provider.Offer, n Need, rests rest.View, now time.Time) Rejection {
	r, _ := judge(o, n, rests, now)
	return r
}

// judge also returns when a resting offer is back.
func judge(o provider.Offer, n Need, rests rest.View, now time.Time) (Rejection, time.Time) {
	for _, c := range criteria {
		if c.fails(o, n) {
			return c.rejection, time.Time{}
		}
	}
	if until, ok := restsUntil(o, n.Account, rests, now); ok {
		return Resting, until
	}
	return Fits, time.Time{}
}

// restsUntil is when the last of the rests that hold o back ends.
func restsUntil(o provider.Offer, account string, rests rest.View, now time.Time) (until time.Time, resting bool) {
	if len(rests) == 0 {
		return time.Time{}, false
	}
	for _, k := range append(offerKeys(o), rest.AccountKey(o.Provider, account)) {
		if r, ok := rests.Active(k, now); ok {
			resting = true
			if until.Before(r.Until) {
				until = r.Until
			}
		}
	}
	return until, resting
}

// RestsUntil reports whether o is left alone at now, under any of its keys or its account's, and until when all of that
// has ended. Judge asks it last; it is for those who judge once and ask about rests apart.
func RestsUntil(o provider.Offer, account string, rests rest.View, now time.Time) (until time.Time, resting bool) {
	return restsUntil(o, account, rests, now)
}

// offerKeys are all keys under which o may rest: its stable scopes, narrowest first, and before them its ID.
func offerKeys(o provider.Offer) []rest.Key {
	keys := make([]rest.Key, 0, len(o.RestKeys)+2)
	keys = append(keys, idKey(o))
	for _, k := range o.RestKeys {
		keys = append(keys, rest.OfferKey(o.Provider, k))
	}
	return keys
}

// idKey rests one offer by its ID. IDs mostly live once, so it serves only against a provider that goes on listing what
// it no longer rents out.
func idKey(o provider.Offer) rest.Key {
	return rest.OfferKey(o.Provider, provider.RestKey("offer-id/"+o.ID))
}

// nominalPercent is how far a driver's figure may lie from the model's nominal VRAM and still mean it, as in
// gpu.NominalGB.
const nominalPercent = 7

// NominalVRAMGB is the nominal VRAM of one GPU of o: what its model has when the offer says about that or nothing, and
// otherwise what the offer says (cards with memory added exist).
func NominalVRAMGB(o provider.Offer) int {
	spec, ok := gpu.SpecOf(o.GPU)
	if !ok {
		return o.VRAMGB
	}
	off := max(spec.VRAMGB-o.VRAMGB, o.VRAMGB-spec.VRAMGB)
	if o.VRAMGB <= 0 || off*100 <= spec.VRAMGB*nominalPercent {
		return spec.VRAMGB
	}
	return o.VRAMGB
}

func (n Need) cpuArch() string {
	if n.CPUArch == "" {
		return DefaultCPUArch
	}
	return n.CPUArch
}

// asksFor reports whether every list that is not empty has an entry for g.
func asksFor(sets [][]string, g gpu.Name) bool {
	for _, set := range sets {
		if len(set) > 0 && !slices.ContainsFunc(set, func(entry string) bool { return gpu.Matches(entry, g) }) {
			return false
		}
	}
	return true
}

func named(sets [][]string) bool {
	return slices.ContainsFunc(sets, func(set []string) bool { return len(set) > 0 })
}

func hasCUDA(g gpu.Name) bool {
	spec, ok := gpu.SpecOf(g)
	return ok && spec.AtLeast(1, 0)
}

func inRegion(regions []string, region string) bool {
	return len(regions) == 0 ||
		region != "" && slices.ContainsFunc(regions, func(r string) bool { return strings.EqualFold(r, region) })
}
