// Package claims makes GPUNodeClaims the gateway's registry: a claim whose endpoint is published is a worker, and what
// pools list and claims are bringing up is known.
//
// It reads a cache that a watch keeps. When the API server is away the cache stands still and so does the registry.
package claims

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// Source is a registry.Source over a cache of claims and pools.
type Source struct{ cache cache.Cache }

var _ registry.Source = (*Source)(nil)

// New reads c, whose scheme has both kinds. Somebody else starts c.
func New(c cache.Cache) *Source { return &Source{cache: c} }

// OpenCache makes a cache for New where no manager has one. The caller starts it.
func OpenCache(config *rest.Config) (cache.Cache, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return cache.New(config, cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields()})
}

// Run waits for the cache's first full picture, applies it, and again after each change. Changes that come faster than
// they are applied are applied together.
func (s *Source) Run(ctx context.Context, apply func(registry.Snapshot)) error {
	changed := make(chan struct{}, 1)
	for _, kind := range []client.Object{&v1alpha1.GPUNodeClaim{}, &v1alpha1.GPUNodePool{}} {
		stop, err := s.follow(ctx, kind, changed)
		if err != nil {
			return unlessEnded(ctx, fmt.Errorf("watch %T: %w", kind, err))
		}
		//nolint:gocritic // Both are stopped when Run ends.
		defer stop()
	}
	if !s.cache.WaitForCacheSync(ctx) {
		return unlessEnded(ctx, fmt.Errorf("the cache of claims and pools ended before it was filled"))
	}
	for {
		snapshot, err := s.read(ctx)
		if err != nil {
			return unlessEnded(ctx, err)
		}
		apply(snapshot)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// follow fills changed on each change of kind until stop is called.
func (s *Source) follow(ctx context.Context, kind client.Object, changed chan<- struct{}) (stop func(), err error) {
	informer, err := s.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	registration, err := informer.AddEventHandler(wake(changed))
	if err != nil {
		return nil, err
	}
	// Only an informer that was stopped, with the cache, refuses.
	return func() { _ = informer.RemoveEventHandler(registration) }, nil
}

// unlessEnded drops an error that is only the end of ctx.
func unlessEnded(ctx context.Context, err error) error {
	if context.Cause(ctx) == nil {
		return err
	}
	return nil
}

func wake(changed chan<- struct{}) toolscache.ResourceEventHandler {
	signal := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		UpdateFunc: func(any, any) { signal() },
		DeleteFunc: func(any) { signal() },
	}
}

func (s *Source) read(ctx context.Context) (registry.Snapshot, error) {
	var (
		claims v1alpha1.GPUNodeClaimList
		pools  v1alpha1.GPUNodePoolList
	)
	// Nothing here is changed, and a copy of every claim for every change of one would be most of the work.
	if err := s.cache.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return registry.Snapshot{}, err
	}
	if err := s.cache.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
		return registry.Snapshot{}, err
	}
	return Snapshot(claims.Items, pools.Items), nil
}

// Snapshot is what claims and pools say of who serves what. Claims that end serve nothing. Of a worker's models only
// those count that are placed on its claim: the list in its status is the word of a machine that others own, and must
// not draw another model's requests to it.
func Snapshot(claims []v1alpha1.GPUNodeClaim, pools []v1alpha1.GPUNodePool) registry.Snapshot {
	var out registry.Snapshot
	known := map[string]registry.Known{}
	for i := range pools {
		if pools[i].DeletionTimestamp != nil {
			continue
		}
		for j := range pools[i].Spec.Models {
			m := &pools[i].Spec.Models[j]
			// Of several pools the largest counts, as for the controllers.
			known[m.Name] = registry.Known{Target: max(known[m.Name].Target, int(ptr.Deref(m.TargetConcurrency, 0)))}
		}
	}
	for i := range claims {
		c := &claims[i]
		switch {
		case ending(c):
		case serving(c):
			out.Workers = append(out.Workers, worker(c))
			out.Boots = append(out.Boots, boots(c)...)
		default:
			for j := range c.Spec.Placements {
				name := c.Spec.Placements[j].Workload
				// Of several the one that was asked for first is likely to serve first.
				if k := known[name]; k.Stage == "" || c.CreationTimestamp.Time.Before(k.Since) {
					k.Stage, k.Since = stage(c, name), c.CreationTimestamp.Time
					known[name] = k
				}
			}
		}
	}
	for i := range claims {
		for name, stage := range leaving(&claims[i]) {
			if k := known[name]; k.Stage == "" {
				k.Stage = stage
				known[name] = k
			}
		}
	}
	for name, k := range known {
		k.Name = name
		out.Models = append(out.Models, k)
	}
	return out
}

// leaving are the models of a claim that ends though they are wanted, by an interruption, a failure or somebody's hand:
// another claim follows, and between the two they are no less known.
func leaving(c *v1alpha1.GPUNodeClaim) map[string]string {
	if !ending(c) || c.Status.DemandEndedAt != nil {
		return nil
	}
	models := map[string]string{}
	for i := range c.Spec.Placements {
		models[c.Spec.Placements[i].Workload] = "the machine of " + c.Name + " ends"
	}
	for i := range c.Status.Unwanted {
		delete(models, c.Status.Unwanted[i].Workload)
	}
	return models
}

// stage is how far a model is on a claim that does not serve yet. Of what the machine says it has the state, which is one
// of a closed list, and no message.
func stage(c *v1alpha1.GPUNodeClaim, model string) string {
	for i := range c.Status.Models {
		m := &c.Status.Models[i]
		if m.Name == model && m.State != "" && m.State != v1alpha1.ModelPending && m.State != v1alpha1.ModelReady {
			return fmt.Sprintf("%s, model %s, on %s", phase(c), m.State, c.Name)
		}
	}
	return fmt.Sprintf("%s on %s", phase(c), c.Name)
}

// stepReady is the milestone of a claim that serves for the first time.
const stepReady = "Ready"

// boots are those of the models that the claim was bought for.
func boots(c *v1alpha1.GPUNodeClaim) []registry.Boot {
	var list []registry.Boot
	for i := range c.Status.Steps {
		ready := c.Status.Steps[i]
		if ready.Name != stepReady || c.CreationTimestamp.IsZero() {
			continue
		}
		for j := range c.Spec.Placements {
			if p := &c.Spec.Placements[j]; !p.Since.After(ready.At.Time) {
				list = append(list, registry.Boot{ClaimUID: string(c.UID), Model: p.Workload,
					Took: max(0, ready.At.Sub(c.CreationTimestamp.Time))})
			}
		}
	}
	return list
}

func ending(c *v1alpha1.GPUNodeClaim) bool {
	return c.DeletionTimestamp != nil || c.Status.Phase == v1alpha1.PhaseDraining || c.Status.Phase == v1alpha1.PhaseTerminated
}

func serving(c *v1alpha1.GPUNodeClaim) bool {
	return c.Status.Phase == v1alpha1.PhaseReady && c.Status.Endpoint != "" &&
		meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionEndpointPublished)
}

func phase(c *v1alpha1.GPUNodeClaim) v1alpha1.Phase {
	if c.Status.Phase == "" {
		return v1alpha1.PhasePending
	}
	return c.Status.Phase
}

func worker(c *v1alpha1.GPUNodeClaim) registry.Worker {
	w := registry.Worker{Claim: c.Name, ClaimUID: string(c.UID), Endpoint: c.Status.Endpoint, Since: c.CreationTimestamp.Time,
		Models: make(map[string]registry.State, len(c.Spec.Placements))}
	for i := range c.Status.Unwanted {
		if w.Spare == nil {
			w.Spare = map[string]bool{}
		}
		w.Spare[c.Status.Unwanted[i].Workload] = true
	}
	for i := range c.Spec.Placements {
		w.Models[c.Spec.Placements[i].Workload] = registry.State(v1alpha1.ModelPending)
	}
	for i := range c.Status.Models {
		m := &c.Status.Models[i]
		if _, placed := w.Models[m.Name]; placed {
			w.Models[m.Name] = registry.State(m.State)
		}
	}
	return w
}
