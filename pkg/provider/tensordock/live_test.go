package tensordock_test

import (
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// TestALiveRun is the run that GPUSCALE_LIVE makes at the real cloud, at the simulated one in each of its variants: it
// passes, within the budget, and leaves nothing.
func TestALiveRun(t *testing.T) {
	for name, options := range variants() {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, providertest.Case{}, options, nil)
			h.AddOffers(3)
			for _, complaint := range providertest.Attempt(t.Context(), func(lt providertest.T) {
				providertest.RunLive(lt, providertest.Live{Driver: h.good, BadKey: h.bad, Budget: money.AmountFromMicros(100_000), Clock: h.Clock})
			}) {
				t.Error(complaint)
			}
			rented := 0
			for _, in := range h.Market.Books().Instances {
				if strings.HasPrefix(in.Label, providertest.LiveTagPrefix) {
					rented++
				}
			}
			if b := h.Market.Books(); rented != 1 || b.Now.Live != 0 || b.Spent > market.Nano1/10 {
				t.Errorf("%d rented, %d left, $%s spent", rented, b.Now.Live, b.Spent)
			}
		})
	}
}
