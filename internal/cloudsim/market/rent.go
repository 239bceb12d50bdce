package market

import (
	"fmt"
	"slices"
	"time"
)

// Offers is everything that could be rented now, in the order of listing.
func (m *Market) Offers() []Offer {
	now, unlock := m.begin()
	defer unlock()
	out := make([]Offer, 0, len(m.offerOrder))
	for _, id := range m.offerOrder {
		if l := m.offers[id]; m.onSale(l, now) || m.control.ghosts[id] {
			out = append(out, m.priced(l, now))
		}
	}
	return out
}

// Offer is one offer, on sale or not; false when the id means nothing (any more).
func (m *Market) Offer(id string) (Offer, bool) {
	now, unlock := m.begin()
	defer unlock()
	l, ok := m.offers[id]
	if !ok {
		return Offer{}, false
	}
	return m.priced(l, now), true
}

// Rent places an order. Refusals are an *Error; with BidTooLow there may be an instance all the same, which is then
// returned (see Config.LowBidStays).
func (m *Market) Rent(q RentRequest) (Instance, error) {
	in, err := m.rent(q)
	if in.ID != "" {
		for _, hook := range m.hooks() {
			hook(in)
		}
	}
	return in, err
}

func (m *Market) rent(q RentRequest) (Instance, error) {
	now, unlock := m.begin()
	defer unlock()
	token := q.Account + "\x00" + q.Token
	if r := m.byToken[token]; q.Token != "" && r != nil {
		return r.snapshot(now), nil
	}
	l, ok := m.offers[q.OfferID]
	if !ok {
		return Instance{}, refuse(NoSuchOffer, "%s", q.OfferID)
	}
	o := m.priced(l, now)
	if err := m.admit(q, l, o, now); err != nil {
		low := err.Code == BidTooLow && m.cfg.LowBidStays
		if !low {
			return Instance{}, err
		}
		q.Stopped = true
		return m.place(q, l, o, now).snapshot(now), err
	}
	r := m.place(q, l, o, now)
	if q.Token != "" {
		m.byToken[token] = r
	}
	if !q.Stopped {
		m.boot(r, now)
	}
	return r.snapshot(now), nil
}

// admit says why an order is refused, nil when it is not.
func (m *Market) admit(q RentRequest, l *listing, o Offer, now time.Time) *Error {
	gpus, instances := 0, 0
	for _, r := range m.live {
		if r.Account == q.Account {
			gpus += r.Offer.GPUs
			instances++
		}
	}
	lim := m.cfg.Limits
	switch {
	case !m.onSale(l, now) && (!q.Wait || (!o.EndsAt.IsZero() && !now.Before(o.EndsAt))):
		return refuse(NoCapacity, "%s", q.OfferID)
	case q.DiskGB > o.DiskGB:
		return refuse(DiskTooLarge, "%g GB of %g", q.DiskGB, o.DiskGB)
	case lim.Instances > 0 && instances >= lim.Instances:
		return refuse(OverQuota, "at most %d instances", lim.Instances)
	case lim.GPUs > 0 && gpus+o.GPUs > lim.GPUs:
		return refuse(OverQuota, "at most %d GPUs", lim.GPUs)
	case lim.Credit > 0 && m.spent(now) >= lim.Credit:
		return refuse(NoBalance, "the account is empty")
	case q.Spot && o.MinBid == 0, !q.Spot && o.OnDemand == 0:
		return refuse(NotForSale, "%s is not sold that way", q.OfferID)
	case q.Spot && q.Bid < o.MinBid && (q.Bid != 0 || !m.cfg.SpotPaysFloor):
		return refuse(BidTooLow, "%s under %s", q.Bid, o.MinBid)
	}
	return nil
}

// place enters a rental into the books.
func (m *Market) place(q RentRequest, l *listing, o Offer, now time.Time) *rental {
	n := int64(len(m.rentals))
	r := &rental{ordinal: n, prepare: q.Prepare, userData: q.UserData, listed: l.Offer, visible: now.Add(m.cfg.ListLag)}
	r.Instance = Instance{
		ID: m.cfg.InstanceID(n), Account: q.Account, Label: q.Label, Offer: o, Spot: q.Spot, Bid: q.Bid,
		DiskGB: q.DiskGB, Wanted: Stopped, Broken: m.machines[o.Machine].broken, CreatedAt: now,
		Port: q.Port, Ports: q.Ports, Image: q.Image, Command: q.Command, Env: q.Env, Extra: q.Extra,
		StorageRate: o.storageRate(q.DiskGB), GPURate: o.OnDemand,
	}
	if q.Spot {
		if r.GPURate = q.Bid; m.cfg.SpotPaysFloor {
			r.GPURate = o.MinBid
		}
	}
	if q.Rate > 0 {
		r.GPURate = q.Rate
	}
	for i := range int64(4) {
		r.Key += fmt.Sprintf("%013x", int64(m.chance.at("key", r.ID, i)*(1<<52)))
	}
	r.hidden = m.control.hideNew
	g := m.cfg.Billing.Granularity
	r.gpu, r.storage = meter{granularity: g}, meter{granularity: g}
	m.enter(r, Stopped, now)
	m.rentals, m.live = append(m.rentals, r), append(m.live, r)
	m.byID[r.ID] = r
	m.relist(l)
	if !o.EndsAt.IsZero() {
		m.at(o.EndsAt, func(at time.Time) { m.expire(r, at) })
	}
	return r
}

// find is an account's instance that has not gone; account "" is anyone's.
func (m *Market) find(account, id string) (*rental, *Error) {
	r := m.byID[id]
	if r == nil || !r.live() || (account != "" && r.Account != account) {
		return nil, refuse(NoSuchInstance, "%s", id)
	}
	return r, nil
}

func (m *Market) shown(r *rental, now time.Time) bool {
	if r.hidden || now.Before(r.visible) {
		return false
	}
	return r.live() || now.Before(r.GoneAt.Add(m.cfg.Afterlife))
}

// Get is one instance as the provider shows it: not before the list lag has passed, not when gone (or not long after).
func (m *Market) Get(account, id string) (Instance, error) {
	now, unlock := m.begin()
	defer unlock()
	r := m.byID[id]
	if r == nil || (account != "" && r.Account != account) || !m.shown(r, now) {
		return Instance{}, refuse(NoSuchInstance, "%s", id)
	}
	return r.snapshot(now), nil
}

// List is an account's instances as the provider shows them, oldest first; account "" is everyone's.
func (m *Market) List(account string) []Instance {
	now, unlock := m.begin()
	defer unlock()
	all := m.live
	if m.cfg.Afterlife > 0 {
		all = m.rentals
	}
	var out []Instance
	for _, r := range all {
		if (account == "" || r.Account == account) && m.shown(r, now) {
			out = append(out, r.snapshot(now))
		}
	}
	return out
}

// ByKey is the instance that holds the given key of its own.
func (m *Market) ByKey(key string) (Instance, bool) {
	now, unlock := m.begin()
	defer unlock()
	i := slices.IndexFunc(m.live, func(r *rental) bool { return r.Key == key })
	if i < 0 {
		return Instance{}, false
	}
	return m.live[i].snapshot(now), true
}

// Destroy promises the end of an instance. By says who asked ("tenant", "instance").
func (m *Market) Destroy(account, id, by string) error {
	now, unlock := m.begin()
	defer unlock()
	r, refused := m.find(account, id)
	switch {
	case refused != nil:
		return refused
	case take(&m.control.refuseDestroys):
		return refuse(Refused, "destroy of %s refused", id)
	case take(&m.control.ignoreDestroys), r.Ending:
		return nil
	}
	r.Ending, r.EndedBy = true, by
	if m.cfg.DestroyLag <= 0 {
		m.gone(r, now)
		return nil
	}
	m.at(now.Add(m.cfg.DestroyLag), func(at time.Time) { m.gone(r, at) })
	return nil
}

// Stop stops an instance and lets its GPUs go.
func (m *Market) Stop(account, id string) error {
	return m.change(account, id, func(r *rental, now time.Time) *Error {
		m.stop(r, now)
		return nil
	})
}

// Start starts a stopped instance, at once or when its machine has GPUs for it.
func (m *Market) Start(account, id string) error {
	return m.change(account, id, func(r *rental, now time.Time) *Error {
		switch {
		case !r.Offer.EndsAt.IsZero() && !now.Before(r.Offer.EndsAt):
			return refuse(ContractOver, "%s", id)
		case r.Wanted == Running && r.State != Exited && !r.Reclaimed:
			return nil
		}
		m.boot(r, now)
		return nil
	})
}

// Reboot restarts the software without letting the GPUs go.
func (m *Market) Reboot(account, id string) error {
	return m.change(account, id, func(r *rental, now time.Time) *Error {
		if r.held == 0 && r.Offer.GPUs > 0 {
			return refuse(Refused, "%s does not run", id)
		}
		m.down(r, now)
		m.enter(r, Rebooting, now)
		m.plan(r, now.Add(m.jitter(m.cfg.Boot.Create, r.Offer.Machine)), func(at time.Time) { m.up(r, at) })
		return nil
	})
}

// SetLabel renames an instance.
func (m *Market) SetLabel(account, id, label string) error {
	return m.change(account, id, func(r *rental, _ time.Time) *Error {
		r.Label = label
		return nil
	})
}

// SetBid changes a spot instance's bid, from now on also its price; one under the floor loses the instance.
func (m *Market) SetBid(account, id string, bid Nano) error {
	return m.change(account, id, func(r *rental, now time.Time) *Error {
		if !r.Spot {
			return refuse(NotForSale, "%s is not interruptible", id)
		}
		r.Bid = bid
		if !m.cfg.SpotPaysFloor {
			r.GPURate = bid
		}
		m.enter(r, r.State, now)
		if r.State == Running && bid < m.priced(&listing{Offer: r.listed}, now).MinBid {
			m.announce(r, now)
		}
		return nil
	})
}

func (m *Market) change(account, id string, do func(*rental, time.Time) *Error) error {
	now, unlock := m.begin()
	defer unlock()
	r, refused := m.find(account, id)
	if refused == nil {
		refused = do(r, now)
	}
	if refused != nil {
		return refused
	}
	return nil
}

// Logs is what an instance's software wrote, as far as its body keeps it.
func (m *Market) Logs(account, id string, tail int) ([]byte, error) {
	_, unlock := m.begin()
	r, refused := m.find(account, id)
	unlock()
	if refused != nil {
		return nil, refused
	}
	return logsOf(r.last, tail), nil
}
