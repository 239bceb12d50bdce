package verda

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

const (
	currency = "usd"
	// hoursPerMonth is the vendor's month (§2).
	hoursPerMonth = 730
	// diskType is what the OS volume is made of.
	diskType = "NVMe"
)

// spotFlags: the vendor's two clients spell the parameter differently, so both are sent (§2).
func spotFlags(spot bool) url.Values {
	v := strconv.FormatBool(spot)
	return url.Values{"is_spot": {v}, "isSpot": {v}}
}

// SearchOffers joins the types with the stock of the capacity type asked. Regions are location codes. A type without a
// price in dollars or without an image that has Docker is no offer.
func (p *Provider) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	if q.CapacityType != provider.Spot && q.CapacityType != provider.OnDemand {
		return nil, invalid(opSearch, "capacity type %q is neither spot nor on-demand", q.CapacityType)
	}
	if q.DiskGB < 1 {
		return nil, invalid(opSearch, "a disk of %d GB", q.DiskGB)
	}
	types, err := p.types(ctx, opSearch)
	if err != nil {
		return nil, err
	}
	disk, err := p.diskRate(ctx, opSearch, max(q.DiskGB, minDiskGB))
	if err != nil {
		return nil, err
	}
	var stock []wireStock
	err = p.read(ctx, opSearch, "/instance-availability", spotFlags(q.CapacityType == provider.Spot), &stock)
	if err != nil {
		return nil, err
	}
	offers := []provider.Offer{}
	if q.DiskGB > maxDiskGB {
		return offers, nil
	}
	for _, here := range stock {
		if len(q.Regions) > 0 && !slices.ContainsFunc(q.Regions, func(r string) bool { return strings.EqualFold(r, here.Location) }) ||
			here.Location == "" {
			continue
		}
		for _, name := range here.Types {
			if o, ok := types[name].offer(q, here.Location, disk); ok {
				offers = append(offers, o)
			}
		}
	}
	return offers, nil
}

// read gets a JSON document that is not null.
func (p *Provider) read(ctx context.Context, op, path string, query url.Values, into any) error {
	reply, err := p.call(ctx, op, rest.Call{Endpoint: endpointCatalogue, Method: http.MethodGet, Path: path, Query: query})
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(reply.Body)) == "null" {
		return p.odd(op, "%s answers null", path)
	}
	if err := json.Unmarshal(reply.Body, into); err != nil {
		return p.odd(op, "the answer is not what %s answers: %v", path, err)
	}
	return nil
}

// types are the types that have GPUs, by name. Rows that cannot be read are left out, unless there are no others.
func (p *Provider) types(ctx context.Context, op string) (map[string]wireType, error) {
	var rows []json.RawMessage
	if err := p.read(ctx, op, "/instance-types", url.Values{"currency": {currency}}, &rows); err != nil {
		return nil, err
	}
	out := map[string]wireType{}
	var unreadable error
	for _, row := range rows {
		var t wireType
		if err := json.Unmarshal(row, &t); err != nil {
			unreadable = err
		} else if t.GPU.Count > 0 {
			out[t.InstanceType] = t
		}
	}
	if unreadable != nil && len(out) == 0 {
		return nil, p.odd(op, "no row could be read: %v", unreadable)
	}
	return out, nil
}

// diskRate is the $/h of an OS volume, rounded up.
func (p *Provider) diskRate(ctx context.Context, op string, gb int) (money.Dollars, error) {
	var kinds []wireVolumeType
	if err := p.read(ctx, op, "/volume-types", nil, &kinds); err != nil {
		return money.Dollars{}, err
	}
	for _, k := range kinds {
		month := k.Price.PerMonthPerGB.value
		if k.Type != diskType || month == nil || *month <= 0 || !inDollars(k.Price.Currency) {
			continue
		}
		if rate, err := money.CeilFromFloat(*month * float64(gb) / hoursPerMonth); err == nil {
			return rate, nil
		}
	}
	return money.Dollars{}, p.odd(op, "no price in dollars of a disk of type %s", diskType)
}

func inDollars(c string) bool { return c == "" || strings.EqualFold(c, currency) }

// price is the all-in rate of a type; false where it has none.
func (t wireType) price(spot bool, disk money.Dollars) (money.Dollars, bool) {
	rate := t.PerHour.value
	if spot {
		rate = t.Spot.value
	}
	if rate == nil || *rate <= 0 || !inDollars(t.Currency) {
		return money.Dollars{}, false
	}
	out, err := money.CeilFromFloat(*rate)
	return out.Add(disk), err == nil
}

// offer translates a type in a location; false for one that cannot be rented.
func (t wireType) offer(q provider.OfferQuery, location string, disk money.Dollars) (provider.Offer, bool) {
	spot := q.CapacityType == provider.Spot
	price, priced := t.price(spot, disk)
	image, cuda := bestImage(t.Images)
	if !priced || image == "" {
		return provider.Offer{}, false
	}
	name, gb := gpuOf(t.InstanceType, t.GPU, t.GPUMemory)
	out := provider.Offer{
		Provider: provider.Verda, ID: choice{t.InstanceType, location, spot, image}.id(), CapacityType: q.CapacityType,
		GPU: name, GPUCount: t.GPU.Count, VRAMGB: gb, VCPU: t.CPU.Cores, DiskGB: max(q.DiskGB, minDiskGB), MaxDiskGB: maxDiskGB,
		Region: location, CPUArch: "amd64", Price: price, MaxCUDA: cuda, RestKeys: restKeys(t.InstanceType, location, spot),
	}
	if ram := int(t.Memory.GB); ram > 0 {
		out.RAMGB = &ram
	}
	if spec, ok := gpu.SpecOf(name); ok && spec.ComputeCapability != [2]int{} {
		out.ComputeCapability = &spec.ComputeCapability
	}
	return out, true
}

// gpuOf reads the type's name, and the description for names that have not been seen. Memory is over all GPUs (§2).
func gpuOf(instanceType string, g wireGPU, memory wireMemory) (gpu.Name, int) {
	gb := int(memory.GB) / max(g.Count, 1)
	name := gpu.Canonical(string(provider.Verda), instanceType, gb*1024)
	if !name.Known() {
		name = gpu.Canonical(string(provider.Verda), g.Description, gb*1024)
	}
	if nominal, ok := gpu.NominalGB(gb * 1024); ok {
		gb = nominal
	}
	return name, gb
}

// choice is what an offer's id says.
type choice struct {
	instanceType, location string
	spot                   bool
	image                  string
}

func capacity(spot bool) provider.CapacityType {
	if spot {
		return provider.Spot
	}
	return provider.OnDemand
}

func (c choice) id() string {
	return strings.Join([]string{c.instanceType, c.location, string(capacity(c.spot)), c.image}, "/")
}

func parseChoice(id string) (choice, bool) {
	parts := strings.Split(id, "/")
	if len(parts) != 4 || slices.Contains(parts, "") {
		return choice{}, false
	}
	c := choice{parts[0], parts[1], parts[2] == string(provider.Spot), parts[3]}
	return c, c.id() == id
}

// restKeys are what has stock, and the type in its location for quotas.
func restKeys(instanceType, location string, spot bool) []provider.RestKey {
	if instanceType == "" || location == "" {
		return nil
	}
	return []provider.RestKey{
		provider.RestKey("zone/" + location + "/" + instanceType + "/" + string(capacity(spot))),
		provider.RestKey("type/" + location + "/" + instanceType),
	}
}

var imageName = regexp.MustCompile(`^ubuntu-(\d+)\.(\d+)-cuda-(\d+)\.(\d+)(-open)?-docker$`)

// bestImage is the newest of a type's images with a driver and Docker, and the CUDA that its driver serves at least. Not
// every type takes every image (§2).
func bestImage(images []string) (best string, cuda *[2]int) {
	var bestVersion []int
	for _, image := range images {
		m := imageName.FindStringSubmatch(image)
		if m == nil {
			continue
		}
		var version []int
		for _, i := range []int{3, 4, 1, 2} { // CUDA first.
			n, err := strconv.Atoi(m[i])
			if err != nil {
				n = 0
			}
			version = append(version, n)
		}
		if slices.Compare(version, bestVersion) > 0 {
			best, bestVersion, cuda = image, version, &[2]int{version[0], version[1]}
		}
	}
	return best, cuda
}
