package localstack

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/config/crd"
	"github.com/munhq/gpuscale/internal/localkube"
)

// labelSimulated is on the namespace of a cluster whose gpuscale is a local stack: what is bought there is simulated.
const labelSimulated = "gpuscale.io/simulated"

// owner is under which name the stack applies objects.
const owner = "gpuscale-localstack"

func (s *Stack) startKubernetes(ctx context.Context) error {
	if s.opts.Kubeconfig != "" {
		return s.useKubernetes()
	}
	o := localkube.Options{AssetsDir: s.opts.AssetsDir, APIOnly: s.opts.Bare}
	if s.opts.DataDir != "" {
		o.DataDir = filepath.Join(s.dir, "kubernetes")
	}
	kube, err := localkube.Start(ctx, o)
	if err != nil {
		return err
	}
	s.onStop(kube.Stop)
	s.kube, s.KubernetesIsOurs = kube, true
	s.Rest, s.Kubeconfig, s.Kubectl = kube.Config(), kube.Kubeconfig(), kube.Kubectl()
	go func() {
		<-kube.Done()
		if err := kube.Err(); err != nil {
			s.fail("local Kubernetes", err)
		}
	}()
	return nil
}

// useKubernetes takes somebody's cluster.
func (s *Stack) useKubernetes() error {
	path, err := filepath.Abs(s.opts.Kubeconfig)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("the kubeconfig %s: %w", path, err)
	}
	config.QPS, config.Burst = 100, 200
	s.Rest, s.Kubeconfig = config, path
	if s.Kubectl, err = exec.LookPath("kubectl"); err == nil {
		return nil
	}
	if dir, err := localkube.AssetsDir(); err == nil {
		s.Kubectl = filepath.Join(dir, "kubectl")
		return nil
	}
	return errors.New("kubectl is not in the PATH")
}

// furnish installs the CRDs, the namespace and the Secret with the keys of the simulated accounts.
func (s *Stack) furnish(ctx context.Context) error {
	c, err := client.New(s.Rest, client.Options{})
	if err != nil {
		return fmt.Errorf("the cluster of %s: %w", s.Kubeconfig, err)
	}
	if err := s.refuseRealInstallation(ctx, c); err != nil {
		return err
	}
	names, err := applyCRDs(ctx, c)
	if err != nil {
		return err
	}
	for _, obj := range []map[string]any{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": Namespace,
			"labels": map[string]any{labelSimulated: "true"}}},
		{"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
			"metadata":   map[string]any{"name": ProviderSecret, "namespace": Namespace},
			"stringData": s.credentials()},
	} {
		if err := apply(ctx, c, &unstructured.Unstructured{Object: obj}); err != nil {
			return err
		}
	}
	return awaitCRDs(ctx, c, names)
}

// refuseRealInstallation keeps a stack away from a cluster where gpuscale rents real machines: its controllers would
// look for them in the simulated market, find none, and take them for gone.
func (s *Stack) refuseRealInstallation(ctx context.Context, c client.Client) error {
	ns := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: Namespace}, ns)
	if apierrors.IsNotFound(err) {
		ns, err = &corev1.Namespace{}, nil
	}
	if err != nil {
		return fmt.Errorf("the cluster of %s: %w", s.Kubeconfig, err)
	}
	if ns.Labels[labelSimulated] == "true" {
		return nil
	}
	claims := &unstructured.UnstructuredList{}
	claims.SetAPIVersion("gpuscale.io/v1alpha1")
	claims.SetKind("GPUNodeClaimList")
	err = c.List(ctx, claims)
	found := err == nil && len(claims.Items) > 0
	if found || ns.Name != "" {
		return fmt.Errorf("the cluster of %s seems to have a gpuscale that rents real machines (namespace %s without the label %s, %d claims); use another cluster",
			s.Kubeconfig, Namespace, labelSimulated, len(claims.Items))
	}
	return nil
}

// applyCRDs returns the names of what it applied.
func applyCRDs(ctx context.Context, c client.Client) ([]string, error) {
	files, err := crd.Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		text, err := crd.Files.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &obj.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		if err := apply(ctx, c, obj); err != nil {
			return nil, err
		}
		names = append(names, obj.GetName())
	}
	return names, nil
}

func apply(ctx context.Context, c client.Client, obj *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(owner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}

// awaitCRDs returns when the API server serves them.
func awaitCRDs(ctx context.Context, c client.Client, names []string) error {
	const interval, timeout = 50 * time.Millisecond, 30 * time.Second
	for _, name := range names {
		err := wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(ctx context.Context) (bool, error) {
			obj := &unstructured.Unstructured{}
			obj.SetAPIVersion("apiextensions.k8s.io/v1")
			obj.SetKind("CustomResourceDefinition")
			if err := c.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
				return false, err
			}
			return established(obj), nil
		})
		if err != nil {
			return fmt.Errorf("the kind %s is not served: %w", name, err)
		}
	}
	return nil
}

func established(obj *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(obj.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == string(metav1.ConditionTrue) {
			return true
		}
	}
	return false
}
