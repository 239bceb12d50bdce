package claim

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// guard puts the finalizer on before anything can be bought, so that an object with an instance cannot vanish.
func (v *visit) guard(ctx context.Context) (next, error) {
	if controllerutil.ContainsFinalizer(v.claim, v1alpha1.Finalizer) {
		return proceed(), nil
	}
	before := v.claim.DeepCopy()
	controllerutil.AddFinalizer(v.claim, v1alpha1.Finalizer)
	if err := v.Client.Patch(ctx, v.claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return halt(), err
	}
	v.base = v.claim.DeepCopy()
	return proceed(), nil
}

// endWhenAsked deletes the claim when it has failed or carries the drain annotation. Ending is always by deletion.
func (v *visit) endWhenAsked(ctx context.Context) (next, error) {
	if v.claim.Status.Failure != nil {
		return v.endFailed(ctx)
	}
	if reason := v.claim.Annotations[v1alpha1.AnnotationDrain]; reason != "" {
		return v.end(ctx)
	}
	return proceed(), nil
}

// endFailed lets the culprit rest, says what happened, and deletes the claim.
func (v *visit) endFailed(ctx context.Context) (next, error) {
	f := v.claim.Status.Failure
	v.restCulprit(ctx, *f)
	v.event(corev1.EventTypeWarning, f.Reason, f.Message)
	return v.end(ctx)
}

// end deletes the object as it was read: a claim that changed meanwhile is looked at again first.
func (v *visit) end(ctx context.Context) (next, error) {
	if err := v.persist(ctx); err != nil {
		return halt(), err
	}
	uid, version := v.claim.UID, v.claim.ResourceVersion
	err := v.Client.Delete(ctx, v.claim, client.Preconditions{UID: &uid, ResourceVersion: &version})
	return halt(), client.IgnoreNotFound(err)
}

// choose fixes where this claim buys: it is remembered on the claim, because it must outlive the pool's entry.
func (v *visit) choose(entry v1alpha1.ProviderSpec) {
	s := &v.claim.Status
	s.Provider, s.CapacityType, s.CredentialSecret = entry.Name, entry.CapacityType, entry.APIKeySecret
	v.acct = nil
}
