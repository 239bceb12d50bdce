package offers

import (
	"context"
	"errors"
	"math/rand"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/pkg/provider"
)

var spotQuery = provider.OfferQuery{CapacityType: provider.Spot, DiskGB: 50}

func aDriver() *fakeDriver {
	return &fakeDriver{
		caps:    provider.Capabilities{SearchInterval: 5 * time.Second, MinPollInterval: 5 * time.Second, ListLag: 10 * time.Second},
		latency: time.Second,
		search: func(provider.OfferQuery) ([]provider.Offer, error) {
			return []provider.Offer{{ID: "a"}, {ID: "b"}}, nil
		},
	}
}

// inCatalogue runs a test in virtual time, with a catalogue whose life ends before the test does.
func inCatalogue(t *testing.T, f *fakeDriver, test func(t *testing.T, c *Catalogue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		test(t, NewCatalogue(life, f, clock.RealClock{}))
		end()
		synctest.Wait()
		if f.crowded || len(f.calls) > 1 && f.tightest() < f.caps.SearchInterval {
			t.Errorf("the driver was called %s apart, overlapping %v", f.tightest(), f.crowded)
		}
	})
}

func mustOffers(t *testing.T, c *Catalogue, q provider.OfferQuery, maxAge time.Duration) []provider.Offer {
	t.Helper()
	got, err := c.Offers(t.Context(), q, maxAge)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestOffersAreCached(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		first := mustOffers(t, c, spotQuery, 0)
		first[0].ID = "changed by a caller"
		for _, step := range []struct {
			later  time.Duration
			maxAge time.Duration
			calls  int
		}{
			{0, 0, 1}, {20 * time.Second, 0, 1}, {time.Second, 0, 2}, {4 * time.Second, time.Second, 2},
			{2 * time.Second, time.Second, 3}, {time.Minute, time.Hour, 3},
		} {
			time.Sleep(step.later)
			if got := mustOffers(t, c, spotQuery, step.maxAge); got[0].ID != "a" || f.count() != step.calls {
				t.Errorf("%s later, at most %s old: %v after %d calls; want %d", step.later, step.maxAge, got, f.count(), step.calls)
			}
		}
	})
}

func TestEqualQuestionsShareAnAnswer(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		q := provider.OfferQuery{CapacityType: provider.Spot, Regions: []string{"b", "a", "b"}}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Offers(t.Context(), q, 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		mustOffers(t, c, provider.OfferQuery{CapacityType: provider.Spot, DiskGB: 1, Regions: []string{"a", "b"}}, 0)
		if f.count() != 1 || q.Regions[0] != "b" {
			t.Errorf("%d calls; the caller's regions are %v", f.count(), q.Regions)
		}
		for i, other := range []provider.OfferQuery{
			{CapacityType: provider.OnDemand, Regions: q.Regions}, {CapacityType: provider.Spot, DiskGB: 2, Regions: q.Regions},
			{CapacityType: provider.Spot}, {CapacityType: provider.Spot, Regions: []string{`a" "b`}},
		} {
			mustOffers(t, c, other, 0)
			if f.count() != i+2 {
				t.Errorf("%+v was answered from another question's cache", other)
			}
		}
	})
}

func TestErrorsAreHeldAndGrow(t *testing.T) {
	f := aDriver()
	f.caps.SearchInterval, f.latency = 0, 0
	f.search = func(provider.OfferQuery) ([]provider.Offer, error) {
		return []provider.Offer{{ID: "half a list"}}, failure(provider.Unavailable)
	}
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		for i, wait := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
			for range 3 {
				if got, err := c.Offers(t.Context(), spotQuery, 0); got != nil || provider.KindOf(err) != provider.Unavailable {
					t.Fatalf("%v, %v", got, err)
				}
				time.Sleep(wait/3 - time.Millisecond)
			}
			if f.count() != i+1 {
				t.Fatalf("%d calls; want %d", f.count(), i+1)
			}
			time.Sleep(time.Second)
		}
		f.set(func(f *fakeDriver) { f.search = aDriver().search })
		time.Sleep(time.Minute)
		mustOffers(t, c, spotQuery, 0)
		f.set(func(f *fakeDriver) {
			f.search = func(provider.OfferQuery) ([]provider.Offer, error) { return nil, failure(provider.Unknown) }
		})
		time.Sleep(time.Minute)
		for range 2 { // the first failure after a success is held shortly again
			if _, err := c.Offers(t.Context(), spotQuery, 0); provider.KindOf(err) != provider.Unknown {
				t.Error(err)
			}
			time.Sleep(5 * time.Second)
		}
		if f.count() != 9 {
			t.Errorf("%d calls", f.count())
		}
	})
}

func TestWhomAnErrorHolds(t *testing.T) {
	other := provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 50}
	for _, c := range []struct {
		err  error
		all  bool
		wait time.Duration
	}{
		{&provider.Error{Kind: provider.RateLimited, RetryAfter: 7 * time.Minute}, true, 7 * time.Minute},
		{failure(provider.RateLimited), true, 15 * time.Second},
		{failure(provider.Unauthorized), true, time.Minute},
		{failure(provider.NoBalance), true, time.Minute},
		{failure(provider.Invalid), false, time.Minute},
		{failure(provider.Unavailable), false, 5 * time.Second},
	} {
		f := aDriver()
		f.caps.SearchInterval, f.latency = time.Second, 0
		f.search = func(q provider.OfferQuery) ([]provider.Offer, error) {
			if q.CapacityType == provider.Spot {
				return nil, c.err
			}
			return nil, nil
		}
		inCatalogue(t, f, func(t *testing.T, cat *Catalogue) {
			mustOffers(t, cat, other, 0)
			if _, err := cat.Offers(t.Context(), spotQuery, 0); !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			failed := time.Now()
			// What is young enough is still served, and everything else depends on whom the error concerns.
			mustOffers(t, cat, other, time.Hour)
			time.Sleep(2 * time.Second)
			if _, err := cat.Offers(t.Context(), other, time.Second); errors.Is(err, c.err) != c.all {
				t.Errorf("%v: another query gives %v", c.err, err)
			}
			time.Sleep(time.Until(failed.Add(c.wait)) - time.Millisecond)
			before := f.count()
			_, _ = cat.Offers(t.Context(), spotQuery, 0)
			if f.count() != before {
				t.Errorf("%v: asked again before %s", c.err, c.wait)
			}
			time.Sleep(time.Millisecond)
			_, _ = cat.Offers(t.Context(), spotQuery, 0)
			if f.count() != before+1 {
				t.Errorf("%v: not asked again after %s", c.err, c.wait)
			}
		})
	}
}

func TestForget(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		other := provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 50}
		f.search = func(q provider.OfferQuery) ([]provider.Offer, error) {
			if q.CapacityType == provider.OnDemand {
				return []provider.Offer{{ID: "c"}}, nil
			}
			return []provider.Offer{{ID: "a"}, {ID: "b"}}, nil
		}
		mustOffers(t, c, spotQuery, 0)
		mustOffers(t, c, other, 0)
		c.Forget("a")
		c.Forget("never heard of")
		mustOffers(t, c, other, 0)
		if f.count() != 2 {
			t.Errorf("a list without the offer was searched again")
		}
		f.set(func(f *fakeDriver) {
			f.search = func(provider.OfferQuery) ([]provider.Offer, error) { return []provider.Offer{{ID: "b"}}, nil }
		})
		if got := mustOffers(t, c, spotQuery, time.Hour); len(got) != 1 || f.count() != 3 {
			t.Errorf("%v after %d calls", got, f.count())
		}
	})
}

func TestForgetWhileASearchIsUnderWay(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		go func() { _, _ = c.Offers(t.Context(), spotQuery, 0) }()
		synctest.Wait() // the answer is made, and on its way
		time.Sleep(100 * time.Millisecond)
		c.Forget("a")
		mustOffers(t, c, spotQuery, 0) // waits for that answer
		f.set(func(f *fakeDriver) {
			f.search = func(provider.OfferQuery) ([]provider.Offer, error) { return []provider.Offer{{ID: "b"}}, nil }
		})
		if got := mustOffers(t, c, spotQuery, time.Hour); len(got) != 1 {
			t.Errorf("a search that began before Forget brought the offer back: %v", got)
		}
		if len(c.gone) != 0 {
			t.Errorf("still remembered: %v", c.gone)
		}
		f.set(func(f *fakeDriver) { f.search = aDriver().search })
		time.Sleep(time.Minute)
		mustOffers(t, c, spotQuery, 0)
		before := f.count()
		if got := mustOffers(t, c, spotQuery, 0); len(got) != 2 || f.count() != before {
			t.Errorf("an offer that is listed anew is still forgotten: %v", got)
		}
	})
}

func ids(list []provider.Offer) string {
	var out []string
	for _, o := range list {
		out = append(out, o.ID)
	}
	return strings.Join(out, " ")
}

// Of offers that are rented once, each goes to one caller, and the list stays good for the others.
func TestOffersThatAreRentedOnce(t *testing.T) {
	f := aDriver()
	f.caps.OffersOnce = true
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		mustOffers(t, c, spotQuery, 0)
		if !c.Take("a") || c.Take("a") {
			t.Fatal("an offer goes to one")
		}
		if got := ids(mustOffers(t, c, spotQuery, 0)); got != "b" {
			t.Errorf("one is taken: %s", got)
		}
		c.Release("a")
		if got := ids(mustOffers(t, c, spotQuery, 0)); got != "a b" {
			t.Errorf("given back: %s", got)
		}
		time.Sleep(time.Millisecond)
		c.Take("a")
		c.Forget("a")
		c.Release("a")
		if got := ids(mustOffers(t, c, spotQuery, 0)); got != "b" || c.Take("a") || f.count() != 1 {
			t.Errorf("one was rented: %s after %d calls", got, f.count())
		}
		f.set(func(f *fakeDriver) {
			f.search = func(provider.OfferQuery) ([]provider.Offer, error) {
				return []provider.Offer{{ID: "b"}, {ID: "c"}}, nil
			}
		})
		time.Sleep(time.Minute)
		if got := ids(mustOffers(t, c, spotQuery, 0)); got != "b c" || len(c.gone) != 0 {
			t.Errorf("%s, still remembered: %v", got, c.gone)
		}
	})
}

// An offer that a later search shows again can be had again, whatever else is kept.
func TestAnOfferThatIsThereAgain(t *testing.T) {
	f := aDriver()
	f.caps.OffersOnce = true
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		mustOffers(t, c, provider.OfferQuery{CapacityType: provider.OnDemand}, 0)
		c.Forget("a")
		time.Sleep(time.Second)
		if got := ids(mustOffers(t, c, spotQuery, 0)); got != "a b" || !c.Take("a") {
			t.Errorf("%s, and cannot be taken", got)
		}
	})
}

// Elsewhere nothing is kept for anybody.
func TestOffersThatAreRentedOften(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		mustOffers(t, c, spotQuery, 0)
		for range 2 {
			if !c.Take("a") {
				t.Error("it cannot be rented twice")
			}
		}
		if got := ids(mustOffers(t, c, spotQuery, 0)); got != "a b" {
			t.Errorf("%s", got)
		}
	})
}

func TestACallerThatLeavesDoesNotEndTheSearch(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if got, err := c.Offers(ctx, spotQuery, 0); got != nil || provider.KindOf(err) != provider.Unavailable {
			t.Errorf("%v, %v", got, err)
		}
		mustOffers(t, c, spotQuery, 0)
		if f.count() != 1 {
			t.Errorf("%d calls", f.count())
		}
	})
}

func TestCatalogueEndsWithItsAccount(t *testing.T) {
	f := aDriver()
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		c := NewCatalogue(life, f, clock.RealClock{})
		var wg sync.WaitGroup
		for _, q := range []provider.OfferQuery{spotQuery, {CapacityType: provider.OnDemand}} {
			wg.Go(func() {
				if got, err := c.Offers(t.Context(), q, 0); got != nil || provider.KindOf(err) != provider.Unavailable {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		synctest.Wait()
		end()
		wg.Wait()
		if _, err := c.Offers(t.Context(), spotQuery, 0); provider.KindOf(err) != provider.Unavailable {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if _, err := c.Offers(t.Context(), spotQuery, 0); provider.KindOf(err) != provider.Unavailable || f.count() != 1 {
			t.Errorf("%v after %d calls", err, f.count())
		}
	})
}

func TestAHangingDriverIsCutOff(t *testing.T) {
	f := aDriver()
	f.latency = 24 * time.Hour
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		if _, err := c.Offers(t.Context(), spotQuery, 0); provider.KindOf(err) != provider.Unavailable {
			t.Error(err)
		}
	})
}

func TestOldQueriesAreDropped(t *testing.T) {
	f := aDriver()
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		for disk := range 20 {
			mustOffers(t, c, provider.OfferQuery{CapacityType: provider.Spot, DiskGB: disk + 1}, 0)
			time.Sleep(5 * time.Minute)
		}
		if len(c.searches) > 4 {
			t.Errorf("%d answers are kept", len(c.searches))
		}
	})
}

// Many callers, failures and Forgets at once: the pace holds (inCatalogue looks), and every answer is young enough.
func TestCatalogueUnderLoad(t *testing.T) {
	f := aDriver()
	rng := rand.New(rand.NewSource(1))
	f.search = func(provider.OfferQuery) ([]provider.Offer, error) { // under the driver's lock
		if rng.Intn(4) == 0 {
			return nil, failure(provider.Kinds()[rng.Intn(len(provider.Kinds()))])
		}
		made := time.Since(noon)
		return []provider.Offer{{ID: "a", AvailableFor: &made}}, nil
	}
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				rng := rand.New(rand.NewSource(int64(i)))
				for range 100 {
					time.Sleep(time.Duration(rng.Intn(20)) * time.Second)
					maxAge := time.Duration(5+rng.Intn(30)) * time.Second
					got, err := c.Offers(t.Context(), provider.OfferQuery{DiskGB: 1 + rng.Intn(3)}, maxAge)
					if err == nil && time.Since(noon)-*got[0].AvailableFor > maxAge+f.latency {
						t.Errorf("an answer of %s", time.Since(noon)-*got[0].AvailableFor)
					}
					if rng.Intn(10) == 0 {
						c.Forget("a")
					}
				}
			})
		}
		wg.Wait()
	})
}
