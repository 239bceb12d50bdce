package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/manifest"
)

// multi is the example over several providers, with short times, and the sample workload.
func multi(t *testing.T) (*v1alpha1.GPUNodePool, *corev1.Pod) {
	t.Helper()
	text, err := os.ReadFile("../../examples/gpunodepool-multi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	short := strings.NewReplacer(`batchWindow: "10s"`, `batchWindow: "1s"`, `cooldownPeriod: "2m"`, `cooldownPeriod: "2s"`).Replace(string(text))
	set, err := manifest.Read([]string{"-", "../../examples/sample-workload.yaml"}, strings.NewReader(short), "default")
	if err != nil {
		t.Fatal(err)
	}
	return set.Pools[0], set.Pods[0]
}

// TestTheExampleOverSeveralProviders has each simulated cloud of the stack serve a model, from a container or a virtual
// machine as the provider has them, for a pod that asks for that provider, and the cheapest serve the one that asks for
// none. In the end nothing is rented anywhere.
func TestTheExampleOverSeveralProviders(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	s, err := Start(t.Context(), Options{BinDir: realPrograms(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log, _ := os.ReadFile(s.LogFile)
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the log:\n%s", log[max(0, len(log)-20000):])
		}
	})
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), clientscheme.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(s.Rest, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	pool, sample := multi(t)
	pods := map[string]*corev1.Pod{"": sample}
	for _, cloud := range s.Clouds {
		if !strings.Contains(mustYAML(t, pool.Spec.Providers), "name: "+cloud.Provider+"\n") {
			t.Errorf("the example does not name %s", cloud.Provider)
		}
		p := sample.DeepCopy()
		p.Name = "on-" + strings.ReplaceAll(cloud.Provider, ".", "")
		delete(p.Annotations, v1alpha1.AnnotationGPUType)
		p.Annotations[v1alpha1.AnnotationMaxPrice] = "0.80"
		p.Annotations[v1alpha1.AnnotationProvider], p.Annotations[v1alpha1.AnnotationServedName] = cloud.Provider, "on/"+cloud.Provider
		pods[cloud.Provider] = p
	}
	for _, o := range []client.Object{pool, sample} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the sample is served by the cheapest", func(ctx context.Context) error { return servedBy(ctx, c, sample, "vast.ai") })
	for provider, p := range pods {
		if provider == "" {
			continue
		}
		if err := c.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for provider, p := range pods {
		if provider != "" {
			until(t, "a model is served on "+provider, func(ctx context.Context) error { return servedBy(ctx, c, p, provider) })
		}
	}
	for _, p := range pods {
		if err := c.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	for _, cloud := range s.Clouds {
		if cloud.market.Books().Rented == 0 {
			t.Errorf("%s rented nothing", cloud.Provider)
		}
		until(t, "nothing is left at "+cloud.Provider, func(context.Context) error {
			if live := cloud.market.Books().Live(); len(live) > 0 {
				return fmt.Errorf("%d live", len(live))
			}
			return nil
		})
	}
}

func mustYAML(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// servedBy says what keeps a pod from being served by a provider's machine.
func servedBy(ctx context.Context, c client.Client, pod *corev1.Pod, provider string) error {
	got := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(pod), got); err != nil {
		return err
	}
	why := "it says nothing"
	for _, cond := range got.Status.Conditions {
		if cond.Type != v1alpha1.PodConditionServed {
			continue
		}
		if why = cond.Reason + ": " + cond.Message; cond.Status != corev1.ConditionTrue {
			continue
		}
		var claims v1alpha1.GPUNodeClaimList
		if err := c.List(ctx, &claims); err != nil {
			return err
		}
		for _, claim := range claims.Items {
			if claim.Status.Provider == provider && strings.Contains(cond.Message, "claim "+claim.Name+" ") {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: %s", pod.Name, why)
}
