package market_test

import (
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

func TestAnOfferThatIsSoldOutStaysListed(t *testing.T) {
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}})
	id := m.Offers()[0].ID
	if !m.SellOut(id) || m.SellOut("none") {
		t.Error("the offer is not known, or another is")
	}
	if listed := m.Offers(); len(listed) != 1 || listed[0].ID != id {
		t.Errorf("listed: %+v", listed)
	}
	if _, err := m.Rent(market.RentRequest{Account: "a", OfferID: id}); code(err) != market.NoCapacity {
		t.Errorf("rent: %v", err)
	}
}

func TestAFloorThatIsRaisedRefusesTheBidThatWasEnough(t *testing.T) {
	m, _ := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}, LowBidStays: true})
	o := m.Offers()[0]
	if !m.RaiseFloor(o.ID, 2*o.MinBid) || m.RaiseFloor("none", 1) {
		t.Error("the offer is not known, or another is")
	}
	in, err := m.Rent(market.RentRequest{Account: "a", OfferID: o.ID, Spot: true, Bid: o.MinBid})
	if code(err) != market.BidTooLow || in.State != market.Stopped {
		t.Errorf("rent: %+v, %v", in.State, err)
	}
}

func TestHeldPortsAndALateEnd(t *testing.T) {
	m, fc := open(t, market.Config{Offers: []market.Offer{slice("1", 1, 1)}})
	in := rent(t, m, market.RentRequest{Account: "a"})
	fc.Step(time.Minute)
	for _, hold := range []bool{true, false} {
		if err := m.HoldPorts(in.ID, hold); err != nil {
			t.Fatal(err)
		}
		if got := get(t, m, in.ID); got.State != market.Running || (got.Host == "") != hold {
			t.Errorf("held: %v, %s at %q", hold, got.State, got.Host)
		}
	}
	m.SetDestroyLag(time.Minute)
	if err := m.Destroy("a", in.ID, "tenant"); err != nil || get(t, m, in.ID).State != market.Running {
		t.Errorf("destroy: %v", err)
	}
	fc.Step(time.Minute)
	if got := get(t, m, in.ID).State; got != market.Gone {
		t.Errorf("after the lag: %s", got)
	}
}
