package providertest

import (
	"context"
	"errors"
	"slices"

	"github.com/munhq/gpuscale/pkg/provider"
)

// Broken is a driver with one fault; nil functions leave the good driver's behaviour.
type Broken struct {
	provider.Provider
	Search  func(context.Context, provider.OfferQuery) ([]provider.Offer, error)
	Create  func(context.Context, provider.CreateRequest) (provider.Instance, error)
	Get     func(context.Context, string) (provider.Instance, error)
	List    func(context.Context, provider.InstanceFilter) ([]provider.Instance, error)
	Destroy func(context.Context, string) error
	Check   func(context.Context) error
	Caps    func(*provider.Capabilities)
	Account func(context.Context) (string, error)
}

// SearchOffers is Search, or the good driver's.
func (b Broken) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	if b.Search != nil {
		return b.Search(ctx, q)
	}
	return b.Provider.SearchOffers(ctx, q)
}

// CreateInstance is Create, or the good driver's.
func (b Broken) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	if b.Create != nil {
		return b.Create(ctx, r)
	}
	return b.Provider.CreateInstance(ctx, r)
}

// GetInstance is Get, or the good driver's.
func (b Broken) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	if b.Get != nil {
		return b.Get(ctx, id)
	}
	return b.Provider.GetInstance(ctx, id)
}

// ListInstances is List, or the good driver's.
func (b Broken) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	if b.List != nil {
		return b.List(ctx, f)
	}
	return b.Provider.ListInstances(ctx, f)
}

// DestroyInstance is Destroy, or the good driver's.
func (b Broken) DestroyInstance(ctx context.Context, id string) error {
	if b.Destroy != nil {
		return b.Destroy(ctx, id)
	}
	return b.Provider.DestroyInstance(ctx, id)
}

// CheckCredentials is Check, or the good driver's.
func (b Broken) CheckCredentials(ctx context.Context) error {
	if b.Check != nil {
		return b.Check(ctx)
	}
	return b.Provider.CheckCredentials(ctx)
}

// accountOf is the good driver's word.
func accountOf(ctx context.Context, p provider.Provider) (string, error) {
	i, ok := provider.IdentifiedOf(p)
	if !ok {
		return "", errors.New("the driver tells no account")
	}
	return i.AccountID(ctx)
}

// identified is a broken driver of a cloud that tells its accounts.
type identified struct{ Broken }

// AccountID is the fault, or the good driver's word.
func (b identified) AccountID(ctx context.Context) (string, error) {
	if b.Account != nil {
		return b.Account(ctx)
	}
	return accountOf(ctx, b.Provider)
}

// Driver is the broken driver with the powers that the good one has.
func (b Broken) Driver() provider.Provider {
	if _, ok := provider.IdentifiedOf(b.Provider); ok {
		return identified{b}
	}
	return b
}

// AccountTwisted changes what is said of the account.
func AccountTwisted(account func(context.Context, provider.Provider) (string, error)) Breakage {
	return func(p provider.Provider) Broken {
		return Broken{Provider: p, Account: func(ctx context.Context) (string, error) { return account(ctx, p) }}
	}
}

// Capabilities are the good driver's as Caps changes them.
func (b Broken) Capabilities() provider.Capabilities {
	c := b.Provider.Capabilities()
	if b.Caps != nil {
		b.Caps(&c)
	}
	return c
}

// Breakage breaks a good driver. The builders below each take one word of it and change that.
type Breakage func(provider.Provider) Broken

// OffersTwisted changes each offer of a search.
func OffersTwisted(twist func(provider.OfferQuery, *provider.Offer)) Breakage {
	return func(p provider.Provider) Broken {
		return Broken{Provider: p, Search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
			offers, err := p.SearchOffers(ctx, q)
			for i := range offers {
				twist(q, &offers[i])
			}
			return offers, err
		}}
	}
}

// RequestTwisted changes what is ordered.
func RequestTwisted(twist func(*provider.CreateRequest)) Breakage {
	return func(p provider.Provider) Broken {
		return Broken{Provider: p, Create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
			twist(&r)
			return p.CreateInstance(ctx, r)
		}}
	}
}

// ReadsTwisted changes what get and list say of an instance.
func ReadsTwisted(twist func(*provider.Instance)) Breakage {
	return func(p provider.Provider) Broken {
		return Broken{
			Provider: p,
			Get: func(ctx context.Context, id string) (provider.Instance, error) {
				inst, err := p.GetInstance(ctx, id)
				twist(&inst)
				return inst, err
			},
			List: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				for i := range all {
					twist(&all[i])
				}
				return all, err
			},
		}
	}
}

// ErrorsTwisted changes every error.
func ErrorsTwisted(twist func(*provider.Error)) Breakage {
	return func(p provider.Provider) Broken {
		twisted := func(err error) error {
			var e *provider.Error
			if !errors.As(err, &e) {
				return err
			}
			changed := *e
			twist(&changed)
			return &changed
		}
		return Broken{
			Provider: p,
			Search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
				out, err := p.SearchOffers(ctx, q)
				return out, twisted(err)
			},
			Create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				out, err := p.CreateInstance(ctx, r)
				return out, twisted(err)
			},
			Get: func(ctx context.Context, id string) (provider.Instance, error) {
				out, err := p.GetInstance(ctx, id)
				return out, twisted(err)
			},
			List: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				out, err := p.ListInstances(ctx, f)
				return out, twisted(err)
			},
			Destroy: func(ctx context.Context, id string) error { return twisted(p.DestroyInstance(ctx, id)) },
			Check:   func(ctx context.Context) error { return twisted(p.CheckCredentials(ctx)) },
		}
	}
}

// KindTwisted takes one kind of error for another, in the operations named or in all.
func KindTwisted(from, to provider.Kind, ops ...string) Breakage {
	return ErrorsTwisted(func(e *provider.Error) {
		if e.Kind == from && (len(ops) == 0 || slices.Contains(ops, e.Op)) {
			e.Kind = to
		}
	})
}

// ListTwisted is another list.
func ListTwisted(list func(context.Context, provider.Provider, provider.InstanceFilter) ([]provider.Instance, error)) Breakage {
	return func(p provider.Provider) Broken {
		return Broken{Provider: p, List: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
			return list(ctx, p, f)
		}}
	}
}

// DestroyTwisted is another destroy.
func DestroyTwisted(destroy func(context.Context, provider.Provider, string) error) Breakage {
	return func(p provider.Provider) Broken {
		return Broken{Provider: p, Destroy: func(ctx context.Context, id string) error { return destroy(ctx, p, id) }}
	}
}

// CapsTwisted declares something else.
func CapsTwisted(twist func(*provider.Capabilities)) Breakage {
	return func(p provider.Provider) Broken { return Broken{Provider: p, Caps: twist} }
}

// unbroken is the good driver, wrapped as the others are.
func unbroken(p provider.Provider) Broken { return Broken{Provider: p} }
