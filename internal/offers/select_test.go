package offers

import (
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

var noon = time.Date(2026, 8, 3, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// aGood offer satisfies aNeed exactly.
func aGood() provider.Offer {
	return provider.Offer{
		Provider: provider.VastAI, ID: "17", CapacityType: provider.Spot, GPU: "RTX4090", GPUCount: 2, VRAMGB: 24,
		RAMGB: ptr(64), DiskGB: 100, Region: "SE", CPUArch: "amd64", Price: money.MustParse("0.50"),
		Reliability: ptr(0.98), MaxCUDA: &[2]int{12, 8}, RestKeys: []provider.RestKey{"machine/4411", "host/90"},
	}
}

func aNeed() Need {
	return Need{
		Provider: provider.VastAI, CapacityType: provider.Spot, Account: "acc",
		GPUTypeSets: [][]string{{"RTX 3090", "RTX 4090"}, nil, {"rtx4090"}}, GPUCount: 2, MinGPUCount: 2,
		MinTotalVRAMGB: 48, MinVRAMGBPerGPU: 24, MaxVRAMGBPerGPU: 24, MinDiskGB: 100, MinRAMGB: 64,
		MinReliability: ptr(0.98), MinCUDA: &[2]int{12, 8}, Regions: []string{"NO", "se"},
		MaxPrice: money.MustParse("0.50"),
	}
}

func TestJudge(t *testing.T) {
	if got := Judge(aGood(), aNeed(), nil, noon); got != Fits {
		t.Fatalf("an offer at every limit is %s", got)
	}
	resting := func(k rest.Key) rest.View { return rest.View{k: {Key: k, Until: noon.Add(time.Minute)}} }
	for name, c := range map[string]struct {
		want  Rejection
		edit  func(*provider.Offer, *Need)
		rests rest.View
	}{
		"other provider":    {WrongProvider, func(o *provider.Offer, _ *Need) { o.Provider = provider.RunPod }, nil},
		"any provider":      {Fits, func(o *provider.Offer, n *Need) { o.Provider = provider.RunPod; n.Provider = "" }, nil},
		"on-demand":         {WrongCapacityType, func(o *provider.Offer, _ *Need) { o.CapacityType = provider.OnDemand }, nil},
		"any capacity type": {Fits, func(o *provider.Offer, n *Need) { o.CapacityType = provider.OnDemand; n.CapacityType = "" }, nil},
		"unknown GPU":       {UnknownGPU, func(o *provider.Offer, _ *Need) { o.GPU = gpu.Unknown("RTX 4090") }, nil},
		"no GPU name":       {UnknownGPU, func(o *provider.Offer, _ *Need) { o.GPU = "" }, nil},
		"unknown among any": {UnknownGPU, func(o *provider.Offer, n *Need) { o.GPU = gpu.Unknown("X"); n.GPUTypeSets = nil }, nil},
		"in one list only":  {WrongGPU, func(o *provider.Offer, _ *Need) { o.GPU = "RTX3090" }, nil},
		"A10 is not A100":   {WrongGPU, func(o *provider.Offer, n *Need) { o.GPU = "A100-80GB-SXM"; n.GPUTypeSets = [][]string{{"A10"}} }, nil},
		"A100 is every A100": {TooMuchVRAM, func(o *provider.Offer, n *Need) {
			o.GPU, o.VRAMGB = "A100-80GB-SXM", 80
			n.GPUTypeSets = [][]string{{"A100"}}
		}, nil},
		"without CUDA": {NoCUDA, func(o *provider.Offer, n *Need) { o.GPU, o.VRAMGB = "MI300X", 192; n.GPUTypeSets = [][]string{{}} }, nil},
		"without CUDA, by name": {TooMuchVRAM, func(o *provider.Offer, n *Need) {
			o.GPU, o.VRAMGB = "MI300X", 192
			n.GPUTypeSets = [][]string{{"MI300X"}}
		}, nil},
		"arm64":                         {WrongArch, func(o *provider.Offer, _ *Need) { o.CPUArch = "arm64" }, nil},
		"arm64 asked":                   {Fits, func(o *provider.Offer, n *Need) { o.CPUArch, n.CPUArch = "arm64", "arm64" }, nil},
		"arch not said":                 {WrongArch, func(o *provider.Offer, _ *Need) { o.CPUArch = "" }, nil},
		"too many GPUs":                 {WrongGPUCount, func(o *provider.Offer, _ *Need) { o.GPUCount = 4 }, nil},
		"too few GPUs":                  {WrongGPUCount, func(o *provider.Offer, n *Need) { o.GPUCount = 1; n.GPUCount = 0 }, nil},
		"any count":                     {Fits, func(o *provider.Offer, n *Need) { o.GPUCount = 8; n.GPUCount = 0 }, nil},
		"no GPU":                        {WrongGPUCount, func(o *provider.Offer, n *Need) { o.GPUCount = 0; n.GPUCount, n.MinGPUCount = 0, 0 }, nil},
		"total VRAM":                    {TooLittleVRAM, func(_ *provider.Offer, n *Need) { n.MinTotalVRAMGB = 49 }, nil},
		"VRAM per GPU":                  {TooLittleVRAM, func(_ *provider.Offer, n *Need) { n.MinVRAMGBPerGPU = 25 }, nil},
		"VRAM above":                    {TooMuchVRAM, func(_ *provider.Offer, n *Need) { n.MaxVRAMGBPerGPU = 23 }, nil},
		"reported VRAM":                 {Fits, func(o *provider.Offer, _ *Need) { o.VRAMGB = 23 }, nil},
		"VRAM not said":                 {Fits, func(o *provider.Offer, _ *Need) { o.VRAMGB = 0 }, nil},
		"memory added":                  {TooMuchVRAM, func(o *provider.Offer, _ *Need) { o.VRAMGB = 48 }, nil},
		"disk":                          {TooLittleDisk, func(o *provider.Offer, _ *Need) { o.DiskGB, o.MaxDiskGB = 99, 900 }, nil},
		"RAM":                           {TooLittleRAM, func(o *provider.Offer, _ *Need) { o.RAMGB = ptr(63) }, nil},
		"RAM not said":                  {TooLittleRAM, func(o *provider.Offer, _ *Need) { o.RAMGB = nil }, nil},
		"RAM not said nor asked":        {Fits, func(o *provider.Offer, n *Need) { o.RAMGB = nil; n.MinRAMGB = 0 }, nil},
		"reliability":                   {Unreliable, func(o *provider.Offer, _ *Need) { o.Reliability = ptr(0.9799) }, nil},
		"reliability not said":          {Unreliable, func(o *provider.Offer, _ *Need) { o.Reliability = nil }, nil},
		"reliability not said, 0 asked": {Unreliable, func(o *provider.Offer, n *Need) { o.Reliability, n.MinReliability = nil, ptr(0.0) }, nil},
		"reliability no number":         {Unreliable, func(o *provider.Offer, _ *Need) { o.Reliability = ptr(math.NaN()) }, nil},
		"leaves soon":                   {LeavesSoon, func(o *provider.Offer, _ *Need) { o.AvailableFor = ptr(time.Hour - 1) }, nil},
		"stays an hour":                 {Fits, func(o *provider.Offer, _ *Need) { o.AvailableFor = ptr(time.Hour) }, nil},
		"CUDA minor":                    {OldCUDA, func(o *provider.Offer, _ *Need) { o.MaxCUDA = &[2]int{12, 7} }, nil},
		"CUDA major":                    {OldCUDA, func(o *provider.Offer, _ *Need) { o.MaxCUDA = &[2]int{11, 9} }, nil},
		"CUDA above":                    {Fits, func(o *provider.Offer, _ *Need) { o.MaxCUDA = &[2]int{13, 0} }, nil},
		"CUDA not said":                 {OldCUDA, func(o *provider.Offer, _ *Need) { o.MaxCUDA = nil }, nil},
		"region":                        {WrongRegion, func(o *provider.Offer, _ *Need) { o.Region = "DE" }, nil},
		"region not said":               {WrongRegion, func(o *provider.Offer, n *Need) { o.Region = ""; n.Regions = []string{""} }, nil},
		"any region":                    {Fits, func(o *provider.Offer, n *Need) { o.Region, n.Regions = "", nil }, nil},
		"over price":                    {OverPrice, func(o *provider.Offer, _ *Need) { o.Price = money.MustParse("0.500001") }, nil},
		"price not said":                {NoPrice, func(o *provider.Offer, _ *Need) { o.Price = money.Dollars{} }, nil},
		"price below nothing":           {NoPrice, func(o *provider.Offer, _ *Need) { o.Price = money.FromMicros(-1) }, nil},
		"no limit given":                {OverPrice, func(_ *provider.Offer, n *Need) { n.MaxPrice = money.Dollars{} }, nil},
		"any price":                     {Fits, func(o *provider.Offer, n *Need) { o.Price, n.MaxPrice = money.MustParse("99"), AnyPrice() }, nil},
		"machine rests":                 {Resting, nil, resting(rest.OfferKey(provider.VastAI, "machine/4411"))},
		"host rests":                    {Resting, nil, resting(rest.OfferKey(provider.VastAI, "host/90"))},
		"ID rests":                      {Resting, nil, resting(rest.OfferKey(provider.VastAI, "offer-id/17"))},
		"account rests":                 {Resting, nil, resting(rest.AccountKey(provider.VastAI, "acc"))},
		"other account rests":           {Fits, nil, resting(rest.AccountKey(provider.VastAI, "other"))},
		"same scope elsewhere":          {Fits, nil, resting(rest.OfferKey(provider.RunPod, "host/90"))},
		"rest is over":                  {Fits, nil, rest.View{rest.OfferKey(provider.VastAI, "host/90"): {Until: noon}}},
		"price before rest":             {OverPrice, func(_ *provider.Offer, n *Need) { n.MaxPrice = money.MustParse("0.49") }, resting(rest.OfferKey(provider.VastAI, "host/90"))},
	} {
		o, n := aGood(), aNeed()
		if c.edit != nil {
			c.edit(&o, &n)
		}
		if got := Judge(o, n, c.rests, noon); got != c.want {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
}

func TestRejectionsAreAClosedListWithPhrases(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rejections() {
		p := r.Phrase()
		if p == "" || p == string(r) || seen[p] {
			t.Errorf("%s has the phrase %q", r, p)
		}
		seen[p] = true
	}
	if Fits.Phrase() != "" {
		t.Error("Fits has a phrase")
	}
}

// anOffer draws offers whose attributes collide with those of anyNeed often and are missing often.
func anOffer() *rapid.Generator[provider.Offer] {
	names := append(gpu.Names(), gpu.Unknown("Foo"), "")
	return rapid.Custom(func(t *rapid.T) provider.Offer {
		o := provider.Offer{
			Provider:     rapid.SampledFrom([]provider.Name{provider.VastAI, provider.RunPod}).Draw(t, "provider"),
			ID:           rapid.StringMatching(`[a-z]{3}`).Draw(t, "id"),
			CapacityType: rapid.SampledFrom([]provider.CapacityType{provider.Spot, provider.OnDemand}).Draw(t, "capacity"),
			GPU:          rapid.SampledFrom(names).Draw(t, "gpu"),
			GPUCount:     rapid.IntRange(0, 8).Draw(t, "count"),
			VRAMGB:       rapid.SampledFrom([]int{0, 16, 23, 24, 48, 80}).Draw(t, "vram"),
			DiskGB:       rapid.IntRange(0, 3).Draw(t, "disk"),
			Region:       rapid.SampledFrom([]string{"", "SE", "US"}).Draw(t, "region"),
			CPUArch:      rapid.SampledFrom([]string{"amd64", "amd64", "amd64", "arm64", ""}).Draw(t, "arch"),
			Price:        money.FromMicros(rapid.Int64Range(0, 3).Draw(t, "price")),
			TrafficPerGB: rapid.Int64Range(0, 2).Draw(t, "traffic"),
			RAMGB:        rapid.Ptr(rapid.IntRange(0, 4), true).Draw(t, "ram"),
			Reliability:  rapid.Ptr(rapid.SampledFrom([]float64{0, 0.5, 1, math.NaN()}), true).Draw(t, "reliability"),
			RestKeys: rapid.SliceOfN(rapid.SampledFrom([]provider.RestKey{"m/1", "m/2", "h/1"}), 0, 2).
				Draw(t, "rest keys"),
		}
		if rapid.Bool().Draw(t, "has CUDA") {
			o.MaxCUDA = &[2]int{rapid.IntRange(11, 13).Draw(t, "major"), rapid.IntRange(0, 9).Draw(t, "minor")}
		}
		return o
	})
}

func anyNeed() *rapid.Generator[Need] {
	entries := rapid.SliceOfN(rapid.SampledFrom([]string{"A100", "RTX 4090", "L4", "H100-SXM", "nonsense"}), 0, 3)
	return rapid.Custom(func(t *rapid.T) Need {
		n := Need{
			Provider:        rapid.SampledFrom([]provider.Name{"", provider.VastAI}).Draw(t, "provider"),
			CapacityType:    rapid.SampledFrom([]provider.CapacityType{"", provider.Spot}).Draw(t, "capacity"),
			Account:         "acc",
			GPUTypeSets:     rapid.SliceOfN(entries, 0, 2).Draw(t, "types"),
			GPUCount:        rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "count"),
			MinGPUCount:     rapid.IntRange(0, 2).Draw(t, "min count"),
			MinTotalVRAMGB:  rapid.SampledFrom([]int{0, 24, 100}).Draw(t, "total"),
			MinVRAMGBPerGPU: rapid.SampledFrom([]int{0, 24}).Draw(t, "each"),
			MaxVRAMGBPerGPU: rapid.SampledFrom([]int{0, 24, 80}).Draw(t, "max"),
			MinDiskGB:       rapid.IntRange(0, 2).Draw(t, "disk"),
			MinRAMGB:        rapid.IntRange(0, 2).Draw(t, "ram"),
			MinReliability:  rapid.Ptr(rapid.SampledFrom([]float64{0, 0.5}), true).Draw(t, "reliability"),
			Regions:         rapid.SliceOfN(rapid.SampledFrom([]string{"se", "US"}), 0, 1).Draw(t, "regions"),
			MaxPrice:        money.FromMicros(rapid.Int64Range(0, 3).Draw(t, "price")),
		}
		if rapid.Bool().Draw(t, "asks CUDA") {
			n.MinCUDA = &[2]int{12, rapid.IntRange(0, 9).Draw(t, "minor")}
		}
		return n
	})
}

func someRests() *rapid.Generator[rest.View] {
	key := rapid.SampledFrom([]rest.Key{
		rest.OfferKey(provider.VastAI, "m/1"), rest.OfferKey(provider.RunPod, "h/1"), rest.AccountKey(provider.RunPod, "acc"),
	})
	return rapid.Custom(func(t *rapid.T) rest.View {
		v := rest.View{}
		for _, k := range rapid.SliceOfN(key, 0, 2).Draw(t, "keys") {
			v[k] = rest.Rest{Key: k, Until: noon.Add(time.Duration(rapid.IntRange(-1, 3).Draw(t, "minutes")) * time.Minute)}
		}
		return v
	})
}

// satisfies is what a kept offer must be, written down apart from the criteria.
func satisfies(o provider.Offer, n Need) bool {
	vram := 0
	if spec, ok := gpu.SpecOf(o.GPU); ok {
		vram = spec.VRAMGB
		if o.VRAMGB > 0 && math.Abs(float64(o.VRAMGB-vram)) > 0.07*float64(vram) {
			vram = o.VRAMGB
		}
	}
	types := 0
	for _, set := range n.GPUTypeSets {
		ok := len(set) == 0
		for _, entry := range set {
			types++
			ok = ok || slices.Contains(gpu.Expand(entry), o.GPU)
		}
		if !ok {
			return false
		}
	}
	return (n.Provider == "" || n.Provider == o.Provider) && (n.CapacityType == "" || n.CapacityType == o.CapacityType) &&
		o.GPU.Known() && (types > 0 || o.GPU != "MI300X") && o.CPUArch == "amd64" &&
		o.GPUCount >= 1 && o.GPUCount >= n.MinGPUCount && (n.GPUCount == 0 || n.GPUCount == o.GPUCount) &&
		vram*o.GPUCount >= n.MinTotalVRAMGB && vram >= n.MinVRAMGBPerGPU &&
		(n.MaxVRAMGBPerGPU == 0 || vram <= n.MaxVRAMGBPerGPU) && o.DiskGB >= n.MinDiskGB &&
		(n.MinRAMGB == 0 || o.RAMGB != nil && *o.RAMGB >= n.MinRAMGB) &&
		(n.MinReliability == nil || o.Reliability != nil && *o.Reliability >= *n.MinReliability) &&
		(n.MinCUDA == nil || o.MaxCUDA != nil && o.MaxCUDA[0]*100+o.MaxCUDA[1] >= n.MinCUDA[0]*100+n.MinCUDA[1]) &&
		(len(n.Regions) == 0 || strings.EqualFold(n.Regions[0], o.Region)) && o.Price.Cmp(n.MaxPrice) <= 0 && o.Price.Micros() > 0
}

func TestSelectPartitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(anOffer(), 0, 30).Draw(t, "offers")
		n, rests := anyNeed().Draw(t, "need"), someRests().Draw(t, "rests")
		kept, why := Select(all, n, rests, noon)

		want, resting := 0, 0
		for _, o := range all {
			rests, ok := restsUntil(o, n.Account, rests, noon)
			switch {
			case !satisfies(o, n):
			case ok:
				resting++
				if why.RestingUntil.After(rests) {
					t.Fatalf("resting until %s, but one is back at %s", why.RestingUntil, rests)
				}
			default:
				want++
			}
		}
		if len(kept) != want || why.Kept() != want || why.Total != len(all) || why.Counts[Resting] != resting {
			t.Fatalf("%d kept, %d resting of %d; want %d and %d: %s", len(kept), why.Counts[Resting], len(all), want, resting, why)
		}
		for _, o := range kept {
			if !satisfies(o, n) || Judge(o, n, rests, noon) != Fits {
				t.Fatalf("%+v does not satisfy %+v", o, n)
			}
		}
		if (resting > 0) == why.RestingUntil.IsZero() {
			t.Fatalf("%d rest until %s", resting, why.RestingUntil)
		}
	})
}

func TestOrderIsTotalAndDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(anOffer(), 0, 30).Draw(t, "offers")
		for i := range all { // a need that all satisfy
			all[i].GPU, all[i].GPUCount, all[i].CPUArch, all[i].ID = "RTX4090", 1, "amd64", string(rune('a'+i))
			all[i].Price = all[i].Price.Add(money.FromMicros(1))
		}
		kept, _ := Select(all, Need{MaxPrice: AnyPrice()}, nil, noon)
		seed := rapid.Int64().Draw(t, "seed")
		shuffled := slices.Clone(all)
		rand.New(rand.NewSource(seed)).Shuffle(len(all), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again, _ := Select(shuffled, Need{MaxPrice: AnyPrice()}, nil, noon)
		if len(kept) != len(all) || !slices.EqualFunc(kept, again, func(a, b provider.Offer) bool { return a.ID == b.ID }) {
			t.Fatal("the order depends on the order of the answer")
		}
		for i, a := range kept {
			for _, b := range kept[i+1:] {
				if Compare(a, b) >= 0 || Compare(b, a) <= 0 || b.Price.Less(a.Price) {
					t.Fatalf("%+v is before %+v", a, b)
				}
			}
		}
	})
}

func TestTies(t *testing.T) {
	offer := func(id, price string, reliability *float64, traffic int64) provider.Offer {
		return provider.Offer{ID: id, Price: money.MustParse(price), Reliability: reliability, TrafficPerGB: traffic}
	}
	want := []provider.Offer{
		offer("cheap", "0.40", nil, 9), offer("reliable", "0.50", ptr(0.99), 9), offer("less", "0.50", ptr(0.98), 0),
		offer("traffic", "0.50", nil, 1), offer("a", "0.50", nil, 2), offer("b", "0.50", ptr(math.NaN()), 2),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, Compare)
	for i := range want {
		if got[i].ID != want[i].ID {
			t.Errorf("place %d: %s; want %s", i, got[i].ID, want[i].ID)
		}
	}
}

func TestExplanationReads(t *testing.T) {
	half := money.MustParse("0.50")
	half5 := time.Date(2026, 8, 3, 12, 32, 5, 0, time.FixedZone("CEST", 2*3600))
	for want, e := range map[string]Explanation{
		"no offers": {},
		"214 offers: 180 over $0.50, 22 wrong GPU, 12 resting until 10:32": {Total: 214, MaxPrice: half, LeastMaxPrice: half,
			Counts: map[Rejection]int{OverPrice: 180, WrongGPU: 22, Resting: 12}, RestingUntil: half5},
		"1 offer: 1 unknown GPU":                         {Total: 1, Counts: map[Rejection]int{UnknownGPU: 1}},
		"5 offers: 1 fit, 2 wrong GPU, 2 too little RAM": {Total: 5, Counts: map[Rejection]int{TooLittleRAM: 2, WrongGPU: 2}},
		"3 offers: 3 fit":                                {Total: 3},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

func TestMerge(t *testing.T) {
	dear, cheap := aGood(), aGood()
	dear.Price = money.MustParse("0.80")
	spot, fallback := aNeed(), aNeed()
	fallback.MaxPrice = money.MustParse("0.70")
	_, a := Select([]provider.Offer{dear, cheap}, spot, nil, noon)
	_, b := Select([]provider.Offer{dear}, fallback, nil, noon)
	_, fine := Select([]provider.Offer{cheap}, Need{MaxPrice: AnyPrice()}, nil, noon)
	for want, got := range map[string]Explanation{
		"3 offers: 1 fit, 2 over $0.50 to $0.70": a.Merge(b),
		"3 offers: 2 fit, 1 over $0.50":          a.Merge(fine, Explanation{}),
		"2 offers: 1 fit, 1 over $0.50":          Explanation{}.Merge(a),
	} {
		if got.String() != want {
			t.Errorf("%q; want %q", got, want)
		}
		if got.CheapestOver != dear.Price {
			t.Errorf("%s: the cheapest over is $%s", want, got.CheapestOver)
		}
	}
	if a.Counts[OverPrice] != 1 {
		t.Error("Merge changed its receiver")
	}
	rapid.Check(t, func(t *rapid.T) {
		var parts []Explanation
		for range 3 {
			_, e := Select(rapid.SliceOfN(anOffer(), 0, 5).Draw(t, "offers"), anyNeed().Draw(t, "need"), someRests().Draw(t, "rests"), noon)
			parts = append(parts, e)
		}
		left := parts[0].Merge(parts[1]).Merge(parts[2])
		right := parts[2].Merge(parts[1].Merge(parts[0]))
		if left.String() != right.String() || left.Kept() != parts[0].Kept()+parts[1].Kept()+parts[2].Kept() {
			t.Fatalf("%s; %s", left, right)
		}
	})
}
