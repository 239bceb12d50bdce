package operator_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// TestBadInputBuysNothingAndSaysWhy: what a person gets wrong is said on the object that they wrote.
func TestBadInputBuysNothingAndSaysWhy(t *testing.T) {
	t.Run("annotation that does not parse", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.pool()
		for _, tc := range []struct{ annotation, value, says string }{
			{v1alpha1.AnnotationGPUVRAM, "24Gi", `write "24"`},
			{v1alpha1.AnnotationMaxPrice, "cheap", v1alpha1.AnnotationMaxPrice},
			{"gpuscale.io/gpu-vran", "24", "gpu-vram"},
			{v1alpha1.AnnotationProvider, "vastai", "vast.ai"},
		} {
			pod := w.pod("acme/tiny", tc.annotation, tc.value)
			w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonInvalidAnnotation, tc.annotation, tc.says)
			w.remove(pod)
		}
		w.rentedAtMost(0)
	})
	t.Run("no model", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.pool()
		pod := w.pod("acme/tiny")
		pod.Annotations = map[string]string{v1alpha1.AnnotationGPUVRAM: "24"}
		pod.ObjectMeta.ResourceVersion, pod.UID, pod.Name = "", "", ""
		w.create(pod)
		w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonNoModel, v1alpha1.AnnotationModel)
	})
	t.Run("missing Secret", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.secret("")
		pool := w.pool()
		pod := w.pod("acme/tiny")
		for _, condition := range []string{v1alpha1.ConditionCredentialsValid} {
			w.poolSays(pool, condition, "False", v1alpha1.ReasonSecretMissing, secretNS+"/"+secretRef)
		}
		w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonNoOffers, secretNS+"/"+secretRef)
		w.rentedAtMost(0)
	})
	t.Run("bad key", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.secret("wrong-key")
		pool := w.pool()
		w.poolSays(pool, v1alpha1.ConditionCredentialsValid, "False", v1alpha1.ReasonCredentialsBad, "spec.providers[0] (vast.ai)")
		pod := w.pod("acme/tiny")
		w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonNoOffers)
		w.rentedAtMost(0)
	})
	t.Run("Hugging Face token that is not there", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.pool(func(p *v1alpha1.GPUNodePool) {
			p.Spec.Bootstrap.HFTokenSecret = &v1alpha1.SecretReference{Name: "hf", Namespace: secretNS}
		})
		pod := w.pod("acme/tiny")
		w.event("GPUNodeClaim", v1alpha1.ReasonCredentialsUnavailable)
		w.remove(pod)
		w.rentedAtMost(0)
	})
	t.Run("image that is ignored", func(t *testing.T) {
		w := start(t, []market.Offer{offer("1001")})
		w.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Bootstrap.Image = "example.com/vllm:v1" })
		pod := w.pod("acme/tiny")
		w.event("Pod", "ImageIgnored")
		w.remove(pod)
	})
}
