package runpod_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	sim "github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// A driver is broken on purpose in one of two ways: at the provider interface, by a word of the good driver's that is
// changed, or at the wire, by a request or an answer that is.

type breakage func(provider.Provider) provider.Provider

// broken is a driver with one fault; nil functions leave the good driver's behaviour.
type broken struct {
	provider.Provider
	search  func(context.Context, provider.OfferQuery) ([]provider.Offer, error)
	create  func(context.Context, provider.CreateRequest) (provider.Instance, error)
	get     func(context.Context, string) (provider.Instance, error)
	list    func(context.Context, provider.InstanceFilter) ([]provider.Instance, error)
	destroy func(context.Context, string) error
	caps    func(*provider.Capabilities)
}

func (b broken) SearchOffers(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
	if b.search != nil {
		return b.search(ctx, q)
	}
	return b.Provider.SearchOffers(ctx, q)
}

func (b broken) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	if b.create != nil {
		return b.create(ctx, r)
	}
	return b.Provider.CreateInstance(ctx, r)
}

func (b broken) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	if b.get != nil {
		return b.get(ctx, id)
	}
	return b.Provider.GetInstance(ctx, id)
}

func (b broken) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	if b.list != nil {
		return b.list(ctx, f)
	}
	return b.Provider.ListInstances(ctx, f)
}

func (b broken) DestroyInstance(ctx context.Context, id string) error {
	if b.destroy != nil {
		return b.destroy(ctx, id)
	}
	return b.Provider.DestroyInstance(ctx, id)
}

func (b broken) Capabilities() provider.Capabilities {
	c := b.Provider.Capabilities()
	if b.caps != nil {
		b.caps(&c)
	}
	return c
}

func offersTwisted(twist func(*provider.Offer)) breakage {
	return func(p provider.Provider) provider.Provider {
		return broken{Provider: p, search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
			offers, err := p.SearchOffers(ctx, q)
			for i := range offers {
				twist(&offers[i])
			}
			return offers, err
		}}
	}
}

func readsTwisted(twist func(*provider.Instance)) breakage {
	return func(p provider.Provider) provider.Provider {
		return broken{
			Provider: p,
			get: func(ctx context.Context, id string) (provider.Instance, error) {
				inst, err := p.GetInstance(ctx, id)
				twist(&inst)
				return inst, err
			},
			list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, err := p.ListInstances(ctx, f)
				for i := range all {
					twist(&all[i])
				}
				return all, err
			},
		}
	}
}

func errorsTwisted(twist func(*provider.Error)) breakage {
	twisted := func(err error) error {
		var e *provider.Error
		if !errors.As(err, &e) {
			return err
		}
		changed := *e
		twist(&changed)
		return &changed
	}
	return func(p provider.Provider) provider.Provider {
		return broken{
			Provider: p,
			search: func(ctx context.Context, q provider.OfferQuery) ([]provider.Offer, error) {
				out, err := p.SearchOffers(ctx, q)
				return out, twisted(err)
			},
			create: func(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
				out, err := p.CreateInstance(ctx, r)
				return out, twisted(err)
			},
			get: func(ctx context.Context, id string) (provider.Instance, error) {
				out, err := p.GetInstance(ctx, id)
				return out, twisted(err)
			},
			list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				out, err := p.ListInstances(ctx, f)
				return out, twisted(err)
			},
			destroy: func(ctx context.Context, id string) error { return twisted(p.DestroyInstance(ctx, id)) },
		}
	}
}

func kindTwisted(from, to provider.Kind, ops ...string) breakage {
	return errorsTwisted(func(e *provider.Error) {
		if e.Kind == from && (len(ops) == 0 || slices.Contains(ops, e.Op)) {
			e.Kind = to
		}
	})
}

func capsTwisted(twist func(*provider.Capabilities)) breakage {
	return func(p provider.Provider) provider.Provider { return broken{Provider: p, caps: twist} }
}

// rewired is a driver that sends or reads one thing as another: what passes is changed on the way.
type rewired struct {
	next            http.RoundTripper
	sent, got       *regexp.Regexp
	sentAs, gotAs   string
	only, agent     string // the method that it is about, and the client that is named
	neverAgainAfter string // of the answers' headers, one that is dropped
}

// RoundTrip changes every request and every answer.
func (w rewired) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.only != "" && r.Method != w.only {
		return w.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	if w.agent != "" {
		r.Header.Set("User-Agent", w.agent)
	}
	if w.sent != nil {
		r.URL.RawQuery = w.sent.ReplaceAllString(r.URL.RawQuery, w.sentAs)
		if r.Body != nil {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			body = w.sent.ReplaceAll(body, []byte(w.sentAs))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if w.neverAgainAfter != "" {
		resp.Header.Del(w.neverAgainAfter)
	}
	if w.got != nil {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		body = w.got.ReplaceAll(body, []byte(w.gotAs))
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return resp, nil
}

// sends and reads are faults at the wire.
func sends(form, as string) rewired { return rewired{sent: regexp.MustCompile(form), sentAs: as} }
func reads(form, as string) rewired { return rewired{got: regexp.MustCompile(form), gotAs: as} }

// fault is what is wrong with a driver. Hasty is one that paces nothing.
type fault struct {
	name  string
	how   breakage
	wire  []rewired
	hasty bool
}

func at(name string, how breakage) fault     { return fault{name: name, how: how} }
func onWire(name string, w ...rewired) fault { return fault{name: name, wire: w} }

// none reports that there is no fault.
func (f fault) none() bool { return f.how == nil && len(f.wire) == 0 && !f.hasty }

// around is the transport of a driver with the fault.
func (f fault) around(next http.RoundTripper) http.RoundTripper {
	for _, w := range f.wire {
		w.next = next
		next = w
	}
	return next
}

// brokenHarness is a harness whose drivers have a fault.
type brokenHarness struct {
	*harness
	fault
}

func (h brokenHarness) twisted(p provider.Provider) provider.Provider {
	if h.how == nil {
		return p
	}
	return h.how(p)
}

func (h brokenHarness) Driver() provider.Provider {
	if h.fault.hasty {
		return h.harness.hastyDriver
	}
	return h.twisted(h.harness.good)
}
func (h brokenHarness) BadKeyDriver() provider.Provider    { return h.twisted(h.bad) }
func (h brokenHarness) ImpatientDriver() provider.Provider { return h.twisted(h.impatient) }

// TestTheSuiteCatchesABrokenDriver runs cases of the suite against drivers that are wrong in what is this vendor's own about
// them. That each case catches something at all is shown once, beside another driver.
func TestTheSuiteCatchesABrokenDriver(t *testing.T) {
	for _, b := range brokenInTheSuite() {
		for _, name := range strings.Fields(b.cases) {
			t.Run(b.name+"/"+name, func(t *testing.T) {
				c := caseNamed(t, name)
				got := providertest.Try(t.Context(), c, func(ct providertest.T, c providertest.Case) providertest.Harness {
					return brokenHarness{newHarness(ct, c, sim.Options{PageSize: 25}, b.around), b.fault}
				})
				if len(got) == 0 {
					t.Error("this driver passes")
				}
				for _, complaint := range got {
					if strings.HasPrefix(complaint, "panic") {
						t.Error(complaint)
					}
				}
			})
		}
	}
}

func caseNamed(t *testing.T, name string) providertest.Case {
	t.Helper()
	i := slices.IndexFunc(providertest.Cases(), func(c providertest.Case) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no case %s", name)
	}
	return providertest.Cases()[i]
}

func brokenInTheSuite() []struct {
	fault
	cases string
} {
	type row = struct {
		fault
		cases string
	}
	return []row{
		{at("offers spot", capsTwisted(func(c *provider.Capabilities) { c.Spot = true })), "SearchRefusesAnUnknownCapacityType"},
		{at("no disk in the price", offersTwisted(func(o *provider.Offer) { o.Price = o.Price.Sub(money.MustParse("0.005")) })), "SearchPriceIsWhatIsBilled"},
		{onWire("no count", sends(`,"count":1`, ``)), "CreateBuysTheCapacityTypeAsked"},
		{onWire("another name", sends(`"name":"gs-`, `"name":"pod-gs-`)), "CreateTagsTheInstance LostAnswerDrill"},
		{at("no capacity is our mistake", kindTwisted(provider.NoCapacity, provider.Invalid)), "CreateOnAnOfferThatIsGone ListedStockThatIsGone"},
		{at("402 is a quota", kindTwisted(provider.NoBalance, provider.Quota)), "CreateWithoutBalance"},
		{at("keeps the pod to itself", errorsTwisted(func(e *provider.Error) { e.InstanceID = "" })), "CreateThatFailsWithAnInstanceNamesIt"},
		{onWire("one page", reads(`"hasNextPage":true`, `"hasNextPage":false`)), "ListReadsEveryPage ABrokenPageIsNoShortList PagesWithoutEnd"},
		{at("a lag of ten seconds", capsTwisted(func(c *provider.Capabilities) { c.ListLag = 10e9 })), "ReadsAreNoLaterThanTheListLag"},
		{onWire("unknown is running", reads(`HIBERNATING`, `RUNNING`)), "AnUnknownWordIsStateUnknown"},
		{onWire("exited is running", reads(`"status":"EXITED"`, `"status":"RUNNING"`)), "AStopIsNoInterruption AnExitIsNoInterruption"},
		{at("what has stopped was taken", readsTwisted(func(i *provider.Instance) { i.Interrupted = i.State == provider.StateStopped })),
			"AStopIsNoInterruption AnExitIsNoInterruption"},
		{onWire("an address at once", reads(`"runtime":(null|\{\})`, `"runtime":{"ports":[{"private":9443,"public":1,"type":"tcp","ip":"203.0.113.9"}]}`)),
			"RunningWithoutARuntime"},
		{onWire("a port that is null", reads(`"ip":null,"private":9443,"public":null`, `"ip":"203.0.113.9","private":9443,"public":9443`)), "RunningBeforeItsPorts"},
		{onWire("text is no price", reads(`"secure":"[0-9.]+"`, `"secure":0.1`)), "APriceAsTextIsItOrNone"},
		{onWire("null is a price", reads(`"secure":null`, `"secure":0.1`)), "ANullPriceIsNoOffer"},
		{onWire("0 is a price", reads(`"secure":0[,}]`, `"secure":0.1}`)), "AZeroPriceIsNoOffer"},
		{onWire("text is no rate", reads(`"cost":"[0-9.]+"`, `"cost":0.1`)), "ARateAsTextIsItOrNone"},
		{onWire("null is a rate", reads(`"cost":null`, `"cost":0.1`)), "ANullRateIsNotSaid"},
		{at("0 is a rate", readsTwisted(func(i *provider.Instance) {
			if i.Price == nil {
				i.Price = &money.Dollars{}
			}
		})), "AZeroRateIsNotSaid"},
		{at("a busy pod is gone", kindTwisted(provider.Unavailable, provider.NotFound, "destroy")), "ADestroyThatIsRefused"},
		{at("waits as it likes", errorsTwisted(func(e *provider.Error) { e.RetryAfter = min(e.RetryAfter, 10e9) })), "RetryAfterIsPassedOn"},
		{at("401 is not found", kindTwisted(provider.Unauthorized, provider.NotFound, "get", "destroy")), "ABadKeyIsUnauthorizedEverywhere"},
		{at("a failure under 200 is an empty list", func(p provider.Provider) provider.Provider {
			return broken{Provider: p, list: func(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
				all, _ := p.ListInstances(ctx, f) // the fault of this driver
				return all, nil
			}}
		}), "AFailureIn200IsAFailure HalfAnAnswerIsNoAnswer"},
	}
}
