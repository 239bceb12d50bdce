package account

import (
	"context"
	"fmt"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// identityRetry is the least time between two questions whose account a credential opens while there is no answer:
// every claim that waits for it asks.
const identityRetry = 2 * time.Second

// identity is the last answer; the zero value is none.
type identity struct {
	at  time.Time
	id  string
	err error
}

// Identity is the account in the provider's own numbering, the same for every key of it; see provider.Identified. Empty
// means that it cannot be told: by this provider, or with these credentials. Once told it is remembered for good, since
// a key never changes hands; what could not be told is asked again after a minute, what failed after seconds.
func (a *Account) Identity(ctx context.Context) (string, error) {
	driver, ok := provider.IdentifiedOf(a.Driver)
	if !ok {
		return "", nil
	}
	var last identity
	select {
	case last = <-a.identity:
	case <-ctx.Done():
		return "", a.givenUp(ctx.Err())
	}
	defer func() { a.identity <- last }()
	if !a.outdated(last) {
		return last.id, last.err
	}
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	id, err := driver.AccountID(within)
	if err != nil && ctx.Err() != nil {
		return "", a.givenUp(ctx.Err())
	}
	last = identity{at: a.clock.Now(), id: id, err: err}
	return id, err
}

func (a *Account) outdated(last identity) bool {
	since := a.clock.Now().Sub(last.at)
	switch {
	case last.at.IsZero():
		return true
	case last.err != nil:
		return since >= identityRetry
	}
	return last.id == "" && since >= checkEvery
}

// OtherAccountError says that the credentials at hand open another account than the one that something was rented with,
// as far as it can be told: what they do not show may well be there.
type OtherAccountError struct {
	Provider provider.Name
	// Secret is nil where the credentials are the environment's.
	Secret *SecretRef
	// Want is the account that is needed, Have the one that there is: empty where its key may not say, see Err.
	Want, Have string
	// Err is why it is not known whose account it is; nil where it is known or cannot be.
	Err error
}

// Error says which account is needed, and where its key is looked for.
func (e *OtherAccountError) Error() string {
	where := "the controller's environment has a key"
	if e.Secret != nil {
		where = fmt.Sprintf("Secret %s has a key", e.Secret)
	}
	switch {
	case e.Err != nil:
		return fmt.Sprintf("%s account %s is needed, and whose account the key is cannot be read: %v", e.Provider, e.Want, e.Err)
	case e.Have == "":
		return fmt.Sprintf("%s account %s is needed; %s that has no right to say whose account it is", e.Provider, e.Want, where)
	}
	return fmt.Sprintf("%s account %s is needed; %s of account %s", e.Provider, e.Want, where, e.Have)
}

// Unwrap returns why it is not known.
func (e *OtherAccountError) Unwrap() error { return e.Err }

// Holder finds the account that something was rented with: by ref, and where ref leads to another account by now, or
// to none, among all that are open. identity is what Identity told then; with an empty one ref alone counts, and an
// account that ref last led to will do.
//
// The error is an *OtherAccountError or one of For's.
func (a *Accounts) Holder(ctx context.Context, ref Ref, identity string) (*Account, error) {
	return a.holder(ctx, ref, identity, a.For)
}

// RecentHolder is Holder with credentials that count for as long as with Recent.
func (a *Accounts) RecentHolder(ctx context.Context, ref Ref, identity string) (*Account, error) {
	return a.holder(ctx, ref, identity, a.Recent)
}

func (a *Accounts) holder(ctx context.Context, ref Ref, identity string, now func(context.Context, Ref) (*Account, error)) (*Account, error) {
	acc, err := now(ctx, ref)
	if err != nil {
		if last, ok := a.Latest(ref); ok {
			acc, err = last, nil
		}
	}
	if err == nil && identity == "" {
		return acc, nil
	}
	other := &OtherAccountError{Provider: ref.Provider, Secret: ref.Secret, Want: identity}
	if err == nil {
		if other.Have, other.Err = acc.Identity(ctx); other.Have == identity {
			return acc, nil
		}
		err = other
	}
	if identity == "" {
		return nil, err
	}
	for _, open := range a.All() {
		if open == acc || open.Provider != ref.Provider {
			continue
		}
		if have, ierr := open.Identity(ctx); ierr == nil && have == identity {
			return open, nil
		}
	}
	return nil, err
}
