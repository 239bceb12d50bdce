package providertest

import (
	"errors"

	"github.com/munhq/gpuscale/pkg/provider"
)

// Quirk is something awkward that clouds have been seen to do. What it is about, if anything, is an offer, an instance
// or an operation.
type Quirk string

// The quirks.
const (
	// ListedGone (an offer): search goes on listing it, and a create on it is refused as the vendor does when another
	// has it.
	ListedGone Quirk = "listed and gone"
	// LowBid (an offer): the market passes the bid that the next create will make. The create is refused and leaves a
	// stopped instance whose disk is billed.
	LowBid Quirk = "bid passed"
	// Fails200 (an operation): its next request is refused with status 200, and nothing takes effect.
	Fails200 Quirk = "fails with 200"
	// DestroyIgnored (an instance): the next destroy is accepted and nothing comes of it.
	DestroyIgnored Quirk = "destroy ignored"
	// DestroyLate (an instance): the next destroy is accepted, and the instance is there and billed for
	// DestroyTakes more.
	DestroyLate Quirk = "destroy late"
	// DestroyRefused (an instance): the next destroy is refused in the words for an instance that is not ready for it.
	DestroyRefused Quirk = "destroy refused"
	// LatePorts (an instance): it runs, and its ports are not published until Start.
	LatePorts Quirk = "late ports"
	// NoRuntime (an instance): the cloud's state is its word for running, as the target or the order is, while nothing
	// runs yet, until Start.
	NoRuntime Quirk = "running without a runtime"
	// PriceText, PriceNull and PriceZero (an offer): its price, or the price of its GPU, is listed as a JSON string, as
	// null or absent, and as 0.
	PriceText Quirk = "price as text"
	PriceNull Quirk = "price null"
	PriceZero Quirk = "price zero"
	// RateText, RateNull and RateZero (an instance): so is the rate read back.
	RateText Quirk = "rate as text"
	RateNull Quirk = "rate null"
	RateZero Quirk = "rate zero"
	// Unreachable (an instance): the provider cannot reach its host.
	Unreachable Quirk = "unreachable"
	// DeletedElsewhere (an instance): its owner deletes it in the vendor's console, and it is gone.
	DeletedElsewhere Quirk = "deleted elsewhere"
	// BadKeyAsNotFound: a key that the cloud does not know is answered like a missing instance, as far as the vendor
	// has been seen to.
	BadKeyAsNotFound Quirk = "bad key as not found"
	// PageTwoFails: the next list's second page is answered with status 500, as often as it is asked for.
	PageTwoFails Quirk = "page two fails"
	// EndlessPages: each page of a list names a next one that has been before.
	EndlessPages Quirk = "endless pages"
)

// DestroyTakes is how long a DestroyLate takes.
const DestroyTakes = 2 * RetryAfter

// QuirkHarness is a Harness whose cloud can be awkward.
type QuirkHarness interface {
	Harness
	// Show has the cloud do what q says, to what on names, and returns nil. Where the vendor cannot be like that it
	// returns Cannot, with the reason, and the case is skipped with it. Any other error fails the case.
	Show(q Quirk, on string) error
}

// ImpatientHarness is a Harness of a driver that gives up on an answer by itself.
type ImpatientHarness interface {
	Harness
	// ImpatientDriver is Driver, but that it waits a fraction of a second for an answer where Driver waits its time.
	ImpatientDriver() provider.Provider
}

// Cannot says that a vendor does not do what a Quirk is, and why that is known.
func Cannot(reason string) error { return cannot(reason) }

type cannot string

// Error is the reason.
func (c cannot) Error() string { return string(c) }

// show has the cloud do what q says, or ends the case: skipped with the harness's reason where the vendor cannot.
func show(t T, h Harness, q Quirk, on string) {
	t.Helper()
	if reason := tryShow(t, h, q, on); reason != "" {
		t.Skipf("%s: %s", q, reason)
	}
}

// tryShow has the cloud do what q says, or returns why the vendor cannot.
func tryShow(t T, h Harness, q Quirk, on string) (reason string) {
	t.Helper()
	quirky, ok := h.(QuirkHarness)
	if !ok {
		t.Fatalf("the harness is no QuirkHarness: it has to show %q, or to say why it cannot", q)
	}
	err := quirky.Show(q, on)
	var why cannot
	switch {
	case err == nil:
		return ""
	case errors.As(err, &why) && why != "":
		return string(why)
	}
	t.Fatalf("show %q: %v; want it shown, or Cannot with a reason", q, err)
	return ""
}
