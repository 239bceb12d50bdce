package vastai_test

import (
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// realistic is the default catalogue with nothing that goes wrong by itself.
func realistic() market.Config {
	cfg := market.Realistic("vast.ai", 7)
	cfg.Faults, cfg.Broken, cfg.ListLag, cfg.Reclaim.PerHour = market.FaultRates{}, 0, 0, 0
	return cfg
}

// exercise makes every call in most of the ways that it can end.
func exercise(r *rig) {
	r.call("POST", "/api/v0/bundles/", object{"limit": 5, "type": "bid", "verified": object{"eq": true},
		"gpu_name": object{"in": []string{"RTX 4090", "RTX 3090"}}, "num_gpus": object{"eq": 1}, "allocated_storage": 80,
		"order": [][]string{{"dph_total", "asc"}}})
	r.call("POST", "/api/v0/bundles/", object{"colour": object{"eq": "red"}})
	r.callAs("wrong", "POST", "/api/v0/bundles/", object{})
	r.call("GET", "/api/v0/users/current/", nil)

	a, _ := r.rent(order())
	b, _ := r.rent(with(with(order(), "price", 9.5), "label", nil))
	r.call("PUT", "/api/v0/asks/77/", order())
	r.call("PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", with(order(), "disk", 2))
	r.call("PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", with(order(), "price", 0.001))
	for range 5 {
		r.show(a)
		r.call("GET", "/api/v1/instances/?limit=1", nil)
		r.clock.Step(time.Minute)
	}
	r.call("GET", `/api/v1/instances/?select_filters={"label":{"eq":"gs-aaaaaaaa-0001"}}`, nil)
	r.call("GET", `/api/v1/instances/?select_filters={"dph_total":{"gt":1}}`, nil)
	r.call("PUT", "/api/v0/instances/"+a+"/", object{"label": "renamed"})
	r.call("PUT", "/api/v0/instances/"+a+"/", object{"state": "frozen"})
	r.call("PUT", "/api/v0/instances/reboot/"+a+"/", nil)
	r.call("PUT", "/api/v0/instances/bid_price/"+b+"/", object{"client_id": "me", "price": 9.9})
	r.call("PUT", "/api/v0/instances/bid_price/77/", object{"client_id": "me", "price": 9.9})
	r.call("PUT", "/api/v0/instances/request_logs/"+a+"/", object{"tail": "200"})
	r.call("PUT", "/api/v0/instances/request_logs/77/", object{})
	for _, id := range []string{a, b, a, "77"} {
		r.call("DELETE", "/api/v0/instances/"+id+"/", nil)
	}
	r.clock.Step(time.Minute)
	r.show(a)
	r.callAs("wrong", "GET", "/api/v0/instances/"+a+"/", nil)
}
