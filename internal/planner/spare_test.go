package planner

import (
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

func (p poolWrapper) minNodes(n int32) poolWrapper { p.Spec.Scaling.MinNodes = n; return p }

// TestMinNodesAreBought: what a pool lacks of its minNodes once demand is served, the cheapest that it allows, within every
// ceiling.
func TestMinNodesAreBought(t *testing.T) {
	cheap, dear := makeOffer("cheap", "RTX4090", 1, "0.40"), makeOffer("dear", "RTX4090", 1, "0.45")
	pair := makeOffer("pair", "RTX3090", 2, "0.35")
	key := SpareKey("p")
	for name, c := range map[string]struct {
		s    snapshotWrapper
		want string
	}{
		"the cheapest, of any shape":     {makeSnapshot(makePool("p").minNodes(1)).market("p", 0, dear, cheap, pair), "p buys pair for  at 0.385"},
		"that the pool allows":           {makeSnapshot(makePool("p").minNodes(1).types("RTX 4090")).market("p", 0, dear, cheap, pair), "p buys cheap for  at 0.44"},
		"two":                            {makeSnapshot(makePool("p").minNodes(2).gpuCount(1)).market("p", 0, dear, cheap, pair), "p buys cheap for  at 0.44\np buys dear for  at 0.495"},
		"demand counts":                  {makeSnapshot(makePool("p").minNodes(1)).wants(makeWorkload("m")).market("p", 0, cheap, dear), "p buys cheap for m at 0.44"},
		"demand comes first":             {makeSnapshot(makePool("p").minNodes(2)).wants(makeWorkload("m")).market("p", 0, cheap, dear), "p buys cheap for m at 0.44\np buys dear for  at 0.495"},
		"what is there counts":           {makeSnapshot(makePool("p").minNodes(1)).has(makeClaim("c", "p")).market("p", 0, cheap), ""},
		"what ends does not":             {makeSnapshot(makePool("p").minNodes(1)).has(makeClaim("c", "p").phase(v1alpha1.PhaseDraining)).market("p", 0, cheap), "p buys cheap for  at 0.44"},
		"another pool's does not":        {makeSnapshot(makePool("p").minNodes(1), makePool("q")).has(makeClaim("c", "q")).market("p", 0, cheap), "p buys cheap for  at 0.44"},
		"what is promised counts":        {makeSnapshot(makePool("p").minNodes(1).reserved("c", "0.44", 1)).market("p", 0, cheap), ""},
		"never above maxNodes":           {makeSnapshot(makePool("p").minNodes(2).maxNodes(1)).market("p", 0, cheap, dear), "p buys cheap for  at 0.44\n" + key + " lacks 1: CeilingReached: pool p: maxNodes 1: 1 reserved"},
		"never above the cost":           {makeSnapshot(makePool("p").minNodes(1).maxCost("0.30")).market("p", 0, cheap), key + " lacks 1: CeilingReached: pool p: maxCostPerHour 0.30: 0.00 reserved, cheapest fit 0.40"},
		"nothing on offer":               {makeSnapshot(makePool("p").minNodes(1).types("H100")).market("p", 0, cheap), key + " lacks 1: NoOffers: 1 offer: 1 wrong GPU"},
		"a model goes on it at no cost":  {makeSnapshot(makePool("p").minNodes(1)).has(makeClaim("c", "p").but(func(c *v1alpha1.GPUNodeClaim) { c.Spec.Providers = makePool("p").Spec.Providers })).wants(makeWorkload("m")).market("p", 0, cheap), "m goes on c with 1×1000"},
		"no more than the hourly number": {makeSnapshot(makePool("p").minNodes(1)).bought(key, 1*time.Minute, 2*time.Minute, 3*time.Minute, 4*time.Minute, 5*time.Minute, 6*time.Minute).market("p", 0, cheap), key + " lacks 1: Resting: 6 instances bought within an hour, the most for one workload; next at 10:54"},
	} {
		if got := say(Make(c.s.Snapshot)); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
	plan := Make(makeSnapshot(makePool("p").minNodes(1)).market("p", 0, cheap).Snapshot)
	b := plan.Purchases[0]
	if len(b.Spec.Placements) != 0 || b.Spec.Requirements.GPUCount != 1 || !strings.HasPrefix(b.ClaimName, "spare-node-of-pool-p-") ||
		!strings.HasPrefix(b.Reason, "for minNodes: cheapest of 1 fitting offer") {
		t.Errorf("%+v", b)
	}
	waiting, urgent := Missing(makeSnapshot(makePool("p").minNodes(1)).Snapshot)
	if len(waiting) != 1 || waiting[0] != key || len(urgent) != 0 {
		t.Errorf("missing %v, urgent %v", waiting, urgent)
	}
}

// TestASpareNodeStaysAndBecomesEmptyAgain: a kept claim without models is not idle, and its last model leaves it.
func TestASpareNodeStaysAndBecomesEmptyAgain(t *testing.T) {
	pool := makePool("p").minNodes(1).GPUNodePool
	c := makeClaim("c", "p").but(endedAt(1)).GPUNodeClaim
	in := IdleInput{Now: mins(99), Claim: c, Claims: []*v1alpha1.GPUNodeClaim{c}, Pool: pool, Agent: AgentView{Known: true}}
	if v := Idle(in); v.Idle || v.Reason != v1alpha1.ReasonServing {
		t.Errorf("%+v", v)
	}
	pool.Spec.Scaling.MinNodes = 0
	if v := Idle(in); !v.Idle {
		t.Errorf("without minNodes: %+v", v)
	}
	pool.Spec.Scaling.MinNodes = 1
	in.Claim = makeClaim("c", "p", "m").but(unwantedSince("m", 8)).GPUNodeClaim
	in.Claims, in.Workloads = []*v1alpha1.GPUNodeClaim{in.Claim}, []demand.Workload{makeWorkload("m").traffic(0).listedBy("p").Workload}
	if leaving, _ := Leave(in); len(leaving) != 1 || leaving[0].Workload != "m" {
		t.Errorf("%+v", leaving)
	}
}
