package operator_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

type simOptions = simvast.Options

func (w *world) claims() []v1alpha1.GPUNodeClaim {
	w.t.Helper()
	var list v1alpha1.GPUNodeClaimList
	if err := w.client.List(w.ctx, &list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func (w *world) poolSays(pool *v1alpha1.GPUNodePool, condition, status, reason string, parts ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("pool says %s=%s %s", condition, status, reason), func() error {
		got := &v1alpha1.GPUNodePool{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), got); err != nil {
			return err
		}
		c := meta.FindStatusCondition(got.Status.Conditions, condition)
		if c == nil || string(c.Status) != status || c.Reason != reason {
			return fmt.Errorf("it says %+v", c)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("its message %q lacks %q", c.Message, part)
			}
		}
		return nil
	})
}

// failed waits for a claim that ended by a failure, with its instance gone.
func (w *world) failed(reason string, culprit v1alpha1.Culprit) {
	w.t.Helper()
	w.eventually("a claim ends by "+reason, func() error {
		for _, c := range w.watch.Ended() {
			f := c.Status.Failure
			if f != nil && f.Reason == reason {
				if f.Culprit != culprit {
					return fmt.Errorf("blamed on %s, want %s: %s", f.Culprit, culprit, f.Message)
				}
				return nil
			}
		}
		return fmt.Errorf("%d claims ended, none so", len(w.watch.Ended()))
	})
}

// rentedAtMost is the market's own count of everything ever rented.
func (w *world) rentedAtMost(n int) {
	w.t.Helper()
	if got := len(w.rented()); got > n {
		w.t.Errorf("%d instances were rented, want at most %d\n%s", got, n, w.dump())
	}
}

// rented is everything that this installation ever rented, by the market's books.
func (w *world) rented() []market.Instance {
	return slices.DeleteFunc(w.market.Books().Instances, func(i market.Instance) bool { return i.Account == someoneElse })
}

// live is what of it still bills.
func (w *world) live() []market.Instance {
	return slices.DeleteFunc(w.market.Books().Live(), func(i market.Instance) bool { return i.Account == someoneElse })
}

const someoneElse = "someone-else"

// machines are those that were rented, in order.
func (w *world) machines(want ...string) {
	w.t.Helper()
	var got []string
	for _, i := range w.rented() {
		got = append(got, i.Offer.Machine)
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("rented machines %v, want %v", got, want)
	}
}

// soldOnce sells the offer that is about to be rented to someone else, the first time.
func soldOnce(w *world, _ *market.Config, _ *simOptions) {
	var once sync.Once
	w.beforeCreate = func(w *world) {
		once.Do(func() {
			_, err := w.market.Rent(market.RentRequest{Account: someoneElse, OfferID: w.market.Offers()[0].ID, DiskGB: 10})
			if err != nil {
				w.t.Error(err)
			}
		})
	}
}

// bootFor is a bootstrapTimeout that is short where it must run out.
func bootFor(reason string) time.Duration {
	if reason == v1alpha1.ReasonBootTimeout || reason == v1alpha1.ReasonAgentUnreachable {
		return 4 * time.Second
	}
	return time.Minute
}
