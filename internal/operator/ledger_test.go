package operator_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	simvast "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/ledger/postgrestest"
	"github.com/munhq/gpuscale/internal/operator"
)

// ledgerAt keeps the money history where the URL says.
func ledgerAt(url string) option {
	return func(w *world, _ *market.Config, _ *simvast.Options) {
		w.configure = func(c *operator.Config) { c.LedgerURL = url }
	}
}

// ledger opens the money history beside the controllers.
func (w *world) ledger(url string) *ledger.Ledger {
	w.t.Helper()
	l, err := ledger.Open(w.ctx, url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return l
}

// TestPostgresAway takes the database away at every stage of a claim's life: nothing is bought without it, nothing ends
// because of it, and what happened meanwhile is in it afterwards.
func TestPostgresAway(t *testing.T) {
	s := postgrestest.Start(t)
	url := s.Database(t)
	s.Stop(t)
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, ledgerAt(url))
	w.pool()
	pod := w.pod("acme/tiny")
	w.event("GPUNodeClaim", v1alpha1.ReasonLedgerUnavailable)
	time.Sleep(time.Second)
	w.rentedAtMost(0)

	s.Restart(t)
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)

	s.Stop(t)
	time.Sleep(2 * time.Second) // several looks at a claim whose ledger is away
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	if n := len(w.market.Books().Live()); n != 1 {
		t.Errorf("%d instances live while the ledger is away", n)
	}

	w.remove(pod)
	w.eventually("the claim waits for the ledger, its instance gone", func() error {
		claims := w.claims()
		if len(claims) != 1 || claims[0].Status.Phase != v1alpha1.PhaseTerminated || len(w.market.Books().Live()) > 0 {
			return fmt.Errorf("%d claims, %d live", len(claims), len(w.market.Books().Live()))
		}
		return nil
	})
	time.Sleep(time.Second)
	if claims := w.claims(); len(claims) != 1 || !controllerutil.ContainsFinalizer(&claims[0], v1alpha1.Finalizer) {
		t.Errorf("the claim did not wait: %d", len(claims))
	}

	s.Restart(t)
	w.eventually("the claim goes", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	w.inLedger(w.ledger(url), w.market.Books().Instances[0], w.watch.Ended()[0])
}

// TestPostgresIsLostWhileAnInstanceIsRented takes the database away between the intent, which is in it, and the answer of the
// provider, which cannot be: the instance serves and ends all the same, is never bought twice, and all of it is in the
// database once that is back.
func TestPostgresIsLostWhileAnInstanceIsRented(t *testing.T) {
	s := postgrestest.Start(t)
	url := s.Database(t)
	var once sync.Once
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, ledgerAt(url), func(w *world, _ *market.Config, _ *simvast.Options) {
		w.beforeCreate = func(*world) { once.Do(func() { s.Stop(t) }) }
	})
	w.pool()
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.remove(pod)
	w.eventually("its instance is given back", func() error {
		if n := len(w.live()); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	w.rentedAtMost(1)
	s.Restart(t)
	w.eventually("the claim goes", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	w.inLedger(w.ledger(url), w.market.Books().Instances[0], w.watch.Ended()[0])
}

// inLedger insists that the ledger has all of a rental's life.
func (w *world) inLedger(l *ledger.Ledger, rented market.Instance, claim *v1alpha1.GPUNodeClaim) {
	w.t.Helper()
	if live, err := l.Live(w.ctx); err != nil || len(live) > 0 {
		w.t.Errorf("live in the ledger: %v, %v", live, err)
	}
	row, err := l.Get(w.ctx, rented.Label)
	if err != nil {
		w.t.Fatal(err)
	}
	const near = 5 * time.Second // the controller sees both ends later than the market
	switch {
	case row.InstanceID != rented.ID || row.Claim != claim.Name || row.Refused || row.EndReason == "":
		w.t.Errorf("row %+v of instance %s", row, rented.ID)
	case row.CreatedAt == nil || row.GoneAt == nil || row.DestroyAskedAt == nil:
		w.t.Errorf("row without its times: %+v", row)
	case row.CreatedAt.Sub(rented.CreatedAt).Abs() > near || row.DestroyAskedAt.Sub(rented.GoneAt).Abs() > near:
		w.t.Errorf("from %s to %s, the market says %s to %s", row.CreatedAt, row.DestroyAskedAt, rented.CreatedAt, rented.GoneAt)
	}
	for i, r := range claim.Status.Rates {
		if i == len(claim.Status.Rates)-1 && (row.Rate == nil || *row.Rate != r.DollarsPerHour) {
			w.t.Errorf("rate %v, the claim had %v", row.Rate, claim.Status.Rates)
		}
	}
	events, err := l.Events(w.ctx, rented.Label)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, step := range claim.Status.Steps {
		if !slices.ContainsFunc(events, func(e ledger.Event) bool { return e.Kind == step.Name && e.At.Equal(step.At.Time) }) {
			w.t.Errorf("no event %s at %s in the ledger, of %d", step.Name, step.At, len(events))
		}
	}
}

// TestRefusedAttemptsAreInTheLedger: each has a row that is closed, whatever came after it on the claim.
func TestRefusedAttemptsAreInTheLedger(t *testing.T) {
	url := postgrestest.Start(t).Database(t)
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, soldOnce, ledgerAt(url))
	w.pool()
	w.podSays(w.pod("acme/tiny"), corev1.ConditionTrue, v1alpha1.PodReasonServed)
	l := w.ledger(url)
	w.eventually("one live row", func() error {
		live, err := l.Live(w.ctx)
		if err != nil || len(live) != 1 || !slices.ContainsFunc(w.market.Books().Live(), func(in market.Instance) bool {
			return in.ID == live[0].InstanceID && in.Label == live[0].Token
		}) {
			return fmt.Errorf("%+v, %w", live, err)
		}
		events, err := l.Events(w.ctx, live[0].Token)
		if err != nil || !slices.ContainsFunc(events, func(e ledger.Event) bool { return e.Kind == "Ready" }) {
			return fmt.Errorf("%v, %w", events, err)
		}
		return nil
	})
}
