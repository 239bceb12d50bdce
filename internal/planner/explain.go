package planner

import (
	"fmt"
	"strings"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/offers/rest"
)

// mayBuy are the pools that would pay for w now. Where there is none it says why in unmet and returns false.
func (p *planning) mayBuy(w demand.Workload, unmet *Unmet) ([]*v1alpha1.GPUNodePool, bool) {
	if r, ok := p.snapshot.Rests.Active(rest.WorkloadKey(w.Key, w.Form), p.snapshot.Now); ok {
		unmet.rest("the workload", r)
		return nil, false
	}
	var admitting, awake []*v1alpha1.GPUNodePool
	var refusals []string
	for _, pool := range considered(w, p.snapshot.Pools) {
		if why := Refusal(pool, w); why != "" {
			refusals = append(refusals, fmt.Sprintf("pool %s %s", pool.Name, why))
			continue
		}
		admitting = append(admitting, pool)
		if r, ok := p.snapshot.Rests.Active(rest.PoolKey(pool.Name), p.snapshot.Now); ok {
			unmet.rest("pool "+pool.Name, r)
			continue
		}
		awake = append(awake, pool)
	}
	if len(admitting) == 0 {
		unmet.Reason, unmet.Message = v1alpha1.PodReasonNoPool, noPool(w, refusals)
	}
	return awake, len(awake) > 0
}

func noPool(w demand.Workload, refusals []string) string {
	switch {
	case len(refusals) > 0:
		return strings.Join(refusals, "; ")
	case w.Pool != "":
		return fmt.Sprintf("there is no GPUNodePool named %s", w.Pool)
	}
	return "there is no GPUNodePool"
}

// rest records that something rests; the first to come back sets the time.
func (u *Unmet) rest(what string, r rest.Rest) {
	text := fmt.Sprintf("%s rests until %s", what, clock(r.Until))
	if why := joinNonEmpty(": ", r.Reason, r.Message); why != "" {
		text += " after " + why
	}
	u.Reason = v1alpha1.PodReasonResting
	u.Message = joinNonEmpty("; ", u.Message, text)
	if u.RetryAt.IsZero() || r.Until.Before(u.RetryAt) {
		u.RetryAt = r.Until
	}
}

// explain says why the markets that were looked at yield nothing more. Pools that rest have had their say in unmet.
func (p *planning) explain(w demand.Workload, found survey, allowed int, unmet *Unmet) {
	resting := unmet.Message
	unmet.RetryAt = time.Time{}
	switch {
	case allowed == 0:
		p.explainBound(w, unmet)
	case len(found.candidates) > 0:
		unmet.Reason, unmet.Message = v1alpha1.PodReasonCeilingReached, p.ceilings(found)
		if unmet.Message == "" {
			unmet.Reason = v1alpha1.PodReasonNoOffers
			unmet.Message = found.why.String() + "; what fits was taken for other replicas just now"
		}
	case found.why.Counts[offers.Resting] > 0:
		unmet.Reason, unmet.Message, unmet.RetryAt = v1alpha1.PodReasonResting, found.why.String(), found.why.RestingUntil
	default:
		unmet.Reason, unmet.Message = v1alpha1.PodReasonNoOffers, found.why.String()
		if found.why.Counts[offers.OverPrice] > 0 {
			unmet.Message += fmt.Sprintf(" (cheapest of those over the price: $%s)", found.why.CheapestOver)
		}
	}
	unmet.Message = joinNonEmpty("; ", append([]string{unmet.Message, resting}, found.silent...)...)
}

func (p *planning) explainBound(w demand.Workload, unmet *Unmet) {
	// What this very plan bought counts from now.
	first := p.snapshot.Now
	if recent := p.recent(w.Key); len(recent) > 0 {
		first = recent[0]
	}
	unmet.Reason = v1alpha1.PodReasonResting
	unmet.RetryAt = first.Add(time.Hour)
	unmet.Message = fmt.Sprintf("%d instances bought within an hour, the most for one workload; next at %s", p.perHour(),
		clock(unmet.RetryAt))
}

// ceilings says for each pool with a fitting offer which ceiling keeps it from buying the cheapest that is still to be
// had; empty where no ceiling is in the way.
func (p *planning) ceilings(found survey) string {
	var parts []string
	seen := map[string]bool{}
	for _, c := range found.candidates {
		why := p.reserved[c.pool.Name].forbids(c.pool, c.offer.GPUCount, c.offer.Price)
		if why == "" || seen[c.pool.Name] {
			continue
		}
		seen[c.pool.Name] = true
		parts = append(parts, fmt.Sprintf("pool %s: %s", c.pool.Name, why))
	}
	return strings.Join(parts, "; ")
}

// reasonFor is why c was chosen: "cheapest of 31 fitting offers (214 seen: 180 over $0.50, 3 wrong GPU): RTX4090 ×1 at
// $0.41/h in Sweden, spot".
func reasonFor(c candidate, found survey) string {
	choice := "cheapest"
	if first := found.candidates[0]; first.offer.Price.Less(c.offer.Price) {
		choice = "cheapest within the ceilings"
	}
	others := found.why
	others.Total -= len(found.candidates)
	seen := ""
	if others.Total > 0 {
		_, list, _ := strings.Cut(others.String(), ": ")
		seen = fmt.Sprintf(" (%d seen: %s)", found.why.Total, list)
	}
	noun := "offers"
	if len(found.candidates) == 1 {
		noun = "offer"
	}
	where := string(c.offer.Provider)
	if c.offer.Region != "" {
		where += " in " + c.offer.Region
	}
	return fmt.Sprintf("%s of %d fitting %s%s: %s ×%d at $%s/h from %s, %s", choice, len(found.candidates), noun, seen,
		c.offer.GPU, c.offer.GPUCount, c.offer.Price, where, c.offer.CapacityType)
}

// clock is a time for people, in UTC as in an offer's explanation.
func clock(t time.Time) string { return t.UTC().Format("15:04") }

func joinNonEmpty(sep string, parts ...string) string {
	var kept []string
	for _, s := range parts {
		if s != "" {
			kept = append(kept, s)
		}
	}
	return strings.Join(kept, sep)
}
