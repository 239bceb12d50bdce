package tensordock_test

import (
	"fmt"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	sim "github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// Show has the simulated TensorDock do what the provider reference says that the vendor has been seen to, and what it
// does not exclude.
func (h *harness) Show(q providertest.Quirk, on string) error {
	switch q {
	case providertest.ListedGone: // §2, §11.11
		return cloudsimtest.Existing(h.Market.SellOut(h.marketOffer(on).ID), "offer", on)
	case providertest.Fails200: // §3
		h.Fail(providertest.Op(on), providertest.FailureIn200, 1)
	case providertest.DestroyIgnored: // §11.1
		h.Market.DestroyIgnored(1)
	case providertest.DestroyLate: // §5
		h.Market.SetDestroyLag(providertest.DestroyTakes)
	case providertest.DestroyRefused:
		h.Market.DestroyRefused(1)
	case providertest.LatePorts: // §9
		return h.runWithoutPorts(on)
	case providertest.NoRuntime: // §4: powered, and no more
		h.rewriteInstance(on, func(row map[string]any) {
			if strings.HasSuffix(fmt.Sprint(row["status"]), "ing") && row["status"] != "deleting" {
				row["status"] = "running"
			}
		})
	case providertest.PriceText, providertest.PriceNull, providertest.PriceZero:
		o := h.marketOffer(on)
		for _, id := range []string{sim.NodeID(o.Machine), sim.LocationID(o.Region)} {
			h.Rewrite(providertest.Search, inObject(id, func(row map[string]any) { oddPrices(q, row) }))
		}
	case providertest.RateText, providertest.RateNull, providertest.RateZero:
		h.rewriteInstance(on, cloudsimtest.OddFields(q, "rateHourly"))
	case providertest.Unreachable:
		return providertest.Cannot("no status speaks of the host (§4): the VM goes on running, and only the agent is missed")
	case providertest.DeletedElsewhere:
		return h.Market.Destroy(h.server.Account(), on, "tenant")
	case providertest.BadKeyAsNotFound:
		return providertest.Cannot("a bad token is answered 401 or 403 (§1)")
	case providertest.PageTwoFails, providertest.EndlessPages:
		return providertest.Cannot("the list has no pages (§2, §4)")
	default:
		return fmt.Errorf("quirk %q is not known here", q)
	}
	return nil
}

// runWithoutPorts lets an instance come up: one with an address of its own has none yet, another no forwards.
func (h *harness) runWithoutPorts(id string) error {
	in, err := h.Market.Get(h.server.Account(), id)
	if err != nil {
		return err
	}
	if portInName.MatchString(in.Label) {
		if err := h.Market.HoldPorts(id, true); err != nil {
			return err
		}
	}
	return h.Runs(id, nil)
}

// rewriteInstance changes an instance in whatever shows it.
func (h *harness) rewriteInstance(id string, change func(row map[string]any)) {
	for _, op := range []providertest.Op{providertest.Get, providertest.List} {
		h.Rewrite(op, inObject(id, change))
	}
}

// inObject applies a change to the objects with an id, wherever they are, or to their attributes where they have such.
func inObject(id string, change func(row map[string]any)) func(any) any {
	var walk func(doc any) any
	walk = func(doc any) any {
		switch v := doc.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			attributes, nested := v["attributes"].(map[string]any)
			switch {
			case v["id"] == id && nested:
				change(attributes)
			case v["id"] == id:
				change(v)
			default:
				for _, item := range v {
					walk(item)
				}
			}
		}
		return doc
	}
	return walk
}

// oddPrices are those of the GPUs of a host or of a data centre.
func oddPrices(q providertest.Quirk, row map[string]any) {
	if free, ok := row["available_resources"].(map[string]any); ok {
		row = free
	}
	gpus, _ := row["gpus"].([]any)
	for _, g := range gpus {
		if g, ok := g.(map[string]any); ok {
			cloudsimtest.OddFields(q, "price_per_hr")(g)
		}
	}
}
