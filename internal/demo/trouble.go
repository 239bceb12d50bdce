package demo

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Trouble is what looks wrong now, for someone who waits in vain: the claim's failure, else what pod, claim or pool say
// is not so yet, and the latest warning.
func (w *World) Trouble() string {
	var said string
	switch {
	case w.Claim != nil && w.Claim.Status.Failure != nil:
		f := w.Claim.Status.Failure
		return fmt.Sprintf("claim %s failed at %s: %s: %s", w.Claim.Name, f.Step, f.Reason, f.Message)
	case w.Claim != nil:
		said = fmt.Sprintf("claim %s is %s", w.Claim.Name, cmp.Or(string(w.Claim.Status.Phase), "new"))
		if c := notYet(w.Claim.Status.Conditions); c != nil {
			said += fmt.Sprintf("; %s is %s: %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	case w.Pod != nil && servedCondition(w.Pod) != nil:
		c := servedCondition(w.Pod)
		said = fmt.Sprintf("pod %s: %s: %s", w.Pod.Name, c.Reason, c.Message)
	case w.Pod != nil:
		said = fmt.Sprintf("pod %s is %s and gpuscale has said nothing of it", w.Pod.Name, cmp.Or(w.Pod.Status.Phase, "new"))
	case w.Pool != nil:
		said = fmt.Sprintf("pool %s is there, the pod is not", w.Pool.Name)
	default:
		said = "nothing has been seen"
	}
	if w.Pool != nil && w.Claim == nil {
		if c := meta.FindStatusCondition(w.Pool.Status.Conditions, v1alpha1.ConditionReady); c != nil &&
			c.Status != metav1.ConditionTrue {
			said += fmt.Sprintf("; pool %s: %s: %s", w.Pool.Name, c.Reason, c.Message)
		}
	}
	if w.trouble != "" {
		said += "; last warning: " + w.trouble
	}
	return said
}

// notYet is the first condition that is not true, in the order of a claim's life.
func notYet(conditions []metav1.Condition) *metav1.Condition {
	for _, t := range []string{v1alpha1.ConditionInstanceGone, v1alpha1.ConditionDrained, v1alpha1.ConditionInstanceCreated,
		v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionAgentConnected, v1alpha1.ConditionModelLoaded,
		v1alpha1.ConditionReady} {
		if c := meta.FindStatusCondition(conditions, t); c != nil && c.Status != metav1.ConditionTrue {
			return c
		}
	}
	return nil
}

func servedCondition(p *corev1.Pod) *corev1.PodCondition {
	for i, c := range p.Status.Conditions {
		if c.Type == v1alpha1.PodConditionServed {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
