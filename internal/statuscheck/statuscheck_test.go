package statuscheck

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

var noon = metav1.NewTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))

func condition(t string, status bool, reason string) metav1.Condition {
	c := metav1.Condition{Type: t, Status: metav1.ConditionFalse, Reason: reason, ObservedGeneration: 2, LastTransitionTime: noon}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// serving is a claim in order.
func serving() *v1alpha1.GPUNodeClaim {
	c := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "u", Generation: 2}}
	c.Spec.Placements = []v1alpha1.Placement{{Workload: "m"}}
	c.Status = v1alpha1.GPUNodeClaimStatus{Phase: v1alpha1.PhaseReady, Attempt: &v1alpha1.Attempt{}, InstanceID: "1", ObservedGeneration: 2,
		Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionInstanceCreated, true, v1alpha1.ReasonInstanceCreated),
			condition(v1alpha1.ConditionInstanceRunning, true, v1alpha1.ReasonRunning),
			condition(v1alpha1.ConditionAgentConnected, true, v1alpha1.ReasonAgentConnected),
			condition(v1alpha1.ConditionModelLoaded, true, v1alpha1.ReasonModelLoaded),
			condition(v1alpha1.ConditionReady, true, v1alpha1.ReasonServing),
		}}
	return c
}

func set(c *v1alpha1.GPUNodeClaim, o metav1.Condition) {
	c.Status.Conditions = append(slices.DeleteFunc(c.Status.Conditions, func(x metav1.Condition) bool { return x.Type == o.Type }), o)
}

// TestEachBrokenClaimIsFound breaks a sound one in each way.
func TestEachBrokenClaimIsFound(t *testing.T) {
	if got := Claim(serving(), serving(), false); len(got) > 0 {
		t.Fatalf("a sound claim is blamed: %v", got)
	}
	type claim = *v1alpha1.GPUNodeClaim
	for _, tc := range []struct {
		want   string
		before func(claim)
		now    func(claim)
	}{
		{want: "Ready and InstanceGone are both true", now: func(c claim) { set(c, condition(v1alpha1.ConditionInstanceGone, true, v1alpha1.ReasonGone)) }},
		{want: "InstanceRunning of an instance that is gone", now: func(c claim) { set(c, condition(v1alpha1.ConditionInstanceGone, true, v1alpha1.ReasonGone)) }},
		{want: "Ready and Interrupted are both true", now: func(c claim) { set(c, condition(v1alpha1.ConditionInterrupted, true, v1alpha1.ReasonInterrupted)) }},
		{want: "Ready and Drained are both true", now: func(c claim) { set(c, condition(v1alpha1.ConditionDrained, true, v1alpha1.ReasonDrained)) }},
		{want: "Ready without AgentConnected", now: func(c claim) {
			set(c, condition(v1alpha1.ConditionAgentConnected, false, v1alpha1.ReasonAgentUnreachable))
		}},
		{want: "Ready and failed: GPUMismatch", now: func(c claim) { c.Status.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonGPUMismatch} }},
		{want: `failed for "Whatever", which is not`, now: func(c claim) { c.Status.Failure = &v1alpha1.Failure{Reason: "Whatever"} }},
		{want: "forgot its failure GPUMismatch", before: func(c claim) { c.Status.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonGPUMismatch} }},
		{want: `in a phase "Broken"`, now: func(c claim) { c.Status.Phase = "Broken" }},
		{want: "Draining and not deleted", now: func(c claim) { c.Status.Phase = v1alpha1.PhaseDraining }},
		{want: "Draining and Ready", now: func(c claim) { c.Status.Phase, c.DeletionTimestamp = v1alpha1.PhaseDraining, &noon }},
		{want: "Terminated without InstanceGone", now: func(c claim) {
			c.Status.Phase, c.DeletionTimestamp = v1alpha1.PhaseTerminated, &noon
			set(c, condition(v1alpha1.ConditionReady, false, v1alpha1.ReasonDraining))
		}},
		{want: "Ready without an attempt", now: func(c claim) { c.Status.Attempt = nil }},
		{want: "Ready without an instance", now: func(c claim) { c.Status.InstanceID = "" }},
		{want: "in the phase Ready and never was", now: func(c claim) { c.Status.Conditions = c.Status.Conditions[:4] }},
		{want: "Ready in the phase Bootstrapping", now: func(c claim) { c.Status.Phase = v1alpha1.PhaseBootstrapping }},
		{want: "went back from Ready to Bootstrapping", now: func(c claim) { c.Status.Phase = v1alpha1.PhaseBootstrapping }},
		{want: `has a condition "Happy"`, now: func(c claim) { set(c, condition("Happy", true, v1alpha1.ReasonServing)) }},
		{want: `Idle=False for "Bored", which is not`, now: func(c claim) { set(c, condition(v1alpha1.ConditionIdle, false, "Bored")) }},
		{want: `Idle=False for "SecretMissing", which is not`, now: func(c claim) { set(c, condition(v1alpha1.ConditionIdle, false, v1alpha1.ReasonSecretMissing)) }},
		{want: "has observed generation 2 of 1", now: func(c claim) { c.Generation = 1 }},
		{want: "Ready observed generation 2 of 1", now: func(c claim) { c.Generation = 1 }},
		{want: "Ready observed generation 0 of 2", now: func(c claim) { c.Status.Conditions[4].ObservedGeneration = 0 }},
		{want: "unlearned generation 3", before: func(c claim) { c.Status.ObservedGeneration = 3 }},
		{want: "Ready unlearned generation 3", before: func(c claim) { c.Status.Conditions[4].ObservedGeneration = 3 }},
		{want: "Ready turned at no time", now: func(c claim) { c.Status.Conditions[4].LastTransitionTime = metav1.Time{} }},
		{want: "Ready turned at", now: func(c claim) {
			c.Status.Conditions[4] = condition(v1alpha1.ConditionReady, false, v1alpha1.ReasonNotServing)
			c.Status.Conditions[4].LastTransitionTime = metav1.NewTime(noon.Add(-time.Second))
		}},
		{want: "Ready is True as before and says that it turned", now: func(c claim) { c.Status.Conditions[4].LastTransitionTime = metav1.NewTime(noon.Add(time.Second)) }},
		{want: "Ready is gone", now: func(c claim) { c.Status.Conditions = c.Status.Conditions[:4] }},
		{want: "was Interrupted and is no more", before: func(c claim) { set(c, condition(v1alpha1.ConditionInterrupted, true, v1alpha1.ReasonInterrupted)) }},
	} {
		t.Run(tc.want, func(t *testing.T) {
			before, now := serving(), serving()
			for f, c := range map[*func(claim)]claim{&tc.before: before, &tc.now: now} {
				if *f != nil {
					(*f)(c)
				}
			}
			if got := Claim(before, now, false); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, tc.want) }) {
				t.Errorf("found only %q", got)
			}
		})
	}
}

func TestABrokenPoolIsFound(t *testing.T) {
	sound := func() *v1alpha1.GPUNodePool {
		p := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 2}}
		p.Spec.Providers = make([]v1alpha1.ProviderSpec, 1)
		p.Status.ObservedGeneration = 2
		p.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, true, v1alpha1.ReasonPoolReady)}
		return p
	}
	if got := Pool(sound(), sound(), false); len(got) > 0 {
		t.Fatalf("a sound pool is blamed: %v", got)
	}
	bad, before := sound(), sound()
	before.Status.ObservedGeneration = 3
	bad.Generation = 1
	bad.Status.Conditions = append(bad.Status.Conditions, condition(v1alpha1.ConditionCredentialsValid, false, v1alpha1.ReasonIdle))
	got := strings.Join(Pool(before, bad, false), "\n")
	for _, want := range []string{"Ready without CredentialsValid", `for "Idle", which is not`, "observed generation 2 of 1", "unlearned generation 3"} {
		if !strings.Contains(got, want) {
			t.Errorf("not found: %s, only\n%s", want, got)
		}
	}
	bad.Spec.Providers = make([]v1alpha1.ProviderSpec, 2)
	if got := strings.Join(Pool(before, bad, false), "\n"); strings.Contains(got, "Ready without CredentialsValid") {
		t.Errorf("a pool with another entry is blamed: %s", got)
	}
}

func TestAPodThatIsToldTooMuchIsFound(t *testing.T) {
	told := func(name, model, reason string, status corev1.ConditionStatus) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Annotations: map[string]string{v1alpha1.AnnotationModel: model}}}
		p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionServed, Status: status, Reason: reason}}
		return p
	}
	w := newWatcher()
	w.see(told("right", "m", v1alpha1.PodReasonServed, corev1.ConditionTrue), false)
	w.see(serving(), false) // seen after the pod that it serves
	if got := w.judgement(); len(got) > 0 {
		t.Fatalf("blamed: %v", got)
	}
	w.see(told("unserved", "other", v1alpha1.PodReasonServed, corev1.ConditionTrue), false)
	w.see(told("torn", "m", v1alpha1.PodReasonBooting, corev1.ConditionTrue), false)
	w.see(told("odd", "m", "Whatever", corev1.ConditionFalse), false)
	broken := serving()
	broken.Status.Phase = v1alpha1.PhasePending
	w.see(broken, false)
	got := strings.Join(w.judgement(), "\n")
	for _, want := range []string{"pod n/unserved: told that other is served", "pod n/torn: Served=True for Booting", `pod n/odd: Served=False for "Whatever"`,
		"claim c: went back from Ready to Pending"} {
		if !strings.Contains(got, want) {
			t.Errorf("not found: %s, only\n%s", want, got)
		}
	}
}

// TestWhatWasMissedIsNotJudged: between two states there may have been others where a watch broke.
func TestWhatWasMissedIsNotJudged(t *testing.T) {
	w := newWatcher()
	w.see(serving(), false)
	later := serving()
	later.Status.Conditions[4].LastTransitionTime = metav1.NewTime(noon.Add(time.Second))
	w.see(later, true)
	if got := w.judgement(); len(got) > 0 {
		t.Errorf("blamed for what may have been between: %v", got)
	}
	back := serving()
	back.Status.Phase = v1alpha1.PhasePending
	w.see(back, true)
	if got := strings.Join(w.judgement(), "\n"); !strings.Contains(got, "went back from Ready to Pending") {
		t.Errorf("nothing between can excuse it, only\n%s", got)
	}
}
