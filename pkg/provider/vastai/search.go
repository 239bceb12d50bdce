package vastai

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// searchLimit is far above the size of the whole market: search has no pages, and without a limit it answers about 64
// rows (§2).
const searchLimit = 10_000

// hoursPerMonth is the vendor's month of 30 days, by which $/GB/month becomes $/h (§2).
const hoursPerMonth = 30 * 24

// SearchOffers asks for every verified offer that has a port to publish and room for the disk. Regions are two-letter
// country codes. A row that cannot be priced for q.CapacityType, or not bid for, is no offer and left out; rows that
// cannot be read at all are an error when there are no others.
func (p *Provider) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	body, err := searchBody(q)
	if err != nil {
		return nil, err
	}
	reply, err := p.call(ctx, opSearch, rest.Call{
		Endpoint: endpointSearch,
		Method:   http.MethodPost,
		Path:     "/api/v0/bundles/",
		Body:     body,
	})
	if err != nil {
		return nil, err
	}
	var found searchReply
	if err := json.Unmarshal(reply.Body, &found); err != nil {
		return nil, p.odd(opSearch, "the answer is not what a search answers: %v", err)
	}
	if found.Offers == nil {
		return nil, p.odd(opSearch, "the answer has no offers")
	}
	rows := *found.Offers
	if len(rows) >= searchLimit {
		return nil, p.odd(opSearch, "%d offers or more: the list may be cut", searchLimit)
	}
	return p.offers(rows, q.CapacityType, body.AllocatedStorage)
}

func searchBody(q provider.OfferQuery) (searchRequest, error) {
	kinds := map[provider.CapacityType]string{provider.Spot: "bid", provider.OnDemand: "ondemand"}
	kind, ok := kinds[q.CapacityType]
	if !ok {
		return searchRequest{}, invalid(opSearch, "capacity type %q is neither spot nor on-demand", q.CapacityType)
	}
	if q.DiskGB < 1 {
		return searchRequest{}, invalid(opSearch, "a disk of %d GB", q.DiskGB)
	}
	disk := max(q.DiskGB, minDiskGB)
	body := searchRequest{
		// The server's defaults may not hold once other filters are sent, so all four are (§2).
		Verified: op{"eq": true},
		Rentable: op{"eq": true},
		Rented:   op{"eq": false},
		External: op{"eq": false},

		DirectPortCount:  op{"gte": 1},
		DiskSpace:        op{"gte": disk},
		AllocatedStorage: disk,
		Type:             kind,
		Order:            [][2]string{{"dph_total", "asc"}, {"id", "asc"}},
		Limit:            searchLimit,
	}
	if len(q.Regions) > 0 {
		body.Geolocation = op{"in": q.Regions}
	}
	return body, nil
}

func (p *Provider) offers(rows []json.RawMessage, kind provider.CapacityType, diskGB int) ([]provider.Offer, error) {
	offers := make([]provider.Offer, 0, len(rows))
	var unreadable error
	for _, row := range rows {
		var w wireOffer
		if err := json.Unmarshal(row, &w); err != nil {
			unreadable = err
			continue
		}
		if o, ok := w.offer(kind, diskGB); ok {
			offers = append(offers, o)
		}
	}
	if unreadable != nil && len(offers) == 0 {
		return nil, p.odd(opSearch, "no row could be read: %v", unreadable)
	}
	return offers, nil
}

// offer translates a row; false for one that cannot be rented as kind with that disk and one published port.
func (w wireOffer) offer(kind provider.CapacityType, diskGB int) (provider.Offer, bool) {
	price, bid, ok := w.price(kind, diskGB)
	if !ok || w.ID <= 0 || w.NumGPUs < 1 || value(w.DirectPortCount) < 1 || value(w.DiskSpace) < float64(diskGB) {
		return provider.Offer{}, false
	}
	mb := int(value(w.GPURAM))
	name := gpu.Canonical(string(provider.VastAI), w.GPUName, mb)
	reliability := w.Reliability2
	if reliability == nil {
		reliability = w.Reliability
	}
	return provider.Offer{
		Provider:          provider.VastAI,
		ID:                strconv.FormatInt(w.ID, 10),
		CapacityType:      kind,
		GPU:               name,
		GPUCount:          w.NumGPUs,
		VRAMGB:            vramGB(mb),
		VCPU:              value(w.CPUCoresEffective),
		RAMGB:             w.ramGB(),
		DiskGB:            diskGB,
		MaxDiskGB:         int(value(w.DiskSpace)),
		Region:            region(w.Geolocation),
		CPUArch:           arch(w.CPUArch),
		Price:             price,
		Bid:               bid,
		TrafficPerGB:      w.trafficPerGB(),
		Reliability:       reliability,
		MaxCUDA:           cuda(w.CUDAMaxGood),
		ComputeCapability: w.computeCapability(name),
		AvailableFor:      seconds(w.Duration),
		RestKeys:          restKeys(w.MachineID, w.HostID),
	}, true
}

// The range of a bid in $/h for the whole slice (§3).
var (
	minPrice = money.MustParse("0.001")
	maxPrice = money.MustParse("128")
)

// price is the all-in rate and the bid in it. GPU and disk are rounded up apart, so that the sum is not below the bill
// however the vendor adds them up. dph_total is not used: it holds the disk of another search's allocated_storage when
// that was not understood, and for bids the floor instead of our bid.
func (w wireOffer) price(kind provider.CapacityType, diskGB int) (total, bid money.Dollars, ok bool) {
	if w.StorageCost.amount == nil {
		return total, bid, false
	}
	disk, err := money.CeilFromFloat(float64(diskGB) * *w.StorageCost.amount / hoursPerMonth)
	if err != nil {
		return total, bid, false
	}
	rate := w.DPHBase.amount
	if kind == provider.Spot {
		rate = w.MinBid.amount
	}
	if rate == nil {
		return total, bid, false
	}
	gpus, err := money.CeilFromFloat(*rate)
	if err != nil || gpus.IsZero() {
		return total, bid, false
	}
	if kind == provider.Spot {
		gpus = money.Max(gpus.MulFrac(115, 100), minPrice)
		bid = gpus
		if maxPrice.Less(bid) {
			return total, bid, false
		}
	}
	return gpus.Add(disk), bid, true
}

// ramGB is the slice's share of the machine's memory, by its share of the cores (§2). Without a count of cores only
// a slice that is the whole machine has a known share. 1 GB is 1000 MB, as in the vendor's own client.
func (w wireOffer) ramGB() *int {
	share := 0.0
	switch {
	case value(w.CPUCores) > 0 && value(w.CPUCoresEffective) > 0:
		share = min(*w.CPUCoresEffective / *w.CPUCores, 1)
	case value(w.GPUFrac) == 1:
		share = 1
	}
	if share == 0 || value(w.CPURAM) <= 0 {
		return nil
	}
	gb := int(*w.CPURAM * share / 1000)
	return &gb
}

func (w wireOffer) trafficPerGB() int64 {
	micros := (value(w.InetDownCost) + value(w.InetUpCost)) / 2 * 1e6
	if !(micros > 0 && micros < 1e12) {
		return 0
	}
	return int64(math.Ceil(micros))
}

// computeCapability is reported times 100 (890 is 8.9), or else the model's.
func (w wireOffer) computeCapability(name gpu.Name) *[2]int {
	if cc := int(value(w.ComputeCap)); cc > 0 {
		return &[2]int{cc / 100, cc % 100 / 10}
	}
	if spec, ok := gpu.SpecOf(name); ok && spec.ComputeCapability != [2]int{} {
		return &spec.ComputeCapability
	}
	return nil
}

// vramGB is nominal; where the size is none that is sold, the whole GB that were reported.
func vramGB(mb int) int {
	if gb, ok := gpu.NominalGB(mb); ok {
		return gb
	}
	return max(mb, 0) / 1024
}

// cuda reads 12.8 as {12, 8}.
func cuda(n *json.Number) *[2]int {
	if n == nil {
		return nil
	}
	whole, frac, _ := strings.Cut(n.String(), ".")
	major, err := strconv.Atoi(whole)
	if err != nil || major < 1 {
		return nil
	}
	minor, err := strconv.Atoi(frac)
	if err != nil {
		minor = 0
	}
	return &[2]int{major, minor}
}

// region is the country code at the end of "City, CC" or ", CC", which is what the geolocation filter takes (§2).
func region(geolocation *string) string {
	s := value(geolocation)
	return strings.TrimSpace(s[strings.LastIndex(s, ",")+1:])
}

func arch(s *string) string {
	switch v := strings.ToLower(value(s)); v {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	default:
		return v
	}
}

// seconds is a duration, nil for null; longer than what a time.Duration holds is as long as it can hold.
func seconds(s *float64) *time.Duration {
	if s == nil {
		return nil
	}
	d := time.Duration(math.MaxInt64)
	if *s < d.Seconds() {
		d = time.Duration(max(*s, 0) * float64(time.Second))
	}
	return &d
}

// restKeys are stable, unlike offer ids (§2).
func restKeys(machine, host int64) []provider.RestKey {
	var keys []provider.RestKey
	if machine > 0 {
		keys = append(keys, provider.RestKey("machine/"+strconv.FormatInt(machine, 10)))
	}
	if host > 0 {
		keys = append(keys, provider.RestKey("host/"+strconv.FormatInt(host, 10)))
	}
	return keys
}
