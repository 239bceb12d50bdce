package test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// asInREADME are the values of the documented install command.
var asInREADME = []string{"--set", "providers.vastai.enabled=true",
	"--set", "providers.vastai.existingSecret=gpuscale-provider-credentials"}

// everything turns on all that the chart has.
var everything = append(slices.Clone(asInREADME), "--set", "gateway.enabled=true", "--set", "gateway.keysSecret=gpuscale-keys",
	"--set", "gateway.defaultModel=acme/tiny", "--set", "postgres.existingSecret=gpuscale-postgres", "--set", "redis.url=redis://redis:6379",
	"--set", "replicas=2", "--set", "agent.url=https://example.com/gpuscale-agent-{arch}", "--set", "agent.sha256="+strings.Repeat("0", 64), "--set", "agent.sha256ARM64="+strings.Repeat("1", 64), "--set", "allGPUPods=true", "--set", "podAnnotations.a=b", "--set", "nodeSelector.a=b",
	"--set", "rbac.secrets.allNamespaces=false", "--set", "rbac.secrets.namespaces={gpuscale-system}", "--set", "imagePullSecrets[0].name=x",
	"--values", "testdata/pool.yaml")

func TestLint(t *testing.T) {
	for _, args := range [][]string{nil, asInREADME, everything} {
		if out, err := run(t, append([]string{"lint", chart, "--strict", "--kubeconfig", os.DevNull}, args...)...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestCRDsAreTheGeneratedOnes(t *testing.T) {
	const from = root + "/config/crd"
	want, err := filepath.Glob(from + "/*.yaml")
	if err != nil || len(want) != 2 {
		t.Fatalf("%v %v", want, err)
	}
	have, _ := filepath.Glob(chart + "/crds/*")
	if len(have) != len(want) {
		t.Errorf("crds/ has %v", have)
	}
	for _, path := range want {
		a, _ := os.ReadFile(path)
		b, err := os.ReadFile(filepath.Join(chart, "crds", filepath.Base(path)))
		if err != nil || string(a) != string(b) {
			t.Errorf("crds/%s is not what config/crd has; run make generate", filepath.Base(path))
		}
	}
}

// TestWhatIsRendered reads manifests, for what an API server accepts and would be wrong all the same.
func TestWhatIsRendered(t *testing.T) {
	plain := render(t)
	want := []string{"ClusterRole/gpu-workloads-gpuscale", "ClusterRoleBinding/gpu-workloads-gpuscale", "Deployment/gpuscale",
		"PersistentVolumeClaim/gpuscale-ledger", "Role/gpuscale", "RoleBinding/gpuscale", "Service/gpuscale-worker-metrics",
		"ServiceAccount/gpuscale"}
	if got := slices.Sorted(maps.Keys(plain)); !slices.Equal(got, want) {
		t.Errorf("by default %v, want %v", got, want)
	}
	if env := envOf(plain.container(t, "gpuscale")); !slices.Equal(env, []string{"POD_NAMESPACE"}) {
		t.Errorf("no provider is enabled and the environment has %v", env)
	}
	c := render(t, asInREADME...).container(t, "gpuscale")
	if env := envOf(c); !slices.Equal(env, []string{"POD_NAMESPACE", "VASTAI_API_KEY"}) {
		t.Errorf("environment %v", env)
	}
	if c["image"] != "ghcr.io/munhq/gpuscale-controller:v0.1.0" {
		t.Errorf("image %v", c["image"])
	}
	own := render(t, "--set", "image.repository=registry.example/gpuscale-controller", "--set", "image.tag=dev").container(t, "gpuscale")
	if own["image"] != "registry.example/gpuscale-controller:dev" {
		t.Errorf("image %v", own["image"])
	}
	if args := fmt.Sprint(c["args"]); !strings.Contains(args, "--worker-metrics-addr=:9091 --worker-metrics=core --worker-metrics-interval=15s") ||
		!strings.Contains(fmt.Sprint(c["ports"]), "worker-metrics") {
		t.Errorf("workers' metrics: %v %v", args, c["ports"])
	}
	without := render(t, "--set", "workerMetrics.enabled=false")
	if c := without.container(t, "gpuscale"); without["Service/gpuscale-worker-metrics"] != nil || !strings.Contains(fmt.Sprint(c["args"]), "--worker-metrics-addr=0") ||
		strings.Contains(fmt.Sprint(c["ports"]), "worker-metrics") {
		t.Errorf("without workers' metrics: %v %v", c["args"], c["ports"])
	}
	all := render(t, everything...)
	if c := all.container(t, "gpuscale"); !slices.Equal(envOf(c), []string{"POD_NAMESPACE", "POSTGRES_URL", "REDIS_URL", "VASTAI_API_KEY"}) ||
		strings.Contains(fmt.Sprint(c["args"]), "--ledger") || all["PersistentVolumeClaim/gpuscale-ledger"] != nil {
		t.Errorf("with Postgres: %v %v", envOf(c), c["args"])
	}
}

// TestGatewayHolds: requests that wait at the gateway reach the controller by the same Redis.
func TestGatewayHolds(t *testing.T) {
	gateway := func(set ...string) map[string]any {
		return render(t, append(slices.Clone(everything), set...)...).container(t, "gpuscale-gateway")
	}
	if c := gateway(); !slices.Equal(envOf(c), []string{"GOMAXPROCS", "POD_NAMESPACE", "REDIS_URL"}) || strings.Contains(fmt.Sprint(c["args"]), "hold-limit") {
		t.Errorf("%v %v", envOf(c), c["args"])
	}
	if env := fmt.Sprint(gateway("--set", "gateway.processors=4")["env"]); !strings.Contains(env, "name:GOMAXPROCS value:4") {
		t.Errorf("%v", env)
	}
	if c := gateway("--set", "gateway.holdLimit=90s"); !strings.Contains(fmt.Sprint(c["args"]), "--hold-limit=90s") {
		t.Errorf("%v", c["args"])
	}
}

// TestGatewayServesBackends: what the gateway is told beside the cluster's claims, and that each of its pods is a target for
// scrapes.
func TestGatewayServesBackends(t *testing.T) {
	all := render(t, append(slices.Clone(everything), "--set", "gateway.backends={acme/a=http://vllm-a:8000\\,http://vllm-b:8000,http://vllm-c:8000}",
		"--set", "gateway.backendKeySecret=vllm-key", "--set", "gateway.workerConcurrency=32", "--set", "gateway.otlpEndpoint=http://otel:4318")...)
	c := all.container(t, "gpuscale-gateway")
	for _, want := range []string{"--backend=acme/a=http://vllm-a:8000,http://vllm-b:8000", "--backend=http://vllm-c:8000", "--worker-concurrency=32",
		"--otlp-endpoint=http://otel:4318"} {
		if args, _ := c["args"].([]any); !slices.Contains(args, any(want)) {
			t.Errorf("no %s in %v", want, args)
		}
	}
	if env := envOf(c); !slices.Equal(env, []string{"GOMAXPROCS", "POD_NAMESPACE", "REDIS_URL", "VLLM_API_KEY"}) || !strings.Contains(fmt.Sprint(c["env"]), "name:vllm-key") {
		t.Errorf("environment %v", c["env"])
	}
	if args := fmt.Sprint(render(t, everything...).container(t, "gpuscale-gateway")["args"]); strings.Contains(args, "backend") ||
		strings.Contains(args, "concurrency") || strings.Contains(args, "otlp") {
		t.Errorf("by default %v", args)
	}
	spec, _ := all.get(t, "Service/gpuscale-gateway-metrics")["spec"].(map[string]any)
	requests, _ := all.get(t, "Service/gpuscale-gateway")["spec"].(map[string]any)
	if spec["clusterIP"] != "None" || !reflect.DeepEqual(spec["selector"], requests["selector"]) ||
		!strings.Contains(fmt.Sprint(spec["ports"]), "targetPort:metrics") || !strings.Contains(fmt.Sprint(c["ports"]), "containerPort:9092 name:metrics") {
		t.Errorf("metrics: %v, ports %v", spec, c["ports"])
	}
}

// TestRulesAreTheTestedOnes: the roles are exactly the lists that the controllers' own tests run under.
func TestRulesAreTheTestedOnes(t *testing.T) {
	data, err := os.ReadFile(chart + "/files/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules map[string][]any
	if err := yaml.UnmarshalStrict(data, &rules); err != nil {
		t.Fatal(err)
	}
	wide, narrow := render(t), render(t, everything...)
	for _, c := range []struct {
		in   objects
		role string
		want []any
	}{
		{wide, "ClusterRole/gpu-workloads-gpuscale", slices.Concat(rules["cluster"], rules["secrets"])},
		{wide, "Role/gpuscale", rules["own"]},
		{narrow, "ClusterRole/gpu-workloads-gpuscale", rules["cluster"]},
		{narrow, "Role/gpuscale", rules["own"]},
		{narrow, "Role/gpu-workloads-gpuscale-secrets", rules["secrets"]},
		{narrow, "Role/gpu-workloads-gpuscale-secrets@gpu-workloads", rules["secrets"]},
		{narrow, "ClusterRole/gpu-workloads-gpuscale-gateway", rules["gatewayCluster"]},
		{narrow, "Role/gpuscale-gateway", rules["gatewayOwn"]},
	} {
		if got := c.in.get(t, c.role)["rules"]; !reflect.DeepEqual(got, any(c.want)) {
			t.Errorf("%s has %v, want %v", c.role, got, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for set, want := range map[string]string{
		"replicas=2":                               "one writer",
		"providers.vastai.enabled=true":            "needs providers.vastai.existingSecret",
		"providers.vast.enabled=true":              "additional properties 'vast' not allowed",
		"providers.vastai.apiKey=x":                "additional properties 'apiKey' not allowed",
		"postgres.url=postgres://u:pw-marked@db/x": "/postgres/url",
		"agent.url=https://example.com/agent":      "belong together",
		"pool.create=true":                         "pool.create needs pool.spec",
		"serviceAccount.create=false":              "serviceAccount.name has to name one",
		"replicas=many":                            "/replicas",
		"workerMetrics.metrics=some":               "/workerMetrics/metrics",
		"workerMetrics.interval=often":             "/workerMetrics/interval",
		"gateway.service.type=Cluster":             "/gateway/service/type",
		"gateway.holdLimit=long":                   "/gateway/holdLimit",
		"gateway.backends={vllm:8000}":             "/gateway/backends/0",
		"gateway.workerConcurrency=-1":             "/gateway/workerConcurrency",
		"gateway.processors=0":                     "/gateway/processors",
		"gateway.otlpEndpoint=otel:4318":           "/gateway/otlpEndpoint",
	} {
		out, err := run(t, slices.Concat([]string{"template", "gpuscale", chart, "--set", set}, offline)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want it refused with %q", set, err, want)
		}
		if err != nil && strings.Contains(err.Error()+out, "pw-marked") {
			t.Errorf("%s: the refusal repeats the password: %v", set, err)
		}
	}
}

// TestInstall installs the chart as documented, and then with all that it has, into a real API server: definitions and a
// first pool in one go, every object accepted by the strictest pod security.
func TestInstall(t *testing.T) {
	_, c, config := cluster(t)
	ctx := t.Context()
	pods := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "strict", Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := c.Create(ctx, pods); err != nil {
		t.Fatal(err)
	}
	install := func(name, namespace string, args ...string) string {
		t.Helper()
		out, err := run(t, append([]string{"install", name, chart, "--kubeconfig", config, "--namespace", namespace, "--create-namespace"}, args...)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	notes := install("gpuscale", "gpu-workloads", append(slices.Clone(asInREADME), "--values", "testdata/pool.yaml")...)
	for _, want := range []string{"environment: vastai", "kubectl get gpunodepools", "kubectl delete gpunodepools --all"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "gpuscale.io/v1alpha1", "kind": "GPUNodePool"}}
	if err := c.Get(ctx, client.ObjectKey{Name: "inference"}, pool); err != nil {
		t.Errorf("the first pool: %v", err)
	}
	account := "system:serviceaccount:gpu-workloads:gpuscale"
	for _, q := range []struct {
		may                                      bool
		verb, group, resource, namespace, object string
	}{
		{true, "get", "", "secrets", "gpuscale-system", "gpuscale-provider-credentials"},
		{true, "create", "", "secrets", "gpu-workloads", ""},
		{true, "update", "coordination.k8s.io", "leases", "gpu-workloads", "gpuscale-controller"},
		{false, "list", "", "secrets", "gpu-workloads", ""},
		{false, "watch", "", "secrets", "", ""},
		{false, "create", "", "secrets", "default", ""},
		{false, "update", "", "secrets", "gpu-workloads", "gpuscale-ca"},
		{false, "delete", "", "secrets", "gpu-workloads", "gpuscale-ca"},
		{false, "delete", "gpuscale.io", "gpunodepools", "", "inference"},
		{false, "patch", "", "pods", "default", "x"},
		{false, "create", "", "pods", "default", ""},
	} {
		review := &authv1.SubjectAccessReview{Spec: authv1.SubjectAccessReviewSpec{User: account, ResourceAttributes: &authv1.ResourceAttributes{
			Verb: q.verb, Group: q.group, Resource: q.resource, Namespace: q.namespace, Name: q.object}}}
		if err := c.Create(ctx, review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != q.may {
			t.Errorf("the controller may %v: %t", q, !q.may)
		}
	}

	// A second release beside it, with everything, in a namespace of the strictest kind.
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gpuscale-system"}}); err != nil {
		t.Fatal(err)
	}
	install("other", "strict", append(slices.Clone(everything), "--set", "pool.name=second", "--set", "serviceAccount.name=someone")...)
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments, client.InNamespace("strict")); err != nil || len(deployments.Items) != 2 {
		t.Fatalf("%d Deployments, %v", len(deployments.Items), err)
	}
	for _, d := range deployments.Items {
		// Nobody makes pods of Deployments here; pod security judges this one as it would theirs.
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "strict", Name: d.Name}, Spec: d.Spec.Template.Spec}
		if err := c.Create(ctx, pod, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
	}

	if out, err := run(t, "upgrade", "gpuscale", chart, "--kubeconfig", config, "--namespace", "gpu-workloads", "--reuse-values", "--set", "image.tag=v0.2.0"); err != nil {
		t.Errorf("upgrade: %v\n%s", err, out)
	}
	if out, err := run(t, "uninstall", "gpuscale", "--kubeconfig", config, "--namespace", "gpu-workloads"); err != nil {
		t.Errorf("uninstall: %v\n%s", err, out)
	}
	// What was bought under them has to be given back by someone.
	if err := c.Get(ctx, client.ObjectKey{Name: "inference"}, pool); err != nil || pool.GetDeletionTimestamp() != nil {
		t.Errorf("uninstalling took the pool away: %v", err)
	}
}

func envOf(container map[string]any) []string {
	var names []string
	for _, e := range container["env"].([]any) {
		names = append(names, e.(map[string]any)["name"].(string))
	}
	return names
}
