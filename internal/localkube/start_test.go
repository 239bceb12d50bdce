package localkube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/localkube"
)

// fakeAssets is an assets folder whose programs are these shell scripts.
func fakeAssets(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestStartFailuresNameTheComponent(t *testing.T) {
	// It stays in the shell, whose arguments the check for leftovers needs.
	const forever = "kill -STOP $$"
	tests := []struct {
		name   string
		assets map[string]string
		want   []string
	}{
		{
			name: "an empty folder",
			want: []string{"has no etcd", "make controlplane"},
		},
		{
			name:   "the assets of envtest, without controllers",
			assets: map[string]string{"etcd": forever, "kube-apiserver": forever, "kubectl": forever},
			want:   []string{"has no kube-controller-manager"},
		},
		{
			name: "etcd that fails",
			assets: map[string]string{
				"etcd":           "echo disk on fire >&2; exit 3",
				"kube-apiserver": forever, "kube-controller-manager": forever, "kube-scheduler": forever,
			},
			want: []string{"etcd ended unexpectedly (exit status 3)", "disk on fire"},
		},
		{
			name: "an API server that says nothing",
			assets: map[string]string{
				"etcd": forever, "kube-apiserver": "exit 0", "kube-controller-manager": forever, "kube-scheduler": forever,
			},
			want: []string{"kube-apiserver ended unexpectedly (exit status 0); it logged nothing"},
		},
		{
			name: "ports that are always taken",
			assets: map[string]string{
				"etcd":           "echo listen tcp: bind: address already in use; exit 1",
				"kube-apiserver": forever, "kube-controller-manager": forever, "kube-scheduler": forever,
			},
			want: []string{"etcd ended", "address already in use"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data := t.TempDir()
			t.Setenv("TMPDIR", data)
			opts := localkube.Options{AssetsDir: fakeAssets(t, tt.assets)}
			c, err := localkube.Start(t.Context(), opts)
			if err == nil {
				t.Fatal("started", c.Stop())
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
			if left := children(t, data); len(left) > 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}

func TestAssetsDirIsTheOneAskedFor(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "/opt/kubebuilder")
	if dir, err := localkube.AssetsDir(); err != nil || dir != "/opt/kubebuilder" {
		t.Errorf("%q, %v", dir, err)
	}
}

func TestAssetsDirSaysWhatToDo(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "")
	t.Setenv("GPUSCALE_CACHE", t.TempDir())
	if _, err := localkube.AssetsDir(); err == nil || !strings.Contains(err.Error(), "make controlplane") {
		t.Errorf("without a build: %v", err)
	}
	t.Chdir(t.TempDir())
	if _, err := localkube.AssetsDir(); err == nil || !strings.Contains(err.Error(), "KUBEBUILDER_ASSETS") {
		t.Errorf("outside a checkout: %v", err)
	}
}
