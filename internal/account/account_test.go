package account

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/pkg/provider"
)

// fakeDriver is an account made from some credentials.
type fakeDriver struct {
	provider.Provider // panics for every call that no test expects
	creds             map[string]string

	mu     sync.Mutex
	check  func(ctx context.Context) error
	checks int
	list   []provider.Instance
}

func (f *fakeDriver) Name() provider.Name                 { return provider.VastAI }
func (f *fakeDriver) Capabilities() provider.Capabilities { return provider.Capabilities{} }

func (f *fakeDriver) CheckCredentials(ctx context.Context) error {
	f.mu.Lock()
	f.checks++
	check := f.check
	f.mu.Unlock()
	if check == nil {
		return nil
	}
	return check(ctx)
}

func (f *fakeDriver) SearchOffers(context.Context, provider.OfferQuery) ([]provider.Offer, error) {
	return []provider.Offer{{ID: "a"}}, nil
}

func (f *fakeDriver) ListInstances(context.Context, provider.InstanceFilter) ([]provider.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list, nil
}

const prefix = "gs-12345678-"

var errMalformed = errors.New("the key is malformed")

// world is what Accounts reads.
type world struct {
	mu      sync.Mutex
	secrets map[string]map[string][]byte
	broken  error
	env     map[string]string
	made    []*fakeDriver
	seen    []string
}

func (w *world) options() Options {
	single := func(creds map[string]string) (provider.Provider, error) {
		if creds["VASTAI_API_KEY"] == "malformed" {
			return nil, errMalformed
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		d := &fakeDriver{creds: creds}
		w.made = append(w.made, d)
		return d, nil
	}
	pair := func(creds map[string]string) (provider.Provider, error) {
		if creds["VERDA_CLIENT_ID"] == "" || creds["VERDA_CLIENT_SECRET"] == "" {
			return nil, errors.New("set both VERDA_CLIENT_ID and VERDA_CLIENT_SECRET")
		}
		return single(creds)
	}
	return Options{
		Constructors: map[provider.Name]Constructor{
			provider.VastAI: {New: single, Env: []string{"VASTAI_API_KEY", "VAST_API_KEY"}},
			provider.Verda:  {New: pair, Env: []string{"VERDA_CLIENT_ID", "VERDA_CLIENT_SECRET"}},
		},
		Secrets: func(_ context.Context, namespace, name string) (map[string][]byte, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.broken != nil {
				return nil, w.broken
			}
			data, ok := w.secrets[namespace+"/"+name]
			if !ok {
				return nil, fmt.Errorf("get: %w", ErrSecretNotFound)
			}
			return data, nil
		},
		Env:       func(name string) (string, bool) { v, ok := w.env[name]; return v, ok },
		TagPrefix: prefix,
		Clock:     clock.RealClock{},
		OnChange:  func(a *Account, c offers.Change) { w.seen = append(w.seen, a.Fingerprint+" "+c.Instance.ID) },
	}
}

func secret(pairs ...string) map[string][]byte {
	data := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		data[pairs[i]] = []byte(pairs[i+1])
	}
	return data
}

func vast(name string) Ref {
	return Ref{Provider: provider.VastAI, Secret: &SecretRef{Namespace: "ns", Name: name}}
}

func mustFor(t *testing.T, a *Accounts, r Ref) *Account {
	t.Helper()
	acc, err := a.For(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return acc
}

func TestOneAccountPerCredential(t *testing.T) {
	w := &world{
		env: map[string]string{"VASTAI_API_KEY": "one\n"},
		secrets: map[string]map[string][]byte{
			"ns/same":    secret("VASTAI_API_KEY", " one ", "RUNPOD_API_KEY", "x"),
			"ns/generic": secret("api-key", "one"),
			"ns/both":    secret("api-key", "ignored", "VASTAI_API_KEY", "one"),
			"ns/other":   secret("VASTAI_API_KEY", "two"),
			"ns/second":  secret("VAST_API_KEY", "one"),
		},
	}
	a := New(t.Context(), w.options())
	first := mustFor(t, a, Ref{Provider: provider.VastAI})
	for _, name := range []string{"same", "generic", "both"} {
		if mustFor(t, a, vast(name)) != first {
			t.Errorf("%s is another account", name)
		}
	}
	other, second := mustFor(t, a, vast("other")), mustFor(t, a, vast("second"))
	if other == first || second == first || other.Fingerprint == first.Fingerprint || len(w.made) != 3 {
		t.Errorf("%d drivers, %s and %s", len(w.made), other.Fingerprint, first.Fingerprint)
	}
	if !reflect.DeepEqual(w.made[0].creds, map[string]string{"VASTAI_API_KEY": "one"}) {
		t.Errorf("the driver was given %v", w.made[0].creds)
	}
	if all := a.All(); len(all) != 3 || all[0].Fingerprint > all[1].Fingerprint {
		t.Errorf("%v", all)
	}
	if got, ok := a.ByFingerprint(other.Fingerprint); !ok || got != other {
		t.Errorf("%v", got)
	}
}

func TestASecretIsNotMixedWithTheEnvironment(t *testing.T) {
	w := &world{
		env:     map[string]string{"VERDA_CLIENT_SECRET": "from the environment", "VASTAI_API_KEY": "x", "api-key": "y"},
		secrets: map[string]map[string][]byte{"ns/half": secret("VERDA_CLIENT_ID", "id")},
	}
	a := New(t.Context(), w.options())
	var missing *KeyMissingError
	_, err := a.For(t.Context(), Ref{Provider: provider.Verda, Secret: &SecretRef{"ns", "half"}})
	if !errors.As(err, &missing) || missing.Err == nil {
		t.Error(err)
	}
	if acc, ok := a.Latest(Ref{Provider: provider.Verda}); ok {
		t.Errorf("%v", acc)
	}
}

func TestErrorsSayWhatWouldBeRight(t *testing.T) {
	down := errors.New("the API server is away")
	w := &world{secrets: map[string]map[string][]byte{
		"ns/empty": secret("VASTAI_API_KEY", " \n", "vastai", "TOP-SECRET"),
		"ns/bad":   secret("VASTAI_API_KEY", "malformed"),
	}}
	a := New(t.Context(), w.options())
	for want, ref := range map[string]Ref{
		`this release does not drive provider "lambda"; it drives [vast.ai verda]`:                                                   {Provider: "lambda"},
		"Secret ns/none with the credentials of vast.ai does not exist":                                                              vast("none"),
		"Secret ns/empty has no credentials for vast.ai; the keys read are VASTAI_API_KEY, VAST_API_KEY":                             vast("empty"),
		"the controller's environment has no credentials for vast.ai; the keys read are VASTAI_API_KEY, VAST_API_KEY":                {Provider: provider.VastAI},
		"Secret ns/bad has no usable credentials for vast.ai: the key is malformed (the keys read are VASTAI_API_KEY, VAST_API_KEY)": vast("bad"),
	} {
		acc, err := a.For(t.Context(), ref)
		if acc != nil || err == nil || err.Error() != want {
			t.Errorf("%v; want %s", err, want)
		}
	}
	for err, target := range map[error]any{
		forError(t, a, Ref{Provider: "lambda"}): new(*UnsupportedError), forError(t, a, vast("none")): new(*SecretMissingError),
		forError(t, a, vast("empty")): new(*KeyMissingError), forError(t, a, vast("bad")): new(*KeyMissingError),
	} {
		if !errors.As(err, target) {
			t.Errorf("%T: %v", err, err)
		}
	}
	if !errors.Is(forError(t, a, vast("bad")), errMalformed) {
		t.Error("the driver's reason is lost")
	}
	w.broken = down
	err := forError(t, a, vast("none"))
	var missing *SecretMissingError
	if errors.As(err, &missing) || !errors.Is(err, down) || !strings.Contains(err.Error(), "ns/none") {
		t.Errorf("an unreadable Secret is %v", err)
	}
}

func forError(t *testing.T, a *Accounts, r Ref) error {
	t.Helper()
	_, err := a.For(t.Context(), r)
	return err
}

func TestRotationKeepsTheOldAccount(t *testing.T) {
	w := &world{secrets: map[string]map[string][]byte{"ns/s": secret("api-key", "old")}}
	a := New(t.Context(), w.options())
	old := mustFor(t, a, vast("s"))
	w.secrets["ns/s"] = secret("api-key", "new")
	rotated := mustFor(t, a, vast("s"))
	if rotated == old || len(a.All()) != 2 || a.InUse(old) || !a.InUse(rotated) {
		t.Errorf("%d accounts; old in use: %v", len(a.All()), a.InUse(old))
	}
	if _, err := old.Catalogue.Offers(t.Context(), provider.OfferQuery{CapacityType: provider.Spot}, 0); err != nil {
		t.Errorf("the old account does not work: %v", err)
	}
	delete(w.secrets, "ns/s")
	if _, err := a.For(t.Context(), vast("s")); err == nil {
		t.Error("credentials that are gone were found")
	}
	if got, ok := a.Latest(vast("s")); !ok || got != rotated {
		t.Errorf("what it rented cannot be ended: %v", got)
	}
	a.Close(old)
	a.Close(old)
	if err := old.Check(t.Context()); provider.KindOf(err) != provider.Unavailable {
		t.Error(err)
	}
	if _, err := old.Observer.List(t.Context(), time.Time{}); provider.KindOf(err) != provider.Unavailable {
		t.Error(err)
	}
	a.Close(rotated)
	if _, ok := a.Latest(vast("s")); ok || len(a.All()) != 0 {
		t.Error("a closed account is still given out")
	}
	w.secrets["ns/s"] = secret("api-key", "new")
	if again := mustFor(t, a, vast("s")); again == rotated || again.Check(t.Context()) != nil {
		t.Error("not opened anew")
	}
}

func TestCheckIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		defer end()
		w := &world{env: map[string]string{"VASTAI_API_KEY": "k"}}
		acc := mustFor(t, New(life, w.options()), Ref{Provider: provider.VastAI})
		d := w.made[0]
		bad := provider.Errorf(provider.VastAI, "check", provider.Unauthorized, "no")
		d.check = func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return bad
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		hasty, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := acc.Check(hasty); provider.KindOf(err) != provider.Unavailable || d.checks != 1 {
			t.Errorf("%v after %d checks", err, d.checks)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := acc.Check(t.Context()); !errors.Is(err, bad) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if d.checks != 2 {
			t.Errorf("%d checks", d.checks)
		}
		d.check = nil
		time.Sleep(58 * time.Second)
		if err := acc.Check(t.Context()); !errors.Is(err, bad) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if err := acc.Check(t.Context()); err != nil || d.checks != 3 {
			t.Errorf("%v after %d checks", err, d.checks)
		}
		d.check = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		time.Sleep(time.Minute)
		if err := acc.Check(t.Context()); provider.KindOf(err) != provider.Unavailable {
			t.Errorf("a check that hangs: %v", err)
		}
	})
}

func TestChangesNameTheirAccount(t *testing.T) {
	w := &world{env: map[string]string{"VASTAI_API_KEY": "k"}}
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		acc := mustFor(t, New(life, w.options()), Ref{Provider: provider.VastAI})
		w.made[0].list = []provider.Instance{{ID: "i", Tag: prefix + "x"}}
		acc.Observer.Watch(prefix+"x", time.Minute)
		synctest.Wait()
		end()
		synctest.Wait()
		if len(w.seen) != 1 || w.seen[0] != acc.Fingerprint+" i" {
			t.Errorf("%v", w.seen)
		}
	})
}

func TestFingerprint(t *testing.T) {
	seen := map[string]string{}
	for name, fp := range map[string]string{
		"one":        fingerprint("aws", map[string]string{"A": "x", "B": "y"}),
		"run on":     fingerprint("aws", map[string]string{"A": "x1:B1:y"}),
		"swapped":    fingerprint("aws", map[string]string{"A": "y", "B": "x"}),
		"elsewhere":  fingerprint("awsx", map[string]string{"A": "x", "B": "y"}),
		"only A":     fingerprint("aws", map[string]string{"A": "x"}),
		"no content": fingerprint("aws", nil),
	} {
		if was, ok := seen[fp]; ok || len(fp) != 16 {
			t.Errorf("%s and %s are both %s", name, was, fp)
		}
		seen[fp] = name
	}
	if fingerprint("aws", map[string]string{"A": "x", "B": "y"}) != fingerprint("aws", map[string]string{"B": "y", "A": "x"}) {
		t.Error("the order counts")
	}
}

func TestAccountsAreSafeForConcurrentUse(t *testing.T) {
	w := &world{secrets: map[string]map[string][]byte{"ns/a": secret("api-key", "a"), "ns/b": secret("api-key", "b")}}
	a := New(t.Context(), w.options())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				acc, err := a.For(t.Context(), vast([]string{"a", "b"}[(i+j)%2]))
				if err != nil {
					t.Error(err)
					continue
				}
				_ = acc.Check(t.Context())
				a.All()
				if j%10 == 0 {
					a.Close(acc)
				}
			}
		})
	}
	wg.Wait()
}
