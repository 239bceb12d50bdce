package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

// DefaultCooldown is the API's default of scaling.cooldownPeriod, for claims whose pool is gone.
const DefaultCooldown = 5 * time.Minute

// AgentView is the agent's account of its work.
type AgentView struct {
	// Known: the agent has answered recently. Without that nothing is idle.
	Known bool
	// InFlight are the requests being served over all models; LastRequest when one last began or ended, zero if never.
	InFlight    int
	LastRequest time.Time
	// Models is the same for each model; one that is missing has no work.
	Models map[string]ModelView
}

// IdleInput is what one claim's idleness is judged from. Nothing in it is changed.
type IdleInput struct {
	Now   time.Time
	Claim *v1alpha1.GPUNodeClaim
	// Claims are all claims, Claim among them: of several that serve one model only as many are wanted as it has
	// replicas, and every judgement must agree on which.
	Claims []*v1alpha1.GPUNodeClaim
	// Pool of the claim; nil where it is gone.
	Pool *v1alpha1.GPUNodePool
	// Workloads as demand.Workloads returns them, those with no replicas wanted included: a model that is not among them
	// is declared by nobody.
	Workloads []demand.Workload
	Agent     AgentView
}

// IdleVerdict says whether a claim may be ended for want of work.
type IdleVerdict struct {
	// Idle: the cooldown is over.
	Idle bool
	// Since is the last use, from which the cooldown runs to EndsAt. Zero where no cooldown runs.
	Since  time.Time
	EndsAt time.Time
	// Reason is one of the claim's condition reasons, Message the same for people.
	Reason  string
	Message string
}

// Idle judges whether a claim has been without use, and without anything that wants it, for its pool's cooldown.
//
// A claim that is not Ready, whose agent is not known to answer, that has requests in flight, or that standing demand
// (pods, the gateway's wish, minReplicas, always-active, minNodes) still wants is not idle. Otherwise the cooldown runs
// from the latest of Ready, the last request and the end of demand. Requests, those in flight included, do not count
// where neither a pod nor a pool declares any of its models any more.
//
// claim.status.demandEndedAt must be kept by the caller: set when Wanted turns false, cleared when it turns true. Until it
// is set the end of demand is taken to be now.
func Idle(in IdleInput) IdleVerdict {
	ready := meta.FindStatusCondition(in.Claim.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case !Serves(in.Claim):
		return busy(v1alpha1.ReasonDraining, "it is ending already")
	case in.Claim.Status.Phase != v1alpha1.PhaseReady || ready == nil || ready.Status != metav1.ConditionTrue:
		return busy(v1alpha1.ReasonNotServing, "it is not Ready")
	case !in.Agent.Known:
		return busy(v1alpha1.ReasonAgentUnreachable, "its agent does not answer, and unknown is not idle")
	case in.inFlight() > 0:
		return busy(v1alpha1.ReasonBusy, fmt.Sprintf("%d requests in flight", in.inFlight()))
	}
	if why := Wanted(in.Claim, in.Claims, in.Workloads); why != "" {
		return busy(v1alpha1.ReasonServing, why)
	}
	if why := in.KeptByPool(); why != "" {
		return busy(v1alpha1.ReasonServing, why)
	}
	return in.cooldown(ready.LastTransitionTime.Time)
}

func busy(reason, message string) IdleVerdict { return IdleVerdict{Reason: reason, Message: message} }

// cooldown is the verdict on a claim that nothing wants.
func (in IdleInput) cooldown(ready time.Time) IdleVerdict {
	ended := in.Now
	if t := in.Claim.Status.DemandEndedAt; t != nil {
		ended = t.Time
	}
	since := latest(ready, ended)
	declared := in.declared()
	if declared {
		since = latest(since, in.Agent.LastRequest)
		if t := in.Claim.Status.LastRequestAt; t != nil && in.Agent.LastRequest.IsZero() { // its agent has begun anew
			since = latest(since, t.Time)
		}
	}
	period := in.period()
	v := IdleVerdict{Since: since, EndsAt: since.Add(period), Reason: v1alpha1.ReasonIdle}
	v.Idle = !in.Now.Before(v.EndsAt)
	switch {
	case !v.Idle:
		v.Message = fmt.Sprintf("unused since %s; ends at %s", clock(since), clock(v.EndsAt))
	case declared:
		v.Reason = v1alpha1.ReasonCooldownOver
		v.Message = fmt.Sprintf("unused since %s, longer than the cooldown of %s", clock(since), v1alpha1.FormatDuration(period))
	default:
		v.Reason = v1alpha1.ReasonDemandEnded
		v.Message = fmt.Sprintf("no pod or pool declares its models since %s, longer than the cooldown of %s", clock(since),
			v1alpha1.FormatDuration(period))
	}
	return v
}

// inFlight are the requests in flight that keep the claim.
func (in IdleInput) inFlight() int {
	if !in.declared() && in.Claim.Status.DemandEndedAt != nil {
		return 0
	}
	return in.Agent.InFlight
}

// Listed reports whether a pool lists one of the claim's models, so that traffic alone can want it.
func Listed(claim *v1alpha1.GPUNodeClaim, workloads []demand.Workload) bool {
	return slices.ContainsFunc(workloads, func(w demand.Workload) bool { return len(w.Pools) > 0 && places(claim, w.Key) })
}

// declared reports whether a pod or a pool still declares one of the claim's models: then requests count as use.
func (in IdleInput) declared() bool {
	return slices.ContainsFunc(in.Claim.Spec.Placements, func(p v1alpha1.Placement) bool { return declares(in.Workloads, p.Workload) })
}

// Wanted says what standing demand wants a claim for; empty where nothing does. Of the claims that serve a model the
// first Replicas are wanted: those that serve already before those on their way, then the older ones.
func Wanted(claim *v1alpha1.GPUNodeClaim, claims []*v1alpha1.GPUNodeClaim, workloads []demand.Workload) string {
	for _, w := range workloads {
		if places(claim, w.Key) && wants(w, claim, claims) {
			return fmt.Sprintf("%s is wanted %d times", w.Key, w.Replicas)
		}
	}
	return ""
}

// wants reports whether a claim that serves a workload is one of the first Replicas that do.
func wants(w demand.Workload, claim *v1alpha1.GPUNodeClaim, claims []*v1alpha1.GPUNodeClaim) bool {
	before := 0
	for _, c := range claims {
		if c.Name != claim.Name && Serves(c) && places(c, w.Key) && precedes(c, claim) < 0 {
			before++
		}
	}
	return before < w.Replicas
}

func places(c *v1alpha1.GPUNodeClaim, workload string) bool {
	return slices.ContainsFunc(c.Spec.Placements, func(p v1alpha1.Placement) bool { return p.Workload == workload })
}

// precedes orders claims by how much they are worth keeping.
func precedes(a, b *v1alpha1.GPUNodeClaim) int {
	return cmp.Or(
		cmp.Compare(unready(a), unready(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		strings.Compare(a.Name, b.Name),
	)
}

func unready(c *v1alpha1.GPUNodeClaim) int {
	if c.Status.Phase == v1alpha1.PhaseReady && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) {
		return 0
	}
	return 1
}

// KeptByPool says that the claim is one of its pool's minNodes; empty where it is not. Claims that demand wants count first.
func (in IdleInput) KeptByPool() string {
	if in.Pool == nil || in.Pool.DeletionTimestamp != nil || in.Pool.Spec.Scaling.MinNodes == 0 {
		return ""
	}
	before := 0
	for _, c := range in.Claims {
		if c.Name == in.Claim.Name || c.Spec.Pool != in.Pool.Name || !Serves(c) {
			continue
		}
		if precedes(c, in.Claim) < 0 || Wanted(c, in.Claims, in.Workloads) != "" {
			before++
		}
	}
	if before < int(in.Pool.Spec.Scaling.MinNodes) {
		return fmt.Sprintf("pool %s keeps %d nodes (minNodes)", in.Pool.Name, in.Pool.Spec.Scaling.MinNodes)
	}
	return ""
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
