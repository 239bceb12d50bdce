package runpod_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	sim "github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// gotcha is something that is this vendor's alone and that a user would pay for, with a driver that falls for it.
type gotcha struct {
	name    string
	options sim.Options
	check   func(t providertest.T, h brokenHarness)
	falls   []fault
}

// TestGotchas has the good driver pass each, and those that fall for it not.
func TestGotchas(t *testing.T) {
	for _, g := range gotchas() {
		t.Run(g.name, func(t *testing.T) {
			for _, f := range append([]fault{{name: "the good driver"}}, g.falls...) {
				c := providertest.Case{Name: g.name, Check: func(t providertest.T, h providertest.Harness) {
					broken, ok := h.(brokenHarness)
					if !ok {
						t.Fatalf("%T", h)
					}
					g.check(t, broken)
				}}
				got := providertest.Try(t.Context(), c, func(ct providertest.T, c providertest.Case) providertest.Harness {
					return brokenHarness{newHarness(ct, c, g.options, f.around), f}
				})
				switch {
				case f.none() && len(got) > 0:
					t.Errorf("the good driver: %q", got)
				case !f.none() && len(got) == 0:
					t.Errorf("%s: this driver passes", f.name)
				case len(got) > 0 && strings.HasPrefix(got[0], "panic"):
					t.Errorf("%s: %s", f.name, got[0])
				}
			}
		})
	}
}

const tag = "gs-gotchas1-0000000000000001"

// supply is one type in two places and both clouds. The first host has an old driver.
func (h *harness) supply() {
	h.host("old", "SECURE", "EU-RO-1", 12.4, 25)
	h.host("new", "SECURE", "EU-RO-1", 13.0, 25)
	h.host("far", "SECURE", "US-KS-2", 13.0, 25)
	h.host("host", "COMMUNITY", "", 12.8, 25)
}

// host is a machine of four GPUs with so much RAM each.
func (h *harness) host(name, cloud, place string, cuda float64, ramGB int) {
	each := 0.39
	if cloud == "COMMUNITY" {
		each = 0.22
	}
	for _, n := range []int{1, 2, 4} {
		h.Market.AddOffer(market.Offer{
			ID: fmt.Sprint(name, n), Machine: name, Host: name, GPU: "NVIDIA L4", DriverGPU: "NVIDIA L4", GPUs: n, MachineGPUs: 4,
			GPUMemoryMB: 23034, ComputeCap: 890, CUDA: cuda, CPUArch: "amd64", Cores: 64, EffectiveCores: 8, RAMMB: ramGB * 1000 * n,
			DiskGB: 500, Region: place, Ports: 10, OnDemand: market.USD(each) * market.Nano(n), StorageMonth: market.USD(0.10),
			Extra: map[string]string{"cloud": cloud, "memory": "24"},
		})
	}
}

// find is the first offer of the supply that fits.
func (h brokenHarness) find(t providertest.T, q provider.OfferQuery, fits func(provider.Offer) bool) provider.Offer {
	t.Helper()
	q.CapacityType, q.DiskGB = provider.OnDemand, 100
	offers, err := h.Driver().SearchOffers(t.Context(), q)
	if err != nil {
		t.Fatalf("search: %v", err)
	}
	for _, o := range offers {
		if fits(o) {
			return o
		}
	}
	t.Fatalf("none of %d offers fits", len(offers))
	return provider.Offer{}
}

func (h brokenHarness) create(t providertest.T, o provider.Offer) (provider.Instance, error) {
	return h.Driver().CreateInstance(t.Context(), provider.CreateRequest{Offer: o, Tag: tag, MaxPrice: o.Price.MulFrac(11, 10),
		DiskGB: o.DiskGB, Boot: provider.Boot{Image: "vllm/vllm-openai:v0.10.1", Command: []string{"/bin/sh", "-c", "exec agent"},
			Env: map[string]string{"GPUSCALE_BOOT": bootData}, Port: 9443}})
}

const bootData = "eyJrZXkiOiJzZWNyZXQifQ=="

// buy creates on an offer and returns the instance as the books have it.
func (h brokenHarness) buy(t providertest.T, o provider.Offer) market.Instance {
	t.Helper()
	inst, err := h.create(t, o)
	if err != nil {
		t.Fatalf("create on %s: %v", o.ID, err)
	}
	h.Wait(h.Driver().Capabilities().ListLag)
	for _, in := range h.Market.Books().Instances {
		if in.ID == inst.ID {
			return in
		}
	}
	t.Fatalf("the books have no %q", inst.ID)
	return market.Instance{}
}

// refusal is what create answers when the cloud says this.
func (h brokenHarness) refusal(t providertest.T, status int, body string) provider.Kind {
	h.supply()
	o := h.find(t, provider.OfferQuery{}, func(provider.Offer) bool { return true })
	h.answer(nil, func(r *http.Request) (int, string, bool) { return status, body, r.Method == http.MethodPost })
	_, err := h.create(t, o)
	return provider.KindOf(err)
}

func gotchas() []gotcha {
	return append(append(buyingGotchas(), refusalGotchas()...), readingGotchas()...)
}

func buyingGotchas() []gotcha {
	inCloud := func(cloud string, n int) func(provider.Offer) bool {
		return func(o provider.Offer) bool { return o.GPUCount == n && strings.HasPrefix(o.ID, cloud) }
	}
	return []gotcha{
		{name: "the listed price is that of one GPU", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			for _, cloud := range []string{"SECURE", "COMMUNITY"} {
				o := h.find(t, provider.OfferQuery{}, inCloud(cloud, 4))
				in := h.buy(t, o)
				billed := (int64(in.GPURate+in.StorageRate) + 999) / 1000
				if in.Offer.GPUs != 4 || o.Price.Micros() < billed || o.Price.Micros() > billed+2 {
					t.Errorf("%s: offered at $%s, %d GPUs are billed at %d µ$/h", cloud, o.Price, in.Offer.GPUs, billed)
				}
				h.Must("end", in.ID, h.Market.Destroy(h.server.Account(), in.ID, "tenant"))
			}
		}, falls: []fault{at("takes it for all", providertest.OffersTwisted(func(_ provider.OfferQuery, o *provider.Offer) { o.Price = o.Price.MulFrac(1, int64(o.GPUCount)) }))}},
		{name: "what is free is another answer for each number and cloud", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			h.Take("far1", false)
			offers, err := h.Driver().SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 100})
			if err != nil {
				t.Fatalf("search: %v", err)
			}
			got := map[string]bool{}
			for _, o := range offers {
				got[fmt.Sprintf("%s %d %s", strings.Split(o.ID, "/")[0], o.GPUCount, o.Region)] = true
			}
			for shape, want := range map[string]bool{"SECURE 1 EU-RO-1": true, "SECURE 4 EU-RO-1": true, "SECURE 2 US-KS-2": true,
				"SECURE 4 US-KS-2": false, "COMMUNITY 1 ": true, "COMMUNITY 4 ": true, "COMMUNITY 1 EU-RO-1": false} {
				if got[shape] != want {
					t.Errorf("%s is offered: %t; want %t", shape, got[shape], want)
				}
			}
		}, falls: []fault{
			onWire("asks for one", sends(`count=[0-9]`, `count=1`)),
			onWire("asks one cloud", sends(`cloud=COMMUNITY`, `cloud=SECURE`)),
		}},
		{name: "a host has the CUDA that the offer says", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			o := h.find(t, provider.OfferQuery{Regions: []string{"EU-RO-1"}}, func(o provider.Offer) bool { return *o.MaxCUDA == [2]int{13, 0} })
			if in := h.buy(t, o); in.Offer.CUDA < 13 {
				t.Errorf("an offer of CUDA 13.0 became a host with %.1f", in.Offer.CUDA)
			}
			h.find(t, provider.OfferQuery{Regions: []string{"EU-RO-1"}}, func(o provider.Offer) bool { return *o.MaxCUDA == [2]int{12, 4} })
		}, falls: []fault{onWire("asks for any host", sends(`,"minCudaVersion":"[0-9.]+"`, ``))}},
		{name: "a host has the RAM that the offer says", options: sim.Options{MinRAM: true}, check: func(t providertest.T, h brokenHarness) {
			h.host("poor", "SECURE", "US-TX-3", 13.0, 25)
			h.host("rich", "SECURE", "US-TX-3", 13.0, 50)
			o := h.find(t, provider.OfferQuery{}, func(o provider.Offer) bool { return o.RAMGB != nil && *o.RAMGB == 64 && o.GPUCount == 2 })
			if in := h.buy(t, o); in.Offer.RAMMB < 64_000 {
				t.Errorf("an offer of 64 GB became a host with %d MB", in.Offer.RAMMB)
			}
			h.find(t, provider.OfferQuery{}, func(o provider.Offer) bool { return o.RAMGB == nil && o.GPUCount == 2 })
		}, falls: []fault{onWire("asks for any host", sends(`,"minRamPerGpu":[0-9]+`, ``))}},
		{name: "an older server refuses to be asked for RAM", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			o := h.find(t, provider.OfferQuery{}, inCloud("SECURE", 1))
			if o.RAMGB != nil {
				t.Errorf("%d GB of RAM are offered, and the server cannot be asked for them", *o.RAMGB)
			}
			o.ID = strings.Replace(o.ID, "/0/NVIDIA", "/32/NVIDIA", 1) // of a search before the server was replaced
			if _, err := h.create(t, o); provider.KindOf(err) != provider.Unsupported {
				t.Errorf("%v; want Unsupported, which leaves the other offers", err)
			}
		}, falls: []fault{
			onWire("knows a newer one", reads(`"minCudaVersion":\{`, `"minRamPerGpu":{},"minCudaVersion":{`)),
			at("holds the pool back", providertest.KindTwisted(provider.Unsupported, provider.Invalid)),
		}},
		{name: "a place in lower case is none", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			o := h.find(t, provider.OfferQuery{Regions: []string{"us-ks-2"}}, func(o provider.Offer) bool { return o.Region == "US-KS-2" })
			if in := h.buy(t, o); in.Offer.Region != "US-KS-2" {
				t.Errorf("bought in %s", in.Offer.Region)
			}
		}, falls: []fault{
			onWire("sends it as the pool has it", sends(`US-KS-2`, `us-ks-2`)),
			onWire("sends none", sends(`,"dataCenterIds":\["US-KS-2"\]`, ``)),
		}},
		{name: "the image's entrypoint is replaced", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			in := h.buy(t, h.find(t, provider.OfferQuery{}, inCloud("SECURE", 1)))
			if got := strings.Join(in.Command, "|"); got != "/bin/sh|-c|exec agent" || in.Env["GPUSCALE_BOOT"] != bootData {
				t.Errorf("the pod runs %q with %v", got, in.Env)
			}
		}, falls: []fault{onWire("sends a command only", sends(`\\"entrypoint\\":\[\\"/bin/sh\\"\],`, ``))}},
		{name: "a small disk reads like no capacity", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			offers, err := h.Driver().SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 10})
			if err != nil || len(offers) == 0 || offers[0].DiskGB < 40 {
				t.Fatalf("%v, %v", offers, err)
			}
			if in := h.buy(t, offers[0]); in.DiskGB < 40 || int64(in.GPURate+in.StorageRate)/1000 > offers[0].Price.Micros() {
				t.Errorf("a disk of %g GB, at %s + %s", in.DiskGB, in.GPURate, in.StorageRate)
			}
		}, falls: []fault{onWire("asks for what it needs", sends(`"disk":40`, `"disk":10`))}},
		{name: "a firewall wants a client with a name", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			h.find(t, provider.OfferQuery{}, inCloud("SECURE", 1))
		}, falls: []fault{onWire("goes by the library's", rewired{agent: "Go-http-client/1.1"})}},
		{name: "all calls count together", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			for range 12 {
				h.find(t, provider.OfferQuery{}, inCloud("SECURE", 1))
				if _, err := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{}); err != nil {
					t.Fatalf("list: %v", err)
				}
			}
		}, falls: []fault{{name: "paces nothing", hasty: true}}},
	}
}

func refusalGotchas() []gotcha {
	const classic = "There are no longer any instances available with the requested specifications. Please refresh and try again."
	problem := func(status, detail string) string {
		return `{"title":"Error","status":` + status + `,"detail":"` + detail + `"}`
	}
	refuses := func(name string, status int, body string, want provider.Kind, wrong ...provider.Kind) gotcha {
		g := gotcha{name: name, check: func(t providertest.T, h brokenHarness) {
			if got := h.refusal(t, status, body); got != want {
				t.Errorf("%d %s is %s; want %s", status, body, got, want)
			}
		}}
		for _, k := range wrong {
			g.falls = append(g.falls, at("takes it for "+string(k), providertest.KindTwisted(want, k, "create")))
		}
		return g
	}
	return []gotcha{
		refuses("no capacity has only words", 400, problem("400", classic), provider.NoCapacity, provider.Invalid),
		refuses("no capacity in the words of an older API", 500, problem("500", "This machine does not have the resources to deploy your pod. Please try a different machine"), provider.NoCapacity, provider.Unknown),
		refuses("no capacity for the disk", 400, problem("400", "Not enough disk space on this machine"), provider.NoCapacity, provider.Invalid),
		refuses("a 400 in unknown words holds no pool back", 400, problem("400", "this GPU and data center combination could not be placed"), provider.NoCapacity, provider.Invalid),
		refuses("a 400 that names a rule is ours", 400, problem("400", "gpu.allowedCudaVersions and gpu.minCudaVersion are mutually exclusive"), provider.Invalid, provider.NoCapacity),
		refuses("a type that is not open to the account leaves others", 403, problem("403", "access denied"), provider.Quota, provider.Unauthorized),
		refuses("a firewall's page is no bad key", 403, "<html>Sorry, you have been blocked</html>", provider.Unavailable, provider.Unauthorized),
		refuses("a spend limit is no capacity", 400, problem("400", "You have reached your spend limit of $80 per hour"), provider.NoBalance, provider.NoCapacity, provider.Invalid),
		refuses("a load balancer is no balance", 502, "<html>load balancer: no healthy upstream</html>", provider.Unavailable, provider.NoBalance),
		{name: "a refusal repeats what was sent", check: func(t providertest.T, h brokenHarness) {
			h.supply()
			o := h.find(t, provider.OfferQuery{}, func(provider.Offer) bool { return true })
			h.answer(nil, func(r *http.Request) (int, string, bool) {
				return 422, `{"title":"Unprocessable Entity","status":422,"detail":"Request validation failed.","errors":["$.env.GPUSCALE_BOOT: '` + bootData + `' is too short"]}`,
					r.Method == http.MethodPost
			})
			_, err := h.create(t, o)
			if provider.KindOf(err) != provider.Invalid || strings.Contains(err.Error(), bootData) || !strings.Contains(err.Error(), "GPUSCALE_BOOT") {
				t.Errorf("%v", err)
			}
		}, falls: []fault{at("passes it on", providertest.ErrorsTwisted(func(e *provider.Error) { e.Message += bootData }))}},
		{name: "the window that is used up outlasts Retry-After", check: func(t providertest.T, h brokenHarness) {
			h.answer(http.Header{"Retry-After": {"12"}, "Ratelimit": {`"minute";r=0;t=12, "hour";r=0;t=1812, "day";r=7;t=45012`}},
				func(*http.Request) (int, string, bool) { return 429, problem("429", "rate limit exceeded"), true })
			_, err := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{})
			if e := (*provider.Error)(nil); !errors.As(err, &e) || e.Kind != provider.RateLimited || e.RetryAfter != 1812*time.Second {
				t.Errorf("%v; want to be told of 30m12s", err)
			}
		}, falls: []fault{onWire("reads one header", rewired{neverAgainAfter: "Ratelimit"})}},
	}
}

func readingGotchas() []gotcha {
	anyOffer := func(provider.Offer) bool { return true }
	running := func(t providertest.T, h brokenHarness) string {
		h.supply()
		in := h.buy(t, h.find(t, provider.OfferQuery{}, anyOffer))
		h.Start(in.ID)
		return in.ID
	}
	get := func(t providertest.T, h brokenHarness, id string) provider.Instance {
		in, err := h.Driver().GetInstance(t.Context(), id)
		if err != nil {
			t.Fatalf("get: %v", err)
		}
		return in
	}
	return []gotcha{
		{name: "an ended pod keeps its ports", options: sim.Options{StalePorts: true}, check: func(t providertest.T, h brokenHarness) {
			id := running(t, h)
			h.Exit(id)
			if in := get(t, h, id); in.Address != "" || in.Port != 0 || in.State != provider.StateStopped {
				t.Errorf("%s at %s:%d", in.State, in.Address, in.Port)
			}
		}, falls: []fault{at("believes them", providertest.ReadsTwisted(func(i *provider.Instance) {
			if i.State == provider.StateStopped {
				i.Address, i.Port = "203.0.113.9", 31207
			}
		}))}},
		{name: "a pod whose software ends may be started again", options: sim.Options{RestartExited: true}, check: func(t providertest.T, h brokenHarness) {
			id := running(t, h)
			h.Exit(id)
			if in := get(t, h, id); in.State != provider.StatePending || in.Port != 0 || in.Interrupted {
				t.Errorf("%s at port %d, interrupted: %t", in.State, in.Port, in.Interrupted)
			}
			h.Start(id)
			if in := get(t, h, id); in.State != provider.StateRunning || in.Port == 0 {
				t.Errorf("once it runs again: %s at port %d", in.State, in.Port)
			}
		}, falls: []fault{
			at("keeps the old address", providertest.ReadsTwisted(func(i *provider.Instance) {
				if i.Port == 0 {
					i.Address, i.Port = "127.0.0.1", 9
				}
			})),
			onWire("takes it for ended", reads(`"status":"(PROVISIONING|STARTING)"`, `"status":"EXITED"`)),
		}},
		{name: "rows of the proxy are no address", check: func(t providertest.T, h brokenHarness) {
			if in := get(t, h, running(t, h)); in.Address != "127.0.0.1" || in.Port != 9 {
				t.Errorf("%s:%d", in.Address, in.Port)
			}
		}, falls: []fault{
			onWire("takes the first row", reads(`"type":"http"`, `"type":"tcp"`), reads(`100\.65\.`, `203.0.`)),
		}},
		{name: "a stopped pod shows a cost of 0 and its disk is billed", check: func(t providertest.T, h brokenHarness) {
			id := running(t, h)
			h.Stop(id)
			if in := get(t, h, id); in.Price != nil || h.Market.Books().Now.PerHour == 0 {
				t.Errorf("a rate of $%s, %s is billed", in.Price, h.Market.Books().Now.PerHour)
			}
		}, falls: []fault{onWire("takes 0 for a rate", reads(`"cost":0,`, `"cost":0.0000001,`))}},
		{name: "a cost may lack the disk", options: sim.Options{CostWithoutDisk: true}, check: func(t providertest.T, h brokenHarness) {
			id := running(t, h)
			billed := (int64(h.Market.Books().Now.PerHour) + 999) / 1000
			all, err := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{})
			if err != nil || len(all) != 1 {
				t.Fatalf("list: %v, %v", all, err)
			}
			for _, in := range []provider.Instance{all[0], get(t, h, id)} {
				if in.Price == nil || in.Price.Micros() < billed || in.Price.Micros() > billed+5 {
					t.Errorf("a rate of $%v, %d µ$/h are billed", in.Price, billed)
				}
			}
		}, falls: []fault{onWire("believes it", reads(`"disk":100`, `"disk":0`))}},
		{name: "a pod that is not shown yet is not found, and its end does nothing", options: sim.Options{HiddenDelete: true},
			check: func(t providertest.T, h brokenHarness) {
				h.supply()
				in, err := h.create(t, h.find(t, provider.OfferQuery{}, anyOffer))
				if err != nil {
					t.Fatalf("create: %v", err)
				}
				if err := h.Driver().DestroyInstance(t.Context(), in.ID); provider.KindOf(err) != provider.NotFound {
					t.Errorf("the end of a pod that is not shown: %v; want NotFound, which is confirmed", err)
				}
				h.Wait(h.Driver().Capabilities().ListLag)
				found, err := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{Tag: tag})
				if err != nil || len(found) != 1 {
					t.Fatalf("a lag later %d are found, %v", len(found), err)
				}
			}, falls: []fault{
				at("not found is done", providertest.DestroyTwisted(func(ctx context.Context, p provider.Provider, id string) error {
					if err := p.DestroyInstance(ctx, id); provider.KindOf(err) != provider.NotFound {
						return err
					}
					return nil
				})),
				at("has a lag of seconds", providertest.CapsTwisted(func(c *provider.Capabilities) { c.ListLag = 5 * time.Second })),
			}},
		{name: "a pod that does not run yet is too busy to end", options: sim.Options{BusyUntilRunning: true},
			check: func(t providertest.T, h brokenHarness) {
				h.supply()
				for _, host := range []string{"old", "new", "far", "host"} {
					h.Market.Break(host, market.StuckLoading)
				}
				in := h.buy(t, h.find(t, provider.OfferQuery{}, anyOffer))
				if err := h.Driver().DestroyInstance(t.Context(), in.ID); provider.KindOf(err) != provider.Unavailable {
					t.Errorf("%v; want Unavailable, which is tried again", err)
				}
				if live := h.Market.Books().Live(); len(live) != 1 {
					t.Errorf("%d live", len(live))
				}
			}, falls: []fault{at("takes it for gone", providertest.KindTwisted(provider.Unavailable, provider.NotFound, "destroy"))}},
		{name: "TERMINATED is gone", check: func(t providertest.T, h brokenHarness) {
			id := running(t, h)
			terminated := func(pod map[string]any) { pod["status"] = "TERMINATED" }
			h.Rewrite(providertest.Get, whole(terminated))
			h.Rewrite(providertest.List, each("pods", terminated))
			if _, err := h.Driver().GetInstance(t.Context(), id); provider.KindOf(err) != provider.NotFound {
				t.Errorf("get: %v", err)
			}
			if all, err := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{}); err != nil || len(all) != 0 {
				t.Errorf("list: %v, %v", all, err)
			}
		}, falls: []fault{onWire("has stopped", reads(`TERMINATED`, `EXITED`))}},
		{name: "a proxy's 404 is no missing pod", check: func(t providertest.T, h brokenHarness) {
			id := running(t, h)
			h.answer(nil, func(*http.Request) (int, string, bool) { return 404, "404 page not found", true })
			_, err := h.Driver().GetInstance(t.Context(), id)
			end := h.Driver().DestroyInstance(t.Context(), id)
			if provider.KindOf(err) != provider.Unknown || provider.KindOf(end) != provider.Unknown {
				t.Errorf("get: %v, destroy: %v", err, end)
			}
		}, falls: []fault{at("takes it for one", providertest.KindTwisted(provider.Unknown, provider.NotFound))}},
		{name: "a right that is missing is no firewall", check: func(t providertest.T, h brokenHarness) {
			h.answer(nil, func(*http.Request) (int, string, bool) {
				return 403, `{"title":"Forbidden","status":403,"detail":"access denied"}`, true
			})
			_, denied := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{})
			h.answer(nil, func(*http.Request) (int, string, bool) { return 403, "<html>blocked</html>", true })
			_, blocked := h.Driver().ListInstances(t.Context(), provider.InstanceFilter{})
			if provider.KindOf(denied) != provider.Unauthorized || provider.KindOf(blocked) != provider.Unavailable {
				t.Errorf("denied: %v, blocked: %v", denied, blocked)
			}
		}, falls: []fault{
			at("calls the key dead", providertest.KindTwisted(provider.Unavailable, provider.Unauthorized)),
			at("waits for a right", providertest.KindTwisted(provider.Unauthorized, provider.Unavailable)),
		}},
	}
}
