package provisioning

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/reserve"
)

// History tells what was bought before this process began.
type History interface {
	Since(ctx context.Context, t time.Time) ([]ledger.Instance, error)
}

// bought is when instances were bought, by workload and claim.
type bought map[string]map[types.UID]time.Time

func (b *bought) add(workload string, claim types.UID, at time.Time) {
	if *b == nil {
		*b = bought{}
	}
	if (*b)[workload] == nil {
		(*b)[workload] = map[types.UID]time.Time{}
	}
	(*b)[workload][claim] = at
}

// purchases are the instances bought lately and those that may be bought yet, for the bound on purchases per hour.
type purchases struct {
	// made outlives the claims, and comes from the ledger where this process has not seen them.
	made     bought
	recalled bool
	// underWay is read anew each time: a claim that bought nothing in the end does not count.
	underWay bought
}

// recall adds what earlier processes bought since t, once. Until it succeeds nothing is bought anyway: an intent cannot
// be written to a ledger that cannot be read.
func (p *purchases) recall(ctx context.Context, h History, t time.Time) error {
	if p.recalled {
		return nil
	}
	rows, err := h.Since(ctx, t)
	if err != nil {
		return err
	}
	for _, in := range rows {
		for _, m := range orSpare(in.Models, in.Pool) {
			p.made.add(m, types.UID(in.ClaimUID), in.IntendedAt)
		}
	}
	p.recalled = true
	return nil
}

// see looks at everything that exists.
func (p *purchases) see(pools []*v1alpha1.GPUNodePool, claims []*v1alpha1.GPUNodeClaim) {
	p.underWay = nil
	known := map[string]bool{}
	for _, c := range claims {
		known[c.Name] = true
		p.seeClaim(c)
	}
	for _, pool := range pools {
		for _, r := range pool.Status.Reservations {
			if _, _, surplus := reserve.SurplusOf(r); surplus {
				continue
			}
			for _, w := range orSpare(r.Workloads, pool.Name) {
				if !known[r.Claim] { // decided, and the claim is not seen yet
					p.underWay.add(w, types.UID("reserved/"+r.Claim), r.Since.Time)
				}
			}
		}
	}
}

func (p *purchases) seeClaim(c *v1alpha1.GPUNodeClaim) {
	a := c.Status.Attempt
	ends := !c.DeletionTimestamp.IsZero() || c.Status.Failure != nil
	list, at := &p.underWay, c.CreationTimestamp.Time
	switch {
	case a != nil && a.Outcome == v1alpha1.AttemptCreated:
		list, at = &p.made, a.WrittenAt.Time
	case ends && (a == nil || a.Outcome == v1alpha1.AttemptRefused):
		return
	}
	var models []string
	for _, pl := range c.Spec.Placements {
		models = append(models, pl.Workload)
	}
	for _, m := range orSpare(models, c.Spec.Pool) {
		list.add(m, c.UID, at)
	}
}

// orSpare is what an instance was bought for: its models, or its pool's minNodes.
func orSpare(models []string, pool string) []string {
	if len(models) == 0 {
		return []string{planner.SpareKey(pool)}
	}
	return models
}

// since forgets what is older and returns the times of the rest.
func (p *purchases) since(t time.Time) map[string][]time.Time {
	out := map[string][]time.Time{}
	for _, list := range []bought{p.made, p.underWay} {
		for w, claims := range list {
			for uid, at := range claims {
				if at.Before(t) {
					delete(claims, uid)
					continue
				}
				out[w] = append(out[w], at)
			}
			if len(claims) == 0 {
				delete(list, w)
			}
		}
	}
	return out
}
