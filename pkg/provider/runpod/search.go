package runpod

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// The two clouds, as the vendor spells them: its own data centres, and other people's machines.
const (
	cloudSecure    = "SECURE"
	cloudCommunity = "COMMUNITY"
)

// counts are the numbers of GPUs that are asked for. What is free is another answer for each, so each is a call (§2).
func counts() []int { return []int{1, 2, 4, 8} }

// SearchOffers asks the catalogue of both clouds, for each number of GPUs that some type has in it: eight calls at most. An
// offer is a type, a number, a cloud and a data centre that says it has them; community machines often name no data centre
// and are then one offer. Spot is Unsupported.
//
// Regions are data centres ("EU-RO-1"), in any case; a machine that names none is then left out. A type that is not the vendor's to rent, has no price or is none of NVIDIA's has an unknown GPU or is no offer, and
// rows that cannot be read at all are an error when there are no others.
func (p *Provider) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	switch {
	case q.CapacityType == provider.Spot:
		return nil, provider.Errorf(provider.RunPod, opSearch, provider.Unsupported, "there are no spot instances, only on-demand")
	case q.CapacityType != provider.OnDemand:
		return nil, invalid(opSearch, "capacity type %q is neither spot nor on-demand", q.CapacityType)
	case q.DiskGB < 1:
		return nil, invalid(opSearch, "a disk of %d GB", q.DiskGB)
	}
	s := finding{regions: q.Regions, disk: max(q.DiskGB, minDiskGB)}
	for _, cloud := range []string{cloudSecure, cloudCommunity} {
		for _, count := range counts() {
			if !s.sold(cloud, count) {
				continue
			}
			rows, err := p.types(ctx, cloud, count)
			if err != nil {
				return nil, err
			}
			s.add(rows, cloud, count)
		}
	}
	if s.unreadable != nil && len(s.offers) == 0 {
		return nil, p.odd(opSearch, "no row could be read: %v", s.unreadable)
	}
	return s.offers, nil
}

func (p *Provider) types(ctx context.Context, cloud string, count int) ([]json.RawMessage, error) {
	reply, err := p.call(ctx, opSearch, rest.Call{
		Method: http.MethodGet,
		Path:   "/v2/catalog/gpus",
		Query: url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}, "cloud": {cloud},
			"count": {strconv.Itoa(count)}},
	})
	if err != nil {
		return nil, err
	}
	var found catalogue
	if err := json.Unmarshal(reply.Body, &found); err != nil {
		return nil, p.odd(opSearch, "the answer is not what the catalogue answers: %v", err)
	}
	if found.GPUs == nil {
		return nil, p.odd(opSearch, "the answer has no gpus")
	}
	return *found.GPUs, nil
}

// finding is what a search has found so far.
type finding struct {
	regions    []string
	disk       int
	known      []wireGPU // of the first answer, which has the prices and sizes of both clouds
	offers     []provider.Offer
	unreadable error
}

// sold reports whether any type is sold in that cloud by that number. Before the first answer all may be.
func (s *finding) sold(cloud string, count int) bool {
	return s.known == nil || slices.ContainsFunc(s.known, func(w wireGPU) bool {
		_, ok := w.price(cloud)
		return ok && w.most(cloud) >= count
	})
}

func (s *finding) add(rows []json.RawMessage, cloud string, count int) {
	first := s.known == nil
	for _, row := range rows {
		var w wireGPU
		if err := json.Unmarshal(row, &w); err != nil {
			s.unreadable = err
			continue
		}
		if first {
			s.known = append(s.known, w)
		}
		s.offers = append(s.offers, s.of(w, cloud, count)...)
	}
}

// of are the offers in one row.
func (s *finding) of(w wireGPU, cloud string, count int) []provider.Offer {
	each, ok := w.price(cloud)
	disk, err := diskPrice(s.disk)
	if !ok || err != nil || w.ID == "" || w.most(cloud) < count || !isFree(w.Availability) {
		return nil
	}
	var out []provider.Offer
	for _, place := range w.places(s.regions) {
		for i, floor := range w.floors() {
			at := placement{GPU: w.ID, Count: count, Cloud: cloud, DataCenter: place, CUDA: floor, Rank: i}
			o := w.offer(at)
			o.DiskGB, o.MaxDiskGB = s.disk, s.disk
			o.Price = each.MulInt(count).Add(disk)
			out = append(out, o)
		}
	}
	return out
}

// price is $/h for one GPU in that cloud; false where it is not sold there: no price, 0, or a flag that says so (§2).
func (w wireGPU) price(cloud string) (money.Dollars, bool) {
	rate, there := w.Price.Secure.value, w.Secure
	if cloud == cloudCommunity {
		rate, there = w.Price.Community.value, w.Community
	}
	if rate == nil || there != nil && !*there {
		return money.Dollars{}, false
	}
	each, err := money.CeilFromFloat(*rate)
	return each, err == nil && money.Dollars{}.Less(each)
}

// most is the most GPUs that one pod can have there; one where the vendor does not say.
func (w wireGPU) most(cloud string) int {
	n := w.MaxCount.Secure
	if cloud == cloudCommunity {
		n = w.MaxCount.Community
	}
	if n == nil {
		return 1
	}
	return *n
}

// isFree: a hint of anything but "none" is worth an attempt. Without a hint nothing is known to be free.
func isFree(hint *string) bool {
	h := strings.ToUpper(value(hint))
	return h != "" && h != "NONE"
}

// places are the data centres to try, "" for any.
func (w wireGPU) places(regions []string) []string {
	if len(w.DataCenters) == 0 && len(regions) == 0 {
		return []string{""}
	}
	var out []string
	for _, dc := range w.DataCenters {
		if isFree(dc.Availability) && dc.ID != "" && inRegions(dc.ID, regions) {
			out = append(out, dc.ID)
		}
	}
	return out
}

func inRegions(dataCenter string, regions []string) bool {
	return len(regions) == 0 || slices.ContainsFunc(regions, func(r string) bool {
		return strings.EqualFold(r, dataCenter)
	})
}

// floors are the CUDA versions that a host can be asked to have at the least: the newest that is free, which the images of
// today need, and the oldest, of which there is most. What a host has is known in no other way, so the offer's MaxCUDA is
// what its create asks for. Without any that is free, no floor.
func (w wireGPU) floors() []string {
	var oldest, newest wireCUDA
	for _, v := range w.CUDAVersions {
		version := cuda(v.Version)
		if !v.Available || version == nil {
			continue
		}
		if oldest.Version == "" || slices.Compare(version[:], cuda(oldest.Version)[:]) < 0 {
			oldest = v
		}
		if newest.Version == "" || slices.Compare(version[:], cuda(newest.Version)[:]) > 0 {
			newest = v
		}
	}
	if oldest == newest {
		return []string{newest.Version}
	}
	return []string{newest.Version, oldest.Version}
}

// cuda reads "12.8" as {12, 8}; nil for anything else.
func cuda(version string) *[2]int {
	whole, frac, ok := strings.Cut(version, ".")
	major, err := strconv.Atoi(whole)
	minor, err2 := strconv.Atoi(frac)
	if !ok || err != nil || err2 != nil || major < 1 || minor < 0 {
		return nil
	}
	return &[2]int{major, minor}
}

// offer is the offer but for its disk and price.
func (w wireGPU) offer(at placement) provider.Offer {
	gb := int(value(w.Memory))
	name := gpuName(w.ID, value(w.Manufacturer), gb)
	if nominal, ok := gpu.NominalGB(gb * 1024); ok {
		gb = nominal
	}
	var capability *[2]int
	if spec, ok := gpu.SpecOf(name); ok && spec.ComputeCapability != [2]int{} {
		capability = &spec.ComputeCapability
	}
	return provider.Offer{
		Provider:          provider.RunPod,
		ID:                at.id(),
		CapacityType:      provider.OnDemand,
		GPU:               name,
		GPUCount:          at.Count,
		VRAMGB:            gb,
		Region:            at.DataCenter,
		CPUArch:           "amd64", // no type that is sold comes with another; those with one have names of their own
		MaxCUDA:           cuda(at.CUDA),
		ComputeCapability: capability,
		RestKeys:          at.restKeys(),
	}
}

// gpuName is the canonical name. The images that are started are CUDA's, so a GPU of another maker is shown and not
// bought (§2).
func gpuName(id, maker string, gb int) gpu.Name {
	switch strings.ToUpper(maker) {
	case "", "NVIDIA", "UNKNOWN":
		return gpu.Canonical(string(provider.RunPod), id, gb*1024)
	}
	return gpu.Unknown(id)
}

// diskMonth is $/GB for a month of a container's disk, which no call tells (§8); hoursPerMonth is the least that a month
// can be divided by.
const (
	diskMonth     = 0.10
	hoursPerMonth = 30 * 24
)

func diskPrice(gb int) (money.Dollars, error) {
	return money.CeilFromFloat(diskMonth * float64(gb) / hoursPerMonth)
}

// placement is what a create asks for, and all that an offer is.
type placement struct {
	GPU, Cloud, DataCenter, CUDA string
	Count                        int
	// Rank puts the newest CUDA first among offers that are otherwise alike.
	Rank int
}

// id has the GPU last: it is the one part that may hold anything.
func (at placement) id() string {
	return strings.Join([]string{at.Cloud, orAny(at.DataCenter), strconv.Itoa(at.Count), strconv.Itoa(at.Rank), orAny(at.CUDA),
		at.GPU}, "/")
}

// anywhere stands for what is left out.
const anywhere = "any"

func orAny(s string) string {
	if s == "" {
		return anywhere
	}
	return s
}

// placementOf reads an offer's id.
func placementOf(id string) (placement, error) {
	parts := strings.SplitN(id, "/", 6)
	if len(parts) != 6 || parts[5] == "" {
		return placement{}, fmt.Errorf("offer id %q is none of this provider's", id)
	}
	count, err := strconv.Atoi(parts[2])
	if err != nil || count < 1 || parts[0] != cloudSecure && parts[0] != cloudCommunity {
		return placement{}, fmt.Errorf("offer id %q is none of this provider's", id)
	}
	at := placement{GPU: parts[5], Count: count, Cloud: parts[0], DataCenter: parts[1], CUDA: parts[4]}
	for _, s := range []*string{&at.DataCenter, &at.CUDA} {
		if *s == anywhere {
			*s = ""
		}
	}
	return at, nil
}

// restKeys are the shape in the data centre with its CUDA, without it, and the type in the cloud: no machine has a name.
func (at placement) restKeys() []provider.RestKey {
	shape := fmt.Sprintf("%s/%s/%dx%s", strings.ToLower(at.Cloud), orAny(at.DataCenter), at.Count, at.GPU)
	keys := []provider.RestKey{provider.RestKey("shape/" + shape)}
	if at.CUDA != "" {
		keys = slices.Insert(keys, 0, provider.RestKey("host/"+shape+"/cuda>="+at.CUDA))
	}
	return append(keys, provider.RestKey(fmt.Sprintf("type/%s/%s", strings.ToLower(at.Cloud), at.GPU)))
}
