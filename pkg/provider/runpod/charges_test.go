package runpod_test

import (
	"testing"
	"time"

	sim "github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// TestChargesAreWhatTheBooksSay of pods of several hours, one of which was stopped for a while, to the micro-dollar an hour.
func TestChargesAreWhatTheBooksSay(t *testing.T) {
	h := newHarness(t, providertest.Case{}, sim.Options{}, nil)
	b := brokenHarness{harness: h}
	h.supply()
	first := b.buy(t, b.find(t, provider.OfferQuery{}, func(o provider.Offer) bool { return o.GPUCount == 2 }))
	h.Start(first.ID)
	h.Wait(100 * time.Minute)
	h.Stop(first.ID)
	h.Wait(30 * time.Minute)
	second := b.buy(t, b.find(t, provider.OfferQuery{}, func(o provider.Offer) bool { return o.GPUCount == 1 }))
	h.Start(second.ID)
	h.Wait(3 * time.Hour)
	end := h.Clock.Now()
	for _, id := range []string{first.ID, second.ID} {
		if err := h.good.DestroyInstance(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	h.Wait(3 * time.Hour)
	charges, err := h.good.Charges(t.Context(), first.CreatedAt.Add(-24*time.Hour), h.Clock.Now().Add(24*time.Hour))
	if err != nil || len(charges) != 2 {
		t.Fatalf("%+v, %v", charges, err)
	}
	for _, in := range h.Market.Books().Instances {
		for _, c := range charges {
			if c.InstanceID != in.ID {
				continue
			}
			if off := c.Amount.Micros() - int64(in.Spent)/1000; off < -10 || off > 10 || in.Spent == 0 {
				t.Errorf("%s: $%s is charged, the books have $%s", in.ID, c.Amount, in.Spent)
			}
			if c.From.After(in.CreatedAt) || c.To.Before(end) {
				t.Errorf("%s: from %s to %s; it was from %s to %s", in.ID, c.From, c.To, in.CreatedAt, end)
			}
		}
	}
}
