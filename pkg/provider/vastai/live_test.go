package vastai_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// tryLive makes a live run of the simulated cloud, in stepped time, and returns what it complained of.
func tryLive(t *testing.T, budget string, arrange func(*harness, *providertest.Broken, context.CancelFunc)) (*harness, []string) {
	t.Helper()
	h := newHarness(t, providertest.Case{}, sim.Options{}, nil)
	h.AddOffers(3)
	ctx, interrupt := context.WithCancel(t.Context())
	t.Cleanup(interrupt)
	d := providertest.Broken{Provider: h.good}
	if arrange != nil {
		arrange(h, &d, interrupt)
	}
	amount, err := money.ParseAmount(budget)
	if err != nil {
		t.Fatal(err)
	}
	return h, providertest.Attempt(ctx, func(lt providertest.T) {
		providertest.RunLive(lt, providertest.Live{Driver: d, BadKey: h.bad, Budget: amount, Clock: h.Clock})
	})
}

// wantNothingLeft checks the books: nothing of a live run is there, and what it cost is within its budget.
func wantNothingLeft(t *testing.T, h *harness, rented int, budget market.Nano) {
	t.Helper()
	var all int
	var spent market.Nano
	for _, in := range h.Market.Books().Instances {
		if !strings.HasPrefix(in.Label, providertest.LiveTagPrefix) {
			continue
		}
		all++
		spent += in.Spent
		if in.State != market.Gone {
			t.Errorf("instance %s is %s", in.ID, in.State)
		}
	}
	if all != rented || spent > budget {
		t.Errorf("%d were rented for $%s; want %d within $%s", all, spent, rented, budget)
	}
}

const cents = market.Nano1 / 100

func TestALiveRunSpendsWithinItsBudgetAndLeavesNothing(t *testing.T) {
	h, complaints := tryLive(t, "0.05", nil)
	if len(complaints) > 0 {
		t.Errorf("%q", complaints)
	}
	wantNothingLeft(t, h, 1, 5*cents)
}

func TestALiveRunThatCouldCostMoreRentsNothing(t *testing.T) {
	h, complaints := tryLive(t, "0.02", nil) // the cheapest costs $0.25 an hour
	if len(complaints) != 1 || !strings.Contains(complaints[0], "the budget is $0.02") {
		t.Errorf("%q", complaints)
	}
	wantNothingLeft(t, h, 0, 0)
}

func TestALiveRunLeavesNothingHoweverItEnds(t *testing.T) {
	for name, arrange := range map[string]func(*harness, *providertest.Broken, context.CancelFunc){
		"the answer of the create is lost": func(h *harness, _ *providertest.Broken, _ context.CancelFunc) {
			h.Fail(providertest.Create, providertest.LostAnswer, 1)
		},
		"the create fails with an instance": func(h *harness, _ *providertest.Broken, _ context.CancelFunc) {
			h.Fail(providertest.Create, providertest.FailedWithInstance, 1)
		},
		"destroys are refused for a while":  func(h *harness, _ *providertest.Broken, _ context.CancelFunc) { h.Market.DestroyRefused(4) },
		"destroys are not done for a while": func(h *harness, _ *providertest.Broken, _ context.CancelFunc) { h.Market.DestroyIgnored(4) },
		"lists fail while it ends": func(h *harness, _ *providertest.Broken, _ context.CancelFunc) {
			h.FailAfter(providertest.List, 6, providertest.ServerError, 4)
		},
		"the driver panics": func(_ *harness, d *providertest.Broken, _ context.CancelFunc) {
			d.Get = func(context.Context, string) (provider.Instance, error) { panic("the driver's fault") }
		},
		"the driver panics after it bought": func(h *harness, d *providertest.Broken, _ context.CancelFunc) {
			d.Create = func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				_, _ = h.good.CreateInstance(ctx, r) // the fault of this driver
				panic("the driver's fault")
			}
		},
		"it is interrupted while it waits": func(h *harness, d *providertest.Broken, interrupt context.CancelFunc) {
			d.Get = func(ctx context.Context, id string) (provider.Instance, error) {
				interrupt()
				return h.good.GetInstance(ctx, id)
			}
		},
		"it is interrupted in its create": func(h *harness, d *providertest.Broken, interrupt context.CancelFunc) {
			d.Create = func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				arrived := h.Hang(providertest.Create)
				go func() {
					<-arrived
					interrupt()
				}()
				return h.good.CreateInstance(ctx, r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, complaints := tryLive(t, "0.05", arrange)
			t.Logf("%q", complaints)
			wantNothingLeft(t, h, 1, 5*cents)
		})
	}
}

func TestALiveRunRentsNothingThatItCouldNotEnd(t *testing.T) {
	h := newHarness(t, providertest.Case{}, sim.Options{}, nil)
	h.AddOffers(3)
	end := h.Clock.Now().Add(providertest.LiveTakes(h.good.Capabilities()))
	complaints := providertest.Attempt(t.Context(), func(lt providertest.T) {
		providertest.RunLive(lt, providertest.Live{Driver: h.good, Budget: providertest.LiveBudget(), Clock: h.Clock, End: end})
	})
	if len(complaints) != 1 || !strings.Contains(complaints[0], "use -timeout") {
		t.Errorf("%q", complaints)
	}
	wantNothingLeft(t, h, 0, 0)
}

func TestALiveRunTriesToTheEndOfItsProcess(t *testing.T) {
	h := newHarness(t, providertest.Case{}, sim.Options{}, nil)
	h.AddOffers(3)
	h.Market.DestroyRefused(60) // each of the run's looks is ten seconds and more after the one before
	complaints := providertest.Attempt(t.Context(), func(lt providertest.T) {
		providertest.RunLive(lt, providertest.Live{Driver: h.good, Budget: providertest.LiveBudget(), Clock: h.Clock,
			End: h.Clock.Now().Add(30 * time.Minute)})
	})
	if len(complaints) == 0 || strings.Contains(strings.Join(complaints, " "), "STILL BE BILLED") {
		t.Errorf("%q; want the refusals alone", complaints)
	}
	wantNothingLeft(t, h, 1, market.Nano1)
}

func TestALiveRunEndsWhatAnEarlierOneLeftAndNothingElse(t *testing.T) {
	var others string
	h, complaints := tryLive(t, "0.05", func(h *harness, _ *providertest.Broken, _ context.CancelFunc) {
		for _, label := range []string{providertest.LiveTagPrefix + "0123456789abcdef", "gs-livetes0-0123456789abcdef", "mine"} {
			in, err := h.Market.Rent(market.RentRequest{
				Account: h.server.Account(), OfferID: h.Market.Offers()[0].ID, DiskGB: 10, Image: "x:y", Label: label,
			})
			h.Must("rent", label, err)
			others = in.ID
		}
		h.AddOffers(1)
		h.Clock.Step(h.good.Capabilities().ListLag)
	})
	if len(complaints) > 0 {
		t.Errorf("%q", complaints)
	}
	wantNothingLeft(t, h, 2, 5*cents)
	if live := h.Market.Books().Now.Live; live != 2 {
		t.Errorf("%d of the account's other instances are left; want 2, one of them %s", live, others)
	}
}
