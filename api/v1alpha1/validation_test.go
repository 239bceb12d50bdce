package v1alpha1_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/pkg/money"
)

func TestMain(m *testing.M) { localkubetest.Main(m) }

func newClient(t *testing.T) client.Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(localkubetest.Start(t).Config(), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func examplePool(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile("../../examples/gpunodepool-vast.yaml")
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestExamplePoolAppliesUnchanged: the seed's pool is accepted as it is, and reads back with the product's defaults.
func TestExamplePoolAppliesUnchanged(t *testing.T) {
	c, ctx := newClient(t), context.Background()
	u := examplePool(t)
	u.SetName("example-unchanged")
	if err := c.Create(ctx, u); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.GPUNodePool{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(u), pool); err != nil {
		t.Fatal(err)
	}
	if got := pool.Spec.Providers[0].MaxPrice; got != money.MustParse("0.50") {
		t.Errorf("maxPrice %s", got)
	}
	s := pool.Spec.Scaling
	for name, d := range map[string]struct{ got, want time.Duration }{
		"batchWindow":      {s.BatchWindow.Or(0), 10 * time.Second},
		"cooldownPeriod":   {s.CooldownPeriod.Or(0), 2 * time.Minute},
		"bootstrapTimeout": {s.BootstrapTimeout.Or(0), 20 * time.Minute},
		"drainTimeout":     {s.DrainTimeout.Or(0), 5 * time.Minute},
	} {
		if d.got != d.want {
			t.Errorf("%s %s, want %s", name, d.got, d.want)
		}
	}
}

// server is a real API server that is asked about objects.
type server struct {
	t      *testing.T
	client client.Client
}

func newServer(t *testing.T) server {
	return server{t, client.WithFieldValidation(newClient(t), metav1.FieldValidationStrict)}
}

// keep creates a copy of a sound object that bad input is then tried on, too.
func (s server) keep(full *unstructured.Unstructured) *unstructured.Unstructured {
	s.t.Helper()
	u := full.DeepCopy()
	u.SetName("kept")
	if err := s.client.Create(s.t.Context(), u); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := s.client.Delete(context.Background(), u); err != nil {
			s.t.Error(err)
		}
	})
	return u
}

// refuses insists that u can neither be created nor made of what is kept, that both refusals say so, and that nothing
// has changed afterwards.
func (s server) refuses(t *testing.T, kept, u *unstructured.Unstructured, says ...string) {
	t.Helper()
	u.SetName("refused")
	refusal(t, s.client.Create(t.Context(), u), says)
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(u), u.DeepCopy()); !apierrors.IsNotFound(err) {
		t.Errorf("something refused was created: %v", err)
	}
	s.leaves(t, kept, u, says...)
}

// leaves insists that what is kept cannot be made into u.
func (s server) leaves(t *testing.T, kept, u *unstructured.Unstructured, says ...string) {
	t.Helper()
	changed, after := kept.DeepCopy(), kept.DeepCopy()
	changed.Object["spec"] = u.Object["spec"]
	refusal(t, s.client.Update(t.Context(), changed), says)
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(kept), after); err != nil {
		t.Fatal(err)
	}
	if after.GetResourceVersion() != kept.GetResourceVersion() {
		t.Errorf("something refused changed what was there: %v", after.Object["spec"])
	}
}

func refusal(t *testing.T, err error, says []string) {
	t.Helper()
	if err == nil {
		t.Error("accepted")
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("refused with\n%v\nwant it to say %q", err, part)
		}
	}
}

// accepts insists that u can be created, and that our own types can read it: one object that they cannot would stop every
// list of its kind.
func (s server) accepts(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	u.SetName("accepted")
	if err := s.client.Create(t.Context(), u); err != nil {
		t.Error(err)
		return
	}
	s.reads(t, u)
	if err := s.client.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

// changes insists that what is kept can be made into u.
func (s server) changes(t *testing.T, kept, u *unstructured.Unstructured) {
	t.Helper()
	kept.Object["spec"] = u.Object["spec"]
	if err := s.client.Update(t.Context(), kept); err != nil {
		t.Error(err)
	}
	s.reads(t, kept)
}

func (s server) reads(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	typed := map[string]client.Object{"GPUNodePool": &v1alpha1.GPUNodePool{}, "GPUNodeClaim": &v1alpha1.GPUNodeClaim{}}[u.GetKind()]
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(u), typed); err != nil {
		t.Errorf("accepted, and our own types cannot read it: %v", err)
	}
}
