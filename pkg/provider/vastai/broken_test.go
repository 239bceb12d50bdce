package vastai_test

import (
	"net/http"
	"testing"

	sim "github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// TestTheSuiteCatches runs each case against drivers that are wrong in what the case is about.
func TestTheSuiteCatches(t *testing.T) {
	var inside []string
	for _, m := range misreadings() {
		inside = append(inside, m.Case)
	}
	providertest.RunBroken(t, func(ct providertest.T, c providertest.Case, how providertest.Breakage) providertest.Harness {
		return brokenHarness{newHarness(ct, c, sim.Options{}, nil), how}
	}, nil, providertest.BrokenDrivers(goodKey), inside...)
}

type brokenHarness struct {
	*harness
	how providertest.Breakage
}

func (h brokenHarness) Driver() provider.Provider          { return h.how(h.good).Driver() }
func (h brokenHarness) ImpatientDriver() provider.Provider { return h.how(h.impatient).Driver() }
func (h brokenHarness) BadKeyDriver() provider.Provider    { return h.how(h.bad).Driver() }
func (h brokenHarness) RotatedDriver() provider.Provider   { return h.how(h.rotated).Driver() }
func (h brokenHarness) OtherDriver() provider.Provider     { return h.how(h.other).Driver() }

// TestTheSuiteCatchesAMisreadFigure is TestTheSuiteCatches for what a driver reads inside.
func TestTheSuiteCatchesAMisreadFigure(t *testing.T) {
	providertest.RunMisread(t, func(ct providertest.T, c providertest.Case, wrap func(http.RoundTripper) http.RoundTripper) providertest.Harness {
		return newHarness(ct, c, sim.Options{}, wrap)
	}, nil, misreadings())
}

func misreadings() []providertest.Misreading {
	return []providertest.Misreading{
		{Case: "APriceAsTextIsItOrNone", Form: `"(dph_base|min_bid)":"[0-9.]+"`, As: `"$1":0.1`},
		{Case: "ANullPriceIsNoOffer", Form: `"(dph_base|min_bid)":null`, As: `"$1":0.1`},
		{Case: "AZeroPriceIsNoOffer", Form: `"(dph_base|min_bid)":0,`, As: `"$1":0.1,`},
		{Case: "ARateAsTextIsItOrNone", Form: `"dph_total":"[0-9.]+"`, As: `"dph_total":0.1`},
		{Case: "ANullRateIsNotSaid", Form: `"dph_total":null`, As: `"dph_total":0.1`},
		{Case: "AZeroRateIsNotSaid", Form: `"dph_total":0,`, As: `"dph_total":0.1,`},
		{Case: "PendingThenRunningWithAnEndpoint", Form: `"HostPort":"[0-9]+"`, As: `"HostPort":"9443"`},
		// A row that cannot be read, for a driver that then reads none.
		{Case: "APriceAsTextIsItOrNone", Form: `(?s)^.*"dph_base":"[0-9.]+".*$`, As: `{"offers":[]}`},
	}
}
