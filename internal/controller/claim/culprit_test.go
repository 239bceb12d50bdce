package claim

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/offers/rest"
)

// spoken are the values of the agent's constants that begin with a prefix: a new one fails the table until it is in it.
func spoken(t *testing.T, prefix string) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../agentapi/agentapi.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, prefix) && len(spec.Values) == 1 {
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
				value, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, value)
			}
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("the agent has no constant %s…", prefix)
	}
	return out
}

type noMemory struct{}

func (noMemory) Event(context.Context, ledger.Event) error { return nil }
func (noMemory) EventsSince(context.Context, string, time.Time) ([]ledger.Event, error) {
	return nil, nil
}

// bench blames failures of claims for one model on one machine after another.
type bench struct {
	r   *Reconciler
	now time.Time
}

func newBench() *bench {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &bench{&Reconciler{Rests: &rest.Book{}, Strikes: NewStrikes(), Memory: noMemory{}, Clock: testingclock.NewFakeClock(now)}, now}
}

// blame says what rests after a claim with "good" and "bad" on it failed on a machine, bad being the one that the agent
// says failed.
func (b *bench) blame(machine string, served bool, f v1alpha1.Failure) (resting []string) {
	c := &v1alpha1.GPUNodeClaim{}
	c.Spec.Pool = "pool"
	c.Spec.Placements = []v1alpha1.Placement{{Workload: "good", Form: "1"}, {Workload: "bad", Form: "1"}}
	c.Status.Provider, c.Status.RestKeys = "vast.ai", []string{"machine/" + machine}
	c.Status.Attempt = &v1alpha1.Attempt{Token: "t", OfferID: "o"}
	c.Status.Models = []v1alpha1.ModelStatus{{Name: "good", State: v1alpha1.ModelReady}, {Name: "bad", State: v1alpha1.ModelFailed}}
	if served {
		c.Status.Steps = []v1alpha1.Step{{Name: stepReady, At: metav1.NewMicroTime(b.now)}}
	}
	newVisit(b.r, c).restCulprit(context.Background(), f)
	for key := range b.r.Rests.View(b.now) {
		resting = append(resting, string(key.Scope)+" "+key.Value)
	}
	slices.Sort(resting)
	return resting
}

// TestCulprits is the table of (step, exit) to who rests, after a first machine and after a second one.
func TestCulprits(t *testing.T) {
	const m1, m2, bad, pool = "offer machine/m1", "offer machine/m2", "workload bad#1", "pool pool"
	type rests struct{ first, second []string }
	offer := rests{[]string{m1}, []string{m1, m2, bad}}
	host := rests{[]string{m1}, []string{m1, m2}}
	workload := rests{[]string{bad}, []string{bad}}
	want := map[string]rests{
		agentapi.ExitNoDriver:        host,
		agentapi.ExitGPUMismatch:     host,
		agentapi.ExitNoRuntime:       host,
		agentapi.ExitCrashed:         offer,
		agentapi.ExitTimeout:         offer,
		agentapi.ExitWarmupFailed:    offer,
		agentapi.ExitBadArgument:     workload,
		agentapi.ExitOutOfMemory:     workload,
		agentapi.ExitWeightsDenied:   workload,
		agentapi.ExitWeightsNotFound: workload,
		agentapi.ExitNoEngine:        {[]string{pool}, []string{pool}},
		"AnExitOfALaterAgent":        offer,
	}
	exits, steps := spoken(t, "Exit"), append(spoken(t, "Step"), "AgentConnected", "Load", "Run")
	for _, exit := range append(exits, "AnExitOfALaterAgent") {
		expected, ok := want[exit]
		if !ok {
			t.Errorf("%s is in no line of the table", exit)
			continue
		}
		if _, ok := culprits[exit]; ok != slices.Contains(exits, exit) {
			t.Errorf("%s has a culprit: %v", exit, ok)
		}
		for _, step := range steps {
			b := newBench()
			f := v1alpha1.Failure{Step: step, Reason: reasonOf(exit), Culprit: culpritOf(exit), Message: exit}
			if got := b.blame("m1", false, f); !slices.Equal(got, sorted(expected.first)) {
				t.Errorf("%s at %s: %v rest, want %v", exit, step, got, expected.first)
			}
			if got := b.blame("m1", false, f); !slices.Equal(got, sorted(expected.first)) {
				t.Errorf("%s at %s, twice on one machine: %v rest, want %v", exit, step, got, expected.first)
			}
			if got := b.blame("m2", false, f); !slices.Equal(got, sorted(expected.second)) {
				t.Errorf("%s at %s, on a second machine: %v rest, want %v", exit, step, got, expected.second)
			}
		}
	}
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// TestWhatIsNoFaultOfTheModel never counts against it, on however many machines.
func TestWhatIsNoFaultOfTheModel(t *testing.T) {
	for name, c := range map[string]struct {
		served bool
		f      v1alpha1.Failure
		want   []string
	}{
		"it served":             {true, v1alpha1.Failure{Step: "Run", Reason: v1alpha1.ReasonInterrupted, Culprit: v1alpha1.CulpritOffer}, []string{"offer machine/m1", "offer machine/m2", "offer machine/m3"}},
		"a price":               {false, v1alpha1.Failure{Step: "Run", Reason: v1alpha1.ReasonOverPriced, Culprit: v1alpha1.CulpritOffer}, []string{"offer machine/m1", "offer machine/m2", "offer machine/m3"}},
		"an offer that is gone": {false, v1alpha1.Failure{Step: "Purchase", Reason: v1alpha1.ReasonOfferGone, Culprit: v1alpha1.CulpritOffer}, []string{"offer machine/m1", "offer machine/m2", "offer machine/m3"}},
		"no reservation":        {false, v1alpha1.Failure{Step: "Purchase", Reason: v1alpha1.ReasonNotReserved, Culprit: v1alpha1.CulpritNone}, nil},
		"boot data":             {false, v1alpha1.Failure{Step: "Boot", Reason: v1alpha1.ReasonInvalidRequest, Culprit: v1alpha1.CulpritPool}, []string{"pool pool"}},
	} {
		b := newBench()
		var got []string
		for _, m := range []string{"m1", "m2", "m3"} {
			got = b.blame(m, c.served, c.f)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v rest, want %v", name, got, c.want)
		}
	}
}
