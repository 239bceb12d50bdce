package manifest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/manifest"
)

func TestMain(m *testing.M) { localkubetest.Main(m) }

// read reads one file with a text.
func read(t *testing.T, text string) (*manifest.Set, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Read([]string{file}, nil, "default")
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), file, "x.yaml"))
	}
	return set, err
}

const pool = `# a pool
apiVersion: gpuscale.io/v1alpha1
kind: GPUNodePool
metadata: {name: p}
spec:
  providers:
    - name: vast.ai
      maxPrice: 0.50
  limits:
    maxCostPerHour: 3.00
`

// TestTheExamplesAreRead has the defaults of the API server.
func TestTheExamplesAreRead(t *testing.T) {
	set, err := manifest.Read([]string{"../../examples"}, nil, "default")
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Pools) == 0 || len(set.Pods) != 1 || set.Pods[0].Namespace != "default" {
		t.Fatalf("%d pools, %d pods", len(set.Pools), len(set.Pods))
	}
	for _, p := range set.Pools {
		if p.Spec.Providers[0].CapacityType != "spot" || p.Spec.Scaling.DrainTimeout == nil || p.Spec.Bootstrap.Image == "" {
			t.Errorf("no defaults: %+v", p.Spec)
		}
	}
}

// TestWhatMakesPodsIsReadAsPods also in a list, and in the namespace that was asked for.
func TestWhatMakesPodsIsReadAsPods(t *testing.T) {
	set, err := read(t, pool+`---
apiVersion: v1
kind: List
items:
  - apiVersion: apps/v1
    kind: Deployment
    metadata: {name: web, namespace: prod}
    spec:
      replicas: 2
      selector: {matchLabels: {a: b}}
      template:
        metadata: {labels: {a: b}, annotations: {gpuscale.io/model: m}}
        spec: {containers: [{name: c, image: i}]}
  - apiVersion: batch/v1
    kind: Job
    metadata: {name: once}
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
---
# nothing
`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range set.Pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if got := strings.Join(names, " "); got != "prod/web-0 prod/web-1 default/once-0" {
		t.Error(got)
	}
	if set.Pods[0].Annotations["gpuscale.io/model"] != "m" {
		t.Error("the template's annotations are lost")
	}
	if len(set.PassedOver) != 1 || !strings.HasSuffix(set.PassedOver[0], "x.yaml:29: Service web") {
		t.Errorf("%q", set.PassedOver)
	}
}

// TestWhatIsWrongIsSaidWithItsPlace is what a user sees of a mistake.
func TestWhatIsWrongIsSaidWithItsPlace(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"misspelt field": {strings.Replace(pool, "maxPrice", "maxprice", 1),
			`x.yaml:8: GPUNodePool "p": strict decoding error: unknown field "spec.providers[0].maxprice"; did you mean maxPrice?` + "\n" +
				`x.yaml:7: GPUNodePool "p": spec.providers[0]: Invalid value: maxPrice is required and must be above 0: the most that one instance may cost, in $/h, for example 0.50`},
		"unknown provider": {strings.Replace(pool, "vast.ai", "vastai", 1),
			`x.yaml:7: GPUNodePool "p": spec.providers[0].name: Invalid value: "vastai": unknown provider; use one of vast.ai, runpod, tensordock, verda, aws, gcp, azure`},
		"no limits": {pool[:strings.Index(pool, "  limits")], `x.yaml:5: GPUNodePool "p": spec.limits: Required value` + "\n" +
			`x.yaml:2: GPUNodePool "p": some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`},
		"price in quotes": {strings.Replace(pool, "0.50", `"0.50"`, 1), `x.yaml:8: GPUNodePool "p": spec.providers[0].maxPrice: Invalid value: "string": spec.providers[0].maxPrice in body must be of type number: "string"`},
		"a bad name":      {strings.Replace(pool, "name: p", "name: P_1", 1), `x.yaml:4: GPUNodePool "P_1": metadata.name: Invalid value: "P_1": a lowercase RFC 1123 subdomain`},
		"wrong version":   {strings.Replace(pool, "v1alpha1", "v1", 1), "x.yaml:2: there is no GPUNodePool in gpuscale.io/v1; use gpuscale.io/v1alpha1"},
		"wrong kind":      {strings.Replace(pool, "GPUNodePool", "NodePool", 1), "x.yaml:2: there is no kind NodePool in gpuscale.io; GPUNodePool and GPUNodeClaim are"},
		"no kind":         {"spec: {}\n", "x.yaml:1: apiVersion and kind are required, for example gpuscale.io/v1alpha1 and GPUNodePool"},
		"a sentence":      {pool + "---\n\nhello\n", "x.yaml:13: not an object: a document begins with apiVersion and kind"},
		"bad YAML":        {pool + "---\na: b\n c: d\n", "x.yaml:13: yaml: mapping values are not allowed in this context"},
		"a field twice":   {pool + "---\na: b\na: c\n", `x.yaml:13: yaml: key "a" already set in map`},
		"twice":           {pool + "---\n" + pool, `x.yaml:13: GPUNodePool "p" is in x.yaml:2 already`},
		"a pod's field": {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: []}\n",
			`x.yaml:1: Pod "x": strict decoding error: unknown field "spec.contaners"`},
	} {
		_, err := read(t, c.text)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s:\n%v\nwant\n%s", name, err, c.want)
		}
	}
	if _, err := manifest.Read([]string{"/nowhere.yaml", t.TempDir()}, nil, ""); err == nil ||
		!strings.Contains(err.Error(), "/nowhere.yaml: no such file") || !strings.Contains(err.Error(), "has no *.yaml") {
		t.Error(err)
	}
	if set, err := manifest.Read([]string{"-"}, strings.NewReader(pool), ""); err != nil || len(set.Pools) != 1 {
		t.Errorf("standard input: %v", err)
	}
}

// TestThePoolIsRefusedInTheWordsOfTheAPIServer asks a real one.
func TestThePoolIsRefusedInTheWordsOfTheAPIServer(t *testing.T) {
	c, err := client.New(localkubetest.Start(t).Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"sound":          {"", ""},
		"no such word":   {"maxPrice: 0.50", "maxPrice: 0.50\n      capacityType: cheap"},
		"listed twice":   {"    - name: vast.ai\n", "    - {name: vast.ai, maxPrice: 1}\n    - name: vast.ai\n"},
		"seven decimals": {"0.50", "0.5000001"},
		"wrong type":     {"maxPrice: 0.50", "maxPrice: cheap"},
		"no maximum":     {"maxPrice: 0.50", "maxPrice: 0"},
		"negative":       {"3.00", "-1"},
		"needs":          {"  limits:", "  requirements: {minVRAM: 49, maxVRAM: 24, gpuCount: 2, minCUDA: twelve}\n  limits:"},
		"durations":      {"  limits:", "  scaling: {batchWindow: soon, minNodes: 11}\n  limits:"},
		"two models":     {"  limits:", "  models: [{name: a, minReplicas: 3, maxReplicas: 2}, {name: a}]\n  limits:"},
	} {
		text := strings.Replace(pool, change[0], change[1], 1)
		_, got := read(t, text)
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		err := c.Create(context.Background(), u, client.DryRunAll)
		if err == nil || got == nil {
			if err != nil || got != nil {
				t.Errorf("%s: the API server says %v and we say %v", name, err, got)
			}
			continue
		}
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonInvalid {
			t.Fatalf("%s: %v", name, err)
		}
		for _, cause := range status.Status().Details.Causes {
			cause.Message = strings.TrimPrefix(cause.Message, "Invalid value: null: ") // of the object, as it means
			if !strings.Contains(got.Error(), cause.Message) || cause.Field != "<nil>" && !strings.Contains(got.Error(), cause.Field) {
				t.Errorf("%s: the API server says\n%s: %s\nand we say\n%v", name, cause.Field, cause.Message, got)
			}
		}
		if theirs, ours := len(status.Status().Details.Causes), strings.Count(got.Error(), "\n")+1; theirs != ours {
			t.Errorf("%s: the API server has %d complaints, we %d:\n%v\n%v", name, theirs, ours, err, got)
		}
	}
}
