package vastai_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

type ctx = context.Context

func TestShowForms(t *testing.T) {
	r := newRig(t, one(), vastai.Options{LimitScale: -1, ShowAsList: true})
	id, _ := r.rent(order())
	_, out := r.call("GET", "/api/v0/instances/"+id+"/", nil)
	if rows := objects(out["instances"]); len(rows) != 1 || fmt.Sprintf("%.0f", rows[0]["id"]) != id {
		t.Errorf("as a list: %v", out)
	}
	if status, out := r.call("GET", "/api/v0/instances/77/", nil); status != 200 || len(objects(out["instances"])) != 0 {
		t.Errorf("gone as a list: %d %v", status, out)
	}
	if status, out := r.call("GET", "/api/v0/instances/abc/", nil); status != 400 || out["error"] != "invalid_args" {
		t.Errorf("malformed: %d %v", status, out)
	}
	if status, out := r.call("GET", "/api/v0/instances/", nil); status != 410 || out["error"] != "deprecated_endpoint" {
		t.Errorf("the old list: %d %v", status, out)
	}
}

func many(t *testing.T, n int) *rig {
	t.Helper()
	cfg := market.Config{}
	for i := range n {
		o := offer4090()
		o.Machine = fmt.Sprint(5000 + i)
		cfg.Offers = append(cfg.Offers, o)
	}
	r := newRig(t, cfg, unlimited)
	for i := range n {
		r.rent(with(order(), "label", fmt.Sprintf("gs-%02d", i%10)))
	}
	return r
}

func TestListPages(t *testing.T) {
	r := many(t, 60)
	for _, orderBy := range []string{"", `[{"col":"label","dir":"desc"}]`} {
		seen := map[float64]bool{}
		pages, token := 0, ""
		for {
			q := url.Values{"limit": {"100"}, "order_by": {orderBy}, "after_token": {token}}
			status, out := r.call("GET", "/api/v1/instances/?"+q.Encode(), nil)
			rows := objects(out["instances"])
			if status != 200 || out["total_instances"] != 60.0 || out["instances_found"] != float64(len(rows)) || len(rows) > 25 {
				t.Fatalf("%d %v of %v in %d rows", status, out["instances_found"], out["total_instances"], len(rows))
			}
			if out["label_counts"].(object)["gs-03"] != 6.0 {
				t.Errorf("label counts %v", out["label_counts"])
			}
			for _, row := range rows {
				seen[row["id"].(float64)] = true
			}
			pages++
			next, more := out["next_token"].(string)
			if !more {
				break
			}
			token = next
			if pages == 1 { // A page holds though rows before it go.
				r.call("DELETE", fmt.Sprintf("/api/v0/instances/%.0f/", rows[0]["id"]), nil)
				r.market.AddOffer(offer4090())
				offers := r.market.Offers()
				if status, _ := r.call("PUT", "/api/v0/asks/"+offers[len(offers)-1].ID+"/", with(order(), "label", "gs-00")); status != 200 {
					t.Fatal("cannot replace it")
				}
			}
		}
		if pages != 3 || len(seen) < 60 {
			t.Errorf("%q: %d of 60 in %d pages", orderBy, len(seen), pages)
		}
	}
}

func TestListFilters(t *testing.T) {
	r := many(t, 12)
	list := func(q url.Values) (int, object) { return r.call("GET", "/api/v1/instances/?"+q.Encode(), nil) }
	for filter, want := range map[string]int{
		`{"label":{"eq":"gs-01"}}`: 2, `{"label":{"in":["gs-01","gs-05"]}}`: 3, `{"actual_status":{"eq":"running"}}`: 12,
		`{"actual_status":{"neq":"running"}}`: 0, `{"id":{"lte":31000003}}`: 3, `{"actual_status":{"eq":null}}`: 0, `{}`: 12,
	} {
		status, out := list(url.Values{"select_filters": {filter}})
		if status != 200 || out["total_instances"] != float64(want) {
			t.Errorf("%s: %d %v", filter, status, out["total_instances"])
		}
	}
	for name, q := range map[string]url.Values{
		"dph_total": {"select_filters": {`{"dph_total":{"lt":1}}`}}, "num_gpus": {"select_filters": {`{"num_gpus":{"eq":1}}`}},
		"operator": {"select_filters": {`{"label":{"like":"gs"}}`}}, "JSON": {"select_filters": {`{`}},
		"order": {"order_by": {`[{"col":"dph_total"}]`}}, "limit": {"limit": {"many"}}, "columns": {"select_cols": {"id"}},
	} {
		if status, out := list(q); status != 400 || out["error"] != "invalid_request" {
			t.Errorf("%s: %d %v", name, status, out)
		}
	}
	for _, token := range []string{"!", "e30=", "bnVsbA=="} {
		if status, out := list(url.Values{"after_token": {token}}); status != 400 || out["error"] != "invalid_token" {
			t.Errorf("token %s: %d %v", token, status, out)
		}
	}
	_, out := list(url.Values{"limit": {"0"}, "select_cols": {`["id","label","colour"]`}})
	rows := objects(out["instances"])
	if len(rows) != 5 || len(rows[0]) != 3 || rows[0]["colour"] != nil {
		t.Errorf("%d rows, first %v", len(rows), rows[0])
	}
}

func TestReadsLagCreation(t *testing.T) {
	cfg := one()
	cfg.ListLag = 5 * time.Second
	r := newRig(t, cfg, unlimited)
	id, _ := r.rent(order())
	count := func() any {
		_, out := r.call("GET", "/api/v1/instances/", nil)
		return out["total_instances"]
	}
	if count() != 0.0 || r.show(id) != nil {
		t.Error("seen at once")
	}
	r.clock.Step(5 * time.Second)
	if count() != 1.0 || r.show(id) == nil {
		t.Error("not seen after the lag")
	}
}

func TestOutbid(t *testing.T) {
	for _, intended := range []string{"", "running"} {
		r := newRig(t, one(), vastai.Options{LimitScale: -1, OutbidIntended: intended})
		id, _ := r.rent(with(order(), "price", 0.25))
		if err := r.market.Reclaim(id); err != nil {
			t.Fatal(err)
		}
		want := intended
		if want == "" {
			want = "stopped"
		}
		in := r.show(id)
		if in["actual_status"] != "stopped" || in["cur_state"] != "stopped" || in["intended_status"] != want ||
			in["next_state"] != want || in["ports"] != nil {
			t.Errorf("%v %v %v %v", in["actual_status"], in["cur_state"], in["intended_status"], in["next_state"])
		}
	}
}

func TestEveryStatusWord(t *testing.T) {
	r := newRig(t, one(), unlimited)
	id, _ := r.rent(order())
	for _, s := range []market.State{market.Created, market.Loading, market.Running, market.Rebooting, market.Stopped,
		market.Exited, market.Frozen, market.Unknown, market.Offline, "hibernating"} {
		if err := r.market.SetState(id, s); err != nil {
			t.Fatal(err)
		}
		if in := r.show(id); in["actual_status"] != string(s) {
			t.Errorf("%s shows as %v", s, in["actual_status"])
		}
	}
}

func TestDestroyThatIsNotDone(t *testing.T) {
	cfg := one()
	cfg.DestroyLag = 10 * time.Second
	r := newRig(t, cfg, unlimited)
	id, _ := r.rent(order())
	for range 2 {
		if status, out := r.call("DELETE", "/api/v0/instances/"+id+"/", nil); status != 200 || out["success"] != true {
			t.Errorf("%d %v", status, out)
		}
		if r.show(id) == nil {
			t.Error("gone at once")
		}
	}
	r.clock.Step(10 * time.Second)
	if r.show(id) != nil {
		t.Error("never gone")
	}
	id, _ = r.rent(order())
	r.market.DestroyRefused(1)
	if status, out := r.call("DELETE", "/api/v0/instances/"+id+"/", nil); status != 500 || out["success"] != false {
		t.Errorf("refused: %d %v", status, out)
	}
	for _, bad := range []string{"abc", "1.5"} {
		if status, out := r.call("DELETE", "/api/v0/instances/"+bad+"/", nil); status != 400 || out["error"] != "invalid_args" {
			t.Errorf("%s: %d %v", bad, status, out)
		}
	}
}

func TestManage(t *testing.T) {
	r := newRig(t, one(), unlimited)
	id, _ := r.rent(with(order(), "price", 0.25))
	path := "/api/v0/instances/" + id + "/"
	for _, bad := range []object{{}, {"state": "frozen"}, {"label": 5}, {"colour": "red"}} {
		if status, out := r.call("PUT", path, bad); status != 400 || out["error"] != "invalid_args" {
			t.Errorf("%v: %d %v", bad, status, out)
		}
	}
	r.call("PUT", path, object{"label": "new"})
	r.call("PUT", path, object{"state": "stopped"})
	if in := r.show(id); in["label"] != "new" || in["actual_status"] != "stopped" || in["intended_status"] != "stopped" {
		t.Errorf("%v %v %v", in["label"], in["actual_status"], in["intended_status"])
	}
	r.call("PUT", path, object{"state": "running"})
	if in := r.show(id); in["actual_status"] != "running" {
		t.Errorf("started: %v", in["actual_status"])
	}
	if status, _ := r.call("PUT", "/api/v0/instances/reboot/"+id+"/", nil); status != 200 || r.show(id)["actual_status"] != "running" {
		t.Errorf("reboot: %d", status)
	}
	bid := func(body object) int {
		status, _ := r.call("PUT", "/api/v0/instances/bid_price/"+id+"/", body)
		return status
	}
	for _, bad := range []object{{"client_id": "me", "price": 0}, {"client_id": "me", "price": 33}, {"price": 0.3}, {"client_id": "me"}} {
		if status := bid(bad); status != 400 {
			t.Errorf("bid %v: %d", bad, status)
		}
	}
	if status := bid(object{"client_id": "me", "price": 0.3}); status != 200 || r.show(id)["dph_base"] != 0.3 {
		t.Errorf("bid: %d at %v", status, r.show(id)["dph_base"])
	}
	if status := bid(object{"client_id": "me", "price": 0.1}); status != 200 || r.show(id)["actual_status"] != "stopped" {
		t.Errorf("a bid under the floor: %d %v", status, r.show(id)["actual_status"])
	}
	for p, sent := range map[string]object{"bid_price/77/": {"client_id": "me", "price": 0.3}, "reboot/77/": nil, "77/": {"label": "x"}} {
		if status, out := r.call("PUT", "/api/v0/instances/"+p, sent); status != 404 || out["error"] != "no_such_instance" {
			t.Errorf("%s: %d %v", p, status, out)
		}
	}
}

func TestBrokenAddresses(t *testing.T) {
	for breakage, port := range map[market.Breakage]any{market.NoAddress: nil, market.Unreachable: "1"} {
		cfg := one()
		cfg.Offers[0].Broken = breakage
		r := newRig(t, cfg, unlimited)
		id, _ := r.rent(order())
		in := r.show(id)
		var got any
		if p, ok := in["ports"].(object); ok {
			got = objects(p["9443/tcp"])[0]["HostPort"]
		}
		if in["actual_status"] != "running" || got != port {
			t.Errorf("%s: %v at %v", breakage, in["actual_status"], got)
		}
	}
}
