package account

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// checkEvery is the least time between two credential checks of one account: every pool that uses it asks, and a key
// that was revoked shows in the other calls long before.
const checkEvery = time.Minute

// checkTimeout bounds one check.
const checkTimeout = 30 * time.Second

// Account is one credential at one provider. Its fields do not change; all methods may be called concurrently.
type Account struct {
	Provider provider.Name
	// Fingerprint stands for provider and credential: equal for the same, and no way back to the credential.
	Fingerprint string
	Driver      provider.Provider
	Catalogue   *offers.Catalogue
	Observer    *offers.Observer

	clock clock.Clock
	life  context.Context
	end   context.CancelFunc
	// check holds the last check; taking it out is the right to make one.
	check chan check
	// identity holds the last answer to whose account it is; taking it out is the right to ask.
	identity chan identity
}

// check is the outcome of a credential check; the zero value is none.
type check struct {
	at  time.Time
	err error
}

func newAccount(life context.Context, name provider.Name, fingerprint string, driver provider.Provider, o Options) *Account {
	life, end := context.WithCancel(life)
	a := &Account{Provider: name, Fingerprint: fingerprint, Driver: driver, clock: o.Clock, life: life, end: end,
		check: make(chan check, 1), identity: make(chan identity, 1)}
	a.Catalogue = offers.NewCatalogue(life, driver, o.Clock)
	a.Observer = offers.NewObserver(life, driver, o.TagPrefix, o.Clock, func(c offers.Change) {
		if o.OnChange != nil {
			o.OnChange(a, c)
		}
	})
	a.check <- check{}
	a.identity <- identity{}
	return a
}

// Check tries the credentials, at most once a minute; in between, and to callers that wait, it returns the last outcome.
// Nil means that they are good. provider.KindOf tells bad ones (Unauthorized, NoBalance) from a provider that did not
// answer; a check that ctx cut short is Unavailable and not remembered.
func (a *Account) Check(ctx context.Context) error {
	var last check
	select {
	case last = <-a.check:
	case <-ctx.Done():
		return a.givenUp(ctx.Err())
	}
	defer func() { a.check <- last }()
	now := a.clock.Now()
	if !last.at.IsZero() && now.Sub(last.at) < checkEvery {
		return last.err
	}
	if err := context.Cause(a.life); err != nil { //nolint:contextcheck // It asks whether the account lives on; the call keeps ctx.
		return a.givenUp(err)
	}
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := a.Driver.CheckCredentials(within)
	if err != nil && ctx.Err() != nil {
		return a.givenUp(ctx.Err())
	}
	last = check{at: now, err: err}
	return err
}

func (a *Account) givenUp(err error) error {
	return &provider.Error{Provider: a.Provider, Op: "check", Kind: provider.Unavailable,
		Message: "stopped waiting for the answer", Err: err}
}

// fingerprintBytes of the hash are enough to tell the credentials of one installation apart, and short enough to read.
const fingerprintBytes = 8

// fingerprint hashes provider and credential. Lengths go into the hash, so that no two sets of keys run together.
func fingerprint(name provider.Name, creds map[string]string) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d:%s", len(name), name) // A hash never fails.
	for _, k := range slices.Sorted(maps.Keys(creds)) {
		_, _ = fmt.Fprintf(h, "%d:%s%d:%s", len(k), k, len(creds[k]), creds[k])
	}
	return hex.EncodeToString(h.Sum(nil)[:fingerprintBytes])
}
