package cloudsimtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// Harness is the part of a providertest.Harness that is the same in front of every simulated cloud. The driver's own
// harness embeds it, and overrides what its vendor does differently.
type Harness struct {
	*providertest.Faults
	T      providertest.T
	Clock  Clock
	Market *market.Market
	// Account is the one that the drivers rent with.
	Account string
}

// NewHarness opens a market, in stepped time.
func NewHarness(t providertest.T, c market.Config) *Harness {
	clock := NewClock()
	c.Clock = clock.FakeClock
	h := &Harness{T: t, Clock: clock, Market: market.New(c)}
	t.Cleanup(h.Market.Close)
	return h
}

// Serve puts a server in front of what answers in the vendor's name, until the test ends. wrap, if given, goes around the
// transport that leads there.
func (h *Harness) Serve(front http.Handler, wrap func(http.RoundTripper) http.RoundTripper) (url string, transport http.RoundTripper) {
	srv := httptest.NewServer(front)
	h.T.Cleanup(srv.Close)
	h.T.Cleanup(srv.CloseClientConnections)
	if transport = srv.Client().Transport; wrap != nil {
		transport = wrap(transport)
	}
	return srv.URL, transport
}

// Must fails the test when a step went wrong.
func (h *Harness) Must(what, id string, err error) {
	if err != nil {
		h.T.Fatalf("%s %s: %v", what, id, err)
	}
}

// Wait lets time pass.
func (h *Harness) Wait(d time.Duration) { h.Clock.Step(d) }

// Reclaim takes an instance away, as the vendor does.
func (h *Harness) Reclaim(id string) { h.Must("reclaim", id, h.Market.Reclaim(id)) }

// Stop stops an instance.
func (h *Harness) Stop(id string) { h.Must("stop", id, h.Market.Stop(h.Account, id)) }

// Exit ends what runs on an instance.
func (h *Harness) Exit(id string) { h.Must("kill", id, h.Market.Kill(id)) }

// Take rents an offer of the market to somebody else.
func (h *Harness) Take(offer string, spot bool) {
	_, err := h.Market.Rent(market.RentRequest{Account: "somebody-else", OfferID: offer, Spot: spot, DiskGB: 50, Image: "x:y"})
	h.Must("take offer", offer, err)
}

// comesUp is within how many steps of a second every instance runs.
const comesUp = 240

// Runs steps until an instance runs and meets a further condition, which may be nil.
func (h *Harness) Runs(id string, further func(market.Instance) bool) error {
	for range comesUp {
		in, err := h.Market.Get(h.Account, id)
		if err == nil && in.State == market.Running && (further == nil || further(in)) {
			return nil
		}
		h.Clock.Step(time.Second)
	}
	return fmt.Errorf("instance %s does not start", id)
}

// Books is what the drivers' account has rented, as the market knows it.
func (h *Harness) Books() []providertest.Record {
	var out []providertest.Record
	for _, in := range h.Market.Books().Instances {
		if in.Account == h.Account {
			out = append(out, providertest.Record{
				ID: in.ID, Tag: in.Label, Spot: in.Spot, Live: in.State != market.Gone, Port: in.HostPort,
				PerHour: money.FromMicros((int64(in.GPURate) + int64(in.StorageRate) + 999) / 1000),
			})
		}
	}
	return out
}

// Write answers a request with JSON.
func Write(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that has left is its own affair
}

// Say is a vendor's answer whatever is asked.
func Say(status int, body string) providertest.Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ func() *httptest.ResponseRecorder) {
		Write(w, status, body)
	}
}

// Existing is an error where what should be awkward does not exist.
func Existing(ok bool, what, id string) error {
	if !ok {
		return fmt.Errorf("no %s %s", what, id)
	}
	return nil
}

// Odd is a price in the form that a quirk is about: as text, null or zero.
func Odd(q providertest.Quirk, price any) any {
	switch q {
	case providertest.PriceText, providertest.RateText:
		return fmt.Sprint(price)
	case providertest.PriceNull, providertest.RateNull:
		return nil
	}
	return json.Number("0")
}

// OddFields changes the prices in some fields of an object.
func OddFields(q providertest.Quirk, fields ...string) func(object map[string]any) {
	return func(object map[string]any) {
		for _, f := range fields {
			object[f] = Odd(q, object[f])
		}
	}
}
