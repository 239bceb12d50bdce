package vastai_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

func one() market.Config { return market.Config{Offers: []market.Offer{offer4090()}} }

func TestKeys(t *testing.T) {
	for _, status := range []int{404, 401} {
		r := newRig(t, one(), vastai.Options{LimitScale: -1, BadKeyStatus: status})
		if status == 404 {
			r = newRig(t, one(), unlimited) // The default.
		}
		for _, k := range []string{"", "wrong"} {
			for _, path := range []string{"/api/v1/instances/", "/api/v0/instances/1/", "/api/v0/users/current/"} {
				got, out := r.callAs(k, "GET", path, nil)
				if got != status || out["error"] != "auth_error" || out["msg"] != "Invalid user key" {
					t.Errorf("%q %s: %d %v", k, path, got, out)
				}
			}
		}
		if got, out := r.callAs("", "POST", "/api/v0/bundles/", object{}); got != 200 || len(out["offers"].([]any)) != 1 {
			t.Errorf("search without a key: %d", got)
		}
		if got, out := r.callAs("wrong", "POST", "/api/v0/bundles/", object{}); got != status || out["error"] != "auth_error" {
			t.Errorf("search with a wrong key: %d %v", got, out)
		}
		if got, _ := r.callAs("", "GET", "/api/v0/users/current/?api_key="+key, nil); got != 200 {
			t.Errorf("key as a parameter: %d", got)
		}
	}
}

func TestInstanceKey(t *testing.T) {
	second := offer4090()
	second.Machine = "4412"
	r := newRig(t, market.Config{Offers: []market.Offer{offer4090(), second}}, unlimited)
	mine, mineKey := r.rent(order())
	other, _ := r.rent(with(order(), "label", "gs-other"))
	for _, refused := range [][2]string{{"GET", "/api/v1/instances/"}, {"DELETE", "/api/v0/instances/" + other + "/"},
		{"GET", "/api/v0/instances/" + mine + "/"}, {"GET", "/api/v0/users/current/"}} {
		if status, out := r.callAs(mineKey, refused[0], refused[1], nil); status != 403 {
			t.Errorf("%v with an instance's key: %d %v", refused, status, out)
		}
	}
	if status, out := r.callAs(mineKey, "PUT", "/api/v0/instances/"+mine+"/", object{"state": "stopped"}); status != 200 {
		t.Errorf("stop itself: %d %v", status, out)
	}
	if status, out := r.callAs(mineKey, "PUT", "/api/v0/instances/"+mine+"/", object{"label": "gs-stolen"}); status != 403 {
		t.Errorf("rename itself: %d %v", status, out)
	}
	if status, out := r.callAs(mineKey, "PUT", "/api/v0/instances/reboot/"+mine+"/", nil); status != 403 {
		t.Errorf("reboot itself: %d %v", status, out)
	}
	if status, out := r.callAs(mineKey, "DELETE", "/api/v0/instances/"+mine+"/", nil); status != 200 {
		t.Errorf("destroy itself: %d %v", status, out)
	}
	for _, in := range r.market.Books().Instances {
		if in.ID == mine && in.EndedBy != "instance" {
			t.Errorf("ended by %q", in.EndedBy)
		}
	}
	if status, out := r.callAs(mineKey, "DELETE", "/api/v0/instances/"+mine+"/", nil); status != 404 || out["error"] != "auth_error" {
		t.Errorf("a dead instance's key: %d %v", status, out)
	}
}

func TestMissingSlashLosesTheBody(t *testing.T) {
	r := newRig(t, one(), unlimited)
	for method, path := range map[string]string{"GET": "/api/v1/instances", "PUT": "/api/v0/asks/28000001",
		"POST": "/api/v0/bundles", "DELETE": "/api/v0/instances/1"} {
		res, _ := r.raw(key, method, path+"?a=b", object{})
		if res.StatusCode != http.StatusMovedPermanently || !strings.HasSuffix(res.Header.Get("Location"), path+"/?a=b") {
			t.Errorf("%s %s: %d to %s", method, path, res.StatusCode, res.Header.Get("Location"))
		}
	}
	if n := r.market.Books().Rented; n != 0 {
		t.Errorf("%d rented", n)
	}
}

func TestCallLimits(t *testing.T) {
	r := newRig(t, one(), vastai.Options{})
	tests := []struct {
		method, path string
		pause        time.Duration
		text         string
	}{
		{"PUT", "/api/v0/asks/77/", 4500 * time.Millisecond, "4.5"}, {"GET", "/api/v0/instances/77/", 2 * time.Second, "2.0"},
		{"DELETE", "/api/v0/instances/77/", 3 * time.Second, "3.0"}, {"GET", "/api/v1/instances/", time.Second, "1.0"},
		{"PUT", "/api/v0/instances/77/", time.Second, "1.0"}, {"PUT", "/api/v0/instances/reboot/77/", time.Second, "1.0"},
		{"PUT", "/api/v0/instances/bid_price/77/", 5500 * time.Millisecond, "5.5"},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			if status, _ := r.call(tt.method, tt.path, object{}); status == 429 {
				t.Fatal("the first call is refused")
			}
			r.clock.Step(tt.pause - time.Millisecond)
			status, out := r.call(tt.method, tt.path, object{})
			if detail, _ := out["detail"].(string); status != 429 || !strings.Contains(detail, "threshold="+tt.text) {
				t.Errorf("too early: %d %v", status, out)
			}
			r.clock.Step(12 * time.Second)
			if status, _ := r.call(tt.method, tt.path, object{}); status == 429 {
				t.Error("refused for ever")
			}
		})
	}
	for i := range 11 {
		if status, _ := r.call("POST", "/api/v0/bundles/", object{}); (status == 429) != (i >= 10) {
			t.Errorf("search %d of a minute: %d", i+1, status)
		}
	}
}

func TestLimitScaleAndForms(t *testing.T) {
	r := newRig(t, one(), vastai.Options{LimitScale: 0.01, RateForm: "text"})
	r.call("GET", "/api/v1/instances/", nil)
	res, raw := r.raw(key, "GET", "/api/v1/instances/", nil)
	if res.StatusCode != http.StatusTooManyRequests || string(raw) != "API requests too frequent: endpoint threshold=1.0" || res.Header.Get("Retry-After") != "" {
		t.Errorf("%d %q", res.StatusCode, raw)
	}
	r.clock.Step(10 * time.Millisecond)
	if status, _ := r.call("GET", "/api/v1/instances/", nil); status != 200 {
		t.Errorf("a hundredth of a second later: %d", status)
	}
	r = newRig(t, one(), vastai.Options{RateForm: "message"})
	r.call("GET", "/api/v1/instances/", nil)
	if status, out := r.call("GET", "/api/v1/instances/", nil); status != 429 || out["code"] != 429.0 || out["message"] == nil {
		t.Errorf("%d %v", status, out)
	}
}

func TestFaultsOnTheWire(t *testing.T) {
	var offers []market.Offer
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		o := offer4090()
		o.Machine = name
		offers = append(offers, o)
	}
	r := newRig(t, market.Config{Offers: offers}, unlimited)
	create := func() (int, string, error) {
		res, raw, err := r.try(key, "PUT", "/api/v0/asks/"+r.market.Offers()[0].ID+"/", order())
		if res == nil {
			return 0, "", err
		}
		return res.StatusCode, string(raw), err
	}
	rented := func() int { return r.market.Books().Rented }

	r.market.LoseNextAnswer(market.OpCreate)
	if _, _, err := create(); err == nil || rented() != 1 {
		t.Errorf("lost answer: %v, %d rented", err, rented())
	}
	r.market.FailNext(market.OpCreate, market.Truncated)
	if _, raw, err := create(); err == nil || rented() != 2 {
		t.Errorf("truncated: %v %q, %d rented", err, raw, rented())
	}
	r.market.FailNext(market.OpCreate, market.ServerError)
	if status, _, err := create(); err != nil || status != 502 || rented() != 2 {
		t.Errorf("server error: %d %v, %d rented", status, err, rented())
	}
	r.market.FailNext(market.OpCreate, market.ErrorAfter)
	if status, _, err := create(); err != nil || status != 502 || rented() != 3 {
		t.Errorf("error after: %d %v, %d rented", status, err, rented())
	}
	r.market.FailNext(market.OpAny, market.TooMany)
	if status, raw, err := create(); err != nil || status != 429 || rented() != 3 {
		t.Errorf("too many: %d %s %v", status, raw, err)
	}
	// The client gives up on neither of these, so the clock must move.
	for fault, wantRented := range map[market.Fault]int{market.Slow: 4, market.Timeout: 4} {
		r.market.FailNext(market.OpCreate, fault)
		done := make(chan error, 1)
		go func() { _, _, err := create(); done <- err }()
		for ended := false; !ended; {
			select {
			case err := <-done:
				if (err != nil) != (fault == market.Timeout) {
					t.Errorf("%s: %v", fault, err)
				}
				ended = true
			case <-time.After(5 * time.Millisecond):
				r.clock.Step(5 * time.Second)
			}
		}
		if fault == market.Slow && rented() != wantRented {
			t.Errorf("%s: %d rented", fault, rented())
		}
	}
	if rented() != 4 {
		t.Errorf("%d rented in the end", rented())
	}

	// The client leaves before a late request takes effect.
	r.market.FailNext(market.OpCreate, market.Late)
	r.client.Timeout = 50 * time.Millisecond
	if _, _, err := create(); err == nil || rented() != 4 {
		t.Errorf("late: %v, %d rented", err, rented())
	}
	cloudsimtest.Until(t, "rented late", func() bool {
		r.clock.Step(time.Second)
		return rented() == 5
	})
}
