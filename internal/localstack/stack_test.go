package localstack

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/munhq/gpuscale/internal/localkube"
)

// startFails starts a stack that cannot start and returns the one line that says why.
func startFails(t *testing.T, o Options) string {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err == nil {
		t.Error(s.Stop())
		t.Fatal("it started")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("not one line: %v", err)
	}
	return err.Error()
}

// fakePrograms is a folder with files by the names of what instances run.
func fakePrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"gpuscale-agent", "vllm-sim"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	begun := false
	got := startFails(t, Options{BinDir: fakePrograms(t), Port: l.Addr().(*net.TCPAddr).Port, Begun: func() { begun = true }})
	if !strings.Contains(got, "port "+port) || !strings.Contains(got, "--port") {
		t.Errorf("%q does not name the port and the way out", got)
	}
	if begun {
		t.Error("it said that it begins")
	}
}

func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := fakePrograms(t)
	if err := os.Remove(filepath.Join(dir, "vllm-sim")); err != nil {
		t.Fatal(err)
	}
	if got := startFails(t, Options{BinDir: dir}); !strings.Contains(got, "vllm-sim") || !strings.Contains(got, "make build") {
		t.Errorf("%q", got)
	}
}

// TestNothingIsLeftOfAStartThatFails has everything but Kubernetes started when that fails.
func TestNothingIsLeftOfAStartThatFails(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	got := startFails(t, Options{BinDir: fakePrograms(t), AssetsDir: t.TempDir()})
	if !strings.Contains(got, "etcd") || !strings.Contains(got, "make controlplane") {
		t.Errorf("%q", got)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// TestGivenCluster uses somebody's cluster twice, and refuses one in which gpuscale may rent real machines.
func TestGivenCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	kube, err := localkube.Start(t.Context(), localkube.Options{APIOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := kube.Stop(); err != nil {
			t.Error(err)
		}
	}()
	o := Options{BinDir: fakePrograms(t), Kubeconfig: kube.Kubeconfig()}
	for range 2 {
		s, err := Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if s.KubernetesIsOurs || s.Kubeconfig != kube.Kubeconfig() {
			t.Errorf("kubeconfig %s, ours: %v", s.Kubeconfig, s.KubernetesIsOurs)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kubernetes.NewForConfig(kube.Config())
	if err != nil {
		t.Fatal(err)
	}
	real := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if _, err := client.CoreV1().Namespaces().Update(t.Context(), real, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := startFails(t, o); !strings.Contains(got, "rents real machines") {
		t.Errorf("%q", got)
	}
}

func TestControllersSeeNoCredentialsOfTheUser(t *testing.T) {
	t.Setenv("VASTAI_API_KEY", "real")
	t.Setenv("RUNPOD_API_KEY", "real")
	s := &Stack{redis: "redis://x"}
	for _, name := range []string{"VASTAI_API_KEY", "RUNPOD_API_KEY", "AWS_ACCESS_KEY_ID", "HOME"} {
		if got := s.getenv(name); got != "" {
			t.Errorf("%s is %q", name, got)
		}
	}
	if s.getenv("REDIS_URL") != "redis://x" {
		t.Error("no REDIS_URL")
	}
}
