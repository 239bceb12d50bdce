package account

import (
	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/provider"
)

// RefOf is where a pool entry's credentials are.
func RefOf(entry v1alpha1.ProviderSpec) Ref {
	ref := Ref{Provider: provider.Name(entry.Name)}
	if s := entry.APIKeySecret; s != nil {
		ref.Secret = &SecretRef{Namespace: s.Namespace, Name: s.Name}
	}
	return ref
}
