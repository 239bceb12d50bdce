package disruption

import (
	"context"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
)

// viewAge is how old claims and demand may be for all that ends nothing. To read and merge them takes as long as there
// are pods and claims, and every claim is looked at every few seconds: each for itself, a thousand claims would keep
// several cores busy.
const viewAge = time.Second

// view is all claims and demand at one moment. They are the cache's own: nothing in it may be changed.
type view struct {
	at        time.Time
	claims    []*v1alpha1.GPUNodeClaim
	workloads []demand.Workload
}

// shared is the latest view, one is made at a time, and when demand last changed.
type shared struct {
	mu      sync.Mutex
	last    view
	changed time.Time
}

// behind is how long until a view is made again that demand has changed since; 0 where it has not.
func (s *shared) behind(v view, now time.Time) time.Duration {
	if s.changed.IsZero() || v.at.After(s.changed) {
		return 0
	}
	return max(time.Millisecond, v.at.Add(viewAge).Sub(now)+time.Millisecond)
}

// view is claims and demand as the cache showed them at most maxAge ago; with 0, as it shows them now.
func (r *Reconciler) view(ctx context.Context, maxAge time.Duration) (v view, behind time.Duration, err error) {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	now := r.Clock.Now()
	if v := r.shared.last; maxAge > 0 && !v.at.IsZero() && now.Sub(v.at) <= maxAge {
		return v, r.shared.behind(v, now), nil
	}
	v, err = r.look(ctx, now)
	if err != nil {
		return view{}, 0, err
	}
	r.shared.last = v
	return v, r.shared.behind(v, now), nil
}

// changed notes that demand has: what is judged by a view from before is judged again.
func (r *Reconciler) changed() {
	now := r.Clock.Now()
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	r.shared.changed = now
}

// outdated makes the next view a new one: when demand ended is noted to the second at which it did.
func (r *Reconciler) outdated() {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	r.shared.last = view{}
}

func (r *Reconciler) look(ctx context.Context, now time.Time) (view, error) {
	var claims v1alpha1.GPUNodeClaimList
	if err := r.Client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return view{}, err
	}
	v := view{at: now}
	for i := range claims.Items {
		v.claims = append(v.claims, &claims.Items[i])
	}
	var err error
	v.workloads, err = r.workloads(ctx)
	return v, err
}

// workloads is demand as it is now.
func (r *Reconciler) workloads(ctx context.Context) ([]demand.Workload, error) {
	var (
		pods  corev1.PodList
		sets  appsv1.ReplicaSetList
		pools v1alpha1.GPUNodePoolList
	)
	for _, list := range []client.ObjectList{&pods, &sets, &pools} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
	}
	in := demand.Input{Options: r.Demand}
	in.GatewayWish, _ = r.Traffic.Keeping()
	for i := range pods.Items {
		in.Pods = append(in.Pods, &pods.Items[i])
	}
	for i := range sets.Items {
		in.ReplicaSets = append(in.ReplicaSets, &sets.Items[i])
	}
	for i := range pools.Items {
		in.Pools = append(in.Pools, &pools.Items[i])
	}
	return demand.Workloads(in).Workloads, nil
}
