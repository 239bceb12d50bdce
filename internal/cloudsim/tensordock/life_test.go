package tensordock_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/tensordock"
)

func TestLifeOfAVM(t *testing.T) {
	r := newRig(t, market.Config{DestroyLag: 10 * time.Second,
		Boot: market.Boot{Accept: 2 * time.Second, Create: 3 * time.Second, Load: time.Minute}}, tensordock.Options{})
	id := r.rent()
	for _, step := range []struct {
		after    time.Duration
		status   string
		ip       bool
		forwards int
		rate     float64
	}{
		{0, "creating", false, 0, 0}, {2 * time.Second, "provisioning", false, 0, 0}, {3 * time.Second, "starting", false, 0, 0},
		{time.Minute, "running", true, 0, 0.4335}, {19 * time.Second, "running", true, 0, 0.4335}, {time.Second, "running", true, 2, 0.4335},
	} {
		r.clock.Step(step.after)
		in := r.show(id)
		if in["status"] != step.status || (in["ipAddress"] != nil) != step.ip || len(in["portForwards"].([]any)) != step.forwards ||
			in["rateHourly"] != step.rate {
			t.Fatalf("after %s: %v; want %+v", step.after, in, step)
		}
	}
	forwards := fmt.Sprint(r.show(id)["portForwards"])
	if want := "[map[external_port:1 internal_port:22] map[external_port:9 internal_port:9443]]"; forwards != want {
		t.Errorf("forwards are %s; want %s", forwards, want)
	}
	if status, out := r.call("DELETE", instances+"/"+id, nil); status != 200 || out["data"].(object)["type"] != "success" {
		t.Fatalf("delete: %d %v", status, out)
	}
	if in := r.show(id); in["status"] != "deleting" {
		t.Errorf("while it ends: %v", in)
	}
	r.clock.Step(10 * time.Second)
	for _, method := range []string{"GET", "DELETE"} {
		if status, out := r.call(method, instances+"/"+id, nil); status != 404 || out["status"] != 404.0 {
			t.Errorf("%s after the end: %d %v", method, status, out)
		}
	}
	if b := r.market.Books(); b.Now.Live != 0 || b.Rented != 1 || b.Spent <= 0 {
		t.Errorf("books: %+v", b.Now)
	}
}

func TestWhatAVMCosts(t *testing.T) {
	for releases, want := range map[bool]market.Nano{false: market.USD(0.4335), true: market.USD(0.0075)} {
		r := newRig(t, market.Config{}, tensordock.Options{StopReleases: releases})
		id := r.rent()
		r.clock.Step(time.Second)
		r.show(id)
		if got := r.market.Books().Now.PerHour; got != market.USD(0.4335) {
			t.Errorf("a VM costs $%s/h; want 0.35 + 4 × 0.003 + 32 × 0.002 + 150 × 0.00005", got)
		}
		if status, out := r.call("POST", instances+"/"+id+"/stop", nil); status != 200 || out["data"].(object)["attributes"].(object)["status"] != "stopping" {
			t.Errorf("stop: %d %v", status, out)
		}
		if in := r.show(id); in["status"] != "stopped" || in["ipAddress"] != nil {
			t.Errorf("stopped: %v", in)
		}
		if got := r.market.Books().Now.PerHour; got != want {
			t.Errorf("stopped (releases its GPU: %v) it costs $%s/h; want $%s", releases, got, want)
		}
	}
}

func TestWordsForWhatHappens(t *testing.T) {
	for name, c := range map[string]struct {
		happen func(*rig, string) error
		want   string
	}{
		"taken":       {func(r *rig, id string) error { return r.market.Reclaim(id) }, "stoppeddisassociated"},
		"off":         {func(r *rig, id string) error { return r.market.Kill(id) }, "stopped"},
		"host away":   {func(r *rig, id string) error { return r.market.SetOffline(id, true) }, "running"},
		"new word":    {func(r *rig, id string) error { return r.market.SetState(id, "hibernating") }, "hibernating"},
		"no credit":   {func(r *rig, _ string) error { r.market.SetCredit(1); r.clock.Step(time.Hour); return nil }, "stopped"},
		"undisturbed": {func(*rig, string) error { return nil }, "running"},
	} {
		r := newRig(t, market.Config{}, tensordock.Options{})
		id := r.rent()
		r.clock.Step(time.Second)
		r.show(id)
		if err := c.happen(r, id); err != nil {
			t.Fatal(err)
		}
		if in := r.show(id); in["status"] != c.want {
			t.Errorf("%s: %v; want %s", name, in["status"], c.want)
		}
	}
}

func TestForms(t *testing.T) {
	for form, want := range map[string]string{
		"":           `map[data:[map[id:ID name:gs-aaaaaaaa-0001 status:creating]]]`,
		"instances":  `map[data:map[instances:[map[id:ID name:gs-aaaaaaaa-0001 status:creating]]]]`,
		"attributes": `map[data:[map[attributes:map[name:gs-aaaaaaaa-0001 status:creating] id:ID type:virtualmachine]]]`,
	} {
		r := newRig(t, market.Config{Boot: market.Boot{Accept: time.Minute}}, tensordock.Options{ListForm: form, NoContent: true, Wrapped: true})
		id := r.rent()
		_, out := r.call("GET", instances, nil)
		if got := strings.ReplaceAll(fmt.Sprint(out), id, "ID"); got != want {
			t.Errorf("%q: %s\nwant %s", form, got, want)
		}
		if _, out := r.call("GET", instances+"/"+id, nil); out["data"].(object)["id"] != id {
			t.Errorf("wrapped: %v", out)
		}
		if res, raw := r.raw(token, "DELETE", instances+"/"+id, nil); res.StatusCode != http.StatusNoContent || len(raw) > 0 {
			t.Errorf("delete: %d %s", res.StatusCode, raw)
		}
	}
	r := newRig(t, market.Config{}, tensordock.Options{FullList: true})
	r.rent()
	if _, out := r.call("GET", instances, nil); out["data"].([]any)[0].(object)["resources"] == nil {
		t.Errorf("a full list: %v", out)
	}
}

func TestSupply(t *testing.T) {
	cheap := machine("4412")
	for i := range cheap {
		cheap[i].OnDemand, cheap[i].MachineGPUs = market.USD(0.30)*market.Nano(i+1), 2
	}
	r := newRig(t, market.Config{Offers: append(machine("4411"), cheap...)}, tensordock.Options{TextPrices: true})
	available := func() (out []any) {
		_, answer := r.call("GET", "/api/v2/hostnodes", nil)
		for _, n := range answer["data"].(object)["hostnodes"].([]any) {
			g := n.(object)["available_resources"].(object)["gpus"].([]any)[0].(object)
			out = append(out, g["v0Name"], g["availableCount"], g["price_per_hr"])
		}
		return out
	}
	if got, want := fmt.Sprint(available()), fmt.Sprint([]any{slug, 2, "0.35", slug, 2, "0.3"}); got != want {
		t.Errorf("hostnodes have %s; want %s", got, want)
	}
	location := func() object {
		_, answer := r.call("GET", "/api/v2/locations", nil)
		all := answer["data"].(object)["locations"].([]any)
		if len(all) != 1 || all[0].(object)["country"] != "Norway" || all[0].(object)["id"] != tensordock.LocationID("Oslo, NO") {
			t.Fatalf("locations: %v", all)
		}
		return all[0].(object)["gpus"].([]any)[0].(object)
	}
	if g := location(); g["price_per_hr"] != "0.3" || g["max_count"] != 2.0 {
		t.Errorf("a data centre's row is %v; want the lowest price and the largest machine", g)
	}
	byLocation := func(a object) { delete(a, "hostnode_id"); a["location_id"] = tensordock.LocationID("Oslo, NO") }
	r.rent(byLocation)
	if got, want := fmt.Sprint(available()), fmt.Sprint([]any{slug, 2, "0.35", slug, 1, "0.3"}); got != want {
		t.Errorf("the cheapest host was not taken first: %s; want %s", got, want)
	}
	for range 3 {
		r.rent(byLocation)
	}
	if got := available(); got != nil {
		t.Errorf("sold out and listed: %v", got)
	}
	if g := location(); g["max_count"] != 2.0 {
		t.Errorf("a data centre's row forgets what it had: %v", g)
	}
	if _, out := r.call("POST", instances, order(byLocation)); out["error"] != "No available nodes found" {
		t.Errorf("sold out: %v", out)
	}
	if status, _ := r.call("GET", "/api/v2/hostnodes/"+tensordock.NodeID("4411"), nil); status != 404 {
		t.Errorf("a host without anything free: %d", status)
	}
	if r := newRig(t, market.Config{}, tensordock.Options{NoHostnodes: true}); true {
		if res, _ := r.raw(token, "GET", "/api/v2/hostnodes", nil); res.StatusCode != http.StatusNotFound {
			t.Errorf("without hostnodes: %d", res.StatusCode)
		}
	}
}
