// Package test runs the chart through Helm itself and a real API server. It is a module of its own, so that Helm's
// dependencies stay out of the controller's.
package test

import (
	"bytes"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	helm "helm.sh/helm/v4/pkg/cmd"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

const (
	root  = "../../.."
	chart = "../gpuscale"
)

// offline are flags without which a rendering asks whatever cluster there is. Only a released helm knows the version of
// Kubernetes that it renders for by itself.
var offline = []string{"--kubeconfig", os.DevNull, "--kube-version", "1.29.0", "--namespace", "gpu-workloads"}

// run is a helm command as typed, without the word helm.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	// Nothing of whoever runs the tests is read or written, least of all their cluster.
	home := t.TempDir()
	for _, env := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		t.Setenv(env, home)
	}
	var out bytes.Buffer
	cmd, err := helm.NewRootCmd(&out, args, func(bool) {})
	if err != nil {
		t.Fatal(err)
	}
	cmd.SetArgs(args)
	cmd.SetErr(io.Discard)
	err = cmd.Execute()
	return out.String(), err
}

// objects are a rendered manifest's, by kind and name.
type objects map[string]map[string]any

func render(t *testing.T, args ...string) objects {
	t.Helper()
	out, err := run(t, slices.Concat([]string{"template", "gpuscale", chart}, offline, args)...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return parse(t, out)
}

func parse(t *testing.T, manifest string) objects {
	t.Helper()
	got := objects{}
	for _, doc := range strings.Split("\n"+manifest, "\n---\n") {
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o == nil {
			continue
		}
		kind, _ := o["kind"].(string)
		name, _ := at(o, "metadata", "name").(string)
		key := kind + "/" + name
		if got[key] != nil {
			key += "@" + at(o, "metadata", "namespace").(string)
		}
		got[key] = o
	}
	return got
}

// at follows keys through maps; numbers are not needed here.
func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(map[string]any)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

func (o objects) get(t *testing.T, key string) map[string]any {
	t.Helper()
	if o[key] == nil {
		t.Fatalf("no %s among %v", key, slices.Sorted(maps.Keys(o)))
	}
	return o[key]
}

// container is the only one of a Deployment.
func (o objects) container(t *testing.T, deployment string) map[string]any {
	t.Helper()
	list := at(o.get(t, "Deployment/"+deployment), "spec", "template", "spec", "containers").([]any)
	if len(list) != 1 {
		t.Fatalf("%d containers", len(list))
	}
	return list[0].(map[string]any)
}

// cluster is an API server, with a kubeconfig for it.
func cluster(t *testing.T) (*rest.Config, client.Client, string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	assets, err := exec.Command(filepath.Join(root, "hack", "controlplane.sh"), "--cached").Output()
	if err != nil {
		t.Fatalf("the local Kubernetes is not built; run make controlplane: %v", err)
	}
	env := &envtest.Environment{BinaryAssetsDirectory: strings.TrimSpace(string(assets))}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return config, c, kubeconfig(t, config)
}

func kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	k := api.NewConfig()
	k.Clusters["x"] = &api.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	k.AuthInfos["x"] = &api.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	k.Contexts["x"] = &api.Context{Cluster: "x", AuthInfo: "x"}
	k.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		t.Fatal(err)
	}
	return path
}
