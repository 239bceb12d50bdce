package claim

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/munhq/gpuscale/api/v1alpha1"
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
