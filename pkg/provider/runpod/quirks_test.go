package runpod_test

import (
	"fmt"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// Show has the simulated RunPod do what the provider reference says that the vendor has been seen to.
func (h *harness) Show(q providertest.Quirk, on string) error {
	switch q {
	case providertest.ListedGone:
		return cloudsimtest.Existing(h.Market.SellOut(h.marketOffer(on)), "offer", on)
	case providertest.LowBid:
		return providertest.Cannot("the API has no bids (§0)")
	case providertest.BadKeyAsNotFound:
		return providertest.Cannot("a key that is not known is 401 on every call (§1, §7)")
	case providertest.Fails200:
		h.Fail(providertest.Op(on), providertest.FailureIn200, 1)
	case providertest.DestroyIgnored:
		h.Market.DestroyIgnored(1)
	case providertest.DestroyLate:
		h.Market.SetDestroyLag(providertest.DestroyTakes)
	case providertest.DestroyRefused:
		h.Market.DestroyRefused(1)
	case providertest.LatePorts:
		return h.Market.HoldPorts(on, true)
	case providertest.NoRuntime:
		h.server.SayRunning(on, true)
	case providertest.Unreachable:
		return providertest.Cannot("the API has no word for a host that is away; the pod stays RUNNING or ends (§4, §6)")
	case providertest.DeletedElsewhere:
		return h.Market.Destroy(h.server.Account(), on, "tenant")
	case providertest.PriceText, providertest.PriceNull, providertest.PriceZero:
		h.Rewrite(providertest.Search, each("gpus", func(row map[string]any) {
			if price, ok := row["price"].(map[string]any); ok && strings.HasSuffix(on, fmt.Sprint("/", row["id"])) {
				price["secure"] = cloudsimtest.Odd(q, price["secure"])
			}
		}))
	case providertest.RateText, providertest.RateNull, providertest.RateZero:
		change := func(pod map[string]any) {
			if pod["id"] == on {
				pod["cost"] = cloudsimtest.Odd(q, pod["cost"])
			}
		}
		h.Rewrite(providertest.List, each("pods", change))
		h.Rewrite(providertest.Get, whole(change))
	case providertest.PageTwoFails, providertest.EndlessPages:
		return h.showPages(q)
	default:
		return fmt.Errorf("quirk %q is not known here", q)
	}
	return nil
}

func (h *harness) showPages(q providertest.Quirk) error {
	if h.options.PageSize == 0 {
		return providertest.Cannot("the list that the description knows has no pages; that of newer servers is tried too (§4)")
	}
	if q == providertest.PageTwoFails {
		h.FailAfter(providertest.List, 1, providertest.ServerError, 10)
		return nil
	}
	first := ""
	h.Rewrite(providertest.List, whole(func(doc map[string]any) {
		pages, ok := doc["pagination"].(map[string]any)
		if !ok {
			return
		}
		if next, ok := pages["nextCursor"].(string); ok && first == "" {
			first = next
		}
		pages["hasNextPage"], pages["nextCursor"] = true, first
	}))
	return nil
}

// whole changes a document, each every row of one of its lists.
func whole(change func(map[string]any)) func(any) any {
	return func(doc any) any {
		if o, ok := doc.(map[string]any); ok {
			change(o)
		}
		return doc
	}
}

func each(list string, change func(map[string]any)) func(any) any {
	return whole(func(doc map[string]any) {
		rows, _ := doc[list].([]any)
		for _, row := range rows {
			if o, ok := row.(map[string]any); ok {
				change(o)
			}
		}
	})
}
