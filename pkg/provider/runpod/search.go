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
	"sync"
	"time"

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
	s := finding{regions: q.Regions, disk: max(q.DiskGB, minDiskGB), takesRAM: p.takesRAM(ctx)}
	first := question{cloudSecure, 1}
	rows, err := p.types(ctx, first)
	if err != nil {
		return nil, err
	}
	s.add(rows, first)
	if err := p.ask(ctx, &s, s.questions()); err != nil {
		return nil, err
	}
	if s.unreadable != nil && len(s.offers) == 0 {
		return nil, p.odd(opSearch, "no row could be read: %v", s.unreadable)
	}
	p.server.learn(s.known)
	return s.offers, nil
}

// question is one look at the catalogue.
type question struct {
	cloud string
	count int
}

// ask puts questions all at once, since whoever searches waits for the last of them.
func (p *Provider) ask(ctx context.Context, s *finding, all []question) error {
	answers, errs := make([][]json.RawMessage, len(all)), make([]error, len(all))
	var group sync.WaitGroup
	for i, q := range all {
		group.Go(func() { answers[i], errs[i] = p.types(ctx, q) })
	}
	group.Wait()
	for i, q := range all {
		if errs[i] != nil {
			return errs[i]
		}
		s.add(answers[i], q)
	}
	return nil
}

func (p *Provider) types(ctx context.Context, q question) ([]json.RawMessage, error) {
	reply, err := p.call(ctx, opSearch, rest.Call{
		Method: http.MethodGet,
		Path:   "/v2/catalog/gpus",
		Query: url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}, "cloud": {q.cloud},
			"count": {strconv.Itoa(q.count)}},
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

// server is what is known of the API's version and of its prices. It may be used concurrently.
type server struct {
	mu       sync.Mutex
	until    time.Time
	takesRAM bool

	prices sync.Map // of one GPU, money.Dollars by listed
}

// listed is what has a listed price.
type listed struct{ cloud, gpu string }

func (s *server) learn(types []wireGPU) {
	for _, w := range types {
		for _, cloud := range []string{cloudSecure, cloudCommunity} {
			if each, ok := w.price(cloud); ok {
				s.prices.Store(listed{cloud, w.ID}, each)
			}
		}
	}
}

// whole is the rate of a pod with its disk. A pod's cost is reported to have the disk in it (§8); where it is just what its
// GPUs are listed at, it has not.
func (s *server) whole(w wirePod, cost *money.Dollars) *money.Dollars {
	if cost == nil || w.GPU == nil {
		return cost
	}
	known, _ := s.prices.Load(listed{value(w.Cloud), w.GPU.ID})
	each, ok := known.(money.Dollars)
	count := max(value(w.GPU.Count), 1)
	disk, err := diskPrice(value(w.Disk))
	if gpus := each.MulInt(count); !ok || err != nil || cost.Sub(gpus).Micros() > 0 || gpus.Sub(*cost).Micros() > int64(count) {
		return cost
	}
	all := cost.Add(disk)
	return &all
}

// How long what a server says of itself is believed, and that it said nothing.
const (
	serverAge  = 12 * time.Hour
	silenceAge = 10 * time.Minute
)

// takesRAM reports whether a create may ask for RAM, by the server's description of itself. Where that cannot be read, it
// may not.
func (p *Provider) takesRAM(ctx context.Context) bool {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	now := p.clock.Now()
	if now.Before(p.server.until) {
		return p.server.takesRAM
	}
	p.server.until, p.server.takesRAM = now.Add(silenceAge), false
	reply, err := p.call(ctx, opSearch, rest.Call{Method: http.MethodGet, Path: "/v2/openapi.json"})
	var d description
	if err != nil || json.Unmarshal(reply.Body, &d) != nil {
		return false
	}
	p.server.until = now.Add(serverAge)
	p.server.takesRAM = strings.Contains(string(d.Components.Schemas.CreateGPUConfig), `"minRamPerGpu"`)
	return p.server.takesRAM
}

// finding is what a search has found so far.
type finding struct {
	regions    []string
	disk       int
	takesRAM   bool
	known      []wireGPU // of the first answer, which has the prices and sizes of both clouds
	offers     []provider.Offer
	unreadable error
}

// questions are those that remain after the first answer: for each cloud, the numbers of GPUs that some type has in it.
func (s *finding) questions() []question {
	var out []question
	for _, cloud := range []string{cloudSecure, cloudCommunity} {
		for _, count := range counts() {
			sold := slices.ContainsFunc(s.known, func(w wireGPU) bool {
				_, ok := w.price(cloud)
				return ok && w.most(cloud) >= count
			})
			if q := (question{cloud, count}); sold && q != (question{cloudSecure, 1}) {
				out = append(out, q)
			}
		}
	}
	return out
}

func (s *finding) add(rows []json.RawMessage, q question) {
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
		s.offers = append(s.offers, s.of(w, q.cloud, q.count)...)
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
		for i, f := range w.floors(s.takesRAM) {
			at := placement{GPU: w.ID, Count: count, Cloud: cloud, DataCenter: place, floor: f, Rank: i}
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

// floor is the least that a host is asked to have. What it has is known in no other way, so an offer says of its CUDA and
// RAM what its create asks for. The zero value asks for nothing.
type floor struct {
	CUDA string
	RAM  int // GB for each GPU
}

// floors are two: the newest CUDA that is free, which the images of today need, with RAM for the weights that a GPU can
// hold; and the oldest, of which there is most, with whatever RAM. They may be one.
func (w wireGPU) floors(takesRAM bool) []floor {
	oldest, newest := w.versions()
	high, low := floor{CUDA: newest}, floor{CUDA: oldest}
	if takesRAM {
		high.RAM = leastRAM(w.vramGB())
	}
	if high == low {
		return []floor{high}
	}
	return []floor{high, low}
}

// versions are the oldest and the newest CUDA that is free, empty without any.
func (w wireGPU) versions() (oldest, newest string) {
	for _, v := range w.CUDAVersions {
		version := cuda(v.Version)
		if !v.Available || version == nil {
			continue
		}
		if oldest == "" || slices.Compare(version[:], cuda(oldest)[:]) < 0 {
			oldest = v.Version
		}
		if newest == "" || slices.Compare(version[:], cuda(newest)[:]) > 0 {
			newest = v.Version
		}
	}
	return oldest, newest
}

// leastRAM is as much as the GPU's memory, and 32 GB from 24 on: what pools ask for, and what nearly all such hosts have.
func leastRAM(vram int) int {
	if vram >= 24 {
		return max(vram, 32)
	}
	return vram
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
	name := gpuName(w.ID, value(w.Manufacturer), int(value(w.Memory)))
	var capability *[2]int
	if spec, ok := gpu.SpecOf(name); ok && spec.ComputeCapability != [2]int{} {
		capability = &spec.ComputeCapability
	}
	var ram *int
	if at.RAM > 0 {
		all := at.RAM * at.Count
		ram = &all
	}
	return provider.Offer{
		Provider:          provider.RunPod,
		ID:                at.id(),
		CapacityType:      provider.OnDemand,
		GPU:               name,
		GPUCount:          at.Count,
		VRAMGB:            w.vramGB(),
		RAMGB:             ram,
		Region:            at.DataCenter,
		CPUArch:           "amd64", // no type that is sold comes with another; those with one have names of their own
		MaxCUDA:           cuda(at.CUDA),
		ComputeCapability: capability,
		RestKeys:          at.restKeys(),
	}
}

// vramGB is nominal; where the size is none that is sold, what was listed.
func (w wireGPU) vramGB() int {
	gb := int(value(w.Memory))
	if nominal, ok := gpu.NominalGB(gb * 1024); ok {
		return nominal
	}
	return gb
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
	GPU, Cloud, DataCenter string
	Count                  int
	floor
	// Rank puts the newest CUDA first among offers that are otherwise alike.
	Rank int
}

// id has the GPU last: it is the one part that may hold anything.
func (at placement) id() string {
	return strings.Join([]string{at.Cloud, orAny(at.DataCenter), strconv.Itoa(at.Count), strconv.Itoa(at.Rank), orAny(at.CUDA),
		strconv.Itoa(at.RAM), at.GPU}, "/")
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
	none := fmt.Errorf("offer id %q is none of this provider's", id)
	parts := strings.SplitN(id, "/", 7)
	if len(parts) != 7 || parts[6] == "" || parts[0] != cloudSecure && parts[0] != cloudCommunity {
		return placement{}, none
	}
	count, err := strconv.Atoi(parts[2])
	ram, err2 := strconv.Atoi(parts[5])
	if err != nil || err2 != nil || count < 1 || ram < 0 {
		return placement{}, none
	}
	at := placement{GPU: parts[6], Count: count, Cloud: parts[0], DataCenter: parts[1], floor: floor{parts[4], ram}}
	for _, s := range []*string{&at.DataCenter, &at.CUDA} {
		if *s == anywhere {
			*s = ""
		}
	}
	return at, nil
}

// restKeys are the shape in the data centre with what its host is asked for, without that, and the type in the cloud: no
// machine has a name.
func (at placement) restKeys() []provider.RestKey {
	shape := fmt.Sprintf("%s/%s/%dx%s", strings.ToLower(at.Cloud), orAny(at.DataCenter), at.Count, at.GPU)
	keys := []provider.RestKey{provider.RestKey("shape/" + shape)}
	if at.floor != (floor{}) {
		keys = slices.Insert(keys, 0, provider.RestKey(fmt.Sprintf("host/%s/cuda>=%s/ram>=%d", shape, orAny(at.CUDA), at.RAM)))
	}
	return append(keys, provider.RestKey(fmt.Sprintf("type/%s/%s", strings.ToLower(at.Cloud), at.GPU)))
}
