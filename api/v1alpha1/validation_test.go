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

// TestPoolsThatMakeNoSenseAreRefused: each mistake gets a sentence that says what would be right, and changes nothing.
func TestPoolsThatMakeNoSenseAreRefused(t *testing.T) {
	c, ctx := newClient(t), context.Background()
	for _, tc := range []struct {
		name string
		path []string
		// value to set; nil removes the field.
		value any
		want  string
	}{
		{"minNodes over maxNodes", []string{"scaling", "minNodes"}, int64(9), "minNodes is above maxNodes; lower minNodes or raise maxNodes"},
		{"minNodes over the default", []string{"scaling"}, map[string]any{"minNodes": int64(11)}, "minNodes is above maxNodes"},
		{"negative maxPrice", provider("maxPrice"), -0.5, "maxPrice is required and must be above 0"},
		{"zero maxPrice", provider("maxPrice"), int64(0), "maxPrice is required and must be above 0"},
		{"missing maxPrice", provider("maxPrice"), nil, "maxPrice is required and must be above 0"},
		{"price of seven decimals", provider("maxPrice"), 0.1234567, "at most six decimals"},
		{"price as a string", provider("maxPrice"), "0.50", "must be of type number"},
		{"unknown provider", provider("name"), "vastai", "unknown provider; use one of vast.ai, runpod"},
		{"capacity type", provider("capacityType"), "reserved", `supported values: "spot", "on-demand"`},
		{"node type", provider("nodeType"), "member", `supported values: "standalone"`},
		{"no providers", []string{"providers"}, []any{}, "should have at least 1 items"},
		{"the same entry twice", []string{"providers"}, []any{
			map[string]any{"name": "vast.ai", "maxPrice": 0.5}, map[string]any{"name": "vast.ai", "maxPrice": 0.6}},
			"the same name and capacityType are listed twice"},
		{"negative maxCostPerHour", []string{"limits", "maxCostPerHour"}, int64(-3), "must not be negative"},
		{"missing maxCostPerHour", []string{"limits", "maxCostPerHour"}, nil, "spec.limits.maxCostPerHour: Required value"},
		{"duplicate model", []string{"models"}, []any{map[string]any{"name": "m"}, map[string]any{"name": "m"}}, "Duplicate value"},
		{"replicas of a model", []string{"models"}, []any{map[string]any{"name": "m", "minReplicas": int64(3), "maxReplicas": int64(2)}},
			"minReplicas is above maxReplicas"},
		{"unparsable duration", []string{"scaling", "cooldownPeriod"}, "2 minutes", `must be a duration such as "90s", "10m" or "1h30m"`},
		{"duration without a unit", []string{"scaling", "batchWindow"}, "10", `must be a duration such as "90s"`},
		{"negative duration", []string{"scaling", "batchWindow"}, "-10s", `must be a duration such as "90s"`},
		{"VRAM that no offer can have", []string{"requirements"}, map[string]any{"minVRAM": int64(100), "maxVRAM": int64(24), "gpuCount": int64(2)},
			"minVRAM (the instance's total) is above maxVRAM"},
		{"reliability", []string{"requirements", "minReliability"}, "95%", "spec.requirements.minReliability"},
		{"CUDA", []string{"requirements", "minCUDA"}, "12", "spec.requirements.minCUDA"},
		{"agent hash", []string{"bootstrap", "agentSHA256"}, "latest", "spec.bootstrap.agentSHA256"},
		{"namespace of the Secret", append(provider("apiKeySecret"), "namespace"), nil, "namespace: Required value"},
		{"misspelt field", []string{"scaling", "maxNode"}, int64(3), "unknown field"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := examplePool(t)
			u.SetName("refused")
			edit(t, u, tc.path, tc.value)
			err := client.WithFieldValidation(c, metav1.FieldValidationStrict).Create(ctx, u)
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("refused with\n%v\nwant it to say %q", err, tc.want)
			}
			if err := c.Get(ctx, client.ObjectKeyFromObject(u), &v1alpha1.GPUNodePool{}); !apierrors.IsNotFound(err) {
				t.Errorf("a refused pool left something behind: %v", err)
			}
		})
	}
}

func provider(field string) []string { return []string{"providers", "0", field} }

// edit sets or removes one field below spec; "0" is the first entry of a list.
func edit(t *testing.T, u *unstructured.Unstructured, path []string, value any) {
	t.Helper()
	at := u.Object["spec"].(map[string]any)
	for len(path) > 1 {
		if path[1] == "0" {
			at, path = at[path[0]].([]any)[0].(map[string]any), path[2:]
			continue
		}
		if at[path[0]] == nil {
			at[path[0]] = map[string]any{}
		}
		at, path = at[path[0]].(map[string]any), path[1:]
	}
	if value == nil {
		delete(at, path[0])
		return
	}
	at[path[0]] = value
}

// TestClaimSpecIsFixed: only placements may change.
func TestClaimSpecIsFixed(t *testing.T) {
	c, ctx := newClient(t), context.Background()
	claim := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}}
	claim.Spec = v1alpha1.GPUNodeClaimSpec{Pool: "p", MaxPrice: money.MustParse("0.44"),
		Providers:    []v1alpha1.ProviderSpec{{Name: "vast.ai", NodeType: "standalone", CapacityType: "spot", MaxPrice: money.MustParse("0.50")}},
		Requirements: v1alpha1.Requirements{GPUCount: 1, MinDisk: 50},
		Bootstrap:    v1alpha1.Bootstrap{Image: "vllm/vllm-openai:latest"}}
	if err := c.Create(ctx, claim); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*v1alpha1.GPUNodeClaimSpec){
		"pool":         func(s *v1alpha1.GPUNodeClaimSpec) { s.Pool = "q" },
		"price":        func(s *v1alpha1.GPUNodeClaimSpec) { s.MaxPrice = money.MustParse("9") },
		"providers":    func(s *v1alpha1.GPUNodeClaimSpec) { s.Providers[0].MaxPrice = money.MustParse("9") },
		"requirements": func(s *v1alpha1.GPUNodeClaimSpec) { s.Requirements.MinRAM = 64 },
		"bootstrap":    func(s *v1alpha1.GPUNodeClaimSpec) { s.Bootstrap.Args = []string{"--x"} },
	} {
		changed := claim.DeepCopy()
		change(&changed.Spec)
		if err := c.Update(ctx, changed); err == nil || !strings.Contains(err.Error(), "a claim's spec cannot be changed") {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	claim.Spec.Placements = []v1alpha1.Placement{{Workload: "m", Source: "m", GPUs: 1, GPUFraction: 1000, Since: metav1.Now()}}
	if err := c.Update(ctx, claim); err != nil {
		t.Errorf("placements: %v", err)
	}
}
