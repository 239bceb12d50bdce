package localkube_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/munhq/gpuscale/internal/localkube"
)

func start(t *testing.T, opts localkube.Options) *localkube.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a Kubernetes, left out by -short")
	}
	c, err := localkube.Start(t.Context(), opts)
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

func clientFor(t *testing.T, c *localkube.Cluster) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually waits for a condition of the cluster, and shows the last reason it did not hold.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			last = check(ctx)
			return last == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

// children are the processes that have an argument in dir, those of one cluster, by program.
func children(t *testing.T, dir string) map[string]int {
	t.Helper()
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, path := range cmdlines {
		cmdline, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(cmdline), "="+dir+"/") {
			continue
		}
		program, _, _ := strings.Cut(string(cmdline), "\x00")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		found[filepath.Base(program)] = pid
	}
	return found
}

func pidOf(t *testing.T, program, dir string) int {
	t.Helper()
	pid, ok := children(t, dir)[program]
	if !ok {
		t.Fatalf("no %s among %v", program, children(t, dir))
	}
	return pid
}

func TestClusterBehavesAsKubernetes(t *testing.T) {
	c := start(t, localkube.Options{})
	client := clientFor(t, c)

	t.Run("kubectl knows the version and reaches the cluster", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), c.Kubectl(), "--kubeconfig", c.Kubeconfig(), "version").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.Count(string(out), "Version: v1.") < 2 {
			t.Errorf("kubectl version says:\n%s", out)
		}
	})
	t.Run("the kubeconfig is private and works", func(t *testing.T) {
		info, err := os.Stat(c.Kubeconfig())
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("mode %v, error %v", info.Mode(), err)
		}
		cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a new namespace gets its service account, which RBAC keeps out", func(t *testing.T) {
		makeNamespace(t, client, "accounts")
		cfg := c.Config()
		cfg.Impersonate.UserName = "system:serviceaccount:accounts:default"
		_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Secrets("accounts").List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("want Forbidden, got %v", err)
		}
	})
	t.Run("a Deployment makes a pod that is Unschedulable", func(t *testing.T) {
		makeNamespace(t, client, "pods")
		deploy(t, client, "pods")
		eventually(t, "the pod", func(ctx context.Context) error { return unschedulable(ctx, client, "pods") })
	})
	t.Run("a deleted namespace goes with its pods", func(t *testing.T) {
		if err := client.CoreV1().Namespaces().Delete(t.Context(), "pods", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace", func(ctx context.Context) error {
			_, err := client.CoreV1().Namespaces().Get(ctx, "pods", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(errors.New("is still there"), err)
		})
	})
	t.Run("nobody reads the API without a certificate", func(t *testing.T) {
		cfg := c.Config()
		cfg.TLSClientConfig.CertData, cfg.TLSClientConfig.KeyData = nil, nil
		_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			t.Errorf("want a refusal, got %v", err)
		}
	})
	t.Run("Stop leaves no process and no file", func(t *testing.T) {
		dir := filepath.Dir(c.Kubeconfig())
		if got := children(t, dir); len(got) != 4 {
			t.Errorf("before: %v", got)
		}
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		if got := children(t, dir); len(got) != 0 {
			t.Errorf("after: %v", got)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
		select {
		case <-c.Done():
		default:
			t.Error("Done is open")
		}
		if c.Err() != nil {
			t.Error(c.Err())
		}
	})
}

func makeNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service account of "+name, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func deploy(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	labels := map[string]string{"app": "vllm"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "vllm"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai"}}},
			},
		},
	}
	if _, err := client.AppsV1().Deployments(namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// unschedulable is nil when the namespace's one pod is marked so by the scheduler.
func unschedulable(ctx context.Context, client kubernetes.Interface, namespace string) error {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) != 1 {
		return fmt.Errorf("%d pods", len(pods.Items))
	}
	status := pods.Items[0].Status
	for _, c := range status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable && status.Phase == corev1.PodPending {
			return nil
		}
	}
	return fmt.Errorf("%s, conditions %+v", status.Phase, status.Conditions)
}

func TestKeptDataAreThereAgain(t *testing.T) {
	opts := localkube.Options{DataDir: t.TempDir(), APIOnly: true}
	c := start(t, opts)
	if _, err := localkube.Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second start in the same folder: %v", err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := clientFor(t, c).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := c.Config()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	c = start(t, opts)
	if _, err := clientFor(t, c).CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if string(before.CAData) != string(c.Config().CAData) {
		t.Error("the CA is another")
	}
}

func TestComponentThatDiesIsReported(t *testing.T) {
	c := start(t, localkube.Options{APIOnly: true})
	if err := syscall.Kill(pidOf(t, "etcd", filepath.Dir(c.Kubeconfig())), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("Done stays open")
	}
	if err := c.Err(); err == nil || !strings.HasPrefix(err.Error(), "etcd ended unexpectedly (signal: killed)") {
		t.Errorf("error %v", err)
	}
}

// TestAPIServerComesBack: a killed API server is no failure of the cluster; started again, the same clients find what
// they wrote.
func TestAPIServerComesBack(t *testing.T) {
	c := start(t, localkube.Options{APIOnly: true})
	clients := clientFor(t, c)
	name := "kept"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := clients.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.RestartAPIServer(t.Context()); err == nil {
		t.Fatal("a second API server was started beside the first")
	}
	if err := c.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		t.Fatal("the API server still answers")
	}
	if err := c.KillAPIServer(); err == nil {
		t.Error("killed twice")
	}
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	select {
	case <-c.Done():
		t.Error("the cluster takes the kill for its end:", c.Err())
	default:
	}
	// And a later end that nobody asked for is still one.
	if err := syscall.Kill(pidOf(t, "kube-apiserver", filepath.Dir(c.Kubeconfig())), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("Done stays open")
	}
}

// TestMain doubles as the parent that TestChildrenDieWithTheirParent kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LOCALKUBE_TEST_PARENT"); dir != "" {
		if _, err := localkube.Start(context.Background(), localkube.Options{DataDir: dir, APIOnly: true}); err != nil {
			_, _ = os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("ready")
		select {}
	}
	os.Exit(m.Run())
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kubernetes, left out by -short")
	}
	dir := t.TempDir()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "LOCALKUBE_TEST_PARENT="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 1<<12)
	n, _ := out.Read(said)
	if err := parent.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if got := string(said[:n]); got != "ready" {
		t.Fatal(got)
	}
	eventually(t, "the children of a killed parent", func(context.Context) error {
		if left := children(t, dir); len(left) > 0 {
			return fmt.Errorf("still there: %v", left)
		}
		return nil
	})
}
