package verda_test

import (
	"net/http"
	"testing"

	sim "github.com/munhq/gpuscale/internal/cloudsim/verda"
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
	}, nil, providertest.BrokenDrivers(goodSecret), inside...)
}

type brokenHarness struct {
	*harness
	how providertest.Breakage
}

func (h brokenHarness) Driver() provider.Provider          { return h.how(h.good).Driver() }
func (h brokenHarness) ImpatientDriver() provider.Provider { return h.how(h.impatient).Driver() }
func (h brokenHarness) BadKeyDriver() provider.Provider    { return h.how(h.bad).Driver() }

// TestTheSuiteCatchesAMisreadFigure is TestTheSuiteCatches for what a driver reads inside.
func TestTheSuiteCatchesAMisreadFigure(t *testing.T) {
	providertest.RunMisread(t, func(ct providertest.T, c providertest.Case, wrap func(http.RoundTripper) http.RoundTripper) providertest.Harness {
		return newHarness(ct, c, sim.Options{PricesAsNumbers: true}, wrap)
	}, nil, misreadings())
}

func misreadings() []providertest.Misreading {
	return []providertest.Misreading{
		{Case: "APriceAsTextIsItOrNone", Form: `"price_per_hour":"[0-9.]+"`, As: `"price_per_hour":0.1`},
		{Case: "ANullPriceIsNoOffer", Form: `"price_per_hour":null`, As: `"price_per_hour":0.1`},
		{Case: "AZeroPriceIsNoOffer", Form: `"price_per_hour":0,`, As: `"price_per_hour":0.1,`},
		// Rates are not read: a driver that fails is one for which a row with such a rate is none.
		{Case: "ARateAsTextIsItOrNone", Form: `(?s)^.*"price_per_hour":"[0-9.]+".*"status":"running".*$`, As: `[]`},
		{Case: "ANullRateIsNotSaid", Form: `(?s)^.*"price_per_hour":null.*"status":"running".*$`, As: `[]`},
		{Case: "AZeroRateIsNotSaid", Form: `(?s)^.*"price_per_hour":0,.*"status":"running".*$`, As: `[]`},
	}
}
