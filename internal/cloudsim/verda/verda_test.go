package verda_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/verda"
)

type object = map[string]any

// rig is a client that says anything.
type rig struct {
	t          *testing.T
	market     *market.Market
	server     *verda.Server
	clock      *clocktesting.FakeClock
	url, token string
}

func newRig(t *testing.T, o verda.Options) *rig {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
	c := verda.Config(1)
	c.Clock, c.Faults, c.Broken, c.ListLag, c.DestroyLag = clock, market.FaultRates{}, 0, 0, 0
	c.Boot = market.Boot{Accept: time.Second, Create: time.Second, Load: 10 * time.Second}
	m := market.New(c)
	o.Clients = map[string]string{"id": "secret"}
	server := verda.New(m, o)
	srv := httptest.NewServer(server)
	t.Cleanup(m.Close)
	t.Cleanup(srv.Close)
	r := &rig{t: t, market: m, server: server, clock: clock, url: srv.URL + "/v1"}
	r.login()
	return r
}

func (r *rig) login() {
	r.t.Helper()
	r.token = ""
	status, text := r.call("POST", "/oauth2/token", object{"grant_type": "client_credentials", "client_id": "id", "client_secret": "secret"})
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK || got.Token == "" {
		r.t.Fatalf("token: %d %s", status, text)
	}
	r.token = got.Token
}

func (r *rig) call(method, path string, body any) (int, string) {
	r.t.Helper()
	var sent io.Reader
	if body != nil {
		sent = bytes.NewReader(must(json.Marshal(body)))
	}
	request := must(http.NewRequestWithContext(r.t.Context(), method, r.url+path, sent))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+r.token)
	answer := must(http.DefaultClient.Do(request))
	defer answer.Body.Close()
	return answer.StatusCode, string(must(io.ReadAll(answer.Body)))
}

// order is one that is taken, with a script and a key of its own.
func (r *rig) order(change object) object {
	r.t.Helper()
	_, key := r.call("POST", "/ssh-keys", object{"name": "k", "key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDaZoVXP1MEdGB5dcAIMEgFpB/ec7O1fUvajWdmirC8X k"})
	_, script := r.call("POST", "/scripts", object{"name": "s", "script": "#!/bin/bash\n"})
	out := object{"instance_type": "1L40S.20V", "image": "ubuntu-24.04-cuda-12.8-open-docker", "hostname": "a", "description": "d",
		"location_code": "FIN-03", "ssh_key_ids": []string{key}, "startup_script_id": script, "is_spot": true, "contract": "SPOT",
		"pricing": "FIXED_PRICE", "os_volume": object{"name": "a-os", "size": 100, "on_spot_discontinue": "delete_permanently"}}
	for name, value := range change {
		out[name] = value
		if value == nil {
			delete(out, name)
		}
	}
	return out
}

func TestOnlyWholeOrdersAreTaken(t *testing.T) {
	r := newRig(t, verda.Options{})
	for why, change := range map[string]object{
		"location_code is required":      {"location_code": nil},
		"ssh_key_ids":                    {"ssh_key_ids": nil},
		"ssh_key_ids must":               {"ssh_key_ids": []string{}},
		"description are required":       {"description": nil},
		"hostname":                       {"hostname": "A_b"},
		"on_spot_discontinue is for":     {"is_spot": false, "contract": "PAY_AS_YOU_GO"},
		"contract":                       {"contract": "LONG_TERM"},
		"pricing":                        {"pricing": "DYNAMIC_PRICE"},
		"Operating system is not valid":  {"image": "ubuntu-18.04"},
		"startup script":                 {"startup_script_id": "none"},
		"size of at least 50":            {"os_volume": object{"name": "a", "size": 49}},
		"unknown field":                  {"colour": "red"},
		"not available in FIN-99":        {"location_code": "FIN-99"},
		"on_spot_discontinue has an unk": {"os_volume": object{"name": "a", "size": 50, "on_spot_discontinue": "burn"}},
	} {
		status, text := r.call("POST", "/instances", r.order(change))
		if status != http.StatusBadRequest || !strings.Contains(text, why) {
			t.Errorf("%v: %d %s; want %q", change, status, text, why)
		}
	}
	if n := len(r.market.Books().Live()); n != 0 {
		t.Errorf("%d were rented", n)
	}
	if status, text := r.call("POST", "/instances", r.order(nil)); status != http.StatusAccepted || strings.HasPrefix(text, `"`) {
		t.Errorf("a whole order: %d %s", status, text)
	}
}

func TestWithoutAGoodTokenNothingIsServed(t *testing.T) {
	r := newRig(t, verda.Options{TokenLife: time.Minute})
	if status, _ := r.call("GET", "/balance", nil); status != http.StatusOK {
		t.Errorf("a good token: %d", status)
	}
	r.clock.Step(2 * time.Minute)
	for _, token := range []string{r.token, "", "made-up"} {
		r.token = token
		for _, path := range []string{"/balance", "/instances", "/instance-types", "/scripts", "/volumes/trash"} {
			if status, text := r.call("GET", path, nil); status != http.StatusUnauthorized || !strings.Contains(text, "unauthorized_request") {
				t.Errorf("%s with %q: %d %s", path, token, status, text)
			}
		}
	}
	for _, grant := range []object{{"grant_type": "password", "client_id": "id", "client_secret": "secret"},
		{"grant_type": "client_credentials", "client_id": "id", "client_secret": "Secret"},
		{"grant_type": "client_credentials", "client_id": "other", "client_secret": ""}} {
		if status, _ := r.call("POST", "/oauth2/token", grant); status != http.StatusUnauthorized {
			t.Errorf("%v: %d", grant, status)
		}
	}
}

// TestWhatADeleteLeaves is the three cases of volume_ids, and the trash.
func TestWhatADeleteLeaves(t *testing.T) {
	for _, c := range []struct {
		volumes   any
		permanent bool
		left      string
	}{
		{nil, true, ""}, {nil, false, "trash volume a-os"}, {[]string{}, true, "detached volume a-os"}, {"its own", true, ""},
		{"its own", false, "trash volume a-os"},
	} {
		r := newRig(t, verda.Options{})
		order := r.order(nil)
		_, id := r.call("POST", "/instances", order)
		if status, text := r.remove(id, c.volumes, c.permanent); status != http.StatusAccepted {
			t.Errorf("%+v while it was ordered: %d %s", c, status, text)
		}
		if status, _ := r.call("DELETE", fmt.Sprint("/scripts/", order["startup_script_id"]), nil); status != http.StatusOK {
			t.Errorf("script: %d", status)
		}
		if left := strings.Join(r.server.Leftovers(), ", "); left != c.left {
			t.Errorf("%+v leaves %q", c, left)
		}
		for range 2 {
			if status, _ := r.call("GET", "/instances/"+id, nil); status != http.StatusNotFound {
				t.Errorf("deleted, and then %d", status)
			}
		}
	}
}

// remove deletes an instance; volumes is null, a list, or "its own".
func (r *rig) remove(id string, volumes any, permanent bool) (int, string) {
	r.t.Helper()
	if volumes == "its own" {
		_, text := r.call("GET", "/instances/"+id, nil)
		var row struct {
			Volume string `json:"os_volume_id"`
		}
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			r.t.Fatal(err)
		}
		volumes = []string{row.Volume}
	}
	return r.call("PUT", "/instances", object{"id": []string{id}, "action": "delete", "volume_ids": volumes, "delete_permanently": permanent})
}

// TestALifeUntilItIsTakenBack: a delete is refused while provisioning, and what is taken back goes by its policy.
func TestALifeUntilItIsTakenBack(t *testing.T) {
	for policy, left := range map[string]string{"delete_permanently": "", "move_to_trash": "trash volume a-os", "keep_detached": "detached volume a-os"} {
		r := newRig(t, verda.Options{})
		order := r.order(object{"os_volume": object{"name": "a-os", "size": 100, "on_spot_discontinue": policy}})
		_, id := r.call("POST", "/instances", order)
		r.clock.Step(5 * time.Second)
		if status, text := r.remove(id, nil, true); status != http.StatusForbidden || !strings.Contains(text, "Can't discontinue a provisioning instance") {
			t.Errorf("while provisioning: %d %s", status, text)
		}
		r.clock.Step(time.Minute)
		if _, text := r.call("GET", "/instances/"+id, nil); !strings.Contains(text, `"status":"running"`) || !strings.Contains(text, `"ip":"127.`) {
			t.Errorf("running: %s", text)
		}
		if err := r.market.Reclaim(id); err != nil {
			t.Fatal(err)
		}
		if _, text := r.call("GET", "/instances/"+id, nil); !strings.Contains(text, `"status":"discontinued"`) {
			t.Errorf("taken back: %s", text)
		}
		if status, text := r.remove(id, nil, true); status != http.StatusForbidden || !strings.Contains(text, "Can't discontinue a discontinued instance") {
			t.Errorf("once taken back: %d %s", status, text)
		}
		_, _ = r.call("DELETE", fmt.Sprint("/scripts/", order["startup_script_id"]), nil)
		if got := strings.Join(r.server.Leftovers(), ", "); got != left {
			t.Errorf("%s leaves %q, want %q", policy, got, left)
		}
	}
}

func TestScriptsHaveAQuota(t *testing.T) {
	r := newRig(t, verda.Options{})
	for i := range 100 {
		if status, _ := r.call("POST", "/scripts", object{"name": "s", "script": "x"}); status != http.StatusCreated {
			t.Fatalf("script %d: %d", i, status)
		}
	}
	if status, text := r.call("POST", "/scripts", object{"name": "s", "script": "x"}); status != http.StatusBadRequest || !strings.Contains(text, "limit exceeded") {
		t.Errorf("%d %s", status, text)
	}
	if _, text := r.call("GET", "/scripts?page=2&pageSize=60", nil); strings.Count(text, `"id"`) != 40 {
		t.Errorf("page two has %d", strings.Count(text, `"id"`))
	}
}
