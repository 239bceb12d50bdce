package offers

import (
	"errors"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// TestASlowProviderIsWaitedForOnce: the first caller waits for as long as its patience; those after it do not, whether
// the search is still under way, its answer is here, or the next one has begun. One that is quick again is waited for.
func TestASlowProviderIsWaitedForOnce(t *testing.T) {
	f := aDriver()
	f.caps.SearchInterval, f.latency = 0, time.Minute
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		const patience = 10 * time.Second
		ask := func() (found int, waited time.Duration) {
			began := time.Now()
			list, err := c.Soon(t.Context(), spotQuery, DefaultMaxAge, patience)
			if err != nil && (!errors.Is(err, ErrTooSlow) || provider.KindOf(err) != provider.Unavailable) {
				t.Fatal(err)
			}
			return len(list), time.Since(began)
		}
		if n, waited := ask(); n != 0 || waited != patience {
			t.Errorf("the first got %d offers after %s", n, waited)
		}
		for range 3 {
			if n, waited := ask(); n != 0 || waited > glance {
				t.Errorf("one that came later got %d offers after %s", n, waited)
			}
		}
		time.Sleep(time.Minute)
		if n, waited := ask(); n == 0 || waited > glance {
			t.Errorf("the answer is here: %d offers after %s", n, waited)
		}
		time.Sleep(time.Minute) // too old by now
		if n, waited := ask(); n != 0 || waited > glance {
			t.Errorf("the next search: %d offers after %s", n, waited)
		}
		time.Sleep(2 * time.Minute)
		f.set(func(f *fakeDriver) { f.latency = time.Second })
		ask() // not waited for yet
		time.Sleep(2 * time.Minute)
		if n, waited := ask(); n == 0 || waited != time.Second {
			t.Errorf("quick again: %d offers after %s", n, waited)
		}
	})
}

// TestSoonGivesOtherErrorsAsTheyAre: only what it did not wait for is too slow.
func TestSoonGivesOtherErrorsAsTheyAre(t *testing.T) {
	f := aDriver()
	f.search = func(provider.OfferQuery) ([]provider.Offer, error) { return nil, failure(provider.Unauthorized) }
	inCatalogue(t, f, func(t *testing.T, c *Catalogue) {
		_, err := c.Soon(t.Context(), spotQuery, 0, time.Minute)
		if provider.KindOf(err) != provider.Unauthorized || errors.Is(err, ErrTooSlow) {
			t.Error(err)
		}
	})
}
