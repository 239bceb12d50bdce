package runpod_test

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"

	sim "github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// TestTheSuiteCatches runs each case against drivers that are wrong in what the case is about. The simulated RunPod has
// pages here.
func TestTheSuiteCatches(t *testing.T) {
	var inside []string
	for _, m := range misreadings() {
		inside = append(inside, m.Case)
	}
	providertest.RunBroken(t, func(ct providertest.T, c providertest.Case, how providertest.Breakage) providertest.Harness {
		return brokenHarness{newHarness(ct, c, sim.Options{PageSize: 25}, nil), fault{how: how}}
	}, nil, providertest.BrokenDrivers(goodKey), inside...)
}

// TestTheSuiteCatchesAMisreadFigure is TestTheSuiteCatches for what a driver reads inside.
func TestTheSuiteCatchesAMisreadFigure(t *testing.T) {
	providertest.RunMisread(t, func(ct providertest.T, c providertest.Case, wrap func(http.RoundTripper) http.RoundTripper) providertest.Harness {
		return newHarness(ct, c, sim.Options{PageSize: 25}, wrap)
	}, nil, misreadings())
}

func misreadings() []providertest.Misreading {
	return []providertest.Misreading{
		{Case: "APriceAsTextIsItOrNone", Form: `"secure":"[0-9.]+"`, As: `"secure":0.1`},
		{Case: "ANullPriceIsNoOffer", Form: `"secure":null`, As: `"secure":0.1`},
		{Case: "AZeroPriceIsNoOffer", Form: `"secure":0}`, As: `"secure":0.1}`},
		{Case: "ARateAsTextIsItOrNone", Form: `"cost":"[0-9.]+"`, As: `"cost":0.1`},
		{Case: "ANullRateIsNotSaid", Form: `"cost":null`, As: `"cost":0.1`},
		{Case: "AZeroRateIsNotSaid", Form: `"cost":0,`, As: `"cost":0.1,`},
		{Case: "ListReadsEveryPage", Form: `"hasNextPage":true`, As: `"hasNextPage":false`},
		{Case: "AnUnknownWordIsStateUnknown", Form: `HIBERNATING`, As: `RUNNING`},
		{Case: "AStopIsNoInterruption", Form: `"status":"EXITED"`, As: `"status":"RUNNING"`},
		{Case: "AnExitIsNoInterruption", Form: `"status":"EXITED"`, As: `"status":"RUNNING"`},
		{Case: "RunningWithoutARuntime", Form: `"runtime":null`, As: `"runtime":{"ports":[{"private":9443,"public":1,"type":"tcp","ip":"203.0.113.9"}]}`},
		{Case: "RunningBeforeItsPorts", Form: `"ip":null,"private":9443,"public":null`, As: `"ip":"203.0.113.9","private":9443,"public":9443`},
		{Case: "PendingThenRunningWithAnEndpoint", Form: `"public":9,`, As: `"public":9443,`},
	}
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

// fault is what is wrong with a driver: at the provider interface, or at the wire. Hasty is one that paces nothing.
type fault struct {
	name  string
	how   providertest.Breakage
	wire  []rewired
	hasty bool
}

func at(name string, how providertest.Breakage) fault { return fault{name: name, how: how} }
func onWire(name string, w ...rewired) fault          { return fault{name: name, wire: w} }

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
	return h.how(p).Driver()
}

func (h brokenHarness) Driver() provider.Provider {
	if h.hasty {
		return h.hastyDriver
	}
	return h.twisted(h.good)
}
func (h brokenHarness) BadKeyDriver() provider.Provider    { return h.twisted(h.bad) }
func (h brokenHarness) ImpatientDriver() provider.Provider { return h.twisted(h.impatient) }
