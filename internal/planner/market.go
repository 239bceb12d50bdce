package planner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// stock is all offers of one market between which no workload tells a difference but the price: one pool entry, one GPU,
// one count and size. Each offer is judged once, against what its pool asks, rather than once for each workload.
type stock struct {
	id    int
	pool  *v1alpha1.GPUNodePool
	entry int
	// sample stands for all in questions that have one answer for the kind.
	sample provider.Offer
	// eachGB is the nominal VRAM of a GPU.
	eachGB int
	// fit are those that satisfy the pool, in the order of preference, resting ones left out.
	fit []provider.Offer
	// resting would satisfy the pool later.
	resting []resting
	// unfit counts the others by what is wrong with them; total is all of them.
	unfit map[offers.Rejection]int
	total int
}

type resting struct {
	price money.Dollars
	until time.Time
}

// book is one market, by kind.
type book struct {
	pool    *v1alpha1.GPUNodePool
	entry   int
	account string
	kinds   []*stock
}

// kindKey has what the sample answers for.
type kindKey struct {
	provider provider.Name
	capacity provider.CapacityType
	gpu      gpu.Name
	arch     string
	count    int
	eachGB   int
}

// newBook sorts a market's offers by kind. Kinds are numbered from first.
func newBook(pool *v1alpha1.GPUNodePool, m Market, s Snapshot, first int) *book {
	b := &book{pool: pool, entry: m.Entry, account: m.Account}
	byKey := map[kindKey]*stock{}
	need := machineNeed(pool, m.Entry, m.Account)
	for i := range m.Offers {
		o := &m.Offers[i]
		key := kindKey{o.Provider, o.CapacityType, o.GPU, o.CPUArch, o.GPUCount, offers.NominalVRAMGB(*o)}
		k := byKey[key]
		if k == nil {
			k = &stock{pool: pool, entry: m.Entry, sample: *o, eachGB: key.eachGB, unfit: map[offers.Rejection]int{}}
			k.sample.Price = money.FromMicros(1)
			byKey[key] = k
			b.kinds = append(b.kinds, k)
		}
		k.add(o, need, s)
	}
	slices.SortFunc(b.kinds, func(x, y *stock) int {
		return cmp.Or(cmp.Compare(x.sample.GPU, y.sample.GPU), cmp.Compare(x.sample.GPUCount, y.sample.GPUCount),
			cmp.Compare(x.eachGB, y.eachGB), cmp.Compare(x.sample.CPUArch, y.sample.CPUArch),
			cmp.Compare(x.sample.Provider, y.sample.Provider), cmp.Compare(x.sample.CapacityType, y.sample.CapacityType))
	})
	for i, k := range b.kinds {
		k.id = first + i
		slices.SortFunc(k.fit, offers.Compare)
	}
	return b
}

// add judges one offer by what differs within a kind.
func (k *stock) add(o *provider.Offer, need offers.Need, s Snapshot) {
	k.total++
	need.GPUTypeSets = named(o.GPU)
	need.CPUArch = o.CPUArch
	switch r := offers.Judge(*o, need, nil, s.Now); {
	case r != offers.Fits:
		k.unfit[r]++
	default:
		if until, rests := offers.RestsUntil(*o, need.Account, s.Rests, s.Now); rests {
			k.resting = append(k.resting, resting{o.Price, until})
			return
		}
		k.fit = append(k.fit, *o)
	}
}

// named asks for a GPU by its own name, so that nothing is left for the question which GPU it is.
func named(g gpu.Name) [][]string { return [][]string{{string(g)}} }

// machineNeed is what a pool asks of a machine whatever its GPUs, at any price.
func machineNeed(pool *v1alpha1.GPUNodePool, entry int, account string) offers.Need {
	e, req := pool.Spec.Providers[entry], pool.Spec.Requirements
	return offers.Need{Account: account, MinDiskGB: int(req.MinDisk), MinRAMGB: int(req.MinRAM), Regions: e.Regions,
		MinReliability: reliability(req.MinReliability), MinCUDA: cuda(req.MinCUDA), MaxPrice: offers.AnyPrice()}
}

// verdict is why no offer of the kind is right for a need, whatever its price and machine; Fits where one may be.
func (k *stock) verdict(n offers.Need, now time.Time) offers.Rejection {
	n.MaxPrice = offers.AnyPrice()
	n.MinDiskGB, n.MinRAMGB, n.Regions, n.MinReliability, n.MinCUDA = 0, 0, nil, nil, nil
	return offers.Judge(k.sample, n, nil, now)
}

// count adds the kind to an account of offers of which none costs more than most.
func (k *stock) count(e *offers.Explanation, r offers.Rejection, most money.Dollars) {
	e.Total += k.total
	if r != offers.Fits {
		e.Counts[r] += k.total
		return
	}
	for rejection, n := range k.unfit {
		e.Counts[rejection] += n
	}
	over := func(n int, price money.Dollars) {
		if n == 0 {
			return
		}
		if e.Counts[offers.OverPrice] == 0 || price.Less(e.CheapestOver) {
			e.CheapestOver = price
		}
		e.Counts[offers.OverPrice] += n
	}
	if i := k.within(most); i < len(k.fit) {
		over(len(k.fit)-i, k.fit[i].Price)
	}
	for _, rest := range k.resting {
		if most.Less(rest.price) {
			over(1, rest.price)
			continue
		}
		e.Counts[offers.Resting]++
		if e.RestingUntil.IsZero() || rest.until.Before(e.RestingUntil) {
			e.RestingUntil = rest.until
		}
	}
}

// within is how many of the offers that fit cost no more than most.
func (k *stock) within(most money.Dollars) int {
	i, _ := slices.BinarySearchFunc(k.fit, most, func(o provider.Offer, most money.Dollars) int {
		if most.Less(o.Price) {
			return 1
		}
		return -1
	})
	return i
}

// preferred puts the cheapest first; at one price the pool's name and then the order of its entries decide, and only
// then what makes one machine better than another.
func preferred(a *stock, x *provider.Offer, b *stock, y *provider.Offer) int {
	if c := x.Price.Cmp(y.Price); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.pool.Name, b.pool.Name), cmp.Compare(a.entry, b.entry), offers.Compare(*x, *y))
}

type offerKey struct {
	provider provider.Name
	id       string
}

func keyOf(o *provider.Offer) offerKey { return offerKey{o.Provider, o.ID} }

// oneMachine reports whether an offer is of one particular machine, as its rest keys say, and so can be rented once. Two
// replicas planned on it would make one claim that finds nothing at its price. Offers of a kind of machine can be had
// again and again.
func oneMachine(o *provider.Offer) bool {
	return slices.ContainsFunc(o.RestKeys, func(k provider.RestKey) bool { return strings.HasPrefix(string(k), "machine/") })
}
