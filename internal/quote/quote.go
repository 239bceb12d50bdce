// Package quote answers without a cluster: what providers have on offer, what would be bought for given pools and pods,
// and which credentials work. It stands on what the controller stands on: the catalogue and the judge (internal/offers),
// demand (internal/demand), the search of pools (internal/search) and the planner (internal/planner).
//
// It only reads: nothing in it rents, ends or changes anything.
package quote

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// Desk asks the accounts that the environment, or given Secrets, have credentials for.
type Desk struct {
	// Accounts as AccountsOf makes them.
	Accounts *account.Accounts
	Clock    clock.Clock
	// Timeout bounds how long providers are waited for altogether.
	Timeout time.Duration
	// Asked and Answered, which may be nil, are told what is waited for, by a name for people. They are called
	// concurrently.
	Asked, Answered func(name string)
}

// Sources say where credentials are found and where providers are.
type Sources struct {
	Getenv func(string) string
	// Secrets are those at hand, by namespace and name; nil is none.
	Secrets map[account.SecretRef]map[string][]byte
	// Options and Wrap are as of account.Drivers.
	Options func(provider.Name) drivers.Options
	Wrap    func(provider.Provider) provider.Provider
	Clock   clock.Clock
}

// AccountsOf opens accounts until life ends.
func AccountsOf(life context.Context, s Sources) *account.Accounts {
	return account.New(life, account.Options{
		Constructors: account.Drivers(s.Options, s.Wrap),
		Secrets: func(_ context.Context, namespace, name string) (map[string][]byte, error) {
			if data, ok := s.Secrets[account.SecretRef{Namespace: namespace, Name: name}]; ok {
				return data, nil
			}
			return nil, account.ErrSecretNotFound
		},
		Env: func(name string) (string, bool) { v := s.Getenv(name); return v, v != "" },
		// No instance of any installation carries it; nothing here lists instances.
		TagPrefix: "gs-none-",
		Clock:     s.Clock,
	})
}

// Failure is a provider that was to be asked and gave no answer that can be used.
type Failure struct {
	Provider provider.Name
	// What is left out for it, for people: "spot"; empty for all of the provider.
	What string
	// Kind is the error's (see provider.Kind), or empty where there are no credentials to ask with.
	Kind provider.Kind
	// Message is the error for people, without the provider's name in front.
	Message string
}

func failureOf(name provider.Name, what string, err error) Failure {
	f := Failure{Provider: name, What: what, Kind: provider.KindOf(err), Message: strings.TrimPrefix(err.Error(), string(name)+": ")}
	if missing := (*account.KeyMissingError)(nil); errors.As(err, &missing) && missing.Secret == nil {
		f.Kind, f.Message = "", "no credentials: set "+strings.Join(EnvOf(name), ", ")
		if missing.Err != nil {
			f.Message = strings.TrimPrefix(missing.Err.Error(), string(name)+": ")
		}
	}
	return f
}

// open are the accounts of providers. Without names it is every provider that there are credentials for, and without are
// those that there are none for.
func (d Desk) open(ctx context.Context, names []provider.Name) (accts []*account.Account, without []provider.Name, failed []Failure) {
	all := len(names) == 0
	if all {
		names = d.Accounts.Providers()
	}
	for _, name := range names {
		acct, err := d.Accounts.For(ctx, account.Ref{Provider: name})
		missing := (*account.KeyMissingError)(nil)
		switch {
		case err == nil:
			accts = append(accts, acct)
		case all && errors.As(err, &missing) && missing.Err == nil:
			without = append(without, name)
		default:
			failed = append(failed, failureOf(name, "", err))
		}
	}
	return accts, without, failed
}

// each runs a question per account at once, and tells of them by name.
func each[T any](d Desk, questions []question[T]) []T {
	out := make([]T, len(questions))
	var wg sync.WaitGroup
	for _, q := range questions {
		d.tell(d.Asked, q.name)
	}
	for i, q := range questions {
		wg.Go(func() {
			out[i] = q.ask()
			d.tell(d.Answered, q.name)
		})
	}
	wg.Wait()
	return out
}

type question[T any] struct {
	name string
	ask  func() T
}

func (d Desk) tell(to func(string), name string) {
	if to != nil {
		to(name)
	}
}

// timedOut says of an error that it is only this desk's own patience that ended.
func (d Desk) timedOut(within context.Context, name provider.Name, err error) error {
	if err == nil || within.Err() == nil || !errors.Is(context.Cause(within), context.DeadlineExceeded) {
		return err
	}
	return provider.Errorf(name, "search", provider.Unavailable, "no answer within %s (--timeout)", d.Timeout)
}

func sortFailures(f []Failure) {
	slices.SortStableFunc(f, func(a, b Failure) int {
		return strings.Compare(string(a.Provider)+" "+a.What, string(b.Provider)+" "+b.What)
	})
}
