package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

func mins(n int) time.Time { return now.Add(time.Duration(n) * time.Minute) }

func endedAt(n int) func(*v1alpha1.GPUNodeClaim) {
	return func(c *v1alpha1.GPUNodeClaim) { t := metav1.NewMicroTime(mins(n)); c.Status.DemandEndedAt = &t }
}

// The claim has been Ready since 10:00 and the cooldown is 5 minutes.
func TestIdle(t *testing.T) {
	unused := AgentView{Known: true}
	listed := func(replicas int) []demand.Workload {
		return []demand.Workload{makeWorkload("m").traffic(replicas).listedBy("p").Workload}
	}
	wanted := []demand.Workload{makeWorkload("m").Workload}
	for name, c := range map[string]struct {
		at        time.Time
		claim     claimWrapper
		workloads []demand.Workload
		agent     AgentView
		pool      func(*v1alpha1.GPUNodePool)
		idle      bool
		endsAt    time.Time
		reason    string
		message   string
	}{
		"a pod keeps its replica without traffic": {at: mins(99), workloads: wanted, agent: unused, reason: v1alpha1.ReasonServing, message: "m is wanted 1 times"},
		"so does a minimum":                       {at: mins(99), workloads: listed(1), agent: unused, reason: v1alpha1.ReasonServing, message: "m is wanted 1 times"},
		"cooldown from Ready":                     {at: mins(4), claim: makeClaim("c", "p", "m").but(endedAt(-9)), workloads: listed(0), agent: unused, endsAt: mins(5), reason: v1alpha1.ReasonIdle, message: "unused since 10:00; ends at 10:05"},
		"over":                                    {at: mins(5), claim: makeClaim("c", "p", "m").but(endedAt(-9)), workloads: listed(0), agent: unused, idle: true, endsAt: mins(5), reason: v1alpha1.ReasonCooldownOver, message: "unused since 10:00, longer than the cooldown of 5m"},
		"traffic prolongs a pool's model":         {at: mins(9), claim: makeClaim("c", "p", "m").but(endedAt(1)), workloads: listed(0), agent: AgentView{Known: true, LastRequest: mins(8)}, endsAt: mins(13), reason: v1alpha1.ReasonIdle, message: "unused since 10:08; ends at 10:13"},
		"also as the claim remembers it": {at: mins(9), claim: makeClaim("c", "p", "m").but(endedAt(1)).but(func(c *v1alpha1.GPUNodeClaim) {
			at := metav1.NewTime(mins(8))
			c.Status.LastRequestAt = &at
		}), workloads: listed(0), agent: unused, endsAt: mins(13), reason: v1alpha1.ReasonIdle},
		"cooldown from the end of demand":       {at: mins(9), claim: makeClaim("c", "p", "m").but(endedAt(8)), workloads: listed(0), agent: unused, endsAt: mins(13), reason: v1alpha1.ReasonIdle},
		"declared by nobody":                    {at: mins(12), claim: makeClaim("c", "p", "m").but(endedAt(8)), agent: unused, endsAt: mins(13), reason: v1alpha1.ReasonIdle},
		"declared by nobody, one cooldown":      {at: mins(13), claim: makeClaim("c", "p", "m").but(endedAt(8)), agent: AgentView{Known: true, LastRequest: mins(12)}, idle: true, endsAt: mins(13), reason: v1alpha1.ReasonDemandEnded, message: "no pod or pool declares its models since 10:08, longer than the cooldown of 5m"},
		"the end of demand is not recorded yet": {at: mins(99), workloads: listed(0), agent: unused, endsAt: mins(104), reason: v1alpha1.ReasonIdle},
		"in flight":                             {at: mins(99), claim: makeClaim("c", "p", "m").but(endedAt(1)), workloads: listed(0), agent: AgentView{Known: true, InFlight: 2}, reason: v1alpha1.ReasonBusy, message: "2 requests in flight"},
		"declared by nobody, always in flight":  {at: mins(13), claim: makeClaim("c", "p", "m").but(endedAt(8)), agent: AgentView{Known: true, InFlight: 2, LastRequest: mins(13)}, idle: true, endsAt: mins(13), reason: v1alpha1.ReasonDemandEnded},
		"declared by nobody, not recorded yet":  {at: mins(99), claim: makeClaim("c", "p", "m"), agent: AgentView{Known: true, InFlight: 2}, reason: v1alpha1.ReasonBusy},
		"one of two is declared, in flight":     {at: mins(99), claim: makeClaim("c", "p", "x", "m").but(endedAt(1)), workloads: listed(0), agent: AgentView{Known: true, InFlight: 2}, reason: v1alpha1.ReasonBusy, message: "2 requests in flight"},
		"unknown":                               {at: mins(99), claim: makeClaim("c", "p", "m").but(endedAt(1)), reason: v1alpha1.ReasonAgentUnreachable, message: "its agent does not answer, and unknown is not idle"},
		"booting":                               {at: mins(99), claim: makeClaim("c", "p", "m").phase(v1alpha1.PhaseBootstrapping), agent: unused, reason: v1alpha1.ReasonNotServing},
		"no longer Ready":                       {at: mins(99), claim: makeClaim("c", "p", "m").but(func(c *v1alpha1.GPUNodeClaim) { c.Status.Conditions[0].Status = metav1.ConditionFalse }), agent: unused, reason: v1alpha1.ReasonNotServing},
		"ending":                                {at: mins(99), claim: makeClaim("c", "p", "m").phase(v1alpha1.PhaseDraining), agent: unused, reason: v1alpha1.ReasonDraining},
		"one of two models is wanted":           {at: mins(99), claim: makeClaim("c", "p", "x", "m").but(endedAt(1)), workloads: wanted, agent: unused, reason: v1alpha1.ReasonServing},
		"one of two models is declared":         {at: mins(9), claim: makeClaim("c", "p", "x", "m").but(endedAt(1)), workloads: listed(0), agent: AgentView{Known: true, LastRequest: mins(8)}, endsAt: mins(13), reason: v1alpha1.ReasonIdle},
		"the pool's own cooldown": {at: mins(3), claim: makeClaim("c", "p", "m").but(endedAt(-9)), workloads: listed(0), agent: unused, idle: true, endsAt: mins(2), reason: v1alpha1.ReasonCooldownOver,
			pool: func(p *v1alpha1.GPUNodePool) {
				p.Spec.Scaling.CooldownPeriod = &v1alpha1.Duration{Duration: 2 * time.Minute}
			}},
		"minNodes": {at: mins(99), claim: makeClaim("c", "p", "m").but(endedAt(1)), workloads: listed(0), agent: unused, reason: v1alpha1.ReasonServing,
			message: "pool p keeps 1 nodes (minNodes)", pool: func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.MinNodes = 1 }},
	} {
		if c.claim.GPUNodeClaim == nil {
			c.claim = makeClaim("c", "p", "m")
		}
		pool := makePool("p")
		if c.pool != nil {
			pool.but(c.pool)
		}
		got := Idle(IdleInput{Now: c.at, Claim: c.claim.GPUNodeClaim, Claims: []*v1alpha1.GPUNodeClaim{c.claim.GPUNodeClaim},
			Pool: pool.GPUNodePool, Workloads: c.workloads, Agent: c.agent})
		if got.Idle != c.idle || !got.EndsAt.Equal(c.endsAt) || got.Reason != c.reason || (c.message != "" && got.Message != c.message) || got.Message == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	orphan := makeClaim("c", "gone", "m").but(endedAt(1))
	if got := Idle(IdleInput{Now: mins(6), Claim: orphan.GPUNodeClaim, Agent: unused}); !got.Idle {
		t.Errorf("a claim without its pool has the default cooldown: %+v", got)
	}
}

func TestOfSeveralWorkersOnlyTheWantedStay(t *testing.T) {
	old := makeClaim("old", "p", "m").but(func(c *v1alpha1.GPUNodeClaim) { c.CreationTimestamp = metav1.NewTime(mins(-99)) })
	young, booting := makeClaim("young", "p", "m"), makeClaim("booting", "p", "m").phase(v1alpha1.PhaseBootstrapping).
		but(func(c *v1alpha1.GPUNodeClaim) { c.CreationTimestamp = metav1.NewTime(mins(-199)) })
	ending := makeClaim("ending", "p", "m").phase(v1alpha1.PhaseDraining).but(func(c *v1alpha1.GPUNodeClaim) { c.CreationTimestamp = metav1.NewTime(mins(-299)) })
	all := []*v1alpha1.GPUNodeClaim{ending.GPUNodeClaim, young.GPUNodeClaim, booting.GPUNodeClaim, old.GPUNodeClaim}
	for n, want := range map[int]string{0: "", 1: "old", 2: "old young", 3: "old young booting"} {
		workloads := []demand.Workload{makeWorkload("m").pods(n).Workload}
		for _, c := range []claimWrapper{old, young, booting} {
			kept := Wanted(c.GPUNodeClaim, all, workloads) != ""
			if should := slices.Contains(strings.Fields(want), c.Name); kept != should {
				t.Errorf("%d replicas: %s kept %v", n, c.Name, kept)
			}
		}
	}
	// minNodes counts the wanted ones first: with one wanted and one kept, the other may go.
	pool := makePool("p").but(func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.MinNodes = 1 })
	other := makeClaim("another", "p", "x").but(endedAt(0)).but(func(c *v1alpha1.GPUNodeClaim) { c.CreationTimestamp = metav1.NewTime(mins(-999)) })
	in := IdleInput{Now: mins(60), Claim: other.GPUNodeClaim, Claims: append(all, other.GPUNodeClaim), Pool: pool.GPUNodePool,
		Workloads: []demand.Workload{makeWorkload("m").Workload}, Agent: AgentView{Known: true}}
	in.Claims = in.Claims[3:] // old and another
	if got := Idle(in); !got.Idle {
		t.Errorf("%+v", got)
	}
}
