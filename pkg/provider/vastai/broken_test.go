package vastai_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// broken is a driver with one fault; nil functions leave the good driver's behaviour.
type broken struct {
	provider.Provider
	search  func(context.Context, provider.OfferQuery) ([]provider.Offer, error)
	create  func(context.Context, provider.CreateRequest) (provider.Instance, error)
	get     func(context.Context, string) (provider.Instance, error)
	list    func(context.Context, provider.InstanceFilter) ([]provider.Instance, error)
	destroy func(context.Context, string) error
	check   func(context.Context) error
	caps    func(*provider.Capabilities)
	account func(context.Context) (string, error)
}

func (b broken) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	if b.search != nil {
		return b.search(ctx, q)
	}
	return b.Provider.SearchOffers(ctx, q)
}

func (b broken) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	if b.create != nil {
		return b.create(ctx, r)
	}
	return b.Provider.CreateInstance(ctx, r)
}

func (b broken) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	if b.get != nil {
		return b.get(ctx, id)
	}
	return b.Provider.GetInstance(ctx, id)
}

func (b broken) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	if b.list != nil {
		return b.list(ctx, f)
	}
	return b.Provider.ListInstances(ctx, f)
}

func (b broken) DestroyInstance(ctx context.Context, id string) error {
	if b.destroy != nil {
		return b.destroy(ctx, id)
	}
	return b.Provider.DestroyInstance(ctx, id)
}

func (b broken) CheckCredentials(ctx context.Context) error {
	if b.check != nil {
		return b.check(ctx)
	}
	return b.Provider.CheckCredentials(ctx)
}

func (b broken) AccountID(ctx context.Context) (string, error) {
	if b.account != nil {
		return b.account(ctx)
	}
	return accountID(ctx, b.Provider)
}

// accountID is the good driver's word.
func accountID(ctx context.Context, p provider.Provider) (string, error) {
	i, ok := provider.IdentifiedOf(p)
	if !ok {
		return "", errors.New("the driver tells no account")
	}
	return i.AccountID(ctx)
}

func accountTwisted(account func(context.Context, provider.Provider) (string, error)) breakage {
	return func(p provider.Provider) broken {
		return broken{Provider: p, account: func(ctx context.Context) (string, error) { return account(ctx, p) }}
	}
}

func (b broken) Capabilities() provider.Capabilities {
	c := b.Provider.Capabilities()
	if b.caps != nil {
		b.caps(&c)
	}
	return c
}

// The builders of faults: each takes one word of the good driver and changes it.

type breakage func(provider.Provider) broken

func offersTwisted(twist func(provider.OfferQuery, *provider.Offer)) breakage {
	return func(p provider.Provider) broken {
		return broken{Provider: p, search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
			offers, err := p.SearchOffers(ctx, q)
			for i := range offers {
				twist(q, &offers[i])
			}
			return offers, err
		}}
	}
}

func requestTwisted(twist func(*provider.CreateRequest)) breakage {
	return func(p provider.Provider) broken {
		return broken{Provider: p, create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
			twist(&r)
			return p.CreateInstance(ctx, r)
		}}
	}
}

func readsTwisted(twist func(*provider.Instance)) breakage {
	return func(p provider.Provider) broken {
		return broken{
			Provider: p,
			get: func(ctx context.Context, id string) (provider.Instance, error) {
				inst, err := p.GetInstance(ctx, id)
				twist(&inst)
				return inst, err
			},
			list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				for i := range all {
					twist(&all[i])
				}
				return all, err
			},
		}
	}
}

func errorsTwisted(twist func(*provider.Error)) breakage {
	return func(p provider.Provider) broken {
		twisted := func(err error) error {
			var e *provider.Error
			if !errors.As(err, &e) {
				return err
			}
			changed := *e
			twist(&changed)
			return &changed
		}
		return broken{
			Provider: p,
			search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
				out, err := p.SearchOffers(ctx, q)
				return out, twisted(err)
			},
			create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				out, err := p.CreateInstance(ctx, r)
				return out, twisted(err)
			},
			get: func(ctx context.Context, id string) (provider.Instance, error) {
				out, err := p.GetInstance(ctx, id)
				return out, twisted(err)
			},
			list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				out, err := p.ListInstances(ctx, f)
				return out, twisted(err)
			},
			destroy: func(ctx context.Context, id string) error { return twisted(p.DestroyInstance(ctx, id)) },
			check:   func(ctx context.Context) error { return twisted(p.CheckCredentials(ctx)) },
		}
	}
}

func kindTwisted(from, to provider.Kind, ops ...string) breakage {
	return errorsTwisted(func(e *provider.Error) {
		if e.Kind == from && (len(ops) == 0 || slices.Contains(ops, e.Op)) {
			e.Kind = to
		}
	})
}

func listTwisted(list func(context.Context, provider.Provider, provider.InstanceFilter) ([]provider.Instance, error)) breakage {
	return func(p provider.Provider) broken {
		return broken{Provider: p, list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
			return list(ctx, p, f)
		}}
	}
}

func destroyTwisted(destroy func(context.Context, provider.Provider, string) error) breakage {
	return func(p provider.Provider) broken {
		return broken{Provider: p, destroy: func(ctx context.Context, id string) error { return destroy(ctx, p, id) }}
	}
}

func capsTwisted(twist func(*provider.Capabilities)) breakage {
	return func(p provider.Provider) broken { return broken{Provider: p, caps: twist} }
}

// replaying tries a failed create once more: the mistake that buys twice.
func replaying(p provider.Provider) broken {
	return broken{Provider: p, create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
		inst, err := p.CreateInstance(ctx, r)
		if err == nil || provider.Refused(err) {
			return inst, err
		}
		if offers, serr := p.SearchOffers(ctx, provider.OfferQuery{CapacityType: r.Offer.CapacityType, DiskGB: r.DiskGB}); serr == nil {
			r.Offer = offers[0]
		}
		if inst, again := p.CreateInstance(ctx, r); again == nil {
			return inst, nil
		}
		return inst, err
	}}
}

// spent answers one get, as a driver does whose first caller broke what all share.
func spent(p provider.Provider) broken {
	var gets atomic.Int32
	return broken{Provider: p, get: func(ctx context.Context, id string) (provider.Instance, error) {
		if gets.Add(1) > 1 {
			return provider.Instance{}, provider.Errorf(p.Name(), "get", provider.Unknown, "spent")
		}
		return p.GetInstance(ctx, id)
	}}
}

// TestTheSuiteCatches runs each case against drivers that are wrong in what the case is about. A case that no broken
// driver fails proves nothing, so all have one.
func TestTheSuiteCatches(t *testing.T) {
	caught := map[string]bool{}
	for _, b := range breakages() {
		t.Run(b.name, func(t *testing.T) {
			for _, name := range strings.Fields(b.cases) {
				c := caseNamed(t, name)
				got := providertest.Try(t.Context(), c, func(ct providertest.T, c providertest.Case) providertest.Harness {
					return brokenHarness{newHarness(ct, c, sim.Options{}, nil), b.how}
				})
				if len(got) == 0 {
					t.Errorf("%s lets this driver pass", name)
				}
				for _, complaint := range got {
					if strings.HasPrefix(complaint, "panic") {
						t.Errorf("%s: %s", name, complaint)
					}
				}
				caught[name] = true
			}
		})
	}
	for _, c := range misreadings() {
		caught[c.name] = true
	}
	for _, c := range providertest.Cases() {
		if !caught[c.Name] {
			t.Errorf("no broken driver tries %s", c.Name)
		}
	}
}

// TestTheSuiteLetsTheGoodDriverPassUnderTry is the control: the same way of running a case, nothing broken.
func TestTheSuiteLetsTheGoodDriverPassUnderTry(t *testing.T) {
	for _, c := range providertest.Cases() {
		if c.Needs != nil && !c.Needs(mustDriver(t).Capabilities()) {
			continue
		}
		got := providertest.Try(t.Context(), c, func(ct providertest.T, c providertest.Case) providertest.Harness {
			return brokenHarness{newHarness(ct, c, sim.Options{}, nil), func(p provider.Provider) broken { return broken{Provider: p} }}
		})
		if len(got) > 0 {
			t.Errorf("%s: %q", c.Name, got)
		}
	}
}

type brokenHarness struct {
	*harness
	how breakage
}

func (h brokenHarness) Driver() provider.Provider          { return h.how(h.good) }
func (h brokenHarness) ImpatientDriver() provider.Provider { return h.how(h.impatient) }
func (h brokenHarness) BadKeyDriver() provider.Provider    { return h.how(h.bad) }
func (h brokenHarness) RotatedDriver() provider.Provider   { return h.how(h.rotated) }
func (h brokenHarness) OtherDriver() provider.Provider     { return h.how(h.other) }

func caseNamed(t *testing.T, name string) providertest.Case {
	t.Helper()
	i := slices.IndexFunc(providertest.Cases(), func(c providertest.Case) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no case %s", name)
	}
	return providertest.Cases()[i]
}

type brokenDriver struct {
	name  string
	cases string
	how   breakage
}

func breakages() []brokenDriver {
	return slices.Concat(brokenBuying(), brokenReading(), brokenFailing(), brokenBelieving())
}

func brokenBuying() []brokenDriver {
	return []brokenDriver{
		{"offers without a scope to rest", "SearchDescribesWhatWasAskedFor",
			offersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.RestKeys = nil })},
		{"offers of the other capacity type", "SearchDescribesWhatWasAskedFor",
			offersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.CapacityType = "other" })},
		{"takes any capacity type", "SearchRefusesAnUnknownCapacityType", func(p provider.Provider) broken {
			return broken{Provider: p, search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
				if q.CapacityType != provider.Spot {
					q.CapacityType = provider.OnDemand
				}
				return p.SearchOffers(ctx, q)
			}}
		}},
		{"a larger disk is cheaper", "SearchPricesTheDisk",
			offersTwisted(func(q provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.MulFrac(40, int64(q.DiskGB)) })},
		{"prices without the disk", "SearchPriceIsWhatIsBilled",
			offersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.Sub(money.MustParse("0.005")) })},
		{"prices far too high", "SearchPriceIsWhatIsBilled",
			offersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.MulFrac(101, 100) })},
		{"buys on-demand for spot", "CreateBuysTheCapacityTypeAsked",
			requestTwisted(func(r *provider.CreateRequest) { r.Offer.CapacityType = provider.OnDemand })},
		{"tags in its own way", "CreateTagsTheInstance LostAnswerDrill CancelledInTheMiddleOfACreate",
			requestTwisted(func(r *provider.CreateRequest) { r.Tag += "-1" })},
		{"knows no maximum", "CreateNeverPassesMaxPrice",
			requestTwisted(func(r *provider.CreateRequest) { r.MaxPrice = money.MustParse("100") })},
		{"cuts what is too long", "CreateRefusesMoreBootDataThanDeclared",
			requestTwisted(func(r *provider.CreateRequest) {
				if len(r.Boot.Command) > 0 {
					r.Boot.Command[0] = r.Boot.Command[0][:min(len(r.Boot.Command[0]), 4096)]
				}
			})},
		{"declares more than fits", "CreateRefusesMoreBootDataThanDeclared",
			capsTwisted(func(c *provider.Capabilities) { c.BootDataLimit *= 2 })},
		{"an offer that is gone is a riddle", "CreateOnAnOfferThatIsGone ListedStockThatIsGone", kindTwisted(provider.OfferGone, provider.Unknown)},
		{"invents a tag", "CreateRefusedLeavesNothing",
			requestTwisted(func(r *provider.CreateRequest) { r.Tag = "gs-suite001-0000000000000000" })},
		{"keeps the instance to itself", "CreateThatFailsWithAnInstanceNamesIt ABidThatTheMarketPassed",
			errorsTwisted(func(e *provider.Error) { e.InstanceID = "" })},
		{"takes an empty account for a quota", "CreateWithoutBalance", kindTwisted(provider.NoBalance, provider.Quota)},
		{"claims to be idempotent", "CreateTwiceIsOneInstance",
			capsTwisted(func(c *provider.Capabilities) { c.IdempotentCreate = true })},
		{"replays a create", "LostAnswerDrill HalfAnAnswerIsNoAnswer AnAnswerThatIsTooSlow", replaying},
	}
}

func brokenReading() []brokenDriver {
	everything := func(ctx context.Context, p provider.Provider, _ provider.InstanceFilter) ([]provider.Instance, error) {
		return p.ListInstances(ctx, provider.InstanceFilter{})
	}
	return []brokenDriver{
		{"lists everything for a tag", "ListFindsExactlyTheTag", listTwisted(everything)},
		{"reads one page", "ListReadsEveryPage", listTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				return all[:min(len(all), 25)], err
			})},
		{"an empty list is not found", "ListIsEmptyWithoutError", listTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				if err == nil && len(all) == 0 {
					err = provider.Errorf(p.Name(), "list", provider.NotFound, "nothing")
				}
				return all, err
			})},
		{"declares too short a lag", "ReadsAreNoLaterThanTheListLag",
			capsTwisted(func(c *provider.Capabilities) { c.ListLag = time.Second })},
		{"not found is a riddle", "GetOfWhatNeverWasIsNotFound DestroyedIsGoneAndStaysGone DestroyOfWhatNeverWas DestroyTwiceIsHarmless",
			kindTwisted(provider.NotFound, provider.Unknown)},
		{"knows no port", "PendingThenRunningWithAnEndpoint", readsTwisted(func(i *provider.Instance) { i.Port = 0 })},
		{"runs before it does", "AnUnknownWordIsStateUnknown AReclaimIsInterrupted AStopIsNoInterruption AnExitIsNoInterruption " +
			"AnUnreachableHostIsLost ABidThatTheMarketPassed",
			readsTwisted(func(i *provider.Instance) { i.State = provider.StateRunning })},
		{"knows no interruption", "AReclaimIsInterrupted", readsTwisted(func(i *provider.Instance) { i.Interrupted = false })},
		{"tells a reclaim by get alone", "AReclaimIsInterrupted", listTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				for i := range all {
					all[i].Interrupted = false
				}
				return all, err
			})},
		{"whatever is down was interrupted", "AStopIsNoInterruption AnExitIsNoInterruption",
			readsTwisted(func(i *provider.Instance) {
				i.Interrupted = i.State == provider.StateStopped || i.State == provider.StateFailed
			})},
		{"destroys nothing", "DestroyedIsGoneAndStaysGone DestroyTwiceIsHarmless DestroyEndsOnlyTheOneAsked LostAnswerOfADestroy",
			destroyTwisted(func(context.Context, provider.Provider, string) error { return nil })},
		{"destroys everything", "DestroyEndsOnlyTheOneAsked", destroyTwisted(
			func(ctx context.Context, p provider.Provider, _ string) error {
				all, err := p.ListInstances(ctx, provider.InstanceFilter{})
				for _, i := range all {
					err = errors.Join(err, p.DestroyInstance(ctx, i.ID))
				}
				return err
			})},
	}
}

func brokenFailing() []brokenDriver {
	return []brokenDriver{
		{"takes a bad key for a missing instance", "ABadKeyIsUnauthorizedEverywhere ABadKeyThatLooksLikeNotFound",
			kindTwisted(provider.Unauthorized, provider.NotFound, "get", "destroy")},
		{"takes a bad key for a gone offer", "ABadKeyIsUnauthorizedEverywhere",
			kindTwisted(provider.Unauthorized, provider.OfferGone, "create")},
		{"lists nothing where it fails", "ABadKeyIsUnauthorizedEverywhere HalfAnAnswerIsNoAnswer " +
			"ABrokenPageIsNoShortList PagesWithoutEnd AFailureIn200IsAFailure", listTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, _ := p.ListInstances(ctx, f)
				return all, nil
			})},
		{"does not say how long", "RateLimitedSaysHowLong RetryAfterIsPassedOn", errorsTwisted(func(e *provider.Error) { e.RetryAfter = 0 })},
		{"sure that a server error bought nothing", "AServerErrorConcludesNothing LostAnswerDrill HalfAnAnswerIsNoAnswer " +
			"AnAnswerThatIsTooSlow",
			errorsTwisted(func(e *provider.Error) {
				if e.Op == "create" && (e.Kind == provider.Unknown || e.Kind == provider.Unavailable) {
					e.Kind = provider.NoCapacity
				}
			})},
		{"takes half an answer for a missing instance", "HalfAnAnswerIsNoAnswer AFailureIn200IsAFailure",
			kindTwisted(provider.Unknown, provider.NotFound, "get")},
		{"sure that a cancelled create bought nothing", "CancelledInTheMiddleOfACreate CancelledBeforehand",
			kindTwisted(provider.Unknown, provider.Invalid, "create")},
		{"names the key in its errors", "NoErrorShowsACredential ABadKeyIsUnauthorizedEverywhere",
			errorsTwisted(func(e *provider.Error) { e.Message += " with " + goodKey })},
		{"errors without a provider", "CancelledBeforehand RateLimitedSaysHowLong",
			errorsTwisted(func(e *provider.Error) { e.Provider = "" })},
		{"declares nothing", "CapabilitiesAreComplete",
			capsTwisted(func(c *provider.Capabilities) { c.MinPollInterval = 0 })},
		{"fails good credentials", "GoodCredentialsPass", func(p provider.Provider) broken {
			return broken{Provider: p, check: func(context.Context) error {
				return provider.Errorf(p.Name(), "check", provider.Unauthorized, "no")
			}}
		}},
		{"takes every account for the same", "AnAccountIsToldFromAnother", accountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				_, err := accountID(ctx, p)
				return "1", err
			})},
		{"takes a key for an account", "AnAccountIsToldFromAnother", accountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				id, err := accountID(ctx, p)
				return fmt.Sprintf("%s %p", id, p), err
			})},
		{"takes a bad key for an account that cannot be told", "AnAccountIsToldFromAnother", accountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				id, err := accountID(ctx, p)
				if provider.KindOf(err) == provider.Unauthorized {
					return "", nil
				}
				return id, err
			})},
		{"takes half an answer for an account that cannot be told", "AnAccountIsToldFromAnother", accountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				id, err := accountID(ctx, p)
				if provider.KindOf(err) == provider.Unknown {
					return "", nil
				}
				return id, err
			})},
		{"callers spoil each other", "CallsInParallel", spent},
	}
}
