package account

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// genericKey is the name that any single-key provider's Secret may use.
const genericKey = "api-key"

// SecretRef names a Secret.
type SecretRef struct{ Namespace, Name string }

// String reads "namespace/name".
func (r SecretRef) String() string { return r.Namespace + "/" + r.Name }

// SecretReader returns a Secret's data. An error that wraps ErrSecretNotFound says that there is no such Secret. It is
// called for every For and so should read from a cache.
type SecretReader func(ctx context.Context, namespace, name string) (map[string][]byte, error)

// Constructor makes the driver of one provider's accounts.
type Constructor struct {
	// New makes a driver from the credentials under the names of Env. It calls nobody, and its error says what is missing
	// or malformed without a value.
	New func(creds map[string]string) (provider.Provider, error)
	// Env are the names under which credentials and settings are found, the best key first.
	Env []string
}

// Options are what Accounts stands on.
type Options struct {
	Constructors map[provider.Name]Constructor
	Secrets      SecretReader
	// Env looks up an environment variable; nil is an empty environment.
	Env func(name string) (string, bool)
	// TagPrefix is the start of this installation's owner tags, "gs-<installation>-".
	TagPrefix string
	Clock     clock.Clock
	// OnChange, which may be nil, is told what the observers of all accounts see change; see offers.NewObserver.
	OnChange func(*Account, offers.Change)
}

// Ref is where one pool entry's credentials are.
type Ref struct {
	Provider provider.Name
	// Secret is nil for the environment.
	Secret *SecretRef
}

// Accounts keeps one Account per credential. All methods may be called concurrently.
type Accounts struct {
	life    context.Context
	options Options

	mu sync.Mutex
	// byPrint are the open accounts. latest is the one that each source last gave, and given when its credentials were
	// read for that.
	byPrint map[string]*Account
	latest  map[source]*Account
	given   map[source]time.Time
	// reads are those under way for Recent.
	reads singleflight.Group
}

// source is a Ref that can be a key; the zero SecretRef is the environment.
type source struct {
	provider provider.Name
	secret   SecretRef
}

// New returns an empty collection, whose accounts all end with life.
func New(life context.Context, o Options) *Accounts {
	return &Accounts{life: life, options: o, byPrint: map[string]*Account{}, latest: map[source]*Account{},
		given: map[source]time.Time{}}
}

// For returns the account of the credentials that ref leads to now, opening it the first time. Equal credentials give
// the same account whatever they were read from; rotated ones a new account beside the old, which stays open until Close
// because what it rented may need it.
//
// The error is an *UnsupportedError, *SecretMissingError or *KeyMissingError, or says that the Secret could not be read.
// For what is rented already, Latest answers in spite of it.
func (a *Accounts) For(ctx context.Context, ref Ref) (*Account, error) {
	c, ok := a.options.Constructors[ref.Provider]
	if !ok {
		return nil, &UnsupportedError{Provider: ref.Provider,
			Supported: slices.Sorted(maps.Keys(a.options.Constructors))}
	}
	asked := a.options.Clock.Now()
	creds, err := a.credentials(ctx, ref, c.Env)
	if err != nil {
		return nil, err
	}
	fp := fingerprint(ref.Provider, creds)

	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.byPrint[fp]
	if acc == nil {
		driver, err := c.New(creds)
		if err != nil {
			return nil, &KeyMissingError{Provider: ref.Provider, Secret: ref.Secret, Want: slices.Clone(c.Env), Err: err}
		}
		acc = newAccount(a.life, ref.Provider, fp, driver, a.options) //nolint:contextcheck // An account outlives the call that made it.
		a.byPrint[fp] = acc
	}
	a.latest[ref.source()], a.given[ref.source()] = acc, asked
	return acc, nil
}

// recentAge is how long credentials that were read count where Recent is asked: every look at a claim asks for its
// account, so that a thousand claims would read one Secret some hundred times a second.
const recentAge = time.Second

// Recent is For, except that credentials which were read at most a second ago are not read again: for callers that ask
// for many claims. A key that is replaced or taken away is noticed that much later. Callers that come while a Secret is
// being read share what was read.
func (a *Accounts) Recent(ctx context.Context, ref Ref) (*Account, error) {
	a.mu.Lock()
	acc, at := a.latest[ref.source()], a.given[ref.source()]
	a.mu.Unlock()
	if acc != nil && a.options.Clock.Now().Sub(at) <= recentAge {
		return acc, nil
	}
	// A caller that stops waiting ends nobody else's read.
	read := a.reads.DoChan(fmt.Sprint(ref.source()), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		return a.For(ctx, ref)
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("credentials of %s: %w", ref.Provider, ctx.Err())
	case got := <-read:
		acc, _ := got.Val.(*Account) // It is what For returned.
		return acc, got.Err
	}
}

// readTimeout bounds one shared read of a Secret.
const readTimeout = 10 * time.Second

// Latest is the account that For last gave for ref, if it is still open: what to end a rental with when its Secret is
// gone or empty now. It is lost with the process.
func (a *Accounts) Latest(ref Ref) (*Account, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc, ok := a.latest[ref.source()]
	return acc, ok
}

// ByFingerprint is the open account with that fingerprint.
func (a *Accounts) ByFingerprint(fingerprint string) (*Account, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc, ok := a.byPrint[fingerprint]
	return acc, ok
}

// All are the open accounts, by provider and fingerprint. Those whose credentials were rotated away are among them.
func (a *Accounts) All() []*Account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(maps.Values(a.byPrint), func(x, y *Account) int {
		return cmp.Or(cmp.Compare(x.Provider, y.Provider), cmp.Compare(x.Fingerprint, y.Fingerprint))
	})
}

// Providers are those that there are drivers for, in order.
func (a *Accounts) Providers() []provider.Name {
	return slices.Sorted(maps.Keys(a.options.Constructors))
}

// InUse reports whether some source still leads to the account, as far as For was asked. One that is not in use and has
// no instances can be closed.
func (a *Accounts) InUse(acc *Account) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, latest := range a.latest {
		if latest == acc {
			return true
		}
	}
	return false
}

// Close ends an account: its searches, lists and polls stop, and calls to it fail. For opens it anew if its credentials
// are found again. Closing twice is harmless.
func (a *Accounts) Close(acc *Account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc.end()
	if a.byPrint[acc.Fingerprint] == acc {
		delete(a.byPrint, acc.Fingerprint)
	}
	maps.DeleteFunc(a.latest, func(_ source, latest *Account) bool { return latest == acc })
}

func (r Ref) source() source {
	s := source{provider: r.Provider}
	if r.Secret != nil {
		s.secret = *r.Secret
	}
	return s
}

// credentials reads what the driver wants and nothing else, so that another provider's key in the same Secret neither
// reaches this driver nor changes this fingerprint.
func (a *Accounts) credentials(ctx context.Context, ref Ref, names []string) (map[string]string, error) {
	lookup := a.options.Env
	if ref.Secret != nil {
		data, err := a.options.Secrets(ctx, ref.Secret.Namespace, ref.Secret.Name)
		if errors.Is(err, ErrSecretNotFound) {
			return nil, &SecretMissingError{Provider: ref.Provider, Secret: *ref.Secret}
		}
		if err != nil {
			return nil, fmt.Errorf("reading Secret %s with the credentials of %s: %w", ref.Secret, ref.Provider, err)
		}
		lookup = func(name string) (string, bool) { v, ok := data[name]; return string(v), ok }
	}
	creds := map[string]string{}
	for _, name := range names {
		if v, ok := value(lookup, name); ok {
			creds[name] = v
		}
	}
	if len(creds) == 0 && ref.Secret != nil && len(names) > 0 {
		if v, ok := value(lookup, genericKey); ok {
			creds[names[0]] = v
		}
	}
	if len(creds) == 0 {
		return nil, &KeyMissingError{Provider: ref.Provider, Secret: ref.Secret, Want: slices.Clone(names)}
	}
	return creds, nil
}

// value is a credential without the line break that files and Secrets often end in. An empty one is none.
func value(lookup func(string) (string, bool), name string) (string, bool) {
	if lookup == nil {
		return "", false
	}
	v, _ := lookup(name)
	v = strings.TrimSpace(v)
	return v, v != ""
}
