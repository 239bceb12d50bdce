package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

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

// explain says why the w-th workload gets nothing more. Pools that rest have had their say.
func (p *planning) explain(d *draft, w int) Unmet {
	wl := &p.workloads[w]
	unmet := wl.unmet
	unmet.Missing = d.missing[w]
	if wl.shape == nil {
		return unmet
	}
	found, resting := p.survey(wl.shape), unmet.Message
	unmet.RetryAt = time.Time{}
	switch {
	case d.bought[w] >= wl.allowance:
		p.explainBound(wl.Key, &unmet)
	case found.why.Kept() > 0:
		unmet.Reason, unmet.Message = v1alpha1.PodReasonCeilingReached, d.ceilings(wl.shape)
		if unmet.Message != "" {
			unmet.Message = joinNonEmpty("; ", unmet.Message, p.waitsFor(wl.Key))
		} else {
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
	return unmet
}

// waitsFor names the claim that served a workload, was interrupted, and counts against the ceilings until it is gone.
func (p *planning) waitsFor(key string) string {
	for _, c := range p.snapshot.Claims {
		serves := slices.ContainsFunc(c.Spec.Placements, func(o v1alpha1.Placement) bool { return o.Workload == key })
		if serves && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionInterrupted) &&
			!meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionInstanceGone) {
			return fmt.Sprintf("waits until %s is gone, which was interrupted", c.Name)
		}
	}
	return ""
}

func (p *planning) explainBound(key string, unmet *Unmet) {
	// What this very plan bought counts from now.
	first := p.snapshot.Now
	if recent := p.recent(key); len(recent) > 0 {
		first = recent[0]
	}
	unmet.Reason = v1alpha1.PodReasonResting
	unmet.RetryAt = first.Add(time.Hour)
	unmet.Message = fmt.Sprintf("%d instances bought within an hour, the most for one workload; next at %s", p.perHour(),
		clock(unmet.RetryAt))
}

// ceilings says for each pool with a fitting offer which ceiling keeps it from buying the cheapest that is still to be
// had, or the cheapest of those taken just now; empty where no ceiling is in the way.
func (d *draft) ceilings(sh *shape) string {
	var all []chance
	for i := range sh.slots {
		o := d.head(&sh.slots[i])
		if o == nil {
			o = &sh.slots[i].kind.fit[0]
		}
		all = append(all, chance{&sh.slots[i], o})
	}
	slices.SortFunc(all, func(a, b chance) int { return preferred(a.slot.kind, a.offer, b.slot.kind, b.offer) })
	var parts []string
	seen := map[string]bool{}
	for _, c := range all {
		pool := c.slot.kind.pool.Name
		if why := d.affords(c.slot.kind, c.offer); why != "" && !seen[pool] {
			seen[pool] = true
			parts = append(parts, fmt.Sprintf("pool %s: %s", pool, why))
		}
	}
	return strings.Join(parts, "; ")
}

// reasonFor is why an offer was chosen: "cheapest of 31 fitting offers (214 seen: 180 over $0.50, 3 wrong GPU): RTX4090
// ×1 at $0.41/h in Sweden, spot". The offers counted are those that fit the first of several residents.
func (p *planning) reasonFor(n *node, keys []string) string {
	sh := n.spare
	if sh == nil {
		sh = p.shapeOf(n.residents[0])
	}
	found := p.survey(sh)
	choice, o := "cheapest", n.offer
	switch {
	case n.spare != nil:
		choice = "for minNodes: cheapest"
	case len(keys) > 1:
		choice = fmt.Sprintf("shared by %s: best", listed(keys))
	case sh.alone.Less(o.Price):
		choice = "cheapest within the ceilings"
	}
	where := string(o.Provider)
	if o.Region != "" {
		where += " in " + o.Region
	}
	return fmt.Sprintf("%s of %s: %s ×%d at $%s/h from %s, %s%s", choice, found.choice(), o.GPU, o.GPUCount, o.Price, where,
		o.CapacityType, found.without())
}

// without says which markets are not among what there was to choose from, and why.
func (s *survey) without() string {
	if len(s.silent) == 0 {
		return ""
	}
	return "; without " + strings.Join(s.silent, "; ")
}

// choice is what there was to choose from: "31 fitting offers (214 seen: 180 over $0.50, 3 wrong GPU)".
func (s *survey) choice() string {
	if s.words != "" {
		return s.words
	}
	fits := s.why.Kept()
	noun := "offers"
	if fits == 1 {
		noun = "offer"
	}
	s.words = fmt.Sprintf("%d fitting %s", fits, noun)
	others := s.why
	if others.Total -= fits; others.Total > 0 {
		_, list, _ := strings.Cut(others.String(), ": ")
		s.words += fmt.Sprintf(" (%d seen: %s)", s.why.Total, list)
	}
	return s.words
}

// bindingReason says what room a replica gets.
func bindingReason(n *node, s share) string {
	part := "the whole of"
	if s.fraction < wholeGPU {
		part = fmt.Sprintf("%d.%d %% of each of", s.fraction/10, s.fraction%10)
	}
	return fmt.Sprintf("claim %s has room: %s %d of its %d GPUs, at no further cost", n.host.claim.Name, part, s.gpus, n.gpus)
}

// mostListed bounds the names in one line: an event holds a thousand characters.
const mostListed = 400

// listed names all workloads, as far as there is room.
func listed(keys []string) string {
	var b strings.Builder
	for i, k := range keys {
		if b.Len()+len(k) > mostListed && i > 0 {
			return fmt.Sprintf("%s and %d more", b.String(), len(keys)-i)
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(k)
	}
	return b.String()
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
