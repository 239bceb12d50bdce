package account

import (
	"errors"
	"fmt"
	"strings"

	"github.com/munhq/gpuscale/pkg/provider"
)

// ErrSecretNotFound is what a SecretReader's error wraps when the Secret certainly does not exist. Any other error means
// that it could not be read, which says nothing about the credentials.
var ErrSecretNotFound = errors.New("secret not found")

// SecretMissingError says that the Secret that an entry names does not exist.
type SecretMissingError struct {
	Provider provider.Name
	Secret   SecretRef
}

// Error says which Secret, and for what.
func (e *SecretMissingError) Error() string {
	return fmt.Sprintf("Secret %s with the credentials of %s does not exist", e.Secret, e.Provider)
}

// KeyMissingError says that the Secret or the environment has no usable credential for the provider.
type KeyMissingError struct {
	Provider provider.Name
	// Secret is nil where the environment was asked.
	Secret *SecretRef
	// Want are the keys, or environment names, that would be read, best first.
	Want []string
	// Err is the driver's own account of what is missing or malformed; nil where none of Want is there.
	Err error
}

// Error says where was looked and for which keys.
func (e *KeyMissingError) Error() string {
	where := "the controller's environment"
	if e.Secret != nil {
		where = "Secret " + e.Secret.String()
	}
	if e.Err != nil {
		return fmt.Sprintf("%s has no usable credentials for %s: %v (the keys read are %s)",
			where, e.Provider, e.Err, strings.Join(e.Want, ", "))
	}
	return fmt.Sprintf("%s has no credentials for %s; the keys read are %s", where, e.Provider, strings.Join(e.Want, ", "))
}

// Unwrap returns the driver's account.
func (e *KeyMissingError) Unwrap() error { return e.Err }

// UnsupportedError says that this release has no driver for the provider.
type UnsupportedError struct {
	Provider provider.Name
	// Supported are the providers that there are drivers for.
	Supported []provider.Name
}

// Error says what there is instead.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("this release does not drive provider %q; it drives %v", e.Provider, e.Supported)
}
