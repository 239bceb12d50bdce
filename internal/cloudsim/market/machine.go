package market

import (
	"math"
	"slices"
	"time"
)

// machine is stock: GPUs, held by our instances or taken by other tenants.
type machine struct {
	name   string
	gpus   int
	held   int
	taken  []taking
	broken Breakage
	// floor is a minimum bid that other bidders have set, until floorUntil.
	floor      float64 // as a multiple of the listed minimum bid
	floorUntil time.Time
}

// taking is other tenants' use of some GPUs for a while.
type taking struct {
	gpus  int
	until time.Time
}

func (m *machine) free(now time.Time) int {
	n := m.gpus - m.held
	for _, t := range m.taken {
		if now.Before(t.until) {
			n -= t.gpus
		}
	}
	return n
}

func (m *machine) take(gpus int, until, now time.Time) {
	m.taken = slices.DeleteFunc(m.taken, func(t taking) bool { return !now.Before(t.until) })
	if gpus > 0 && now.Before(until) {
		m.taken = append(m.taken, taking{gpus: gpus, until: until})
	}
}

// listing is an offer as listed, at its listed prices.
type listing struct{ Offer }

// priced is the listing at the prices of the moment.
func (m *Market) priced(l *listing, now time.Time) Offer {
	o := l.Offer
	if w := m.cfg.Walk; w.Step > 0 {
		step := int64(now.Sub(m.epoch) / w.Step)
		o.OnDemand = scaled(o.OnDemand, 1+w.OnDemand*m.chance.walk("on-demand/"+o.Machine, step))
		o.MinBid = scaled(o.MinBid, 1+w.Spot*m.chance.walk("spot/"+o.Machine, step))
	}
	if h := m.machines[o.Machine]; h.floor > 1 && now.Before(h.floorUntil) {
		o.MinBid = scaled(o.MinBid, h.floor)
	}
	return o
}

// scaled keeps prices to a hundredth of a cent, as providers list them.
func scaled(n Nano, by float64) Nano {
	const tick = Nano1 / 10_000
	return Nano(math.Round(float64(n)*by/float64(tick))) * tick
}

// list puts an offer on sale, under a new id unless it has one.
func (m *Market) list(o Offer) string {
	if o.ID == "" {
		o.ID = m.cfg.OfferID(m.nextOffer)
		m.nextOffer++
	}
	if p, ok := o.Extra[promiseKey]; ok && o.EndsAt.IsZero() {
		o.EndsAt = m.epoch.Add(promise(p))
	}
	h := m.machines[o.Machine]
	if h == nil {
		h = &machine{name: o.Machine, broken: m.breakageOf(o)}
		m.machines[o.Machine] = h
	}
	h.gpus = max(h.gpus, o.MachineGPUs, o.GPUs)
	o.MachineGPUs = h.gpus
	m.offers[o.ID] = &listing{Offer: o}
	m.offerOrder = append(m.offerOrder, o.ID)
	return o.ID
}

func (m *Market) breakageOf(o Offer) Breakage {
	if o.Broken != Sound {
		return o.Broken
	}
	if m.chance.at("broken", o.Machine, 0) >= m.cfg.Broken {
		return Sound
	}
	all := Breakages()
	return all[m.chance.pick(len(all), "breakage", o.Machine)]
}

// relist takes an offer off sale and, for the same slice, lists another under a new id; it is on sale once the machine
// has that many GPUs again.
func (m *Market) relist(l *listing) {
	if m.cfg.StableOfferIDs {
		return
	}
	delete(m.offers, l.ID)
	m.offerOrder = slices.DeleteFunc(m.offerOrder, func(id string) bool { return id == l.ID })
	o := l.Offer
	o.ID = ""
	m.list(o)
}

// onSale reports whether a listing could be rented now.
func (m *Market) onSale(l *listing, now time.Time) bool {
	if !l.EndsAt.IsZero() && !now.Before(l.EndsAt) {
		return false
	}
	return m.machines[l.Machine].free(now) >= l.GPUs
}
