package offers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

func aCall(op Op) Call {
	return Call{Op: op, Provider: provider.VastAI, Offer: aGood(), Account: "acc", Pool: "pool"}
}

func TestActionOfEveryKind(t *testing.T) {
	narrow := []rest.Key{rest.OfferKey(provider.VastAI, "machine/4411")}
	wide := []rest.Key{rest.OfferKey(provider.VastAI, "host/90")}
	id := []rest.Key{rest.OfferKey(provider.VastAI, "offer-id/17")}
	account := []rest.Key{rest.AccountKey(provider.VastAI, "acc")}
	pool := []rest.Key{rest.PoolKey("pool")}
	again := Action{Retry: true, Wait: 5 * time.Second}
	unclear := Action{Retry: true, Wait: 5 * time.Second, LookUp: true}
	stop := Action{Rest: account, StopProvider: true, Wait: time.Minute, WaitAll: true}
	table := map[provider.Kind]map[Op]Action{
		provider.OfferGone:    {OpRead: again, OpDestroy: again, OpCreate: {Rest: id, ForgetOffer: true, NextOffer: true}},
		provider.NoCapacity:   {OpRead: again, OpDestroy: again, OpCreate: {Rest: narrow, ForgetOffer: true, NextOffer: true}},
		provider.Quota:        {OpRead: again, OpDestroy: again, OpCreate: {Rest: wide, RestAtLeast: time.Hour, NextOffer: true}},
		provider.Unauthorized: {OpRead: stop, OpDestroy: with(stop, func(a *Action) { a.Retry = true }), OpCreate: with(stop, func(a *Action) { a.NextOffer = true })},
		provider.NoBalance:    {OpRead: stop, OpDestroy: with(stop, func(a *Action) { a.Retry = true }), OpCreate: with(stop, func(a *Action) { a.NextOffer = true })},
		provider.RateLimited: {
			OpRead: {Retry: true, Wait: 15 * time.Second, WaitAll: true}, OpDestroy: {Retry: true, Wait: 15 * time.Second, WaitAll: true},
			OpCreate: {Retry: true, Wait: 15 * time.Second, WaitAll: true, LookUp: true},
		},
		provider.Invalid:     {OpRead: {Wait: time.Minute}, OpDestroy: {Wait: time.Minute, Retry: true}, OpCreate: {Rest: pool}},
		provider.Unsupported: {OpRead: {Wait: time.Minute}, OpDestroy: {Wait: time.Minute, Retry: true}, OpCreate: {Rest: narrow, NextOffer: true}},
		provider.NotFound:    {OpRead: {}, OpDestroy: {}, OpCreate: unclear},
		provider.Unavailable: {OpRead: again, OpDestroy: again, OpCreate: unclear},
		provider.Unknown:     {OpRead: again, OpDestroy: again, OpCreate: unclear},
	}
	for _, kind := range provider.Kinds() {
		for _, op := range Ops() {
			want, ok := table[kind][op]
			if !ok {
				t.Errorf("%s of a %s has no line here", kind, op)
			}
			err := fmt.Errorf("wrapped: %w", provider.Errorf(provider.VastAI, "op", kind, "words"))
			if got := ActionFor(err, aCall(op)); !reflect.DeepEqual(got, want) {
				t.Errorf("%s of a %s: %+v; want %+v", kind, op, got, want)
			}
		}
	}
}

func with(a Action, edit func(*Action)) Action {
	edit(&a)
	return a
}

// What the interface says of a failed create, held against what is done about it.
func TestACreateThatMayHaveRentedIsLookedUp(t *testing.T) {
	for _, kind := range provider.Kinds() {
		err := provider.Errorf(provider.VastAI, "create", kind, "")
		a := ActionFor(err, aCall(OpCreate))
		if provider.Refused(err) == a.LookUp || a.LookUp && a.NextOffer {
			t.Errorf("%s: refused %v: %+v", kind, provider.Refused(err), a)
		}
		if a.Retry && !a.LookUp {
			t.Errorf("%s: asked again without looking first: %+v", kind, a)
		}
		err.InstanceID = "i-1"
		if a := ActionFor(err, aCall(OpCreate)); a.Destroy != "i-1" || a.NextOffer || a.Retry || a.LookUp {
			t.Errorf("%s with an instance: %+v", kind, a)
		}
		if a := ActionFor(err, aCall(OpRead)); a.Destroy != "" {
			t.Errorf("%s of a read destroys: %+v", kind, a)
		}
		if a := ActionFor(err, aCall(OpDestroy)); !a.Retry && kind != provider.NotFound {
			t.Errorf("%s ends a destroy", kind)
		}
	}
}

func TestWaitAsTold(t *testing.T) {
	for told, want := range map[time.Duration]time.Duration{
		0: rateLimitWait, time.Second: time.Second, 10 * time.Minute: 10 * time.Minute, 100 * time.Hour: time.Hour,
	} {
		err := &provider.Error{Kind: provider.RateLimited, RetryAfter: told}
		if a := ActionFor(err, aCall(OpRead)); a.Wait != want {
			t.Errorf("told %s, waits %s", told, a.Wait)
		}
	}
	if a := ActionFor(&provider.Error{Kind: provider.NotFound, RetryAfter: time.Hour}, aCall(OpRead)); a.Wait != 0 {
		t.Errorf("an answer has to be waited for: %+v", a)
	}
}

func TestActionOfOtherErrors(t *testing.T) {
	if a := ActionFor(nil, aCall(OpCreate)); !reflect.DeepEqual(a, Action{}) {
		t.Errorf("%+v", a)
	}
	for _, err := range []error{errors.New("odd"), context.DeadlineExceeded, context.Canceled} {
		if a := ActionFor(err, aCall(OpCreate)); !a.LookUp || a.NextOffer {
			t.Errorf("%v: %+v", err, a)
		}
	}
}

func TestNothingNamedNothingRests(t *testing.T) {
	for _, kind := range []provider.Kind{provider.Unauthorized, provider.Invalid} {
		if a := ActionFor(provider.Errorf("aws", "create", kind, ""), Call{Op: OpCreate}); a.Rest != nil {
			t.Errorf("%s: %v", kind, a.Rest)
		}
	}
	bare := provider.Offer{Provider: provider.RunPod, ID: "x"}
	if want := rest.OfferKey(provider.RunPod, "offer-id/x"); NarrowKey(bare) != want || WideKey(bare) != want {
		t.Errorf("%v %v", NarrowKey(bare), WideKey(bare))
	}
}

// Every key that an action rests is one that Judge sees.
func TestWhatRestsIsNotOffered(t *testing.T) {
	for _, kind := range provider.Kinds() {
		a := ActionFor(provider.Errorf(provider.VastAI, "create", kind, ""), aCall(OpCreate))
		if !a.NextOffer {
			continue
		}
		var book rest.Book
		for _, k := range a.Rest {
			book.FailFor(k, a.RestAtLeast, string(kind), "", noon)
		}
		if got := Judge(aGood(), aNeed(), book.View(noon), noon); got != Resting {
			t.Errorf("after %s the same offer is next again: %q", kind, got)
		}
	}
}
