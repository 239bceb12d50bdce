package operator_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Unwrap lets the provider's account be found.
func (l lags) Unwrap() provider.Provider { return l.Provider }

// TestCostsEqualTheMarketsBooks: whatever became of a rental, the ledger has its bill to the micro-dollar.
func TestCostsEqualTheMarketsBooks(t *testing.T) {
	dies := offer("1001")
	dies.Broken, dies.MinBid = market.DiesBooting, market.USD(0.10)
	url := "sqlite://" + t.TempDir() + "/ledger.db"
	w := start(t, []market.Offer{dies, offer("1002"), offer("1003")}, func(w *world, _ *market.Config, _ *simvast.Options) {
		w.configure = func(c *operator.Config) { c.LedgerURL, c.BillEvery = url, 200*time.Millisecond }
	})
	w.pool()
	one, two := w.pod("acme/tiny"), w.pod("acme/small")
	w.podSays(one, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.podSays(two, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.remove(one)
	w.remove(two)
	w.eventually("all claims are gone", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	l, books := w.ledger(url), w.market.Books()
	w.eventually("every bill is in the ledger", func() error {
		left, err := l.Unbilled(w.ctx, time.Unix(0, 0))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("%d without, %w", len(left), err)
		}
		return nil
	})
	now := time.Now().Add(time.Minute)
	rows, err := l.Costs(w.ctx, time.Unix(0, 0), now, now)
	if err != nil || len(rows) != books.Rented || books.Rented < 3 {
		t.Fatalf("%d rows for %d rentals, %v", len(rows), books.Rented, err)
	}
	for _, row := range rows {
		for _, in := range books.Instances {
			if micros := (int64(in.Spent) + 500) / 1000; in.ID == row.Instance.InstanceID && (row.Cost.Micros() != micros || row.Estimated) {
				t.Errorf("instance %s: $%s (estimated %v), the market's books say $%s", in.ID, row.Cost, row.Estimated, in.Spent)
			}
		}
	}
}
