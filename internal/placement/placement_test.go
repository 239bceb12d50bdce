package placement

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/planner"
)

// store is an API server with one claim, as far as an Applier asks.
type store struct {
	client.Client
	claim    *v1alpha1.GPUNodeClaim
	conflict bool
	patches  int
}

func (s *store) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if s.claim == nil || key.Name != s.claim.Name {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	s.claim.DeepCopyInto(into.(*v1alpha1.GPUNodeClaim))
	return nil
}

func (s *store) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	s.patches++
	if s.conflict {
		return apierrors.NewConflict(schema.GroupResource{}, obj.GetName(), nil)
	}
	if data, err := patch.Data(obj); err != nil || len(data) == 0 {
		return err
	}
	s.claim = obj.DeepCopyObject().(*v1alpha1.GPUNodeClaim)
	s.claim.Generation++
	s.claim.DeepCopyInto(obj.(*v1alpha1.GPUNodeClaim))
	return nil
}

func claim() *v1alpha1.GPUNodeClaim {
	return &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "u", Generation: 4, ResourceVersion: "9"},
		Spec: v1alpha1.GPUNodeClaimSpec{Placements: []v1alpha1.Placement{{Workload: "a"}}}}
}

func names(c *v1alpha1.GPUNodeClaim) (out string) {
	for _, p := range c.Spec.Placements {
		out += p.Workload
	}
	return out
}

func binding(generation int64, workload string) planner.Binding {
	return planner.Binding{Claim: "c", UID: "u", Generation: generation, Placement: v1alpha1.Placement{Workload: workload}}
}

func TestApply(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*store)
		bindings []planner.Binding
		want     string
		stale    bool
	}{
		"nothing":          {bindings: nil, want: "a"},
		"two at once":      {bindings: []planner.Binding{binding(4, "b"), binding(4, "c")}, want: "abc"},
		"changed since":    {bindings: []planner.Binding{binding(3, "b")}, want: "a", stale: true},
		"there already":    {bindings: []planner.Binding{binding(4, "b"), binding(4, "a")}, want: "a", stale: true},
		"another claim":    {change: func(s *store) { s.claim.UID = "v" }, bindings: []planner.Binding{binding(4, "b")}, want: "a", stale: true},
		"written meantime": {change: func(s *store) { s.conflict = true }, bindings: []planner.Binding{binding(4, "b")}, want: "a", stale: true},
		"failed":           {change: func(s *store) { s.claim.Status.Failure = &v1alpha1.Failure{} }, bindings: []planner.Binding{binding(4, "b")}, want: "a", stale: true},
		"asked to drain": {change: func(s *store) { s.claim.Annotations = map[string]string{v1alpha1.AnnotationDrain: "x"} },
			bindings: []planner.Binding{binding(4, "b")}, want: "a", stale: true},
		"being deleted": {change: func(s *store) { s.claim.DeletionTimestamp = &metav1.Time{} }, bindings: []planner.Binding{binding(4, "b")}, want: "a", stale: true},
		"gone":          {change: func(s *store) { s.claim.Name = "d" }, bindings: []planner.Binding{binding(4, "b")}, want: "a", stale: true},
	} {
		s := &store{claim: claim()}
		if c.change != nil {
			c.change(s)
		}
		written, stale, err := Applier{Client: s, Reader: s}.Apply(t.Context(), c.bindings)
		if err != nil || stale != c.stale || names(s.claim) != c.want {
			t.Errorf("%s: %s, stale %v, %v", name, names(s.claim), stale, err)
		}
		if done := len(c.bindings) > 0 && !c.stale; done != (len(written) == 1) || done && (written[0].Generation != 5 || s.patches != 1) {
			t.Errorf("%s: wrote %+v in %d patches", name, written, s.patches)
		}
	}
}

func TestRemove(t *testing.T) {
	s := &store{claim: claim()}
	a := Applier{Client: s, Reader: s}
	if c, err := a.Remove(t.Context(), Target{"c", "u", 4}, "b"); c != nil || err != nil || s.patches != 0 {
		t.Errorf("what is not there was removed: %+v %v", c, err)
	}
	if c, err := a.Remove(t.Context(), Target{"c", "u", 4}, "a"); c == nil || err != nil || names(s.claim) != "" {
		t.Errorf("%+v %v", c, err)
	}
}
