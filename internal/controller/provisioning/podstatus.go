package provisioning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/planner"
)

// verdict is what a pod is told.
type verdict struct {
	served  bool
	reason  string
	message string
}

// podNote is what a pod was last told and when.
type podNote struct {
	verdict
	at time.Time
}

// repeatAfter bounds how often a pod is told the same reason in other words.
const repeatAfter = time.Minute

// tellers is how many pods are told at once: a herd that has to be told that there is no room for it must not hold up
// the next plan for as long as that many round trips take one after the other.
const tellers = 16

// tell writes the condition gpuscale.io/Served of every pod that asks.
func (r *Reconciler) tell(ctx context.Context, w *world, plan planner.Plan) error {
	verdicts := w.verdicts(plan)
	notes, errs := make([]podNote, len(w.pods)), make([]error, len(w.pods))
	var wg sync.WaitGroup
	slots := make(chan struct{}, tellers)
	for i, pod := range w.pods {
		v, ok := verdicts[pod.UID]
		if !ok {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			notes[i], errs[i] = r.tellPod(ctx, pod, v)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	live := map[types.UID]podNote{}
	for i, pod := range w.pods {
		if _, ok := verdicts[pod.UID]; ok {
			live[pod.UID] = notes[i]
		}
	}
	r.written = live
	r.remark(w)
	return nil
}

// remark makes an event of everything about the demand that is worth knowing and stops nothing: once for each pod or pool
// and wording, so that a person who describes the object finds it.
func (r *Reconciler) remark(w *world) {
	said := map[string]bool{}
	say := func(on client.Object, kind, reason, message string) {
		key := string(on.GetUID()) + "/" + reason + "/" + message
		said[key] = true
		if !r.said[key] {
			r.Events.Eventf(on, nil, kind, reason, "Serve", "%s", message)
		}
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, p := range w.pods {
		pods[p.UID] = p
	}
	for _, n := range w.demand.Notes {
		if pod := pods[n.Pod.UID]; pod != nil {
			say(pod, corev1.EventTypeNormal, n.Reason, n.Message)
		}
	}
	for _, p := range w.demand.Problems {
		for _, pool := range w.pools {
			if p.Pool == pool.Name {
				say(pool, corev1.EventTypeWarning, p.Reason, p.Message)
			}
		}
	}
	r.said = said
}

// tellPod writes when the reason changes, and at most once a minute when only the words do.
func (r *Reconciler) tellPod(ctx context.Context, pod *corev1.Pod, v verdict) (podNote, error) {
	now := r.Clock.Now()
	last, known := r.written[pod.UID]
	old := condition(pod)
	if !known && old != nil {
		last = podNote{verdict{old.Status == corev1.ConditionTrue, old.Reason, old.Message}, old.LastProbeTime.Time}
	}
	if last.served && !v.served && v.reason != v1alpha1.PodReasonInvalidAnnotation {
		v.message = "was served and is not now: " + v.message
		v.reason = v1alpha1.PodReasonLost
	}
	if v.message == waitingForWindow && slices.Contains(unmetReasons, last.reason) {
		return last, nil // what kept it from being served says more, and a herd would be told twice
	}
	turned := old == nil || last.reason != v.reason || last.served != v.served
	if !turned && (last.message == v.message || now.Sub(last.at) < repeatAfter) {
		return last, nil
	}
	// The patch has the whole condition, not how it differs from what is known here: half of one on half of another's is
	// a status that nobody meant.
	before := pod.DeepCopy()
	before.Status.Conditions = slices.DeleteFunc(before.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.PodConditionServed })
	after := pod.DeepCopy()
	setCondition(after, v, now)
	if err := r.Client.Status().Patch(ctx, after, client.StrategicMergeFrom(before)); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return last, nil
		}
		return last, err
	}
	if turned {
		kind := corev1.EventTypeNormal
		if !v.served && !slices.Contains(quiet, v.reason) {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(pod, nil, kind, v.reason, "Serve", "%s", v.message)
	}
	return podNote{v, now}, nil
}

// waitingForWindow is what a pod is told that nothing has been planned for yet.
const waitingForWindow = "waiting for the batch window to close before buying"

// unmetReasons are those of a plan that found nothing for a pod.
var unmetReasons = []string{v1alpha1.PodReasonNoOffers, v1alpha1.PodReasonCeilingReached, v1alpha1.PodReasonResting, v1alpha1.PodReasonNoPool}

// quiet are the reasons that are no cause for worry.
var quiet = []string{v1alpha1.PodReasonPlanned, v1alpha1.PodReasonCreating, v1alpha1.PodReasonBooting}

func condition(pod *corev1.Pod) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == v1alpha1.PodConditionServed {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func setCondition(pod *corev1.Pod, v verdict, now time.Time) {
	status := corev1.ConditionFalse
	if v.served {
		status = corev1.ConditionTrue
	}
	c := corev1.PodCondition{Type: v1alpha1.PodConditionServed, Status: status, Reason: v.reason, Message: v.message,
		LastProbeTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now)}
	if old := condition(pod); old != nil {
		if old.Status == status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}

// verdicts says for each pod that asks how it is served, or why not.
func (w *world) verdicts(plan planner.Plan) map[types.UID]verdict {
	out := map[types.UID]verdict{}
	for _, p := range w.demand.Problems {
		if p.Pod.UID != "" {
			out[p.Pod.UID] = verdict{reason: p.Reason, message: p.Message}
		}
	}
	for _, wl := range w.demand.Workloads {
		claims := w.serving(wl.Key)
		for i, pod := range wl.Pods {
			if i < len(claims) {
				out[pod.UID] = byClaim(claims[i], wl.Key)
				continue
			}
			out[pod.UID] = w.withoutClaim(wl, plan)
		}
	}
	return out
}

// serving are the claims that hold a replica of the workload and are not ending, the furthest first.
func (w *world) serving(key string) []*v1alpha1.GPUNodeClaim {
	var out []*v1alpha1.GPUNodeClaim
	for _, c := range w.claims {
		if !c.DeletionTimestamp.IsZero() || c.Status.Failure != nil {
			continue
		}
		if slices.ContainsFunc(c.Spec.Placements, func(p v1alpha1.Placement) bool { return p.Workload == key }) {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b *v1alpha1.GPUNodeClaim) int {
		return cmp.Or(rank(b)-rank(a), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

func rank(c *v1alpha1.GPUNodeClaim) int {
	switch c.Status.Phase {
	case v1alpha1.PhaseReady:
		return 3
	case v1alpha1.PhaseBootstrapping:
		return 2
	case v1alpha1.PhaseProvisioning:
		return 1
	}
	return 0
}

func byClaim(c *v1alpha1.GPUNodeClaim, model string) verdict {
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReady)
	loading, message := stillLoads(c, model)
	switch {
	case loading && c.Status.Phase == v1alpha1.PhaseReady:
		return verdict{false, v1alpha1.PodReasonBooting, fmt.Sprintf("claim %s: %s", c.Name, message)}
	case ready != nil && ready.Status == metav1.ConditionTrue:
		return verdict{true, v1alpha1.PodReasonServed, fmt.Sprintf(
			"claim %s serves it on %s at %s $/h; ask the gateway for model %q", c.Name, c.Status.GPU, c.Status.DollarsPerHour, model)}
	case c.Status.Phase == v1alpha1.PhaseReady && ready != nil:
		return verdict{false, v1alpha1.PodReasonLost, fmt.Sprintf("claim %s: %s", c.Name, ready.Message)}
	case c.Status.Phase == v1alpha1.PhaseBootstrapping:
		return verdict{false, v1alpha1.PodReasonBooting, fmt.Sprintf("claim %s: %s", c.Name, latest(c,
			v1alpha1.ConditionModelLoaded, v1alpha1.ConditionAgentConnected, v1alpha1.ConditionInstanceRunning))}
	case c.Status.Phase == v1alpha1.PhaseProvisioning:
		return verdict{false, v1alpha1.PodReasonCreating, fmt.Sprintf("claim %s: %s", c.Name,
			latest(c, v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionInstanceCreated))}
	}
	return verdict{false, v1alpha1.PodReasonPlanned, fmt.Sprintf("claim %s may spend up to %s $/h", c.Name, c.Spec.MaxPrice)}
}

// stillLoads reports that the claim serves and this model of its several does not yet: it was placed there later.
func stillLoads(c *v1alpha1.GPUNodeClaim, model string) (bool, string) {
	if len(c.Spec.Placements) < 2 {
		return false, ""
	}
	for _, m := range c.Status.Models {
		if m.Name == model {
			return m.State != v1alpha1.ModelReady, strings.TrimSpace(fmt.Sprintf("%s %s", strings.ToLower(string(m.State)), m.Message))
		}
	}
	return true, "placed, not started yet"
}

// latest is the message of the first of these conditions that is set.
func latest(c *v1alpha1.GPUNodeClaim, types ...string) string {
	for _, t := range types {
		if cond := meta.FindStatusCondition(c.Status.Conditions, t); cond != nil {
			return cond.Message
		}
	}
	return "starting"
}

func (w *world) withoutClaim(wl demand.Workload, plan planner.Plan) verdict {
	for _, b := range plan.Bindings {
		if b.Placement.Workload == wl.Key {
			return verdict{reason: v1alpha1.PodReasonPlanned, message: b.Reason}
		}
	}
	for _, p := range plan.Purchases {
		for _, pl := range p.Spec.Placements {
			if pl.Workload == wl.Key {
				return verdict{reason: v1alpha1.PodReasonPlanned, message: fmt.Sprintf("claim %s: %s", p.ClaimName, p.Reason)}
			}
		}
	}
	for _, u := range plan.Unmet {
		if u.Workload == wl.Key {
			return verdict{reason: u.Reason, message: u.Message}
		}
	}
	if claim, ok := w.promised(wl.Key); ok {
		return verdict{reason: v1alpha1.PodReasonPlanned, message: fmt.Sprintf(
			"claim %s has a reservation and is not there yet; should it not come, this is planned again", claim)}
	}
	return verdict{reason: v1alpha1.PodReasonPlanned, message: waitingForWindow}
}

// promised is the claim that a reservation for the workload is for and that is not there: it is being made, or whoever
// was to make it has died.
func (w *world) promised(workload string) (claim string, ok bool) {
	for _, pool := range w.pools {
		for _, r := range pool.Status.Reservations {
			if slices.Contains(r.Workloads, workload) &&
				!slices.ContainsFunc(w.claims, func(c *v1alpha1.GPUNodeClaim) bool { return c.Name == r.Claim }) {
				return r.Claim, true
			}
		}
	}
	return "", false
}
