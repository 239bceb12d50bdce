package claim

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
)

func TestPhaseFollowsConditionsAndNeverGoesBack(t *testing.T) {
	deleted := metav1.NewTime(time.Unix(1, 0))
	for _, tc := range []struct {
		name  string
		was   v1alpha1.Phase
		true_ []string
		asked bool
		ends  bool
		// unbegun is an end that has been asked for and that this controller has not yet acted on.
		unbegun bool
		want    v1alpha1.Phase
	}{
		{name: "new", want: v1alpha1.PhasePending},
		{name: "asked", asked: true, want: v1alpha1.PhaseProvisioning},
		{name: "created", asked: true, true_: []string{v1alpha1.ConditionInstanceCreated}, want: v1alpha1.PhaseProvisioning},
		{name: "running", asked: true, true_: []string{v1alpha1.ConditionInstanceRunning}, want: v1alpha1.PhaseBootstrapping},
		{name: "serving", asked: true, true_: []string{v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionReady}, want: v1alpha1.PhaseReady},
		{name: "silent agent", was: v1alpha1.PhaseReady, asked: true, true_: []string{v1alpha1.ConditionInstanceRunning}, want: v1alpha1.PhaseReady},
		{name: "ending", was: v1alpha1.PhaseReady, asked: true, ends: true, want: v1alpha1.PhaseDraining},
		{name: "to end, still Ready", was: v1alpha1.PhaseReady, asked: true, ends: true, unbegun: true,
			true_: []string{v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionReady}, want: v1alpha1.PhaseReady},
		{name: "ended before anything", ends: true, want: v1alpha1.PhaseDraining},
		{name: "gone", was: v1alpha1.PhaseDraining, ends: true, true_: []string{v1alpha1.ConditionInstanceGone}, want: v1alpha1.PhaseTerminated},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &v1alpha1.GPUNodeClaim{}
			c.Status.Phase = tc.was
			if tc.ends {
				c.DeletionTimestamp = &deleted
			}
			if tc.ends && !tc.unbegun {
				c.Status.DrainStartedAt = &deleted
			}
			if tc.asked {
				c.Status.Attempt = &v1alpha1.Attempt{}
			}
			for _, cond := range tc.true_ {
				c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: cond, Status: metav1.ConditionTrue})
			}
			if got := phaseOf(c); got != tc.want {
				t.Errorf("phase %s, want %s", got, tc.want)
			}
		})
	}
}

// TestCulprits is the whole table of the design: who rests after which exit.
func TestStrikesNeedTwoMachines(t *testing.T) {
	s := NewStrikes()
	for i, tc := range []struct {
		step, machine string
		want          bool
	}{
		{"Loading", "m1", false},
		{"Loading", "m1", false}, // the same machine twice proves nothing about the model
		{"Warmed", "m2", false},  // another step
		{"Loading", "m2", true},
	} {
		if got := s.Strike("llama", tc.step, tc.machine); got != tc.want {
			t.Errorf("strike %d: %v, want %v", i, got, tc.want)
		}
	}
	s.Clear("llama")
	if s.Strike("llama", "Loading", "m3") {
		t.Error("a workload that served is still blamed")
	}
}

func TestTokenIsStableAndALabel(t *testing.T) {
	a := Token("0123456789abcdef", types.UID("u1"), 1)
	if a != Token("0123456789abcdef", types.UID("u1"), 1) {
		t.Error("the same attempt has two tokens")
	}
	if a == Token("0123456789abcdef", types.UID("u1"), 2) || a == Token("0123456789abcdef", types.UID("u2"), 1) {
		t.Error("two attempts share a token")
	}
	if errs := validation.IsDNS1123Label(a); len(errs) > 0 {
		t.Errorf("token %q is no DNS label: %v", a, errs)
	}
	if want := "gs-01234567-"; a[:len(want)] != want {
		t.Errorf("token %q does not begin with %q", a, want)
	}
}

// TestAClaimMayBuyOnlyWhatItsPoolPromisesNow: each way in which a promise has ended, or a ceiling was lowered below what is
// promised to all.
func TestAClaimMayBuyOnlyWhatItsPoolPromisesNow(t *testing.T) {
	two, three := int32(2), int32(3)
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.GPUNodePool)
		why  string
	}{
		"promised":       {func(*v1alpha1.GPUNodePool) {}, ""},
		"all is used":    {func(p *v1alpha1.GPUNodePool) { p.Spec.Limits.MaxGPUs = &three }, ""},
		"no entry":       {func(p *v1alpha1.GPUNodePool) { p.Status.Reservations[0].Claim = "another" }, "no reservation"},
		"being deleted":  {func(p *v1alpha1.GPUNodePool) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, "being deleted"},
		"a lowered cost": {func(p *v1alpha1.GPUNodePool) { p.Spec.Limits.MaxCostPerHour = money.MustParse("0.899999") }, "maxCostPerHour is now 0.899999"},
		"fewer nodes":    {func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.MaxNodes = 1 }, "2 nodes reserved, maxNodes is now 1"},
		"fewer GPUs":     {func(p *v1alpha1.GPUNodePool) { p.Spec.Limits.MaxGPUs = &two }, "3 GPUs reserved, maxGPUs is now 2"},
		"nothing may be spent": {func(p *v1alpha1.GPUNodePool) {
			p.Spec.Scaling.MaxNodes, p.Spec.Limits.MaxCostPerHour = 0, money.Dollars{}
		}, "maxCostPerHour is now"},
	} {
		p := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		p.Spec.Scaling.MaxNodes, p.Spec.Limits.MaxCostPerHour = 2, money.MustParse("0.90")
		for _, r := range []v1alpha1.Reservation{{Claim: "c", DollarsPerHour: money.MustParse("0.40"), GPUs: 1}, {Claim: "d", DollarsPerHour: money.MustParse("0.50"), GPUs: 2}} {
			if err := reserve.Add(p, r); err != nil {
				t.Fatal(err)
			}
		}
		tc.edit(p)
		v := &visit{claim: &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1alpha1.GPUNodeClaimSpec{Pool: "p"}}}
		res, why := v.entitlement(p, false)
		if tc.why == "" && (why != "" || res.DollarsPerHour != money.MustParse("0.40")) || tc.why != "" && !strings.Contains(why, tc.why) {
			t.Errorf("%s: %q of %+v, want %q", name, why, res, tc.why)
		}
		if _, why := v.entitlement(&v1alpha1.GPUNodePool{}, true); !strings.Contains(why, "does not exist") {
			t.Errorf("without its pool: %q", why)
		}
	}
}

// TestOwnWritesAreNotLookedAt: a claim's own status must not bring the next look at it. An agent that loads says something
// new each time, and each look would lead to a write and each write to a look.
func TestOwnWritesAreNotLookedAt(t *testing.T) {
	before := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Generation: 1, ResourceVersion: "1"}}
	for name, c := range map[string]struct {
		change func(*v1alpha1.GPUNodeClaim)
		looked bool
	}{
		"progress":     {func(c *v1alpha1.GPUNodeClaim) { c.Status.Phase = v1alpha1.PhaseBootstrapping }, false},
		"placements":   {func(c *v1alpha1.GPUNodeClaim) { c.Generation = 2 }, true},
		"asked to end": {func(c *v1alpha1.GPUNodeClaim) { c.Annotations = map[string]string{v1alpha1.AnnotationDrain: "idle"} }, true},
	} {
		after := before.DeepCopy()
		after.ResourceVersion = "2"
		c.change(after)
		if got := byOthers().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.looked {
			t.Errorf("%s: looked at %t, want %t", name, got, c.looked)
		}
	}
}
