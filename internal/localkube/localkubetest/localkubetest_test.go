package localkubetest_test

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
)

func TestMain(m *testing.M) { localkubetest.Main(m) }

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.gpuscale.io}
spec:
  group: test.gpuscale.io
  scope: Cluster
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
`

func TestModulesCRDsAreServed(t *testing.T) {
	get := kubernetes.NewForConfigOrDie(localkubetest.Start(t).Config()).Discovery().RESTClient().Get()
	if err := get.AbsPath("/apis/gpuscale.io").Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
}

func TestSameOptionsShareACluster(t *testing.T) {
	a, b := localkubetest.Start(t, localkubetest.WithCRDs()), localkubetest.Start(t, localkubetest.WithCRDs())
	if a != b {
		t.Error("the second test would start another cluster")
	}
	if err := a.KillAPIServer(); err == nil {
		t.Error("one test killed the other's API server")
	}
	first, second := a.Namespace(t), a.Namespace(t)
	if first == second {
		t.Error("two tests would share a namespace")
	}
}

func TestPodsCanBeMadeWithoutControllers(t *testing.T) {
	c := localkubetest.Start(t, localkubetest.WithCRDs())
	makePod(t, c)
}

func TestPodsCanBeMadeWithControllers(t *testing.T) {
	c := localkubetest.Start(t, localkubetest.WithCRDs(), localkubetest.WithControllers())
	makePod(t, c)
}

func makePod(t *testing.T, c *localkubetest.Cluster) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(c.Config())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "vllm"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai"}}},
	}
	if _, err := client.CoreV1().Pods(c.Namespace(t)).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestPrivateClusterHasItsCRDsAndEndsWithItsTest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "widgets.yaml"), []byte(widgetCRD), 0o600); err != nil {
		t.Fatal(err)
	}
	var c *localkubetest.Cluster
	t.Run("runs", func(t *testing.T) {
		c = localkubetest.Start(t, localkubetest.Private(), localkubetest.WithCRDs(dir))
		client := kubernetes.NewForConfigOrDie(c.Config())
		get := client.Discovery().RESTClient().Get()
		if err := get.AbsPath("/apis/test.gpuscale.io/v1/widgets").Do(t.Context()).Error(); err != nil {
			t.Error(err)
		}
		shared := kubernetes.NewForConfigOrDie(localkubetest.Start(t, localkubetest.WithCRDs()).Config())
		get = shared.Discovery().RESTClient().Get()
		if err := get.AbsPath("/apis/test.gpuscale.io/v1/widgets").Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Errorf("the shared cluster has them too: %v", err)
		}
	})
	select {
	case <-c.Done():
	default:
		t.Error("it still runs")
	}
}
