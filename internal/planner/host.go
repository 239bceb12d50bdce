package planner

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Binding places a workload's replica on a claim that exists, which costs nothing more.
type Binding struct {
	// Claim, as it was planned from: another generation has other placements, and another UID is another claim.
	Claim      string
	UID        types.UID
	Generation int64
	Placement  v1alpha1.Placement
	// Reason is one line for people.
	Reason string
}

// host is a claim with room, and what is certain of its instance: before there is one, what its licence admits at worst.
type host struct {
	id     int
	claim  *v1alpha1.GPUNodeClaim
	pool   *v1alpha1.GPUNodePool
	gpus   int
	eachGB int
	// most is what the instance may come to cost: the promise, which only falls.
	most money.Dollars
	// shares and models are its placements'.
	shares []share
	models map[string]bool
}

// hostsOf are the claims that more replicas may be placed on, best first: those that serve before those on their way,
// then the fullest, so that empty ones become empty and end.
func hostsOf(s Snapshot) []*host {
	pools := map[string]*v1alpha1.GPUNodePool{}
	for _, p := range s.Pools {
		pools[p.Name] = p
	}
	var out []*host
	for _, c := range s.Claims {
		pool := pools[c.Spec.Pool]
		// An instance of another bootstrap is on its way out; a model put there would move again at once.
		if pool == nil || !Serves(c) || !v1alpha1.Equal(pool.Spec.Bootstrap, c.Spec.Bootstrap) {
			continue
		}
		if h := newHost(c, pool); h.free() > 0 {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *host) int {
		return cmp.Or(cmp.Compare(unready(a.claim), unready(b.claim)), cmp.Compare(a.free(), b.free()),
			a.claim.CreationTimestamp.Compare(b.claim.CreationTimestamp.Time), strings.Compare(a.claim.Name, b.claim.Name))
	})
	for i, h := range out {
		h.id = i
	}
	return out
}

func newHost(c *v1alpha1.GPUNodeClaim, pool *v1alpha1.GPUNodePool) *host {
	h := &host{claim: c, pool: pool, gpus: int(c.Spec.Requirements.GPUCount), most: c.Spec.MaxPrice, models: map[string]bool{}}
	if r, ok := reserve.Find(pool, c.Name); ok {
		h.most = money.Min(h.most, r.DollarsPerHour)
	}
	if h.gpus > 0 {
		h.eachGB = int(c.Spec.Requirements.MinVRAM) / h.gpus
	}
	if name := h.bought(); name != "" {
		h.eachGB = offers.NominalVRAMGB(provider.Offer{GPU: name, VRAMGB: int(c.Status.VRAM)})
	}
	for _, p := range c.Spec.Placements {
		h.shares = append(h.shares, share{int(p.GPUs), int(p.GPUFraction)})
		h.models[p.Workload] = true
	}
	return h
}

// bought is the GPU that the claim's instance has; empty before there is one. An attempt that is not closed may still be
// followed by one for another offer.
func (h *host) bought() gpu.Name {
	s := h.claim.Status
	if s.InstanceID == "" || int(s.GPUCount) != h.gpus {
		return ""
	}
	_, name, _ := strings.Cut(s.GPU, "×")
	return gpu.Name(name)
}

// free is the room that is left, in thousandths of a GPU.
func (h *host) free() int {
	left := h.gpus * wholeGPU
	for _, s := range h.shares {
		left -= s.gpus * s.fraction
	}
	return left
}

// shareFor is what a replica of the shape takes of the instance; the zero share where it may not be there whatever else
// is.
func (h *host) shareFor(sh *shape) share {
	if sh.w.MaxPrice != nil && sh.w.MaxPrice.Less(h.most) || !h.admits(sh) {
		return share{}
	}
	s, ok := shareOn(sh.w, int(h.pool.Spec.Requirements.GPUCount), h.eachGB)
	if !ok || s.gpus > h.gpus {
		return share{}
	}
	return s
}

// admits: pool, provider, capacity type and GPU are what the shape's workloads allow, whichever offer of the licence was
// or will be bought.
func (h *host) admits(sh *shape) bool {
	name, s := h.bought(), h.claim.Status
	if name != "" {
		return sh.allows(h.claim.Spec.Pool, s.Provider, string(capacityOf(v1alpha1.ProviderSpec{CapacityType: s.CapacityType}))) &&
			matchesAny(sh.w.GPUTypes, name)
	}
	for _, e := range h.claim.Spec.Providers {
		if !sh.allows(h.claim.Spec.Pool, e.Name, string(capacityOf(e))) {
			return false
		}
	}
	if len(sh.w.GPUTypes) == 0 {
		return len(h.claim.Spec.Providers) > 0
	}
	may := h.claim.Spec.Requirements.GPUTypes
	return len(may) > 0 && !slices.ContainsFunc(may, func(t string) bool { return !matchesAny(sh.w.GPUTypes, gpu.Name(t)) })
}

// matchesAny reports whether name is one of those that entries ask for; no entries ask for any.
func matchesAny(entries []string, name gpu.Name) bool {
	return len(entries) == 0 || slices.ContainsFunc(entries, func(e string) bool { return gpu.Matches(e, name) })
}
