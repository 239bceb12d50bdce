package tensordock

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// What vCPUs and memory cost per hour, unless a host's offer says otherwise under these keys of its Extra, in dollars.
const (
	vcpuKey = "per_vcpu_hr"
	ramKey  = "per_gb_ram_hr"

	defaultVCPU market.Nano = 3_000_000
	defaultRAM  market.Nano = 2_000_000
)

// Config is a market in which things take as long, and go wrong as often, as users of TensorDock report. Hosts keep
// their prices, and nothing is sold as spot.
func Config(seed int64) market.Config {
	c := market.Realistic("tensordock", seed)
	c.InstanceID, c.Walk, c.Reclaim, c.LowBidStays = InstanceID, market.Walk{}, market.Reclaim{}, false
	c.Boot = market.Boot{Accept: 5 * time.Second, Create: 10 * time.Second, Load: 90 * time.Second, Jitter: 1}
	c.ListLag, c.DestroyLag = 5*time.Second, 15*time.Second
	return c
}

// NodeID is the id of the hostnode that a machine of the market is.
func NodeID(machine string) string { return uuid("node", machine) }

// LocationID is the id of the data centre that a region of the market is.
func LocationID(region string) string { return uuid("location", region) }

func uuid(kind, name string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind + "/" + name)) // A hash never fails to write.
	sum := h.Sum64()
	return fmt.Sprintf("1a77%04x-0000-4000-8000-%012x", sum>>48, sum&(1<<48-1))
}

// node is a machine with what is on sale of it now: slices by their number of GPUs.
type node struct {
	offer  market.Offer // the largest slice, or the one that was last on sale
	slices map[int]market.Offer
}

// nodes are all machines that are on sale, in the order of listing.
func (s *Server) nodes() []node {
	var out []node
	at := map[string]int{}
	for _, o := range s.market.Offers() {
		if o.OnDemand <= 0 || o.CPUArch == "arm64" {
			continue
		}
		i, ok := at[o.Machine]
		if !ok {
			i = len(out)
			at[o.Machine] = i
			out = append(out, node{offer: o, slices: map[int]market.Offer{}})
		}
		out[i].slices[o.GPUs] = o
		if o.GPUs > out[i].offer.GPUs {
			out[i].offer = o
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range out {
		if _, known := s.seen[n.offer.Machine]; !known {
			s.order = append(s.order, n.offer.Machine)
		}
		s.seen[n.offer.Machine] = n.offer
	}
	return out
}

// everSeen are the machines that were ever on sale, as they last were.
func (s *Server) everSeen() []market.Offer {
	if now := s.nodes(); s.opts.FreshLocations {
		out := make([]market.Offer, len(now))
		for i, n := range now {
			out[i] = n.offer
		}
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]market.Offer, len(s.order))
	for i, m := range s.order {
		out[i] = s.seen[m]
	}
	return out
}

// available is the most GPUs that one VM can have.
func (n node) available() int {
	most := 0
	for size := range n.slices {
		most = max(most, size)
	}
	return most
}

// perGPU is the price of one GPU of a slice.
func perGPU(o market.Offer) market.Nano { return o.OnDemand / market.Nano(max(1, o.GPUs)) }

// vcpus and ramGB are what a slice has to give, its share of the machine.
func vcpus(o market.Offer) int {
	if o.EffectiveCores > 0 {
		return int(o.EffectiveCores)
	}
	return o.Cores * o.GPUs / max(1, o.MachineGPUs)
}

func ramGB(o market.Offer) int { return o.RAMMB / 1000 * o.GPUs / max(1, o.MachineGPUs) }

func rate(o market.Offer, key string, otherwise market.Nano) market.Nano {
	if d, err := strconv.ParseFloat(o.Extra[key], 64); err == nil {
		return market.USD(d)
	}
	return otherwise
}

// computeRate is what a VM costs without its disk.
func computeRate(o market.Offer, gpus, vcpus, ramGB int) market.Nano {
	return perGPU(o)*market.Nano(gpus) + rate(o, vcpuKey, defaultVCPU)*market.Nano(vcpus) +
		rate(o, ramKey, defaultRAM)*market.Nano(ramGB)
}

// v0Names are the vendor's spellings of what the market has under its own; %d is the memory where it sells two sizes.
func v0Names() map[string]string {
	return map[string]string{
		"RTX 3090": "geforcertx3090-pcie-24gb", "RTX 4090": "geforcertx4090-pcie-24gb", "RTX 5090": "geforcertx5090-pcie-32gb",
		"RTX A4000": "rtxa4000-pcie-16gb", "RTX A5000": "rtxa5000-pcie-24gb", "RTX A6000": "rtxa6000-pcie-48gb",
		"RTX 6000Ada": "rtx6000ada-pcie-48gb", "L4": "l4-pcie-24gb", "L40": "l40-pcie-48gb", "L40S": "l40s-pcie-48gb",
		"A40": "a40-pcie-48gb", "A100 PCIE": "a100-pcie-%dgb", "A100 SXM4": "a100-sxm4-%dgb", "H100 SXM": "h100-sxm5-80gb",
		"Tesla V100": "v100-sxm2-%dgb",
	}
}

func v0Name(o market.Offer) string {
	name, ok := v0Names()[o.GPU]
	if !ok {
		name = strings.ToLower(strings.ReplaceAll(o.GPU, " ", "")) + "-pcie-%dgb"
	}
	if !strings.Contains(name, "%d") {
		return name
	}
	gb := (o.GPUMemoryMB + 512) / 1024
	if name = fmt.Sprintf(name, gb); name == "a100-sxm4-40gb" {
		return "a100-nvlink-40gb"
	}
	return name
}

// money is a price on the wire.
func (s *Server) money(dollars float64) any {
	if s.opts.TextPrices {
		return strconv.FormatFloat(dollars, 'f', -1, 64)
	}
	return dollars
}

// pricing is $/h for each vCPU and for each GB. Disk is not rounded: the market counts by the month.
func (s *Server) pricing(o market.Offer) object {
	return object{"per_vcpu_hr": s.money(rate(o, vcpuKey, defaultVCPU).Dollars()),
		"per_gb_ram_hr":     s.money(rate(o, ramKey, defaultRAM).Dollars()),
		"per_gb_storage_hr": s.money(o.StorageMonth.Dollars() / (30 * 24))}
}

// place splits "Oslo, NO".
func place(region string) (city, country string) {
	city, code, _ := strings.Cut(region, ", ")
	names := map[string]string{"NO": "Norway", "CA": "Canada", "US": "United States", "PL": "Poland", "BG": "Bulgaria",
		"DE": "Germany", "FR": "France", "IS": "Iceland", "JP": "Japan", "KR": "South Korea", "TW": "Taiwan", "IN": "India",
		"CZ": "Czechia", "SE": "Sweden"}
	if name, ok := names[code]; ok {
		return city, name
	}
	return city, code
}

// tier is better for better hosts, up to four.
func tier(o market.Offer) int {
	switch {
	case o.Verification != "verified":
		return 0
	case o.Datacenter:
		return 4
	case o.Reliability >= 0.99:
		return 3
	}
	return 2
}

func (s *Server) hasIP(o market.Offer) bool {
	return !s.opts.NoPublicIPs && (o.StaticIP || s.opts.StaleIPs)
}

const (
	firstPort = 20000
	mostPorts = 40
)

// takenPorts are those that live instances asked for and got, by machine.
func (s *Server) takenPorts() map[string][]string {
	out := map[string][]string{}
	for _, in := range s.market.Books().Live() {
		out[in.Offer.Machine] = append(out[in.Offer.Machine], strings.Fields(strings.Trim(in.Extra[extraPorts], "[]"))...)
	}
	return out
}

// freePorts are the others of a machine.
func freePorts(o market.Offer, taken map[string][]string) []int {
	free := []int{}
	for port := firstPort; port < firstPort+min(o.Ports, mostPorts); port++ {
		if !slices.Contains(taken[o.Machine], strconv.Itoa(port)) {
			free = append(free, port)
		}
	}
	return free
}

func (s *Server) nodeRow(n node, taken map[string][]string) object {
	o := n.offer
	city, country := place(o.Region)
	return object{"id": NodeID(o.Machine), "location_id": LocationID(o.Region), "engine": "kvm",
		"uptime_percentage": o.Reliability * 100, "pricing": s.pricing(o),
		"available_resources": object{
			"gpus":       []object{{"v0Name": v0Name(o), "availableCount": n.available(), "price_per_hr": s.money(perGPU(o).Dollars())}},
			"vcpu_count": vcpus(o), "ram_gb": ramGB(o), "storage_gb": int(o.DiskGB),
			"available_ports": freePorts(o, taken), "has_public_ip_available": s.hasIP(o)},
		"location": object{"uuid": LocationID(o.Region), "city": city, "stateprovince": city, "country": country,
			"tier": tier(o), "has_network_storage": false, "network_speed_gbps": o.DownMbps / 1000,
			"network_speed_upload_gbps": o.UpMbps / 1000, "organization": "org-" + o.Host, "organizationName": "Host " + o.Host}}
}

func (s *Server) hostnodes(w http.ResponseWriter, _ *http.Request) {
	rows := []object{}
	taken := s.takenPorts()
	for _, n := range s.nodes() {
		rows = append(rows, s.nodeRow(n, taken))
	}
	reply(w, http.StatusOK, object{"data": object{"hostnodes": rows}})
}

func (s *Server) hostnode(w http.ResponseWriter, r *http.Request) {
	for _, n := range s.nodes() {
		if NodeID(n.offer.Machine) == r.PathValue("id") {
			reply(w, http.StatusOK, object{"data": s.nodeRow(n, s.takenPorts())})
			return
		}
	}
	reply(w, http.StatusNotFound, object{"error": "Hostnode not found", "status": http.StatusNotFound})
}

// model is one GPU in one data centre: its cheapest host and its largest.
type model struct {
	cheapest market.Offer
	most     int
}

// locations is the market by data centre and model: the lowest price, the largest machine, and what may be sold out.
func (s *Server) locations(w http.ResponseWriter, _ *http.Request) {
	models := map[string]*model{}
	var regions []string
	names := map[string][]string{}
	for _, o := range s.everSeen() {
		if names[o.Region] == nil {
			regions = append(regions, o.Region)
		}
		key := o.Region + "/" + v0Name(o)
		m := models[key]
		if m == nil {
			m = &model{cheapest: o}
			models[key] = m
			names[o.Region] = append(names[o.Region], v0Name(o))
		}
		if m.most = max(m.most, o.MachineGPUs); perGPU(o) < perGPU(m.cheapest) {
			m.cheapest = o
		}
	}
	rows := []object{}
	for _, region := range regions {
		city, country := place(region)
		gpus := []object{}
		best := 0
		for _, name := range names[region] {
			m := models[region+"/"+name]
			gpus = append(gpus, s.modelRow(*m))
			best = max(best, tier(m.cheapest))
		}
		rows = append(rows, object{"id": LocationID(region), "city": city, "stateprovince": city, "country": country,
			"tier": best, "gpus": gpus})
	}
	reply(w, http.StatusOK, object{"data": object{"locations": rows}})
}

func (s *Server) modelRow(m model) object {
	o := m.cheapest
	return object{"v0Name": v0Name(o), "displayName": o.DriverGPU, "max_count": m.most,
		"price_per_hr": s.money(perGPU(o).Dollars()), "pricing": s.pricing(o),
		"resources": object{"max_vcpus": vcpus(o), "max_ram_gb": ramGB(o), "max_storage_gb": int(o.DiskGB)},
		"network_features": object{"dedicated_ip_available": s.hasIP(o), "port_forwarding_available": o.Ports >= 2,
			"network_storage_available": false}}
}
