package operator_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// watcher records every state that every claim was seen in: a claim vanishes with its last one.
type watcher struct {
	mu     sync.Mutex
	phases map[string][]v1alpha1.Phase
	last   map[string]*v1alpha1.GPUNodeClaim
	odd    []string
}

func watchClaims(t *testing.T, c client.WithWatch) *watcher {
	t.Helper()
	w := &watcher{phases: map[string][]v1alpha1.Phase{}, last: map[string]*v1alpha1.GPUNodeClaim{}}
	var list v1alpha1.GPUNodeClaimList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	events, err := c.Watch(t.Context(), &v1alpha1.GPUNodeClaimList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			w.see(e)
		}
	}()
	t.Cleanup(func() { events.Stop(); <-done })
	return w
}

func (w *watcher) see(e watch.Event) {
	claim, ok := e.Object.(*v1alpha1.GPUNodeClaim)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[claim.Name] = claim
	seen := w.phases[claim.Name]
	if p := claim.Status.Phase; p != "" && (len(seen) == 0 || seen[len(seen)-1] != p) {
		w.phases[claim.Name] = append(seen, p)
	}
	w.odd = append(w.odd, contradictions(claim)...)
}

// contradictions are pairs that may never be true together.
func contradictions(c *v1alpha1.GPUNodeClaim) []string {
	is := func(t string) bool {
		return slices.ContainsFunc(c.Status.Conditions, func(o metav1.Condition) bool { return o.Type == t && o.Status == metav1.ConditionTrue })
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, c.Name+": "+fmt.Sprintf(format, args...)) }
	if is(v1alpha1.ConditionReady) {
		for _, other := range []string{v1alpha1.ConditionInstanceGone, v1alpha1.ConditionInterrupted, v1alpha1.ConditionDrained} {
			if is(other) {
				say("Ready and %s are both true", other)
			}
		}
		for _, must := range []string{v1alpha1.ConditionInstanceCreated, v1alpha1.ConditionInstanceRunning, v1alpha1.ConditionAgentConnected, v1alpha1.ConditionModelLoaded} {
			if !is(must) {
				say("Ready without %s", must)
			}
		}
		if c.Status.Failure != nil {
			say("Ready and failed: %s", c.Status.Failure.Reason)
		}
	}
	if c.Status.Phase == v1alpha1.PhaseTerminated && !is(v1alpha1.ConditionInstanceGone) {
		say("Terminated without InstanceGone")
	}
	return out
}

// check fails the test for every contradiction seen.
func (w *watcher) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.odd {
		t.Error(o)
	}
}

// ended returns the last state of the claims that reached Terminated.
func (w *watcher) ended() []*v1alpha1.GPUNodeClaim {
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

func (w *watcher) phasesOf(name string) []v1alpha1.Phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.phases[name])
}

func (w *watcher) mine(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[name] != nil
}
