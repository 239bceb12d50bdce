package market

import (
	"fmt"
	"slices"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// ociMessage is what a container runtime says of a host whose driver is broken.
const ociMessage = "Error response from daemon: failed to create task for container: OCI runtime create failed: " +
	"nvidia-container-cli: initialization error: driver error: unknown"

// deadPort is one at which nothing listens.
const deadPort = 1

// enter changes the state and, with it, what is billed.
func (m *Market) enter(r *rental, s State, at time.Time) {
	r.State = s
	r.gpu.set(pick(gpuBilled(s), r.GPURate), at)
	r.storage.set(pick(storageBilled(s), r.StorageRate), at)
}

func pick(yes bool, n Nano) Nano {
	if yes {
		return n
	}
	return 0
}

// boot brings a rental up from nothing, or leaves it waiting for a GPU.
func (m *Market) boot(r *rental, at time.Time) {
	r.run++
	r.Wanted, r.Reclaimed, r.Message = Running, false, ""
	r.ReclaimAt = time.Time{}
	m.enter(r, Accepted, at)
	if r.Waiting = !m.acquire(r, at); r.Waiting {
		return
	}
	b, name := m.cfg.Boot, r.Offer.Machine
	created := at.Add(m.jitter(b.Accept, name))
	loading := created.Add(m.jitter(b.Create, name))
	m.plan(r, created, func(at time.Time) {
		m.enter(r, Created, at)
		if r.Broken == StuckCreated {
			r.Message = ociMessage
			return
		}
		m.plan(r, loading, func(at time.Time) { m.load(r, at) })
	})
}

func (m *Market) load(r *rental, at time.Time) {
	m.enter(r, Loading, at)
	took := m.jitter(m.cfg.Boot.Load, r.Offer.Machine)
	switch r.Broken {
	case StuckLoading:
		return
	case DiesBooting:
		m.plan(r, at.Add(took/2), func(at time.Time) {
			m.enter(r, Exited, at)
			r.Message = ociMessage
		})
	case Sound, StuckCreated, NoAddress, Unreachable, WrongGPU, OldDriver:
		m.plan(r, at.Add(took), func(at time.Time) { m.up(r, at) })
	}
}

// up starts the software.
func (m *Market) up(r *rental, at time.Time) {
	r.Starts++
	if err := m.startBody(r, at); err != nil {
		m.enter(r, Exited, at)
		r.Message = fmt.Sprintf("the container did not start: %v", err)
		return
	}
	r.StartedAt = at
	r.Host, r.HostPort = r.body.Address()
	switch r.Broken {
	case NoAddress:
		r.Host, r.HostPort = "", 0
	case Unreachable:
		r.HostPort = deadPort
	case Sound, DiesBooting, StuckCreated, StuckLoading, WrongGPU, OldDriver:
	}
	m.enter(r, Running, at)
	if !r.Spot {
		return
	}
	m.keepWalking(at)
	subject := fmt.Sprintf("%s/%d", r.Offer.Machine, r.Starts)
	if d, ok := m.chance.wait(m.cfg.Reclaim.PerHour, "reclaim", subject, r.ordinal); ok {
		m.plan(r, at.Add(d), func(at time.Time) { m.announce(r, at) })
	}
}

// down lets the software go without notice, and forgets its address.
func (m *Market) down(r *rental, at time.Time) {
	r.run++
	if r.body != nil {
		r.body.Kill()
		r.body = nil
	}
	if r.State == Running || r.State == Frozen || r.State == Unknown || r.State == Offline {
		r.StoppedAt = at
	}
	r.Host, r.HostPort = "", 0
}

// stop is the tenant's: the disk stays, the GPU is anyone's.
func (m *Market) stop(r *rental, at time.Time) {
	m.down(r, at)
	m.enter(r, Stopped, at)
	r.Wanted, r.Waiting = Stopped, false
	m.release(r, at)
}

// announce gives notice of a reclaim, where the market gives any, and takes the instance after it.
func (m *Market) announce(r *rental, at time.Time) {
	if m.cfg.Reclaim.Notice <= 0 {
		m.reclaim(r, at)
		return
	}
	if !r.ReclaimAt.IsZero() {
		return
	}
	r.ReclaimAt = at.Add(m.cfg.Reclaim.Notice)
	if n, ok := r.body.(body.Noticed); ok {
		n.Notice(r.ReclaimAt)
	}
	m.plan(r, r.ReclaimAt, func(at time.Time) { m.reclaim(r, at) })
}

// reclaim takes an instance's GPUs for someone who bids more.
func (m *Market) reclaim(r *rental, at time.Time) {
	policy := m.cfg.Reclaim
	m.down(r, at)
	r.Reclaimed, r.Waiting = true, false
	if r.ReclaimAt.IsZero() {
		r.ReclaimAt = at
	}
	h := m.machines[r.Offer.Machine]
	m.release(r, at)
	if policy.Hold > 0 {
		until := at.Add(policy.Hold)
		h.take(r.Offer.GPUs, until, at)
		if list := r.Offer.MinBid; r.Spot && list > 0 {
			h.floor, h.floorUntil = max(1, 1.1*float64(r.Bid)/float64(list)), until
		}
		m.at(until, m.startWaiting)
	}
	if policy.Destroys {
		r.EndedBy = "market"
		m.gone(r, at)
		return
	}
	m.enter(r, Stopped, at)
	if policy.Resumes {
		m.plan(r, at.Add(policy.Hold), func(at time.Time) { m.boot(r, at) })
	}
}

// gone ends the rental and its bill.
func (m *Market) gone(r *rental, at time.Time) {
	if !r.live() {
		return
	}
	m.down(r, at)
	m.enter(r, Gone, at)
	r.gpu.close(at, m.cfg.Billing.Minimum)
	r.storage.close(at, 0)
	r.GoneAt, r.Waiting = at, false
	m.goneSpent += r.gpu.total + r.storage.total
	m.live = slices.DeleteFunc(m.live, func(o *rental) bool { return o == r })
	m.release(r, at)
	if d, ok := r.last.(body.Disk); ok {
		m.bodies.Add(1)
		go func() {
			defer m.bodies.Done()
			<-r.last.Done()
			d.RemoveDisk()
		}()
	}
}

// acquire holds the GPUs of a rental's slice.
func (m *Market) acquire(r *rental, at time.Time) bool {
	h := m.machines[r.Offer.Machine]
	if r.held > 0 || r.Offer.GPUs == 0 {
		return true
	}
	if h.free(at) < r.Offer.GPUs {
		return false
	}
	r.held = r.Offer.GPUs
	h.held += r.held
	return true
}

func (m *Market) release(r *rental, at time.Time) {
	if r.held == 0 {
		return
	}
	m.machines[r.Offer.Machine].held -= r.held
	r.held = 0
	m.startWaiting(at)
}

// startWaiting gives free GPUs to those that wait for them, the oldest first.
func (m *Market) startWaiting(at time.Time) {
	for _, r := range m.live {
		if r.Waiting && m.machines[r.Offer.Machine].free(at) >= r.Offer.GPUs {
			m.boot(r, at)
		}
	}
}

// expire ends what a host had promised: the instance stops and starts no more.
func (m *Market) expire(r *rental, at time.Time) {
	if !r.live() {
		return
	}
	m.stop(r, at)
	r.Message = "contract ended"
}

// keepWalking compares running bids with the walking floor at every step, while there are any.
func (m *Market) keepWalking(at time.Time) {
	step := m.cfg.Walk.Step
	if m.walking || step <= 0 || m.cfg.SpotPaysFloor {
		return
	}
	m.walking = true
	next := at.Add(step - at.Sub(m.epoch)%step)
	m.at(next, func(at time.Time) {
		m.walking = false
		if m.outbid(at) {
			m.keepWalking(at)
		}
	})
}

// outbid takes whatever is bid under the floor, and reports whether spot instances are left.
func (m *Market) outbid(at time.Time) (left bool) {
	for _, r := range slices.Clone(m.live) {
		if !r.Spot || r.State != Running {
			continue
		}
		if floor := m.priced(&listing{Offer: r.listed}, at).MinBid; floor > r.Bid {
			m.announce(r, at)
			continue
		}
		left = true
	}
	return left
}

// enforceCredit stops everything once the account is empty.
func (m *Market) enforceCredit(now time.Time) {
	if m.cfg.Limits.Credit <= 0 || m.spent(now) < m.cfg.Limits.Credit {
		return
	}
	for _, r := range slices.Clone(m.live) {
		if r.Wanted == Running {
			m.stop(r, now)
			r.Message = "stopped: no credit"
		}
	}
}

func (m *Market) spent(now time.Time) Nano {
	sum := m.goneSpent
	for _, r := range m.live {
		sum += r.gpu.upTo(now) + r.storage.upTo(now)
	}
	return sum
}
