package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// BrokenDriver is a driver that is wrong in something, and the cases that it must fail.
type BrokenDriver struct {
	Name string
	// Cases are names, separated by spaces.
	Cases string
	How   Breakage
}

// BrokenDrivers are wrong in what every cloud has. Secret is a credential of the harness's.
func BrokenDrivers(secret string) []BrokenDriver {
	return slices.Concat(brokenBuying(), brokenReading(), brokenFailing(secret), brokenAccounts(),
		brokenBelieving())
}

// cutting sends what is too long in part.
func cutting(p provider.Provider) Broken {
	most := p.Capabilities().BootDataLimit
	return RequestTwisted(func(r *provider.CreateRequest) {
		if len(r.Boot.Command) > 0 {
			r.Boot.Command[0] = r.Boot.Command[0][:min(len(r.Boot.Command[0]), most)]
		}
		r.Boot.UserData = r.Boot.UserData[:min(len(r.Boot.UserData), most)]
	})(p)
}

// replaying tries a failed create once more: the mistake that buys twice.
func replaying(p provider.Provider) Broken {
	return Broken{Provider: p, Create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
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
func spent(p provider.Provider) Broken {
	var gets atomic.Int32
	return Broken{Provider: p, Get: func(ctx context.Context, id string) (provider.Instance, error) {
		if gets.Add(1) > 1 {
			return provider.Instance{}, provider.Errorf(p.Name(), "get", provider.Unknown, "spent")
		}
		return p.GetInstance(ctx, id)
	}}
}

func brokenBuying() []BrokenDriver {
	return []BrokenDriver{
		{"offers without a scope to rest", "SearchDescribesWhatWasAskedFor",
			OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.RestKeys = nil })},
		{"offers of the other capacity type", "SearchDescribesWhatWasAskedFor",
			OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.CapacityType = "other" })},
		{"takes any capacity type", "SearchRefusesAnUnknownCapacityType", func(p provider.Provider) Broken {
			return Broken{Provider: p, Search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
				if q.CapacityType != provider.Spot {
					q.CapacityType = provider.OnDemand
				}
				return p.SearchOffers(ctx, q)
			}}
		}},
		{"a larger disk is cheaper", "SearchPricesTheDisk",
			OffersTwisted(func(q provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.MulFrac(40, int64(q.DiskGB)) })},
		{"prices without the disk", "SearchPriceIsWhatIsBilled",
			OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.Sub(money.MustParse("0.005")) })},
		{"prices far too high", "SearchPriceIsWhatIsBilled",
			OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.MulFrac(101, 100) })},
		{"buys one capacity type for the other", "CreateBuysTheCapacityTypeAsked",
			RequestTwisted(func(r *provider.CreateRequest) {
				other := map[provider.CapacityType]provider.CapacityType{provider.Spot: provider.OnDemand, provider.OnDemand: provider.Spot}
				r.Offer.CapacityType = other[r.Offer.CapacityType]
			})},
		{"tags in its own way", "CreateTagsTheInstance LostAnswerDrill CancelledInTheMiddleOfACreate",
			RequestTwisted(func(r *provider.CreateRequest) { r.Tag += "-1" })},
		{"knows no maximum", "CreateNeverPassesMaxPrice",
			RequestTwisted(func(r *provider.CreateRequest) { r.MaxPrice = money.MustParse("100") })},
		{"cuts what is too long", "CreateRefusesMoreBootDataThanDeclared",
			cutting},
		{"declares more than fits", "CreateRefusesMoreBootDataThanDeclared",
			CapsTwisted(func(c *provider.Capabilities) { c.BootDataLimit *= 2 })},
		{"an offer that is gone is a riddle", "CreateOnAnOfferThatIsGone ListedStockThatIsGone",
			ErrorsTwisted(func(e *provider.Error) {
				if e.Kind == provider.OfferGone || e.Kind == provider.NoCapacity {
					e.Kind = provider.Unknown
				}
			})},
		{"an offer that is gone is our mistake", "CreateOnAnOfferThatIsGone ListedStockThatIsGone ABidThatTheMarketPassed",
			ErrorsTwisted(func(e *provider.Error) {
				if e.Kind == provider.OfferGone || e.Kind == provider.NoCapacity {
					e.Kind = provider.Invalid
				}
			})},
		{"invents a tag", "CreateRefusedLeavesNothing",
			RequestTwisted(func(r *provider.CreateRequest) { r.Tag = "gs-suite001-0000000000000000" })},
		{"keeps the instance to itself", "CreateThatFailsWithAnInstanceNamesIt ABidThatTheMarketPassed",
			ErrorsTwisted(func(e *provider.Error) { e.InstanceID = "" })},
		{"takes an empty account for a quota", "CreateWithoutBalance", KindTwisted(provider.NoBalance, provider.Quota)},
		{"claims to be idempotent", "CreateTwiceIsOneInstance",
			CapsTwisted(func(c *provider.Capabilities) { c.IdempotentCreate = true })},
		{"replays a create", "LostAnswerDrill HalfAnAnswerIsNoAnswer AnAnswerThatIsTooSlow", replaying},
	}
}

func brokenReading() []BrokenDriver {
	everything := func(ctx context.Context, p provider.Provider, _ provider.InstanceFilter) ([]provider.Instance, error) {
		return p.ListInstances(ctx, provider.InstanceFilter{})
	}
	return []BrokenDriver{
		{"lists everything for a tag", "ListFindsExactlyTheTag", ListTwisted(everything)},
		{"reads one page", "ListReadsEveryPage", ListTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				return all[:min(len(all), 25)], err
			})},
		{"an empty list is not found", "ListIsEmptyWithoutError", ListTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				if err == nil && len(all) == 0 {
					err = provider.Errorf(p.Name(), "list", provider.NotFound, "nothing")
				}
				return all, err
			})},
		{"declares too short a lag", "ReadsAreNoLaterThanTheListLag",
			CapsTwisted(func(c *provider.Capabilities) { c.ListLag = time.Second })},
		{"not found is a riddle", "GetOfWhatNeverWasIsNotFound DestroyedIsGoneAndStaysGone DestroyOfWhatNeverWas DestroyTwiceIsHarmless",
			KindTwisted(provider.NotFound, provider.Unknown)},
		{"knows no port", "PendingThenRunningWithAnEndpoint", ReadsTwisted(func(i *provider.Instance) { i.Port = 0 })},
		{"runs before it does", "AnUnknownWordIsStateUnknown AReclaimIsInterrupted AStopIsNoInterruption AnExitIsNoInterruption " +
			"AnUnreachableHostIsLost ABidThatTheMarketPassed",
			ReadsTwisted(func(i *provider.Instance) { i.State = provider.StateRunning })},
		{"knows no interruption", "AReclaimIsInterrupted", ReadsTwisted(func(i *provider.Instance) { i.Interrupted = false })},
		{"tells a reclaim by get alone", "AReclaimIsInterrupted", ListTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				for i := range all {
					all[i].Interrupted = false
				}
				return all, err
			})},
		{"whatever is down was interrupted", "AStopIsNoInterruption AnExitIsNoInterruption",
			ReadsTwisted(func(i *provider.Instance) {
				i.Interrupted = i.State == provider.StateStopped || i.State == provider.StateFailed
			})},
		{"destroys nothing", "DestroyedIsGoneAndStaysGone DestroyTwiceIsHarmless DestroyEndsOnlyTheOneAsked LostAnswerOfADestroy",
			DestroyTwisted(func(context.Context, provider.Provider, string) error { return nil })},
		{"destroys everything", "DestroyEndsOnlyTheOneAsked", DestroyTwisted(
			func(ctx context.Context, p provider.Provider, _ string) error {
				all, err := p.ListInstances(ctx, provider.InstanceFilter{})
				for _, i := range all {
					err = errors.Join(err, p.DestroyInstance(ctx, i.ID))
				}
				return err
			})},
	}
}

func brokenFailing(secret string) []BrokenDriver {
	return []BrokenDriver{
		{"takes a bad key for a missing instance", "ABadKeyIsUnauthorizedEverywhere ABadKeyThatLooksLikeNotFound",
			KindTwisted(provider.Unauthorized, provider.NotFound, "get", "destroy")},
		{"takes a bad key for a gone offer", "ABadKeyIsUnauthorizedEverywhere",
			KindTwisted(provider.Unauthorized, provider.OfferGone, "create")},
		{"lists nothing where it fails", "ABadKeyIsUnauthorizedEverywhere HalfAnAnswerIsNoAnswer " +
			"ABrokenPageIsNoShortList PagesWithoutEnd AFailureIn200IsAFailure", ListTwisted(
			func(ctx context.Context, p provider.Provider, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, _ := p.ListInstances(ctx, f)
				return all, nil
			})},
		{"does not say how long", "RateLimitedSaysHowLong RetryAfterIsPassedOn", ErrorsTwisted(func(e *provider.Error) { e.RetryAfter = 0 })},
		{"sure that a server error bought nothing", "AServerErrorConcludesNothing LostAnswerDrill HalfAnAnswerIsNoAnswer " +
			"AnAnswerThatIsTooSlow",
			ErrorsTwisted(func(e *provider.Error) {
				if e.Op == "create" && (e.Kind == provider.Unknown || e.Kind == provider.Unavailable) {
					e.Kind = provider.NoCapacity
				}
			})},
		{"takes half an answer for a missing instance", "HalfAnAnswerIsNoAnswer AFailureIn200IsAFailure",
			ErrorsTwisted(func(e *provider.Error) {
				if e.Op == "get" && (e.Kind == provider.Unknown || e.Kind == provider.Unavailable) {
					e.Kind = provider.NotFound
				}
			})},
		{"sure that a cancelled create bought nothing", "CancelledInTheMiddleOfACreate CancelledBeforehand",
			KindTwisted(provider.Unknown, provider.Invalid, "create")},
		{"names the key in its errors", "NoErrorShowsACredential ABadKeyIsUnauthorizedEverywhere",
			ErrorsTwisted(func(e *provider.Error) { e.Message += " with " + secret })},
		{"errors without a provider", "CancelledBeforehand RateLimitedSaysHowLong",
			ErrorsTwisted(func(e *provider.Error) { e.Provider = "" })},
		{"declares nothing", "CapabilitiesAreComplete",
			CapsTwisted(func(c *provider.Capabilities) { c.MinPollInterval = 0 })},
		{"fails good credentials", "GoodCredentialsPass", func(p provider.Provider) Broken {
			return Broken{Provider: p, Check: func(context.Context) error {
				return provider.Errorf(p.Name(), "check", provider.Unauthorized, "no")
			}}
		}},
		{"callers spoil each other", "CallsInParallel", spent},
	}
}

// brokenAccounts cannot tell whose account it is.
func brokenAccounts() []BrokenDriver {
	return []BrokenDriver{
		{"takes every account for the same", "AnAccountIsToldFromAnother", AccountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				_, err := accountOf(ctx, p)
				return "1", err
			})},
		{"takes a key for an account", "AnAccountIsToldFromAnother", AccountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				id, err := accountOf(ctx, p)
				return fmt.Sprintf("%s %p", id, p), err
			})},
		{"takes a bad key for an account that cannot be told", "AnAccountIsToldFromAnother", AccountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				id, err := accountOf(ctx, p)
				if provider.KindOf(err) == provider.Unauthorized {
					return "", nil
				}
				return id, err
			})},
		{"takes half an answer for an account that cannot be told", "AnAccountIsToldFromAnother", AccountTwisted(
			func(ctx context.Context, p provider.Provider) (string, error) {
				id, err := accountOf(ctx, p)
				if provider.KindOf(err) == provider.Unknown {
					return "", nil
				}
				return id, err
			})},
	}
}

// brokenBelieving are drivers that believe what a cloud says.
func brokenBelieving() []BrokenDriver {
	return []BrokenDriver{
		{"an accepted destroy is done", "ADestroyThatIsNotDone ADestroyThatTakesTime", believing(&sync.Map{})},
		{"an error has no instance", "SuccessInAnErrorIsNoRefusal", ErrorsTwisted(func(e *provider.Error) {
			if e.Op == "create" {
				e.Kind, e.InstanceID = provider.NoCapacity, ""
			}
		})},
		{"a refused destroy is as good as done", "ADestroyThatIsRefused AFailureIn200IsAFailure", DestroyTwisted(
			func(ctx context.Context, p provider.Provider, id string) error {
				_ = p.DestroyInstance(ctx, id) // the fault of this driver
				return nil
			})},
		{"an instance that is not ready for its end is none", "ADestroyThatIsRefused",
			ErrorsTwisted(func(e *provider.Error) {
				if e.Op == string(Destroy) && (e.Kind == provider.Unknown || e.Kind == provider.Unavailable) {
					e.Kind = provider.NotFound
				}
			})},
		{"an endpoint as soon as there is an instance", "RunningBeforeItsPorts RunningWithoutARuntime",
			ReadsTwisted(func(i *provider.Instance) {
				if i.Port == 0 {
					i.Address, i.Port = "203.0.113.1", 9443
				}
			})},
		{"what has no endpoint has failed", "RunningBeforeItsPorts RunningWithoutARuntime",
			ReadsTwisted(func(i *provider.Instance) {
				if i.Port == 0 {
					i.State = provider.StateFailed
				}
			})},
		{"an unreachable host has ended", "AnUnreachableHostIsLost", ReadsTwisted(func(i *provider.Instance) {
			if i.State == provider.StateLost {
				i.State = provider.StateStopped
			}
		})},
		{"whatever is away was taken", "AnUnreachableHostIsLost", ReadsTwisted(func(i *provider.Instance) {
			i.Interrupted = i.Interrupted || i.State == provider.StateLost
		})},
		{"what is gone has stopped", "ADeletionByTheOwnerIsGone", func(p provider.Provider) Broken {
			return Broken{Provider: p, Get: func(ctx context.Context, id string) (provider.Instance, error) {
				inst, err := p.GetInstance(ctx, id)
				if provider.KindOf(err) == provider.NotFound {
					return provider.Instance{Provider: p.Name(), ID: id, State: provider.StateStopped}, nil
				}
				return inst, err
			}}
		}},
		{"knows better than the vendor how long to wait", "RetryAfterIsPassedOn",
			ErrorsTwisted(func(e *provider.Error) { e.RetryAfter = min(e.RetryAfter, 5*time.Second) })},
		{"has no patience to lose", "AnAnswerThatIsTooSlow", func(p provider.Provider) Broken {
			return Broken{Provider: p, Create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				inst, err := p.CreateInstance(ctx, r)
				var e *provider.Error
				if errors.As(err, &e) && e.Err != nil {
					return provider.Instance{}, provider.Errorf(p.Name(), e.Op, provider.NoCapacity, "timed out")
				}
				return inst, err
			}}
		}},
	}
}

// believing shows no instance any more whose destroy was accepted. The drivers of one harness share what they believe.
func believing(gone *sync.Map) Breakage {
	type ended struct {
		by provider.Provider
		id string
	}
	return func(p provider.Provider) Broken {
		isGone := func(id string) bool {
			_, is := gone.Load(ended{p, id})
			return is
		}
		return Broken{
			Provider: p,
			Destroy: func(ctx context.Context, id string) error {
				err := p.DestroyInstance(ctx, id)
				if err == nil {
					gone.Store(ended{p, id}, true)
				}
				return err
			},
			Get: func(ctx context.Context, id string) (provider.Instance, error) {
				if isGone(id) {
					return provider.Instance{}, provider.Errorf(p.Name(), "get", provider.NotFound, "destroyed")
				}
				return p.GetInstance(ctx, id)
			},
			List: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				return slices.DeleteFunc(all, func(i provider.Instance) bool { return isGone(i.ID) }), err
			},
		}
	}
}
