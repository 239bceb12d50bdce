package verda

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

const (
	// extraType is the market offer's attribute with the instance type.
	extraType = "type"
	// image is the one that every type takes here.
	image    = "ubuntu-24.04-cuda-12.8-open-docker"
	oldImage = "ubuntu-22.04-cuda-12.4"
	// The vendor's month has 730 hours, the market's 720.
	vendorMonth, marketMonth = 730, 720
)

// Offer is what the market sells for a type in a location, as spot or on-demand: the vendor stocks them apart. Gpu is the
// vendor's description without the count ("L40S 48GB").
func Offer(instanceType, location string, spot bool, stock int, o market.Offer) market.Offer {
	kind := "on-demand"
	if o.OnDemand = pick(spot, 0, o.OnDemand); spot {
		kind = "spot"
	} else {
		o.MinBid = 0
	}
	o.ID = offerID(instanceType, location, spot)
	o.Machine, o.Host, o.Region = instanceType+"/"+location+"/"+kind, location, location
	o.MachineGPUs = stock * o.GPUs
	o.Extra = map[string]string{extraType: instanceType}
	return o
}

func pick(yes bool, a, b market.Nano) market.Nano {
	if yes {
		return a
	}
	return b
}

func offerID(instanceType, location string, spot bool) string {
	return instanceType + "/" + location + "/" + strconv.FormatBool(spot)
}

// Config is a market in which things take as long, and go wrong as often, as users of Verda report. Prices are lists', spot
// has no bids, and what is taken back is gone.
func Config(seed int64) market.Config {
	c := market.Realistic("verda", seed)
	c.Offers, c.StableOfferIDs, c.SpotPaysFloor, c.LowBidStays = offers(), true, true, false
	c.Walk, c.Reclaim = market.Walk{}, market.Reclaim{PerHour: 0.05, Hold: 10 * time.Minute, Destroys: true}
	c.Boot = market.Boot{Accept: 5 * time.Second, Create: 20 * time.Second, Load: 100 * time.Second, Jitter: 1}
	c.Afterlife = 24 * time.Hour
	c.InstanceID = func(n int64) string { return fmt.Sprintf("2d1f0000-0000-4000-8000-%012x", n) }
	return c
}

// Credentials are those of the account that a key opens, by the names of the environment: it is the client's secret.
func Credentials(key string) map[string]string {
	return map[string]string{"VERDA_CLIENT_ID": "client-of-" + key, "VERDA_CLIENT_SECRET": key}
}

// Clients are the clients of Credentials, for Options.
func Clients(keys []string) map[string]string {
	out := map[string]string{}
	for _, key := range keys {
		out["client-of-"+key] = key
	}
	return out
}

// offers is a catalogue at prices of 2026.
func offers() []market.Offer {
	var out []market.Offer
	for _, t := range []struct {
		name, gpu, driver string
		gpus, gb, cc      int
		cores, ram        int
		price             float64
	}{
		{"1L40S.20V", "L40S 48GB", "NVIDIA L40S", 1, 48, 890, 20, 60, 0.914},
		{"1RTX6000ADA.10V", "RTX6000 Ada 48GB", "NVIDIA RTX 6000 Ada Generation", 1, 48, 890, 10, 60, 0.828},
		{"1A100.22V", "A100 SXM4 80GB", "NVIDIA A100-SXM4-80GB", 1, 80, 800, 22, 120, 1.288},
		{"1H100.80S.30V", "H100 SXM5 80GB", "NVIDIA H100 80GB HBM3", 1, 80, 900, 30, 120, 2.289},
		{"2H100.80S.60V", "H100 SXM5 80GB", "NVIDIA H100 80GB HBM3", 2, 80, 900, 60, 240, 4.578},
		{"1A6000.10V", "RTX A6000 48GB", "NVIDIA RTX A6000", 1, 48, 860, 10, 60, 0.488},
	} {
		for _, location := range []string{"FIN-01", "FIN-03", "ICE-01"} {
			for _, spot := range []bool{false, true} {
				out = append(out, Offer(t.name, location, spot, 4, market.Offer{GPU: t.gpu, DriverGPU: t.driver, GPUs: t.gpus,
					GPUMemoryMB: t.gb * 1024, ComputeCap: t.cc, Driver: "570.86.15", CUDA: 12.8, CPUArch: "amd64", Cores: t.cores,
					EffectiveCores: float64(t.cores), RAMMB: t.ram * 1000, DiskGB: 2000, Ports: 65535, DownMbps: 10000, UpMbps: 10000,
					OnDemand: market.USD(t.price), MinBid: market.USD(t.price / 2), StorageMonth: market.USD(0.2), Reliability: 1,
					Verification: "verified", Datacenter: true, StaticIP: true}))
			}
		}
	}
	return out
}

// known are all offers that were ever on sale, at the prices of now: a type is listed whether or not there is stock.
func (s *Server) known() (all, onSale []market.Offer) {
	onSale = s.market.Offers()
	s.mu.Lock()
	for _, o := range onSale {
		if !slices.Contains(s.seen, o.ID) {
			s.seen = append(s.seen, o.ID)
		}
	}
	seen := slices.Clone(s.seen)
	s.mu.Unlock()
	for _, id := range seen {
		if o, ok := s.market.Offer(id); ok {
			all = append(all, o)
		}
	}
	return all, onSale
}

// row is a type with its prices, gathered from the market's two offers for it.
type row struct {
	offer          market.Offer
	onDemand, spot market.Nano
}

func (s *Server) rows() (names []string, rows map[string]*row, stock map[bool]map[string][]string) {
	rows, stock = map[string]*row{}, map[bool]map[string][]string{false: {}, true: {}}
	all, onSale := s.known()
	for _, o := range all {
		name := o.Extra[extraType]
		if rows[name] == nil {
			rows[name] = &row{offer: o}
			names = append(names, name)
		}
		if o.MinBid > 0 {
			rows[name].spot = o.MinBid
		} else {
			rows[name].onDemand = o.OnDemand
		}
	}
	for _, o := range onSale {
		stock[o.MinBid > 0][o.Region] = append(stock[o.MinBid > 0][o.Region], o.Extra[extraType])
	}
	return names, rows, stock
}

func (s *Server) types(w http.ResponseWriter, r *http.Request) {
	names, rows, _ := s.rows()
	out := []object{{"id": "t-cpu", "instance_type": "CPU.4V.16G", "model": "CPU", "name": "AMD EPYC", "gpu": object{"description": "", "number_of_gpus": 0},
		"gpu_memory": object{"size_in_gigabytes": 0}, "price_per_hour": "0.028", "spot_price": "0.014", "currency": "usd"}}
	for _, name := range names {
		o := rows[name].offer
		gb := o.GPUMemoryMB / 1024
		out = append(out, object{
			"id": "t-" + name, "instance_type": name, "model": strings.Fields(o.GPU)[0], "name": o.GPU, "display_name": "NVIDIA " + o.GPU,
			"manufacturer": "NVIDIA", "cpu": object{"description": strconv.Itoa(o.Cores) + " CPU", "number_of_cores": o.Cores},
			"gpu":        object{"description": strconv.Itoa(o.GPUs) + "x " + o.GPU, "number_of_gpus": o.GPUs},
			"gpu_memory": object{"description": strconv.Itoa(gb*o.GPUs) + "GB GPU RAM", "size_in_gigabytes": gb * o.GPUs},
			"memory":     object{"description": strconv.Itoa(o.RAMMB/1000) + "GB RAM", "size_in_gigabytes": o.RAMMB / 1000},
			"storage":    object{"description": "dynamic"}, "price_per_hour": s.price(rows[name].onDemand), "spot_price": s.price(rows[name].spot),
			"dynamic_price": s.price(rows[name].onDemand / 2), "max_dynamic_price": s.price(rows[name].onDemand * 2),
			"currency": r.URL.Query().Get("currency"), "deploy_warning": nil, "supported_os": []string{oldImage, image},
		})
	}
	reply(w, http.StatusOK, out)
}

// availability is on-demand's unless the flag, in the spelling that this façade reads, says spot.
func (s *Server) availability(w http.ResponseWriter, r *http.Request) {
	flag := "is_spot"
	if s.opts.OldSpotFlag {
		flag = "isSpot"
	}
	_, _, stock := s.rows()
	here := stock[r.URL.Query().Get(flag) == "true"]
	out := []object{}
	for _, location := range s.places() {
		out = append(out, object{"location_code": location, "availabilities": append([]string{"CPU.4V.16G"}, here[location]...)})
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) places() (out []string) {
	all, _ := s.known()
	for _, o := range all {
		if !slices.Contains(out, o.Region) {
			out = append(out, o.Region)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Server) locations(w http.ResponseWriter, _ *http.Request) {
	out := []object{}
	for _, code := range s.places() {
		out = append(out, object{"code": code, "name": code, "country_code": code[:min(2, len(code))]})
	}
	reply(w, http.StatusOK, out)
}

// volumeTypes prices disks as the market does: all of its offers have one price.
func (s *Server) volumeTypes(w http.ResponseWriter, _ *http.Request) {
	var month market.Nano
	all, _ := s.known()
	for _, o := range all {
		month = o.StorageMonth
	}
	price := float64(month) / float64(market.Nano1) * vendorMonth / marketMonth
	reply(w, http.StatusOK, []object{
		{"type": "HDD", "price": object{"price_per_month_per_gb": price / 4, "cps_per_gb": price / 4 / vendorMonth / 36, "currency": "usd"}},
		{"type": "NVMe", "price": object{"price_per_month_per_gb": price, "cps_per_gb": price / vendorMonth / 36, "currency": "usd"}},
	})
}
