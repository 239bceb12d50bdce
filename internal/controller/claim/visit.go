package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// visit is one reconcile of one claim: the copy being changed and what it was when read.
type visit struct {
	*Reconciler
	claim *v1alpha1.GPUNodeClaim
	base  *v1alpha1.GPUNodeClaim
	acct  *account.Account
	// agent is its latest answer in this visit; nil while it has not answered.
	agent *agentapi.Status
}

func newVisit(r *Reconciler, claim *v1alpha1.GPUNodeClaim) *visit {
	return &visit{Reconciler: r, claim: claim.DeepCopy(), base: claim}
}

func (v *visit) log(ctx context.Context) logr.Logger { return log.FromContext(ctx) }

func (v *visit) is(condition string) bool {
	return meta.IsStatusConditionTrue(v.claim.Status.Conditions, condition)
}

// set records a condition. A change of status or reason is also an event, so that a person who describes the claim
// reads its life in order; a change of words alone is not, nor what is under way.
func (v *visit) set(condition string, status metav1.ConditionStatus, reason, message string) {
	if !v.note(condition, status, reason, message) || slices.Contains(underWay, reason) {
		return
	}
	kind := corev1.EventTypeNormal
	if slices.Contains(warnings, reason) {
		kind = corev1.EventTypeWarning
	}
	v.event(kind, reason, message)
}

// note records a condition without an event and reports whether its status or reason turned.
func (v *visit) note(condition string, status metav1.ConditionStatus, reason, message string) bool {
	old := meta.FindStatusCondition(v.claim.Status.Conditions, condition)
	turned := old == nil || old.Status != status || old.Reason != reason
	meta.SetStatusCondition(&v.claim.Status.Conditions, metav1.Condition{Type: condition, Status: status, Reason: reason,
		Message: message, ObservedGeneration: v.claim.Generation, LastTransitionTime: metav1.NewTime(v.now())})
	return turned
}

// underWay are the reasons that are no event: what soon turns into a milestone or a failure, which is one, and what is told
// with Serving. A herd's claims would else wait for the API server behind their own events.
var underWay = []string{
	v1alpha1.ReasonCreating, v1alpha1.ReasonStarting, v1alpha1.ReasonWaitingForAgent, v1alpha1.ReasonLoading,
	v1alpha1.ReasonModelLoaded, v1alpha1.ReasonPublished,
}

// warnings are the reasons that a person should look at.
var warnings = []string{
	v1alpha1.ReasonCreateUnclear, v1alpha1.ReasonOverPriced, v1alpha1.ReasonDiedWhileBooting,
	v1alpha1.ReasonInstanceLost, v1alpha1.ReasonInstanceStopped, v1alpha1.ReasonBootTimeout,
	v1alpha1.ReasonAgentUnreachable, v1alpha1.ReasonGPUMismatch, v1alpha1.ReasonMachineUnfit, v1alpha1.ReasonModelFailed,
	v1alpha1.ReasonInterrupted, v1alpha1.ReasonInterruptionNotice, v1alpha1.ReasonRebalanceRecommended,
	v1alpha1.ReasonLeaseExpired, v1alpha1.ReasonDrainTimeout, v1alpha1.ReasonDestroyFailed,
	v1alpha1.ReasonCredentialsUnavailable, v1alpha1.ReasonOtherAccount, v1alpha1.ReasonProviderUnavailable,
	v1alpha1.ReasonLedgerUnavailable,
	v1alpha1.ReasonInvalidRequest, v1alpha1.ReasonAgentUnavailable, v1alpha1.ReasonNotReserved, v1alpha1.ReasonNoOfferInReservation,
}

func (v *visit) event(kind, reason, message string) {
	v.Events.Eventf(v.claim, nil, kind, reason, actionOf(v.claim), "%s", message)
}

// short bounds what a step keeps of a message, since a claim keeps its steps for life.
func short(message string) string {
	const most = 1000
	if len(message) > most {
		return strings.ToValidUTF8(message[:most], "") + "…"
	}
	return message
}

// actionOf is the verb under which events are recorded.
func actionOf(c *v1alpha1.GPUNodeClaim) string {
	if !c.DeletionTimestamp.IsZero() {
		return "End"
	}
	return "Serve"
}

// reach records a milestone once, with its time. The ledger's history has it from there.
func (v *visit) reach(name, message string) {
	if v.reached(name) {
		return
	}
	v.claim.Status.Steps = append(v.claim.Status.Steps,
		v1alpha1.Step{Name: name, At: metav1.NewMicroTime(v.now()), Message: short(message)})
}

// fail ends the claim: the walk stops and deletes it. The first failure is the one that is kept.
func (v *visit) fail(stepName, reason string, culprit v1alpha1.Culprit, message string) {
	if v.claim.Status.Failure != nil {
		return
	}
	v.claim.Status.Failure = &v1alpha1.Failure{Step: stepName, Reason: reason, Culprit: culprit, Message: message,
		At: metav1.NewTime(v.now().Truncate(time.Second))} // as it is stored, so that the ledger gets it once
	v.note(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message)
}

// persist writes the status if it changed. The phase is derived here and nowhere else. A conflict with the disruption
// controller, which owns Idle, demandEndedAt and unwanted, is resolved by taking its fields. Any other is an error: the copy that
// this visit began with was old, or another leader has taken over, and what is known here is known from the past.
func (v *visit) persist(ctx context.Context) error {
	for range 5 {
		v.claim.Status.Phase = phaseOf(v.claim)
		v.claim.Status.ObservedGeneration = v.claim.Generation
		if v1alpha1.Equal(v.base.Status, v.claim.Status) {
			return nil
		}
		err := v.persistExclusive(ctx)
		if !apierrors.IsConflict(err) {
			return client.IgnoreNotFound(err)
		}
		if err := v.rebase(ctx); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return fmt.Errorf("claim %s: status not written after five conflicts", v.claim.Name)
}

// persistExclusive writes the status only if nobody else wrote the claim since it was read.
func (v *visit) persistExclusive(ctx context.Context) error {
	v.claim.Status.Phase = phaseOf(v.claim)
	patch := client.MergeFromWithOptions(v.base.DeepCopy(), client.MergeFromWithOptimisticLock{})
	status := v.claim.Status.DeepCopy()
	if err := v.Client.Status().Patch(ctx, v.claim, patch); err != nil {
		v.claim.Status = *status
		return err
	}
	v.claim.Status = *status
	v.base = v.claim.DeepCopy()
	return nil
}

// rebase puts our status on top of the newest object, unless somebody else has written what is ours to write.
func (v *visit) rebase(ctx context.Context) error {
	fresh := &v1alpha1.GPUNodeClaim{}
	if err := v.Reader.Get(ctx, client.ObjectKeyFromObject(v.claim), fresh); err != nil {
		return err
	}
	if fresh.UID != v.claim.UID || !v1alpha1.Equal(ourPart(fresh), ourPart(v.base)) {
		return apierrors.NewConflict(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "gpunodeclaims"},
			fresh.Name, errors.New("written by another leader, or read from an old cache"))
	}
	ours := v.claim.Status.DeepCopy()
	ours.DemandEndedAt, ours.Unwanted = fresh.Status.DemandEndedAt, fresh.Status.Unwanted
	if idle := meta.FindStatusCondition(fresh.Status.Conditions, v1alpha1.ConditionIdle); idle != nil {
		meta.SetStatusCondition(&ours.Conditions, *idle)
	}
	v.base, v.claim = fresh, fresh.DeepCopy()
	v.claim.Status = *ours
	return nil
}

// ourPart is the status without what the disruption controller writes.
func ourPart(c *v1alpha1.GPUNodeClaim) v1alpha1.GPUNodeClaimStatus {
	s := c.Status.DeepCopy()
	s.DemandEndedAt, s.Unwanted = nil, nil
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionIdle)
	return *s
}

func (v *visit) hasReason(condition, reason string) bool {
	c := meta.FindStatusCondition(v.claim.Status.Conditions, condition)
	return c != nil && c.Reason == reason
}
