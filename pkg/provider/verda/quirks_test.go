package verda_test

import (
	"fmt"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// Show has the simulated Verda do what the provider reference says that the vendor has been seen to, and what it does not
// exclude.
func (h *harness) Show(q providertest.Quirk, on string) error {
	switch q {
	case providertest.ListedGone: // §2: it is no reservation
		return cloudsimtest.Existing(h.Market.SellOut(marketOffer(on)), "offer", on)
	case providertest.LowBid:
		return providertest.Cannot("spot has a price and no bids (§2)")
	case providertest.Fails200: // §5; the rest is not excluded
		h.Fail(providertest.Op(on), providertest.FailureIn200, 1)
	case providertest.DestroyIgnored:
		h.Market.DestroyIgnored(1)
	case providertest.DestroyLate: // §4: deleting
		h.Market.SetDestroyLag(providertest.DestroyTakes)
	case providertest.DestroyRefused: // §5, §9
		h.server.RefuseDeletes(1)
	case providertest.LatePorts: // §4: ip is null
		return h.runWithoutAddress(on)
	case providertest.NoRuntime: // §4: ip before the OS is up, and the other way round
		h.rewriteInstance(on, func(row map[string]any) {
			if row["status"] != "running" {
				row["status"], row["ip"] = "running", nil
			}
		})
	case providertest.PriceText, providertest.PriceNull, providertest.PriceZero:
		name, _, _ := strings.Cut(on, "/")
		h.Rewrite(providertest.Search, inRows("instance_type", name, cloudsimtest.OddFields(q, "price_per_hour", "spot_price")))
	case providertest.RateText, providertest.RateNull, providertest.RateZero:
		h.rewriteInstance(on, cloudsimtest.OddFields(q, "price_per_hour"))
	case providertest.Unreachable: // §4: unknown
		return h.Market.SetOffline(on, true)
	case providertest.DeletedElsewhere:
		return h.Market.Destroy(h.server.Account(), on, "tenant")
	case providertest.BadKeyAsNotFound:
		return providertest.Cannot("credentials are refused when a token is asked for (§1)")
	case providertest.PageTwoFails, providertest.EndlessPages:
		return providertest.Cannot("the list has no pages (§4)")
	default:
		return fmt.Errorf("quirk %q is not known here", q)
	}
	return nil
}

// runWithoutAddress lets an instance come up, its address not shown.
func (h *harness) runWithoutAddress(id string) error {
	if err := h.Market.HoldPorts(id, true); err != nil {
		return err
	}
	return h.Runs(id, nil)
}

// rewriteInstance changes an instance in whatever shows it.
func (h *harness) rewriteInstance(id string, change func(row map[string]any)) {
	for _, op := range []providertest.Op{providertest.Get, providertest.List} {
		h.Rewrite(op, inRows("id", id, change))
	}
}

// inRows applies a change to the rows of which a field has a value, in a document that is a list of rows, or one row.
func inRows(key, value string, change func(row map[string]any)) func(any) any {
	return func(doc any) any {
		rows, isList := doc.([]any)
		if !isList {
			rows = []any{doc}
		}
		for _, r := range rows {
			if row, ok := r.(map[string]any); ok && fmt.Sprint(row[key]) == value {
				change(row)
			}
		}
		return doc
	}
}
