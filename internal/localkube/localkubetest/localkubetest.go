// Package localkubetest gives a test binary a real Kubernetes with gpuscale's CRDs in it.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { localkubetest.Main(m) }
//
// and calls Start in its tests. All tests that ask for the same options share one cluster, started by the first of
// them and ended by Main. It needs the programs that `make controlplane` builds; without them its tests fail, and with
// -short they are skipped.
package localkubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/munhq/gpuscale/internal/localkube"
)

// Cluster is a running Kubernetes. Tests do not call its Stop.
type Cluster struct {
	*localkube.Cluster
	controllers, private bool
}

// KillAPIServer ends the API server of a Private cluster as a crash would, until RestartAPIServer. It may be called from
// any goroutine; a cluster that other tests share is not killed, and an error says so.
func (c *Cluster) KillAPIServer() error {
	if !c.private {
		return errors.New("localkubetest: the cluster is shared; ask for a Private one")
	}
	return c.Cluster.KillAPIServer()
}

// Option changes what Start gives.
type Option func(*options)

type options struct {
	controllers bool
	private     bool
	crdDirs     []string // nil: the module's own
}

// WithControllers adds kube-controller-manager and kube-scheduler: Deployments make pods, namespaces are emptied, pods
// are marked Unschedulable. It costs a few seconds, once.
func WithControllers() Option { return func(o *options) { o.controllers = true } }

// WithCRDs installs the CRDs of these folders in place of the module's config/crd. No folder: no CRDs.
func WithCRDs(dirs ...string) Option {
	return func(o *options) { o.crdDirs = append([]string{}, dirs...) }
}

// Private gives this test a cluster that no other test sees, ended with the test: for tests that count or delete
// cluster-scoped objects, or run a controller that watches all of them.
func Private() Option { return func(o *options) { o.private = true } }

// shared are the clusters of this test binary by the options they were started with.
var shared struct {
	sync.Mutex
	underMain bool
	clusters  map[string]*Cluster
}

// Main runs the tests, ends the shared clusters and exits with the tests' status. It does not return.
func Main(m *testing.M) {
	shared.Lock()
	shared.underMain = true
	shared.Unlock()
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "localkubetest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	for _, c := range shared.clusters {
		if err := c.Stop(); err != nil {
			return err
		}
	}
	return nil
}

// Start returns a cluster with the CRDs established. It fails the test when that is not possible.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.crdDirs == nil {
		root, err := localkube.ModuleRoot()
		if err != nil {
			t.Fatal(err)
		}
		o.crdDirs = []string{filepath.Join(root, "config", "crd")}
	}
	if o.private {
		c, err := start(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
		return c
	}
	c, err := startShared(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startShared(o options) (*Cluster, error) {
	shared.Lock()
	defer shared.Unlock()
	if !shared.underMain {
		return nil, fmt.Errorf("localkubetest: this package needs `func TestMain(m *testing.M) { localkubetest.Main(m) }`")
	}
	key := fmt.Sprintf("%t %s", o.controllers, strings.Join(o.crdDirs, " "))
	if c := shared.clusters[key]; c != nil {
		// One that has failed would fail every later test without saying why.
		err := c.Err()
		return c, err
	}
	c, err := start(o)
	if err != nil {
		return nil, err
	}
	if shared.clusters == nil {
		shared.clusters = map[string]*Cluster{}
	}
	shared.clusters[key] = c
	return c, nil
}

func start(o options) (*Cluster, error) {
	c, err := localkube.Start(context.Background(), localkube.Options{APIOnly: !o.controllers})
	if err != nil {
		return nil, err
	}
	if len(o.crdDirs) > 0 {
		_, err := envtest.InstallCRDs(c.Config(), envtest.CRDInstallOptions{
			Paths:              o.crdDirs,
			ErrorIfPathMissing: true,
		})
		if err != nil {
			_ = c.Stop()
			return nil, fmt.Errorf("install the CRDs of %v (made by `make generate`): %w", o.crdDirs, err)
		}
	}
	return &Cluster{Cluster: c, controllers: o.controllers, private: o.private}, nil
}

// Namespace makes a namespace for this test that pods can be created in at once, and deletes it when the test ends.
// What is in it goes with it only in a cluster WithControllers; elsewhere the objects stay.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := client.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
	})
	if c.controllers {
		awaitServiceAccount(t, client, ns.Name)
	}
	return ns.Name
}

func awaitServiceAccount(t testing.TB, client kubernetes.Interface, namespace string) {
	t.Helper()
	const interval, timeout = 20 * time.Millisecond, time.Minute
	err := wait.PollUntilContextTimeout(t.Context(), interval, timeout, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		t.Fatalf("namespace %s has no default service account: %v", namespace, err)
	}
}
