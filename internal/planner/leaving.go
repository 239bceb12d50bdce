package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

// ModelView is the agent's account of one model's work.
type ModelView struct {
	InFlight    int
	LastRequest time.Time
}

// Leaving is a model that has had its cooldown on a claim that goes on with others.
type Leaving struct {
	Workload string
	// Reason is one of the claim's condition reasons, Message the same for people.
	Reason  string
	Message string
}

// Unwanted are the workloads of a claim that nothing wants there, in the order of its placements.
func Unwanted(claim *v1alpha1.GPUNodeClaim, claims []*v1alpha1.GPUNodeClaim, workloads []demand.Workload) []string {
	var out []string
	for _, p := range claim.Spec.Placements {
		i := slices.IndexFunc(workloads, func(w demand.Workload) bool { return w.Key == p.Workload })
		if i < 0 || !wants(workloads[i], claim, claims) {
			out = append(out, p.Workload)
		}
	}
	return out
}

// Leave judges which models are to be taken off a claim that others keep alive, and when the next one will be due; zero
// for never. A model leaves one cooldown after nothing wants it there. Requests prolong that only while a pod or a pool
// declares it. The last model leaves only a claim that its pool
// keeps empty too (minNodes): Idle judges the whole claim.
//
// claim.status.unwanted must be kept by the caller, as Unwanted says; a model that is not in it stays.
func Leave(in IdleInput) (leaving []Leaving, next time.Time) {
	if !Serves(in.Claim) || !in.Agent.Known {
		return nil, time.Time{}
	}
	period := in.period()
	for _, w := range Unwanted(in.Claim, in.Claims, in.Workloads) {
		i := slices.IndexFunc(in.Claim.Status.Unwanted, func(u v1alpha1.UnwantedModel) bool { return u.Workload == w })
		if i < 0 {
			continue
		}
		since, model, declared := in.Claim.Status.Unwanted[i].Since.Time, in.Agent.Models[w], declares(in.Workloads, w)
		if declared && model.InFlight > 0 {
			continue
		}
		l := Leaving{Workload: w, Reason: v1alpha1.ReasonDemandEnded, Message: "no pod or pool declares it since " + clock(since)}
		if declared {
			since = latest(since, model.LastRequest)
			l.Reason, l.Message = v1alpha1.ReasonCooldownOver, "unused since "+clock(since)
		}
		due := since.Add(period)
		switch {
		case in.Now.Before(due):
			if next.IsZero() || due.Before(next) {
				next = due
			}
		case len(leaving)+1 < len(in.Claim.Spec.Placements) || in.KeptByPool() != "":
			l.Message += fmt.Sprintf(", longer than the cooldown of %s", v1alpha1.FormatDuration(period))
			leaving = append(leaving, l)
		}
	}
	return leaving, next
}

// period is the cooldown.
func (in IdleInput) period() time.Duration {
	if in.Pool == nil {
		return DefaultCooldown
	}
	return in.Pool.Spec.Scaling.CooldownPeriod.Or(DefaultCooldown)
}

func declares(workloads []demand.Workload, key string) bool {
	return slices.ContainsFunc(workloads, func(w demand.Workload) bool { return w.Key == key })
}
