// Package v1alpha1 has the two kinds that gpuscale serves, GPUNodePool and GPUNodeClaim, with their defaults,
// validation rules and printed columns, and the closed lists of condition types, reasons and annotations.
//
// +kubebuilder:object:generate=true
// +groupName=gpuscale.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is gpuscale.io/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "gpuscale.io", Version: "v1alpha1"}

// AddToScheme registers both kinds.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &GPUNodePool{}, &GPUNodePoolList{}, &GPUNodeClaim{}, &GPUNodeClaimList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
