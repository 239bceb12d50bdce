package vastai_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

func (r *rig) search(body object) []object {
	r.t.Helper()
	status, out := r.callAs("", "POST", "/api/v0/bundles/", body)
	if status != 200 {
		r.t.Fatalf("search %v: %d %v", body, status, out)
	}
	return objects(out["offers"])
}

func objects(v any) []object {
	list, _ := v.([]any)
	var out []object
	for _, o := range list {
		out = append(out, o.(object))
	}
	return out
}

// everything lifts the server's own defaults.
func everything() object {
	return object{"limit": 3000, "verified": object{}, "rentable": object{"eq": true}, "rented": object{"eq": false}}
}

func TestSearchFilters(t *testing.T) {
	r := newRig(t, realistic(), unlimited)
	all := r.search(everything())
	total := len(r.market.Offers())
	if len(all) != total {
		t.Fatalf("%d of %d offers", len(all), total)
	}
	if n := len(r.search(object{})); n != 64 {
		t.Errorf("%d offers without a limit", n)
	}
	for _, o := range r.search(object{"limit": 3000}) {
		if o["verification"] != "verified" {
			t.Error("an unverified offer by default")
		}
	}
	tests := map[string]struct {
		filter object
		holds  func(object) bool
	}{
		"name":     {object{"gpu_name": object{"in": []string{"RTX 4090", "L40S"}}}, func(o object) bool { return o["gpu_name"] == "RTX 4090" || o["gpu_name"] == "L40S" }},
		"not name": {object{"gpu_name": object{"notin": []string{"RTX 4090"}}}, func(o object) bool { return o["gpu_name"] != "RTX 4090" }},
		"range":    {object{"gpu_ram": object{"gte": 22800, "lt": 40000}}, func(o object) bool { n := o["gpu_ram"].(float64); return n >= 22800 && n < 40000 }},
		"count":    {object{"num_gpus": object{"eq": 2}}, func(o object) bool { return o["num_gpus"] == 2.0 }},
		"verified": {object{"verified": object{"eq": false}}, func(o object) bool { return o["verification"] != "verified" }},
		"place":    {object{"geolocation": object{"eq": "US"}}, func(o object) bool { return strings.HasSuffix(o["geolocation"].(string), ", US") }},
		"price":    {object{"dph_total": object{"lte": 0.5}}, func(o object) bool { return o["dph_total"].(float64) <= 0.5 }},
		"center":   {object{"datacenter": object{"eq": true}}, func(o object) bool { return o["hosting_type"] == 1.0 }},
		"arch":     {object{"cpu_arch": object{"neq": "amd64"}}, func(o object) bool { return o["cpu_arch"] == "arm64" }},
	}
	for name, tt := range tests {
		q := everything()
		for k, v := range tt.filter {
			q[k] = v
		}
		got := r.search(q)
		want := 0
		for _, o := range all {
			if tt.holds(o) {
				want++
			}
		}
		for _, o := range got {
			if !tt.holds(o) {
				t.Errorf("%s: passed %v", name, o["id"])
			}
		}
		if len(got) != want || want == 0 {
			t.Errorf("%s: %d offers, want %d", name, len(got), want)
		}
	}
	if n := len(r.search(with(everything(), "gpu_name", object{"eq": "RTX_4090"}))); n != 0 {
		t.Errorf("%d offers for a name with an underscore", n)
	}
}

func TestSearchPricesForTheShape(t *testing.T) {
	r := newRig(t, one(), unlimited)
	const gbHour = 0.15 / 720
	for _, tt := range []struct {
		body object
		want float64
	}{
		{object{}, 0.38 + 8*gbHour}, {object{"allocated_storage": 80}, 0.38 + 80*gbHour},
		{object{"type": "on-demand", "allocated_storage": 0}, 0.38}, {object{"type": "bid", "allocated_storage": 80}, 0.21 + 80*gbHour},
	} {
		o := r.search(tt.body)[0]
		if got := o["dph_total"].(float64); got < tt.want-1e-8 || got > tt.want+1e-8 {
			t.Errorf("%v: %v, want %v", tt.body, got, tt.want)
		}
		if o["dph_base"] != 0.38 || o["min_bid"] != 0.21 || o["is_bid"] != (tt.body["type"] == "bid") {
			t.Errorf("%v: base %v bid %v %v", tt.body, o["dph_base"], o["min_bid"], o["is_bid"])
		}
	}
	o := r.search(object{})[0]
	if o["driver_vers"] != 570086015.0 || o["gpu_total_ram"] != 24564.0 || o["reliability2"] != o["reliability"] {
		t.Errorf("driver %v memory %v", o["driver_vers"], o["gpu_total_ram"])
	}
}

func TestSearchOrder(t *testing.T) {
	r := newRig(t, realistic(), unlimited)
	last := 0.0
	for _, o := range r.search(with(everything(), "order", [][]string{{"dph_total", "asc"}, {"id", "desc"}})) {
		if n := o["dph_total"].(float64); n < last {
			t.Fatalf("%v after %v", n, last)
		} else {
			last = n
		}
	}
}

func TestSearchRefuses(t *testing.T) {
	r := newRig(t, one(), unlimited)
	for name, tt := range map[string]struct {
		body any
		says string
	}{
		"field":         {object{"gpu_colour": object{"eq": "red"}}, "gpu_colour is not a valid search key"},
		"operator":      {object{"num_gpus": object{"is": 1}}, "is is not a valid operator"},
		"bare value":    {object{"num_gpus": 1}, "must be an object"},
		"wrong type":    {object{"num_gpus": object{"eq": "1"}}, "not a valid value"},
		"list":          {object{"gpu_name": object{"in": "RTX 4090"}}, "must be a list"},
		"ordered bool":  {object{"verified": object{"gt": true}}, "not a valid operator"},
		"type":          {object{"type": "spot"}, "not a valid type"},
		"limit":         {object{"limit": "9"}, "limit"},
		"order":         {object{"order": []string{"dph_total", "asc"}}, "pairs"},
		"order column":  {object{"order": [][]string{{"price", "asc"}}}, "not a valid search key"},
		"order way":     {object{"order": [][]string{{"id", "up"}}}, "direction"},
		"storage":       {object{"allocated_storage": "80"}, "allocated_storage"},
		"not an object": {"[]", "Invalid json body"},
		"not JSON":      {"{", "Invalid json body"},
	} {
		status, out := r.call("POST", "/api/v0/bundles/", tt.body)
		msg, _ := out["msg"].(string)
		if status != 400 || out["error"] != "invalid_request" || !strings.Contains(msg, tt.says) {
			t.Errorf("%s: %d %v", name, status, out)
		}
	}
}

func TestOlderSearches(t *testing.T) {
	r := newRig(t, one(), unlimited)
	q := url.QueryEscape(`{"gpu_name":{"eq":"RTX 4090"}}`)
	if status, out := r.call("GET", "/api/v0/bundles/?q="+q, nil); status != 200 || len(objects(out["offers"])) != 1 {
		t.Errorf("GET bundles: %d %v", status, out)
	}
	body := object{"select_cols": []string{"*"}, "q": object{"gpu_name": object{"eq": "RTX 4090"}}}
	if status, out := r.call("PUT", "/api/v0/search/asks/", body); status != 200 || len(objects(out["offers"])) != 1 {
		t.Errorf("PUT search/asks: %d %v", status, out)
	}
	if status, out := r.call("GET", "/api/v0/gpu_names/unique/", nil); status != 200 || out["gpu_names"].([]any)[0] != "RTX 4090" {
		t.Errorf("names: %d %v", status, out)
	}
}

func TestUserShowsCredit(t *testing.T) {
	cfg := one()
	cfg.Limits.Credit = market.USD(12.5)
	r := newRig(t, cfg, unlimited)
	status, out := r.call("GET", "/api/v0/users/current/", nil)
	if status != 200 || out["balance"] != 0.0 || out["credit"] != 12.5 {
		t.Errorf("%d %v", status, out)
	}
}

func TestLogs(t *testing.T) {
	r := newRig(t, one(), vastai.Options{LimitScale: -1})
	id, _ := r.rent(order())
	status, out := r.call("PUT", "/api/v0/instances/request_logs/"+id+"/", object{"tail": "200"})
	link, _ := out["result_url"].(string)
	path := strings.TrimPrefix(link, r.url)
	if status != 200 || path == link {
		t.Fatalf("%d %v", status, out)
	}
	if res, _ := r.raw("", "GET", path, nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("there at once: %d", res.StatusCode)
	}
	r.clock.Step(time.Second)
	if res, _ := r.raw("", "GET", path, nil); res.StatusCode != http.StatusOK {
		t.Errorf("not there: %d", res.StatusCode)
	}
	if status, _ := r.call("PUT", "/api/v0/instances/request_logs/"+id+"/", object{"tail": 200}); status != 400 {
		t.Errorf("tail as a number: %d", status)
	}
	if status, out := r.call("PUT", "/api/v0/instances/request_logs/77/", nil); status != 404 || out["error"] != "invalid_id" {
		t.Errorf("of nothing: %d %v", status, out)
	}
}
