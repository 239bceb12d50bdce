package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

func unwantedSince(workload string, minute int) func(*v1alpha1.GPUNodeClaim) {
	return func(c *v1alpha1.GPUNodeClaim) {
		c.Status.Unwanted = append(c.Status.Unwanted, v1alpha1.UnwantedModel{Workload: workload, Since: metav1.NewMicroTime(mins(minute))})
	}
}

// The cooldown is 5 minutes.
func TestLeave(t *testing.T) {
	m := makeWorkload("m").Workload
	listed := makeWorkload("x").traffic(0).listedBy("p").Workload
	with := func(models map[string]ModelView) AgentView { return AgentView{Known: true, Models: models} }
	two := func() claimWrapper { return makeClaim("c", "p", "m", "x") }
	for name, c := range map[string]struct {
		at        time.Time
		claim     claimWrapper
		workloads []demand.Workload
		agent     AgentView
		leaves    string
		next      time.Time
	}{
		"declared by nobody, before":          {at: mins(12), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m}, agent: with(nil), next: mins(13)},
		"declared by nobody, over":            {at: mins(13), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m}, agent: with(nil), leaves: "x DemandEnded"},
		"traffic does not prolong that":       {at: mins(13), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m}, agent: with(map[string]ModelView{"x": {InFlight: 3, LastRequest: mins(12)}}), leaves: "x DemandEnded"},
		"traffic prolongs a declared one":     {at: mins(13), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m, listed}, agent: with(map[string]ModelView{"x": {LastRequest: mins(10)}}), next: mins(15)},
		"requests keep a declared one":        {at: mins(99), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m, listed}, agent: with(map[string]ModelView{"x": {InFlight: 1, LastRequest: mins(10)}})},
		"a declared one, over":                {at: mins(15), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m, listed}, agent: with(map[string]ModelView{"x": {LastRequest: mins(10)}}), leaves: "x CooldownOver"},
		"the neighbour's traffic counts not":  {at: mins(15), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m, listed}, agent: with(map[string]ModelView{"m": {InFlight: 9, LastRequest: mins(15)}}), leaves: "x CooldownOver"},
		"not noted yet":                       {at: mins(99), claim: two(), workloads: []demand.Workload{m}, agent: with(nil)},
		"wanted again":                        {at: mins(99), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m, makeWorkload("x").Workload}, agent: with(nil)},
		"unknown":                             {at: mins(99), claim: two().but(unwantedSince("x", 8)), workloads: []demand.Workload{m}},
		"ending":                              {at: mins(99), claim: two().but(unwantedSince("x", 8)).phase(v1alpha1.PhaseDraining), workloads: []demand.Workload{m}, agent: with(nil)},
		"the last one stays":                  {at: mins(99), claim: makeClaim("c", "p", "x").but(unwantedSince("x", 8)), agent: with(nil)},
		"of two that nothing wants one stays": {at: mins(99), claim: two().but(unwantedSince("m", 9)).but(unwantedSince("x", 8)), agent: with(nil), leaves: "m DemandEnded"},
		"two of three":                        {at: mins(99), claim: makeClaim("c", "p", "m", "x", "y").but(unwantedSince("x", 8)).but(unwantedSince("y", 8)), workloads: []demand.Workload{m}, agent: with(nil), leaves: "x DemandEnded,y DemandEnded"},
		"one of them later":                   {at: mins(14), claim: makeClaim("c", "p", "m", "x", "y").but(unwantedSince("x", 8)).but(unwantedSince("y", 10)), workloads: []demand.Workload{m}, agent: with(nil), leaves: "x DemandEnded", next: mins(15)},
	} {
		pool := makePool("p").GPUNodePool
		in := IdleInput{Now: c.at, Claim: c.claim.GPUNodeClaim, Claims: []*v1alpha1.GPUNodeClaim{c.claim.GPUNodeClaim}, Pool: pool, Workloads: c.workloads, Agent: c.agent}
		leaving, next := Leave(in)
		var got []string
		for _, l := range leaving {
			got = append(got, fmt.Sprintf("%s %s", l.Workload, l.Reason))
			if !strings.Contains(l.Message, "longer than the cooldown of 5m") {
				t.Errorf("%s: %q", name, l.Message)
			}
		}
		if strings.Join(got, ",") != c.leaves || !next.Equal(c.next) {
			t.Errorf("%s: %v leave, next %s; want %s, next %s", name, got, next, c.leaves, c.next)
		}
	}
}

// TestUnwanted: of several claims that serve a model only as many are wanted as it has replicas.
func TestUnwanted(t *testing.T) {
	older := makeClaim("a", "p", "m", "x").GPUNodeClaim
	younger := makeClaim("b", "p", "m", "y").but(func(c *v1alpha1.GPUNodeClaim) { c.CreationTimestamp = metav1.NewTime(mins(1)) }).GPUNodeClaim
	claims := []*v1alpha1.GPUNodeClaim{older, younger}
	workloads := []demand.Workload{makeWorkload("m").Workload, makeWorkload("y").Workload}
	if got := Unwanted(older, claims, workloads); !slices.Equal(got, []string{"x"}) {
		t.Errorf("on the older %v", got)
	}
	if got := Unwanted(younger, claims, workloads); !slices.Equal(got, []string{"m"}) {
		t.Errorf("on the younger %v", got)
	}
}
