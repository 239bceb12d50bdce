package runpod

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// What an offer of the market says in Extra beyond what every market knows.
const (
	// extraCloud is cloudSecure or cloudCommunity. The offer's Region is the data centre, empty where none is named.
	extraCloud = "cloud"
	// extraMaker is the GPU's manufacturer; NVIDIA when empty.
	extraMaker = "manufacturer"
	// extraMemory is the GPU's memory as listed, in GB; what its driver reports when empty.
	extraMemory = "memory"
)

const (
	cloudSecure    = "SECURE"
	cloudCommunity = "COMMUNITY"
)

// gpuType is a type as the catalogue lists it, whether or not any is free. It holds no reference, so that a copy is one.
type gpuType struct {
	id, maker         string
	memoryGB          int
	secure, community terms
}

// terms are those of one cloud: the price of one GPU, and the most that a pod can have.
type terms struct {
	price market.Nano
	most  int
}

// onSale is what is free now; what has been on sale is in the catalogue from then on.
func (s *Server) onSale() []market.Offer {
	offers := s.market.Offers()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range offers {
		t, ok := s.types[o.GPU]
		if !ok {
			t = gpuType{id: o.GPU, maker: o.Extra[extraMaker]}
			if gb, err := strconv.Atoi(o.Extra[extraMemory]); err == nil {
				t.memoryGB = gb
			} else {
				t.memoryGB = (o.GPUMemoryMB + 512) / 1024
			}
			if t.maker == "" {
				t.maker = "NVIDIA"
			}
			s.order = append(s.order, o.GPU)
		}
		in := &t.secure
		if o.Extra[extraCloud] == cloudCommunity {
			in = &t.community
		}
		in.price, in.most = o.OnDemand/market.Nano(o.GPUs), max(in.most, o.GPUs)
		s.types[o.GPU] = t
	}
	return offers
}

// filter is the query of a catalogue.
type filter struct {
	availability bool
	count        int
	cloud        string
	countries    []string
	cuda         func(version float64) bool
}

var (
	cudaVersion = regexp.MustCompile(`^\d+\.\d+$`)
	cudaFloor   = regexp.MustCompile(`^\d+(\.\d+)?$`)
	countryCode = regexp.MustCompile(`^[A-Z]{2}$`)
)

// readFilter reads a query by the rules of the description; unknown parameters are ignored.
func readFilter(r *http.Request) (f filter, status int, detail string) {
	v := r.URL.Query()
	f = filter{count: 1, cloud: cloudSecure, cuda: func(float64) bool { return true }}
	f.availability = v.Get("include") == "AVAILABILITY"
	switch {
	case v.Get("include") != "" && !f.availability:
		return f, http.StatusUnprocessableEntity, "include: unsupported value"
	case f.availability != (v.Get("product") != ""):
		return f, http.StatusBadRequest, "include=AVAILABILITY requires product, and product is valid only with it"
	}
	for _, p := range strings.Split(v.Get("product"), ",") {
		if p != "" && p != "POD" && p != "CLUSTER" && p != "SERVERLESS" {
			return f, http.StatusUnprocessableEntity, "product: unsupported value"
		}
	}
	for _, name := range []string{"count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion"} {
		if v.Get(name) != "" && !f.availability {
			return f, http.StatusBadRequest, name + " is valid only with include=AVAILABILITY"
		}
	}
	if text := v.Get("count"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return f, http.StatusUnprocessableEntity, "count must be a positive integer"
		}
		f.count = n
	}
	if c := v.Get("cloud"); c != "" {
		if c != cloudSecure && c != cloudCommunity {
			return f, http.StatusUnprocessableEntity, "cloud: unsupported value"
		}
		f.cloud = c
	}
	return f.readLists(v.Get("countryCodes"), v.Get("cudaVersions"), v.Get("minCudaVersion"))
}

func (f filter) readLists(countries, versions, floor string) (filter, int, string) {
	split := func(s string) []string {
		return slices.DeleteFunc(strings.Split(s, ","), func(p string) bool { return p == "" })
	}
	for _, c := range split(countries) {
		if !countryCode.MatchString(c) {
			return f, http.StatusUnprocessableEntity, "countryCodes: malformed entry"
		}
		f.countries = append(f.countries, c)
	}
	if versions != "" && floor != "" {
		return f, http.StatusBadRequest, "cudaVersions and minCudaVersion are mutually exclusive"
	}
	for _, c := range split(versions) {
		if !cudaVersion.MatchString(c) {
			return f, http.StatusUnprocessableEntity, "cudaVersions: malformed entry"
		}
	}
	if versions != "" {
		f.cuda = func(v float64) bool { return slices.Contains(split(versions), version(v)) }
	}
	if floor != "" {
		if !cudaFloor.MatchString(floor) {
			return f, http.StatusUnprocessableEntity, "minCudaVersion: malformed value"
		}
		least, _ := strconv.ParseFloat(floor, 64) // The pattern is that of a number.
		f.cuda = func(v float64) bool { return v >= least }
	}
	return f, 0, ""
}

// version is a CUDA version on the wire. The market's versions have one decimal.
func version(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

func (f filter) fits(o market.Offer) bool {
	return o.GPUs == f.count && o.Extra[extraCloud] == f.cloud && f.cuda(o.CUDA) &&
		(len(f.countries) == 0 || slices.ContainsFunc(f.countries, func(c string) bool { return country(o.Region) == c }))
}

// country is the code in a data centre's name: EU-RO-1 is in RO, US-KS-2 in US.
func country(dataCenter string) string {
	parts := strings.Split(dataCenter, "-")
	if len(parts) == 3 && (parts[0] == "EU" || parts[0] == "EUR" || parts[0] == "AP") {
		return parts[1]
	}
	return parts[0]
}

func (s *Server) gpus(w http.ResponseWriter, r *http.Request, _ caller) {
	f, status, detail := readFilter(r)
	if status != 0 {
		fail(w, status, detail)
		return
	}
	free := s.onSale()
	s.mu.Lock()
	types := make([]gpuType, 0, len(s.order))
	for _, id := range s.order {
		types = append(types, s.types[id])
	}
	s.mu.Unlock()
	rows := []object{}
	for _, t := range types {
		row := s.typeRow(t, f, free)
		if len(f.countries) > 0 && row["dataCenters"] == nil {
			continue
		}
		rows = append(rows, row)
	}
	reply(w, http.StatusOK, object{"gpus": rows})
}

func (s *Server) gpu(w http.ResponseWriter, r *http.Request, _ caller) {
	f, status, detail := readFilter(r)
	if status != 0 {
		fail(w, status, detail)
		return
	}
	free := s.onSale()
	s.mu.Lock()
	t, ok := s.types[r.PathValue("id")]
	s.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound, "gpu type not found")
		return
	}
	reply(w, http.StatusOK, s.typeRow(t, f, free))
}

func (s *Server) typeRow(t gpuType, f filter, free []market.Offer) object {
	secure, community := t.secure.price, t.community.price
	row := object{"id": t.id, "name": strings.TrimPrefix(strings.TrimPrefix(t.id, "NVIDIA "), "GeForce "), "pool": nil,
		"manufacturer": t.maker, "memory": t.memoryGB, "secure": secure > 0, "community": community > 0,
		"price":    object{"secure": s.dollars(secure), "community": s.dollars(community)},
		"maxCount": object{"secure": t.secure.most, "community": t.community.most}}
	if !f.availability {
		return row
	}
	places, versions, all := map[string]int{}, map[string]bool{}, 0
	for _, o := range free {
		if o.GPU != t.id || !f.fits(o) {
			continue
		}
		all++
		if o.Region != "" {
			places[o.Region]++
		}
		if o.CUDA > 0 {
			versions[version(o.CUDA)] = true
		}
	}
	row["availability"] = level(all)
	if len(places) > 0 {
		row["dataCenters"] = placeRows(places)
	}
	if len(versions) > 0 {
		row["cudaVersions"] = versionRows(versions)
	}
	return row
}

func placeRows(places map[string]int) []object {
	var out []object
	for id, n := range places {
		out = append(out, object{"id": id, "name": id, "availability": level(n)})
	}
	slices.SortFunc(out, byName("id"))
	return out
}

func versionRows(versions map[string]bool) []object {
	var out []object
	for v := range versions {
		out = append(out, object{"version": v, "available": true})
	}
	slices.SortFunc(out, byName("version"))
	return out
}

func byName(key string) func(a, b object) int {
	return func(a, b object) int {
		x, _ := a[key].(string)
		y, _ := b[key].(string)
		return strings.Compare(x, y)
	}
}

// level is the hint that the catalogue gives for a number that is free.
func level(n int) string {
	switch {
	case n == 0:
		return "NONE"
	case n == 1:
		return "LOW"
	case n < 5:
		return "MEDIUM"
	}
	return "HIGH"
}
