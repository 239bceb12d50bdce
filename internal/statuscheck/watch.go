package statuscheck

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Watcher records every state that claims, pools and pods were seen in. Its methods may be called from any goroutine.
type Watcher struct {
	mu     sync.Mutex
	phases map[string][]v1alpha1.Phase
	// last is by UID: a name is used again when its claim is gone.
	last  map[types.UID]*v1alpha1.GPUNodeClaim
	pools map[types.UID]*v1alpha1.GPUNodePool
	// ready are the workloads of claims that were Ready, told the pods that were told that theirs is served.
	ready map[string]bool
	told  map[string]string
	wrong []string
	// missed is set when the claims' watch broke: a claim may have been Ready meanwhile.
	missed bool
}

// Watch records until the test ends, and fails it then for everything that was wrong. It is to be called before the
// controllers start, so that they have ended when it judges. A watch that breaks is taken up again from a list, and what
// only a state between could show is not judged.
func Watch(t testing.TB, c client.WithWatch) *Watcher {
	t.Helper()
	w := newWatcher()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, kind := range []func() client.ObjectList{
		func() client.ObjectList { return &v1alpha1.GPUNodeClaimList{} },
		func() client.ObjectList { return &v1alpha1.GPUNodePoolList{} },
		func() client.ObjectList { return &corev1.PodList{} },
	} {
		events, err := w.open(t.Context(), ctx, c, kind(), false)
		if err != nil {
			t.Error(err)
			continue
		}
		running.Go(func() {
			for w.follow(ctx, events); ctx.Err() == nil; w.follow(ctx, events) {
				w.broke(kind())
				_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
					next, err := w.open(ctx, ctx, c, kind(), true)
					if err == nil {
						events = next
					}
					return err == nil, nil
				}) // its only error is that ctx has ended
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		for _, wrong := range w.judgement() {
			t.Error(wrong)
		}
	})
	return w
}

func newWatcher() *Watcher {
	return &Watcher{phases: map[string][]v1alpha1.Phase{}, last: map[types.UID]*v1alpha1.GPUNodeClaim{},
		pools: map[types.UID]*v1alpha1.GPUNodePool{}, ready: map[string]bool{}, told: map[string]string{}}
}

// open lists what there is and watches from there. With again there was a watch before, which broke.
func (w *Watcher) open(ctx, life context.Context, c client.WithWatch, list client.ObjectList, again bool) (watch.Interface, error) {
	if err := c.List(ctx, list); err != nil {
		return nil, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	for _, o := range items {
		w.see(o, again)
	}
	return c.Watch(life, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
}

// broke notes that a watch ended. It may stay away until the test does: an API server that has just come asks for patience.
func (w *Watcher) broke(list client.ObjectList) {
	if _, claims := list.(*v1alpha1.GPUNodeClaimList); claims {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.missed = true
	}
}

func (w *Watcher) follow(ctx context.Context, events watch.Interface) {
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error {
				return
			}
			w.see(e.Object, false)
		}
	}
}

// see records a state; with missed, others may have gone unseen before it.
func (w *Watcher) see(o any, missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := o.(type) {
	case *v1alpha1.GPUNodeClaim:
		w.claim(o, missed)
	case *v1alpha1.GPUNodePool:
		w.wrong = append(w.wrong, Pool(w.pools[o.UID], o, missed)...)
		w.pools[o.UID] = o
	case *corev1.Pod:
		w.pod(o)
	}
}

func (w *Watcher) claim(c *v1alpha1.GPUNodeClaim, missed bool) {
	w.wrong = append(w.wrong, Claim(w.last[c.UID], c, missed)...)
	w.last[c.UID] = c
	seen := w.phases[c.Name]
	if p := c.Status.Phase; p != "" && (len(seen) == 0 || seen[len(seen)-1] != p) {
		w.phases[c.Name] = append(seen, p)
	}
	if meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) {
		for _, p := range c.Spec.Placements {
			w.ready[p.Workload] = true
		}
	}
}

func (w *Watcher) pod(p *corev1.Pod) {
	for _, c := range p.Status.Conditions {
		if c.Type != v1alpha1.PodConditionServed {
			continue
		}
		name := p.Namespace + "/" + p.Name
		if !slices.Contains(podReasons(), c.Reason) {
			w.wrong = append(w.wrong, fmt.Sprintf("pod %s: Served=%s for %q, which is not a reason in the list", name, c.Status, c.Reason))
		}
		if served := c.Reason == v1alpha1.PodReasonServed; served != (c.Status == corev1.ConditionTrue) {
			w.wrong = append(w.wrong, fmt.Sprintf("pod %s: Served=%s for %s", name, c.Status, c.Reason))
		} else if model := modelOf(p); served && model != "" {
			w.told[name] = model
		}
	}
}

// modelOf is what a pod asks for by annotation, "" where only its command says so.
func modelOf(p *corev1.Pod) string {
	if name := p.Annotations[v1alpha1.AnnotationServedName]; name != "" {
		return name
	}
	return p.Annotations[v1alpha1.AnnotationModel]
}

// judgement is all that was wrong, each once. A pod and its claim are seen by two watches, of which either may be first,
// so that they are compared in the end.
func (w *Watcher) judgement() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.wrong)
	for pod, model := range w.told {
		if !w.ready[model] && !w.missed {
			out = append(out, fmt.Sprintf("pod %s: told that %s is served, and no claim with it was ever Ready", pod, model))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Ended returns the last state of the claims that reached Terminated, by age.
func (w *Watcher) Ended() []*v1alpha1.GPUNodeClaim {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*v1alpha1.GPUNodeClaim
	for _, c := range w.last {
		if c.Status.Phase == v1alpha1.PhaseTerminated {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.GPUNodeClaim) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return out
}

// PhasesOf are those that a claim of this name was seen in, in order.
func (w *Watcher) PhasesOf(name string) []v1alpha1.Phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.phases[name])
}

// Saw reports whether there ever was a claim of this name.
func (w *Watcher) Saw(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.last {
		if c.Name == name {
			return true
		}
	}
	return false
}
