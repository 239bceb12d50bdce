package tensordock_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// TestTheSuiteCatches runs each case, of the suite and of this vendor, against drivers that are wrong in what the case is
// about.
func TestTheSuiteCatches(t *testing.T) {
	var inside []string
	for _, m := range misreadings() {
		inside = append(inside, m.Case)
	}
	providertest.RunBroken(t, func(ct providertest.T, c providertest.Case, how providertest.Breakage) providertest.Harness {
		return brokenHarness{newHarness(ct, c, optionsOf(c), nil), how}
	}, ownCases(), slices.Concat(providertest.BrokenDrivers(goodKey), brokenHere()), inside...)
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
	twist := providertest.ReadsTwisted
	return []providertest.BrokenDriver{
		{Name: "takes the port asked for as the port given", Cases: "AForwardComesOutElsewhere AForwardThatIsIgnored",
			How: twist(func(i *provider.Instance) { i.Address, i.Port = "127.0.0.1", 9443 })},
		{Name: "does not know the port of an address of its own", Cases: "AnAddressOfItsOwn",
			How: twist(func(i *provider.Instance) { i.Port = 9 })},
		{Name: "takes the name for the tag", Cases: "AnAddressOfItsOwn",
			How: twist(func(i *provider.Instance) { i.Tag += "-p9443" })},
		{Name: "knows no GPU that was given to another", Cases: "AGPUThatIsTakenIsInterrupted",
			How: twist(func(i *provider.Instance) { i.Interrupted = false })},
		{Name: "whatever is down runs", Cases: "AGPUThatIsTakenIsInterrupted AStoppedVMIsBilledUntilItsEnd",
			How: twist(func(i *provider.Instance) { i.State = provider.StateRunning })},
		{Name: "what ends has stopped", Cases: "ADeletionIsOnItsWay",
			How: twist(func(i *provider.Instance) {
				if i.State == provider.StateEnding {
					i.State = provider.StateStopped
				}
			})},
		{Name: "prices the GPU alone", Cases: "ThePriceIsOfTheShape",
			How: providertest.OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) {
				o.Price = money.MustParse("0.402").MulInt(o.GPUCount)
			})},
		{Name: "promises more memory than it orders", Cases: "ThePriceIsOfTheShape",
			How: providertest.OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) {
				more := 2 * *o.RAMGB
				o.RAMGB = &more
			})},
		{Name: "takes insufficient capacity for insufficient balance", Cases: "InsufficientCapacityIsNoBill APortThatIsTakenIsNoBug",
			How: providertest.KindTwisted(provider.NoCapacity, provider.NoBalance)},
		{Name: "asks again what the vendor cannot read", Cases: "AnArrayOfComplaintsIsOurs",
			How: providertest.KindTwisted(provider.Invalid, provider.Unknown)},
		{Name: "believes any 404", Cases: "APageNotFoundIsNoInstanceGone",
			How: providertest.KindTwisted(provider.Unknown, provider.NotFound)},
		{Name: "escapes what is to be run", Cases: "TheScriptArrivesAsItIs",
			How: providertest.RequestTwisted(func(r *provider.CreateRequest) {
				r.Boot.UserData = escaped(r.Boot.UserData)
			})},
		{Name: "gives up for want of an address", Cases: "NoAddressLeftIsForwarded", How: refusing},
	}
}

// TestTheSuiteCatchesAMisreadFigure is TestTheSuiteCatches for what a driver reads inside.
func TestTheSuiteCatchesAMisreadFigure(t *testing.T) {
	providertest.RunMisread(t, func(ct providertest.T, c providertest.Case, wrap func(http.RoundTripper) http.RoundTripper) providertest.Harness {
		return newHarness(ct, c, optionsOf(c), wrap)
	}, ownCases(), misreadings())
}

func misreadings() []providertest.Misreading {
	return []providertest.Misreading{
		{Case: "APriceAsTextIsItOrNone", Form: `"price_per_hr":"[0-9.]+"`, As: `"price_per_hr":0.1`},
		{Case: "ANullPriceIsNoOffer", Form: `"price_per_hr":null`, As: `"price_per_hr":0.1`},
		{Case: "AZeroPriceIsNoOffer", Form: `"price_per_hr":0,`, As: `"price_per_hr":0.1,`},
		{Case: "ARateAsTextIsItOrNone", Form: `"rateHourly":"[0-9.]+"`, As: `"rateHourly":0.1`},
		{Case: "ANullRateIsNotSaid", Form: `"rateHourly":null`, As: `"rateHourly":0.1`},
		{Case: "AZeroRateIsNotSaid", Form: `"rateHourly":0,`, As: `"rateHourly":0.1,`},
		// A row that cannot be read, for a driver that then reads none.
		{Case: "APriceAsTextIsItOrNone", Form: `(?s)^.*"price_per_hr":"[0-9.]+".*$`, As: `{"data":{"hostnodes":[]}}`},
		// For one that takes the first forward, which is SSH's.
		{Case: "AForwardComesOutElsewhere", Form: `"internal_port":22`, As: `"internal_port":9443`},
		// For one that does not tell a want of addresses from a want of hosts.
		{Case: "NoAddressLeftIsForwarded", Form: `No available public IPs[a-z ]*`, As: `No available nodes found`},
		{Case: "AGPUThatIsTakenIsInterrupted", Form: `stoppeddisassociated`, As: `stopped`},
	}
}
