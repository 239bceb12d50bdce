// Package provider is the one interface behind which every GPU cloud stands, and the words that cross it: offers,
// instances, capabilities and error kinds. It knows nothing of Kubernetes, so that it can be used without a cluster.
//
// A driver lives in a folder of its own below this one and only translates: it decides nothing, keeps no record of what
// it bought, and retries nothing that could buy twice. It is done when the suite in providertest passes.
package provider

import "context"

// Provider is one account at one GPU cloud.
//
// All methods may be called concurrently. Every error is an *Error (see KindOf); a context that ends first is reported
// as Unavailable for reads and as Unknown for CreateInstance and DestroyInstance, because the request may have arrived.
// No method logs, and no error text contains a credential.
type Provider interface {
	// Name is the provider's name as a pool spells it.
	Name() Name

	// Capabilities says what this provider can do and how it behaves. Constant for the life of the driver.
	Capabilities() Capabilities

	// SearchOffers returns what could be rented now for the shape in q, each at its all-in price for that shape. It
	// filters only by what the shape needs physically; price, GPU and reliability are the caller's to judge, so that
	// the caller can say why each was left out. It returns either the whole list or an error, never half a list.
	SearchOffers(ctx context.Context, q OfferQuery) ([]Offer, error)

	// CreateInstance rents r.Offer once and tags it with r.Tag before it can bill untagged.
	//
	// Errors of kind OfferGone, NoCapacity, Quota, Unauthorized, NoBalance and Invalid mean that nothing was rented,
	// unless Error.InstanceID is set: then an instance exists that must be destroyed. RateLimited, Unavailable and
	// Unknown leave it open; the caller looks the tag up (ListInstances) before it asks again. Where
	// Capabilities.IdempotentCreate holds, a second call with the same tag returns the first one's instance.
	CreateInstance(ctx context.Context, r CreateRequest) (Instance, error)

	// GetInstance returns one instance. NotFound means that the provider, having accepted our credentials, says that
	// no such instance exists; any doubt is another kind.
	GetInstance(ctx context.Context, id string) (Instance, error)

	// ListInstances returns every instance of the account that f selects, all pages of it, or an error. An instance
	// may be missing for Capabilities.ListLag after it was created.
	ListInstances(ctx context.Context, f InstanceFilter) ([]Instance, error)

	// DestroyInstance asks for the end of the rental. Nil means accepted, not gone. NotFound is as in GetInstance.
	// Destroying twice is harmless.
	DestroyInstance(ctx context.Context, id string) error

	// CheckCredentials makes the cheapest call that a bad key fails: Unauthorized, or NoBalance where the account
	// cannot pay.
	CheckCredentials(ctx context.Context) error
}

// InstanceFilter selects instances. Empty fields select all.
type InstanceFilter struct {
	// Tag selects the instance that carries exactly this owner tag.
	Tag string
	// TagPrefix selects instances whose owner tag starts with it ("gs-<installation>-").
	TagPrefix string
}

// Selects reports whether an instance with the given tag passes the filter.
func (f InstanceFilter) Selects(tag string) bool {
	return (f.Tag == "" || tag == f.Tag) && (len(tag) >= len(f.TagPrefix) && tag[:len(f.TagPrefix)] == f.TagPrefix)
}
