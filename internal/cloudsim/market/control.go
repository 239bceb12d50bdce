package market

import (
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// control is what tests have asked for.
type control struct {
	hideNew        bool
	refuseDestroys int
	ignoreDestroys int
	onCreate       []func(Instance)
	// ghosts are offers that stay listed though another tenant has their GPUs.
	ghosts map[string]bool
}

func take(n *int) bool {
	if *n <= 0 {
		return false
	}
	*n--
	return true
}

// AddOffer lists an offer and returns its id, which is a new one where o has none.
func (m *Market) AddOffer(o Offer) string {
	_, unlock := m.begin()
	defer unlock()
	return m.list(o)
}

// Break sets what is wrong with a machine, from the next rental on.
func (m *Market) Break(machine string, b Breakage) {
	_, unlock := m.begin()
	defer unlock()
	if h := m.machines[machine]; h != nil {
		h.broken = b
	}
}

// HoldVisibility keeps instances that are created from now on out of Get and List; false shows them all.
func (m *Market) HoldVisibility(hold bool) {
	_, unlock := m.begin()
	defer unlock()
	m.control.hideNew = hold
	if hold {
		return
	}
	for _, r := range m.rentals {
		r.hidden = false
	}
}

// DestroyRefused makes the next n destroys fail, with nothing done.
func (m *Market) DestroyRefused(n int) {
	_, unlock := m.begin()
	defer unlock()
	m.control.refuseDestroys = n
}

// DestroyIgnored makes the next n destroys succeed, with nothing done.
func (m *Market) DestroyIgnored(n int) {
	_, unlock := m.begin()
	defer unlock()
	m.control.ignoreDestroys = n
}

// SetDestroyLag sets how long instances whose end is asked for from now on live on, billed and visible.
func (m *Market) SetDestroyLag(d time.Duration) {
	_, unlock := m.begin()
	defer unlock()
	m.cfg.DestroyLag = d
}

// SellOut gives all GPUs of an offer's machine to another tenant for good, while the offer stays listed as it was:
// a search that is behind. It reports whether there is such an offer.
func (m *Market) SellOut(offerID string) bool {
	now, unlock := m.begin()
	defer unlock()
	l, ok := m.offers[offerID]
	if !ok {
		return false
	}
	h := m.machines[l.Machine]
	h.take(h.gpus, now.Add(farAway), now)
	if m.control.ghosts == nil {
		m.control.ghosts = map[string]bool{}
	}
	m.control.ghosts[offerID] = true
	return true
}

const farAway = 1000 * time.Hour

// RaiseFloor sets the least bid for an offer's machine, in the place of what is listed. It reports whether there is such
// an offer.
func (m *Market) RaiseFloor(offerID string, bid Nano) bool {
	now, unlock := m.begin()
	defer unlock()
	l, ok := m.offers[offerID]
	if !ok || l.MinBid <= 0 {
		return false
	}
	h := m.machines[l.Machine]
	h.floor, h.floorUntil = float64(bid)/float64(l.MinBid), now.Add(farAway)
	return true
}

// HoldPorts keeps the address of an instance from being shown, running or not, until it is called with false.
func (m *Market) HoldPorts(id string, hold bool) error {
	return m.change("", id, func(r *rental, _ time.Time) *Error {
		r.portsHeld = hold
		return nil
	})
}

// OnCreate calls the hook for every instance that is rented, before whoever rented it hears of it.
func (m *Market) OnCreate(hook func(Instance)) {
	_, unlock := m.begin()
	defer unlock()
	m.control.onCreate = append(m.control.onCreate, hook)
}

func (m *Market) hooks() []func(Instance) {
	_, unlock := m.begin()
	defer unlock()
	return m.control.onCreate
}

// Reclaim takes an instance back now, with the market's notice.
func (m *Market) Reclaim(id string) error {
	return m.change("", id, func(r *rental, now time.Time) *Error {
		m.announce(r, now)
		return nil
	})
}

// HostLeaves sets when the host's promise to an instance ends.
func (m *Market) HostLeaves(id string, at time.Time) error {
	_, unlock := m.begin()
	defer unlock()
	r, err := m.find("", id)
	if err != nil {
		return err
	}
	r.Offer.EndsAt = at
	m.at(at, func(at time.Time) { m.expire(r, at) })
	return nil
}

// Kill ends an instance's software as a crash does: the instance stays, exited.
func (m *Market) Kill(id string) error {
	return m.change("", id, func(r *rental, now time.Time) *Error {
		m.down(r, now)
		m.enter(r, Exited, now)
		r.Message = "killed"
		return nil
	})
}

// SetState makes an instance show the given state, which may be a word of the test's own. The software ends where the
// state says so; otherwise it runs on.
func (m *Market) SetState(id string, s State) error {
	return m.change("", id, func(r *rental, now time.Time) *Error {
		switch s {
		case Stopped, Exited, Accepted, Created, Loading:
			m.down(r, now)
		case Gone:
			m.gone(r, now)
			return nil
		case Running, Rebooting, Frozen, Unknown, Offline:
		}
		m.enter(r, s, now)
		return nil
	})
}

// SetOffline takes an instance's host off the network, or brings it back as it was. Offline it is not billed and its
// address does not answer, if its body can pause.
func (m *Market) SetOffline(id string, offline bool) error {
	return m.change("", id, func(r *rental, now time.Time) *Error {
		if p, ok := r.body.(body.Pausable); ok {
			p.Pause(offline)
		}
		switch {
		case offline && r.State != Offline:
			r.before = r.State
			m.enter(r, Offline, now)
		case !offline && r.State == Offline:
			m.enter(r, r.before, now)
		}
		return nil
	})
}

// SetCredit sets what may be spent altogether; zero is no limit.
func (m *Market) SetCredit(n Nano) {
	_, unlock := m.begin()
	defer unlock()
	m.cfg.Limits.Credit = n
}

// Credit is what is left; negative when overspent, and meaningless without a limit.
func (m *Market) Credit() (left Nano, limited bool) {
	now, unlock := m.begin()
	defer unlock()
	return m.cfg.Limits.Credit - m.spent(now), m.cfg.Limits.Credit > 0
}

func logsOf(b body.Body, tail int) []byte {
	if l, ok := b.(body.Logger); ok {
		return l.Logs(tail)
	}
	return nil
}
