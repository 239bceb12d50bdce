package tensordock

import (
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// SearchOffers reads every host with what is free on it, and where the API has no such list (any more), the market of
// each data centre, whose counts are often stale and whose price may be the lowest of several hosts'. Nothing can be
// filtered by the vendor (§2), so q.Regions is not sent; a region is a country's name.
//
// Each host's GPUs become several offers: for 1, 2, 4, … and all of them, each with several sizes of RAM (see shapes), at
// the price of just that shape. What cannot be priced, or reached, is no offer; rows
// that cannot be read at all are an error when there are no others.
func (p *Provider) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	switch q.CapacityType {
	case provider.OnDemand:
	case provider.Spot:
		return nil, provider.Errorf(provider.TensorDock, opSearch, provider.Unsupported, "there is no spot")
	default:
		return nil, invalid(opSearch, "capacity type %q is neither spot nor on-demand", q.CapacityType)
	}
	if q.DiskGB < 1 {
		return nil, invalid(opSearch, "a disk of %d GB", q.DiskGB)
	}
	rows, read, err := p.supplyRows(ctx)
	if err != nil {
		return nil, err
	}
	offers := []provider.Offer{}
	var unreadable error
	for _, row := range rows {
		all, err := read(row)
		if err != nil {
			unreadable = err
		}
		for _, s := range all {
			offers = append(offers, s.offers(storageFor(q.DiskGB))...)
		}
	}
	if unreadable != nil && len(offers) == 0 {
		return nil, p.odd(opSearch, "no row could be read: %v", unreadable)
	}
	return offers, nil
}

// supplyRows are the rows of the list there is, and how to read one.
func (p *Provider) supplyRows(ctx context.Context) ([]json.RawMessage, func(json.RawMessage) ([]supply, error), error) {
	reply, err := p.call(ctx, opSearch, rest.Call{Method: http.MethodGet, Path: "/api/v2/hostnodes"})
	if err == nil {
		var found hostnodesReply
		if err := json.Unmarshal(reply.Body, &found); err != nil || found.Data.Hostnodes == nil {
			return nil, nil, p.odd(opSearch, "the answer has no hostnodes (%v)", err)
		}
		return *found.Data.Hostnodes, hostnodeSupply, nil
	}
	switch reply.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone, http.StatusNotImplemented:
	default:
		return nil, nil, err
	}
	reply, err = p.call(ctx, opSearch, rest.Call{Method: http.MethodGet, Path: "/api/v2/locations"})
	if err != nil {
		return nil, nil, err
	}
	var found locationsReply
	if err := json.Unmarshal(reply.Body, &found); err != nil || found.Data.Locations == nil {
		return nil, nil, p.odd(opSearch, "the answer has no locations (%v)", err)
	}
	return *found.Data.Locations, locationSupply, nil
}

// supply is one model of GPU at one place, as either list tells it.
type supply struct {
	place       place
	location    string // id, for the scope
	ports       []int  // those outside that are free, as far as they are told
	count       int
	gpuPrice    number
	pricing     wirePricing
	vcpus       int // the most for one VM
	ramGB       int
	storageGB   int
	perGPUVCPUs int // 0 is no limit
	perGPURAMGB int
	region      string
	reliability *float64
}

// hostnodeSupply is the models of one host.
func hostnodeSupply(row json.RawMessage) ([]supply, error) {
	var w wireHostnode
	if err := json.Unmarshal(row, &w); err != nil {
		return nil, err
	}
	free := w.Available
	location := string(w.LocationID)
	if location == "" {
		location = string(w.Location.UUID)
	}
	ports := portsOf(free.Ports)
	network := ways(free.HasPublicIP, free.Ports == nil || len(ports) >= portsNeeded)
	var out []supply
	for _, g := range free.GPUs {
		out = append(out, supply{
			place: place{kind: byHostnode, id: string(w.ID), v0Name: string(g.V0Name), network: network}, location: location, ports: ports,
			count: g.Count.whole(), gpuPrice: g.Price, pricing: w.Pricing,
			vcpus: least(free.VCPUs, free.MaxVCPUs), ramGB: least(free.RAMGB, free.MaxRAMGB),
			storageGB:   least(free.StorageGB, free.MaxStorageGB),
			perGPUVCPUs: free.MaxVCPUsPerGPU.whole(), perGPURAMGB: free.MaxRAMPerGPU.whole(),
			region: string(w.Location.Country), reliability: reliability(w.Uptime, w.Location.Tier),
		})
	}
	return out, nil
}

// locationSupply is the models of one data centre.
func locationSupply(row json.RawMessage) ([]supply, error) {
	var w wireLocation
	if err := json.Unmarshal(row, &w); err != nil {
		return nil, err
	}
	var out []supply
	for _, g := range w.GPUs {
		out = append(out, supply{
			place: place{kind: byLocation, id: string(w.ID), v0Name: string(g.V0Name),
				network: ways(g.Network.DedicatedIP, g.Network.PortForwarding)},
			location: string(w.ID), count: g.Count.whole(), gpuPrice: g.Price, pricing: g.Pricing,
			vcpus: g.Resources.MaxVCPUs.whole(), ramGB: g.Resources.MaxRAMGB.whole(), storageGB: g.Resources.MaxStorageGB.whole(),
			region: string(w.Country), reliability: reliability(number{}, w.Tier),
		})
	}
	return out, nil
}

// least is what is free, within the limit where there is one.
func least(free, limit number) int {
	if limit.known {
		return min(free.whole(), limit.whole())
	}
	return free.whole()
}

// reliability is the host's uptime, or what its tier says: three and four are full trust (§2).
func reliability(uptime, tier number) *float64 {
	var score float64
	switch {
	case uptime.known && uptime.v >= 0 && uptime.v <= 100:
		score = uptime.v / 100
	case tier.known && tier.v >= 0:
		score = min(tier.v/3, 1)
	default:
		return nil
	}
	return &score
}

// shape is what of a VM is chosen apart from its GPUs.
type shape struct{ gpus, vcpus, ramGB, storageGB int }

const (
	vcpusPerGPU = 4
	moreRAM     = 8
	minStorage  = 100
	storageStep = 50
)

// ramSteps are the sizes that can be asked for (§3).
func ramSteps() []int {
	return []int{2, 4, 6, 8, 10, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 512}
}

// shapes are those that are offered for a number of GPUs, the cheapest first.
//
// vCPUs: four for each GPU, for the engine's processes and the agent, or what the host gives, always an even number. RAM:
// the least step that holds what the GPUs hold, so that weights are read from the disk once; then, for pools whose minRAM
// asks for more, every power of two up to eight times that. Where the largest step holds less than the GPUs, that step.
func (s supply) shapes(gpus, vramGB, storageGB int) []shape {
	vcpus := min(vcpusPerGPU*gpus, s.vcpus)
	if s.perGPUVCPUs > 0 {
		vcpus = min(vcpus, s.perGPUVCPUs*gpus)
	}
	vcpus -= vcpus % 2
	ramLimit := s.ramGB
	if s.perGPURAMGB > 0 {
		ramLimit = min(ramLimit, s.perGPURAMGB*gpus)
	}
	if vcpus < 2 || storageGB > s.storageGB {
		return nil
	}
	base := ramStep(gpus * vramGB)
	var out []shape
	for _, ram := range ramSteps() {
		more := ram > base && ram <= moreRAM*gpus*vramGB && bits.OnesCount(uint(ram)) == 1
		if ram <= ramLimit && (ram == base || more) {
			out = append(out, shape{gpus, vcpus, ram, storageGB})
		}
	}
	return out
}

// ramStep is the least step of at least gb, or the largest.
func ramStep(gb int) int {
	steps := ramSteps()
	i, _ := slices.BinarySearch(steps, gb)
	return steps[min(i, len(steps)-1)]
}

// storageFor is the disk that is rented where gb are asked for.
func storageFor(gb int) int {
	return max(minStorage, (gb+storageStep-1)/storageStep*storageStep)
}

func (s supply) offers(storageGB int) []provider.Offer {
	vram := vramGB(s.place.v0Name)
	if s.place.check() != nil || vram == 0 {
		return nil
	}
	var out []provider.Offer
	for _, gpus := range counts(s.count) {
		for _, sh := range s.shapes(gpus, vram, storageGB) {
			if price, ok := s.price(sh); ok {
				out = append(out, s.offer(sh, vram, price, s.twoPorts(len(out))))
			}
		}
	}
	return out
}

// portsOf are the ports that can be asked for; nil where none are told.
func portsOf(list *[]number) []int {
	if list == nil {
		return nil
	}
	var out []int
	for _, n := range *list {
		if port := n.whole(); port > 0 && port <= maxPort {
			out = append(out, port)
		}
	}
	return out
}

// twoPorts are those that a host's nth offer asks for, so that two offers seldom ask for the same: SSH's and the agent's.
func (s supply) twoPorts(nth int) [2]int {
	if len(s.ports) < portsNeeded {
		return [2]int{}
	}
	i := portsNeeded * nth % (len(s.ports) - 1)
	return [2]int{s.ports[i], s.ports[i+1]}
}

// counts are the numbers of GPUs that are offered of n: the powers of two, by which models divide, and all.
func counts(n int) []int {
	var out []int
	for size := 1; size < n; size *= 2 {
		out = append(out, size)
	}
	if n > 0 {
		out = append(out, n)
	}
	return out
}

// price is the all-in rate of a shape (§2). Each part is rounded up apart, so that the sum is not below the bill however
// the vendor adds them up. A part may cost nothing, but not the GPUs; a part whose price is not known has no sum.
func (s supply) price(sh shape) (money.Dollars, bool) {
	var total money.Dollars
	for i, part := range []struct {
		count int
		each  number
	}{
		{sh.gpus, s.gpuPrice}, {sh.vcpus, s.pricing.PerVCPU}, {sh.ramGB, s.pricing.PerRAMGB}, {sh.storageGB, s.pricing.PerStorageGB},
	} {
		rate, err := money.CeilFromFloat(float64(part.count) * part.each.v)
		if !part.each.known || err != nil || i == 0 && rate.IsZero() {
			return total, false
		}
		total = total.Add(rate)
	}
	return total, true
}

func (s supply) offer(sh shape, vram int, price money.Dollars, ports [2]int) provider.Offer {
	name := gpu.Canonical(string(provider.TensorDock), s.place.v0Name, vram*1024)
	at := s.place
	at.gpus, at.vcpus, at.ramGB, at.ports = sh.gpus, sh.vcpus, sh.ramGB, ports
	var capability *[2]int
	if spec, ok := gpu.SpecOf(name); ok && spec.ComputeCapability != [2]int{} {
		capability = &spec.ComputeCapability
	}
	hostnode := ""
	if at.kind == byHostnode {
		hostnode = at.id
	}
	return provider.Offer{
		Provider:     provider.TensorDock,
		ID:           at.String(),
		CapacityType: provider.OnDemand,
		GPU:          name,
		GPUCount:     sh.gpus,
		VRAMGB:       vram,
		VCPU:         float64(sh.vcpus),
		RAMGB:        &sh.ramGB,
		DiskGB:       sh.storageGB,
		MaxDiskGB:    s.storageGB - s.storageGB%storageStep,
		Region:       s.region,
		// The API does not say. Its images are for this one.
		CPUArch:           "amd64",
		Price:             price,
		Reliability:       s.reliability,
		ComputeCapability: capability,
		RestKeys:          restKeys(hostnode, s.location, at.v0Name),
	}
}

var vramSuffix = regexp.MustCompile(`-([1-9][0-9]{0,2})gb$`)

// vramGB is the memory of one GPU by the end of its name, 0 where it does not say (§2).
func vramGB(v0Name string) int {
	m := vramSuffix.FindStringSubmatch(v0Name)
	if m == nil {
		return 0
	}
	gb, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return gb
}

// restKeys are the scopes, as far as they are known: the host, the model at its location, the model.
func restKeys(hostnode, location, v0Name string) []provider.RestKey {
	var keys []provider.RestKey
	if hostnode != "" {
		keys = append(keys, provider.RestKey("machine/"+hostnode))
	}
	if location != "" && v0Name != "" {
		keys = append(keys, provider.RestKey("location/"+location+"/"+v0Name))
	}
	if v0Name != "" {
		keys = append(keys, provider.RestKey("gpu/"+v0Name))
	}
	return keys
}

// place is where and in what shape a VM is rented, and all that an offer's id says.
type place struct {
	kind               string // byHostnode or byLocation
	id                 string
	v0Name             string
	gpus, vcpus, ramGB int
	network            string // how it is reached
	// ports are those outside to ask for where ports are forwarded; zero leaves them to the host.
	ports [2]int
}

const (
	byHostnode = "hostnode"
	byLocation = "location"

	// How the agent's port can be reached (§9): an address of the VM's own, a forward, or either.
	ownIP     = "ip"
	forwarded = "forward"
	eitherWay = "ip+forward"

	// portsNeeded: SSH has to be forwarded too (§3).
	portsNeeded = 2
	maxPort     = 65535
)

func ways(ip, forward bool) string {
	switch {
	case ip && forward:
		return eitherWay
	case ip:
		return ownIP
	case forward:
		return forwarded
	}
	return ""
}

// String is the offer's id.
func (p place) String() string {
	id := fmt.Sprintf("%s/%s/%s/%d/%d/%d/%s", p.kind, p.id, p.v0Name, p.gpus, p.vcpus, p.ramGB, p.network)
	if p.network != ownIP && p.ports != [2]int{} {
		id += fmt.Sprintf("/%d/%d", p.ports[0], p.ports[1])
	}
	return id
}

// placeOf reads an offer's id.
func placeOf(id string) (place, error) {
	odd := fmt.Errorf("offer id %q is none of ours", id)
	parts := strings.Split(id, "/")
	if len(parts) != 7 && len(parts) != 9 {
		return place{}, odd
	}
	p := place{kind: parts[0], id: parts[1], v0Name: parts[2], network: parts[6]}
	numbers := []*int{&p.gpus, &p.vcpus, &p.ramGB, nil, &p.ports[0], &p.ports[1]}
	for i, part := range parts[3:] {
		if numbers[i] == nil {
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > maxPort {
			return place{}, odd
		}
		*numbers[i] = n
	}
	return p, p.check()
}

var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// check refuses a place that cannot be named in an offer's id, or not be reached.
func (p place) check() error {
	switch {
	case p.kind != byHostnode && p.kind != byLocation, !word.MatchString(p.id), !word.MatchString(p.v0Name):
		return fmt.Errorf("there is no %s %q with %q", p.kind, p.id, p.v0Name)
	case !slices.Contains([]string{ownIP, forwarded, eitherWay}, p.network):
		return fmt.Errorf("%s %q cannot be reached from outside", p.kind, p.id)
	}
	return nil
}
