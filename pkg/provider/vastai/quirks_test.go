package vastai_test

import (
	"fmt"

	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// Show has the simulated Vast.ai do what the provider reference says that the vendor has been seen to.
func (h *harness) Show(q providertest.Quirk, on string) error {
	switch q {
	case providertest.ListedGone:
		return shown(h.market.SellOut(on), "offer", on)
	default:
		return fmt.Errorf("quirk %q is not known here", q)
	}
}

// shown is an error where what should be awkward does not exist.
func shown(ok bool, what, id string) error {
	if !ok {
		return fmt.Errorf("no %s %s", what, id)
	}
	return nil
}
