package vastai_test

import (
	"fmt"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// Show has the simulated Vast.ai do what the provider reference says that the vendor has been seen to, and what it does
// not exclude.
func (h *harness) Show(q providertest.Quirk, on string) error {
	switch q {
	case providertest.ListedGone: // §10.9
		return cloudsimtest.Existing(h.Market.SellOut(on), "offer", on)
	case providertest.LowBid: // §3, §10.4
		return cloudsimtest.Existing(h.Market.RaiseFloor(on, market.USD(100)), "offer", on)
	case providertest.Fails200: // §3
		h.Fail(providertest.Op(on), providertest.FailureIn200, 1)
	case providertest.DestroyIgnored: // §10.12
		h.Market.DestroyIgnored(1)
	case providertest.DestroyLate:
		h.Market.SetDestroyLag(providertest.DestroyTakes)
	case providertest.DestroyRefused: // §10.12
		h.Market.DestroyRefused(1)
	case providertest.LatePorts: // §4
		return h.runWithoutPorts(on)
	case providertest.NoRuntime: // §4: the other three words of state are targets
		h.rewriteInstance(on, func(row map[string]any) {
			if row["actual_status"] != "running" {
				row["cur_state"], row["intended_status"], row["next_state"] = "running", "running", "running"
				row["ports"] = map[string]any{"9443/tcp": nil}
			}
		})
	case providertest.PriceText, providertest.PriceNull, providertest.PriceZero:
		h.Rewrite(providertest.Search, inRows("offers", on, cloudsimtest.OddFields(q, "dph_base", "min_bid", "dph_total")))
	case providertest.RateText, providertest.RateNull, providertest.RateZero:
		h.rewriteInstance(on, cloudsimtest.OddFields(q, "dph_base", "dph_total"))
	case providertest.Unreachable: // §4, §6
		return h.Market.SetOffline(on, true)
	case providertest.DeletedElsewhere:
		return h.Market.Destroy(h.server.Account(), on, "tenant")
	case providertest.BadKeyAsNotFound: // §1
		if h.options.BadKeyStatus != 0 {
			return providertest.Cannot(fmt.Sprintf("in this variant a bad key is answered %d", h.options.BadKeyStatus))
		}
	case providertest.PageTwoFails:
		h.FailAfter(providertest.List, 1, providertest.ServerError, 100)
	case providertest.EndlessPages:
		h.Rewrite(providertest.List, firstTokenAgain())
	default:
		return fmt.Errorf("quirk %q is not known here", q)
	}
	return nil
}

// runWithoutPorts lets an instance come up, its ports not shown.
func (h *harness) runWithoutPorts(id string) error {
	if err := h.Market.HoldPorts(id, true); err != nil {
		return err
	}
	return h.Runs(id, nil)
}

// rewriteInstance changes an instance in whatever shows it.
func (h *harness) rewriteInstance(id string, change func(row map[string]any)) {
	for _, op := range []providertest.Op{providertest.Get, providertest.List} {
		h.Rewrite(op, inRows("instances", id, change))
	}
}

// inRows applies a change to the row with an id, in a document that has rows, or the one row, under a key.
func inRows(key, id string, change func(row map[string]any)) func(any) any {
	return func(doc any) any {
		top, _ := doc.(map[string]any)
		rows, isList := top[key].([]any)
		if !isList {
			rows = []any{top[key]}
		}
		for _, r := range rows {
			if row, ok := r.(map[string]any); ok && fmt.Sprint(row["id"]) == id {
				change(row)
			}
		}
		return doc
	}
}

// firstTokenAgain sends every page after the first back to the second.
func firstTokenAgain() func(any) any {
	var first any
	return func(doc any) any {
		top, _ := doc.(map[string]any)
		if first == nil {
			first = top["next_token"]
		}
		if first != nil {
			top["next_token"] = first
		}
		return doc
	}
}
