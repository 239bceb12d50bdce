package provider

import "context"

// Identified is a Provider that can say whose account its credentials open. It is optional: where an account cannot be
// told, one is taken for the other, and a key that was replaced by another account's shows in nothing.
type Identified interface {
	// AccountID is the account in the provider's own numbering: the same for every key of one account, now and later, and
	// never that of another account. It is no secret. Empty means that the provider accepts the credentials and they do
	// not let it be read; credentials that are not accepted are Unauthorized.
	AccountID(ctx context.Context) (string, error)
}

// IdentifiedOf is p's account, if it can be told. It looks through wrappers that have Unwrap() Provider.
func IdentifiedOf(p Provider) (Identified, bool) { return powerOf[Identified](p) }

// powerOf finds an optional interface in a Provider or in what it wraps.
func powerOf[T any](p Provider) (T, bool) {
	for p != nil {
		if power, ok := p.(T); ok {
			return power, true
		}
		w, ok := p.(interface{ Unwrap() Provider })
		if !ok {
			break
		}
		p = w.Unwrap()
	}
	var none T
	return none, false
}
