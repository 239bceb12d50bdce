package verda_test

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/munhq/gpuscale/pkg/money"
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
		return brokenHarness{newHarness(ct, c, optionsOf(c), nil), how}
	}, ownCases(), slices.Concat(providertest.BrokenDrivers(goodSecret), brokenHere()), inside...)
}

type brokenHarness struct {
	*harness
	how providertest.Breakage
}

func (h brokenHarness) Driver() provider.Provider          { return h.how(h.good).Driver() }
func (h brokenHarness) ImpatientDriver() provider.Provider { return h.how(h.impatient).Driver() }
func (h brokenHarness) BadKeyDriver() provider.Provider    { return h.how(h.bad).Driver() }

// brokenHere are wrong in what only this vendor has.
func brokenHere() []providertest.BrokenDriver {
	return []providertest.BrokenDriver{
		{Name: "knows no machine that was taken", Cases: "AReclaimIsToldAndEnds",
			How: providertest.ReadsTwisted(func(i *provider.Instance) { i.Interrupted = false })},
		{Name: "does not try again what is refused", Cases: deleteWaits, How: providertest.DestroyTwisted(
			func(ctx context.Context, p provider.Provider, id string) error {
				_ = p.DestroyInstance(ctx, id) // the fault of this driver
				return nil
			})},
		{Name: "pays what it costs now", Cases: "APriceThatRoseIsNotPaid",
			How: providertest.RequestTwisted(func(r *provider.CreateRequest) { r.MaxPrice = money.MustParse("100") })},
	}
}

// TestTheSuiteCatchesAMisreadFigure is TestTheSuiteCatches for what a driver reads inside.
func TestTheSuiteCatchesAMisreadFigure(t *testing.T) {
	providertest.RunMisread(t, func(ct providertest.T, c providertest.Case, wrap func(http.RoundTripper) http.RoundTripper) providertest.Harness {
		o := optionsOf(c)
		o.PricesAsNumbers = true
		return newHarness(ct, c, o, wrap)
	}, ownCases(), misreadings())
}

func misreadings() []providertest.Misreading {
	return []providertest.Misreading{
		{Case: "APriceAsTextIsItOrNone", Form: `"price_per_hour":"[0-9.]+"`, As: `"price_per_hour":0.1`},
		{Case: "ANullPriceIsNoOffer", Form: `"price_per_hour":null`, As: `"price_per_hour":0.1`},
		{Case: "AZeroPriceIsNoOffer", Form: `"price_per_hour":0,`, As: `"price_per_hour":0.1,`},
		// Rates are not read: a driver that fails is one for which a row with such a rate is none.
		{Case: "ARateAsTextIsItOrNone", Form: `(?s)^.*"price_per_hour":"[0-9.]+".*"status":"running".*$`, As: `[]`},
		{Case: "ANullRateIsNotSaid", Form: `(?s)^.*"price_per_hour":null.*"status":"running".*$`, As: `[]`},
		// For one that does not know which script, or which disk, is an instance's.
		{Case: "AnEndLeavesNothing", Form: `"startup_script_id":"[^"]*"`, As: `"startup_script_id":null`},
		{Case: "AnEndWithoutAWordLeavesNothing", Form: `"os_volume_id":"[^"]*"`, As: `"os_volume_id":"00000000-0000-4000-8000-000000000000"`},
		{Case: "ARefusedCreateLeavesNothing", Form: `^[0-9a-f]{8}(-[0-9a-f-]*)$`, As: `00000000$1`},
		// For one that does not look what is there.
		{Case: "ALostAnswersScriptIsRemoved", Form: `(?s)^\[\{"id":[^]]*"script":.*$`, As: `[]`},
		{Case: "LostScriptsDoNotFillTheAccount", Form: `(?s)^\[\{"id":[^]]*"script":.*$`, As: `[]`},
		{Case: "WhatVanishedIsTidied", Form: `(?s)^\[\{"id":[^]]*"script":.*$`, As: `[]`},
		{Case: "TheTrashIsEmptied", Form: `"status":"deleted"`, As: `"status":"attached"`},
		{Case: "AReclaimIsToldAndEnds", Form: `"status":"discontinued"`, As: `"status":"offline"`},
		{Case: "AZeroRateIsNotSaid", Form: `(?s)^.*"price_per_hour":0,.*"status":"running".*$`, As: `[]`},
	}
}
