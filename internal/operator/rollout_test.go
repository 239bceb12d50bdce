package operator_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
)

// TestARolloutBuysOneReplacement changes the template of a one-replica Deployment under a real controller manager and
// scheduler. A rolling update never completes here, since the new pod stays Pending: both pods wait side by side for good.
func TestARolloutBuysOneReplacement(t *testing.T) {
	for _, strategy := range []appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType} {
		t.Run(string(strategy), func(t *testing.T) {
			w := start(t, []market.Offer{offer("1001"), offer("1002"), offer("1003")}, withControllers)
			w.pool()
			d := w.deployment(strategy, "acme/old")
			w.eventually("the old model is served", func() error { return w.serves("acme/old") })
			first := w.live()
			if len(first) != 1 {
				t.Fatalf("%d live", len(first))
			}

			// A template that asks for the same model needs no other machine.
			w.change(d, func(p *corev1.PodTemplateSpec) { p.Labels["round"] = "2" })
			w.eventually("the new pod is told that it is served", func() error { return w.told(d, "2") })
			w.rentedAtMost(1)

			w.change(d, func(p *corev1.PodTemplateSpec) {
				p.Labels["round"], p.Annotations[v1alpha1.AnnotationModel] = "3", "acme/new"
			})
			w.eventually("the new model is served", func() error { return w.serves("acme/new") })
			w.eventually("the old machine is given back", func() error {
				live := w.live()
				if len(live) != 1 || live[0].ID == first[0].ID {
					return fmt.Errorf("%d live", len(live))
				}
				return nil
			})
			w.eventually("the new pod is told that it is served", func() error { return w.told(d, "3") })
			if n := len(w.rented()); n != 2 {
				t.Errorf("%d instances were rented, want one and its replacement\n%s", n, w.dump())
			}
		})
	}
}

func withControllers(w *world, _ *market.Config, _ *simOptions) {
	w.kube = append(w.kube, localkubetest.WithControllers())
}

// deployment has one replica that asks for a model. It is deleted before the test's market is audited.
func (w *world) deployment(strategy appsv1.DeploymentStrategyType, model string) *appsv1.Deployment {
	w.t.Helper()
	labels := map[string]string{"app": "model"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "model"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Strategy.Type = strategy
	d.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "model", "round": "1"}, Annotations: map[string]string{v1alpha1.AnnotationModel: model}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai:latest", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}},
	}
	w.create(d)
	w.t.Cleanup(func() {
		if err := w.client.Delete(context.Background(), d, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			w.t.Log(err)
		}
	})
	return d
}

func (w *world) change(d *appsv1.Deployment, edit func(*corev1.PodTemplateSpec)) {
	w.t.Helper()
	w.eventually("the Deployment changes", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		edit(&d.Spec.Template)
		return w.client.Update(w.ctx, d)
	})
}

// serves wants a ready claim for the model.
func (w *world) serves(model string) error {
	for _, c := range w.claims() {
		if c.Status.Phase == v1alpha1.PhaseReady && c.DeletionTimestamp.IsZero() && c.Spec.Placements[0].Workload == model {
			return nil
		}
	}
	return fmt.Errorf("no ready claim among %d", len(w.claims()))
}

// told wants the pod of a round of the template to have heard that it is served.
func (w *world) told(d *appsv1.Deployment, round string) error {
	var pods corev1.PodList
	if err := w.client.List(w.ctx, &pods, client.InNamespace(d.Namespace), client.MatchingLabels{"round": round}); err != nil {
		return err
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.Conditions {
			if c.Type == v1alpha1.PodConditionServed && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
	}
	return fmt.Errorf("none of %d pods", len(pods.Items))
}
