package vastai_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
	vastdriver "github.com/munhq/gpuscale/pkg/provider/vastai"
)

// A real agent process that nobody ever calls ends its own rental with the key that the provider gave its container, also
// when the provider fails at first: by the market's books once, by itself.
func TestARentedInstanceEndsItself(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the real agent")
	}
	_, said := cloudsimtest.Boot(agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24})
	m := market.New(market.Config{Provider: "vast.ai", Offers: []market.Offer{offer4090()}, Body: cloudsimtest.Processes(t)})
	defer m.Close()
	api := vastai.New(m, vastai.Options{Keys: []string{key}})
	var mu sync.Mutex
	deletes := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			mu.Lock()
			deletes++
			mu.Unlock()
			if r.Header.Get("Authorization") == "Bearer "+key {
				t.Error("the account's key ended the rental")
			}
		}
		api.ServeHTTP(w, r)
	}))
	defer srv.Close()
	r := &rig{t: t, market: m, url: srv.URL, client: srv.Client()}
	// As the driver declares it, so that what it claims is what the façade grants.
	driver := must(vastdriver.New(vastdriver.Config{APIKey: key, BaseURL: srv.URL}))
	boot := bootstrap.Leased(said, 2*time.Second, driver.Capabilities(), srv.URL)
	m.FailNext(market.OpDestroy, market.ServerError)
	id, _ := r.rent(with(order(), "env", object{"GPUSCALE_BOOT": must(bootstrap.BootData(bootstrap.Params{Boot: boot})), "-p 9443:9443": "1"}))

	cloudsimtest.Until(t, "ended", func() bool { return len(m.Books().Live()) == 0 })
	for _, in := range m.Books().Instances {
		if in.ID != id || in.EndedBy != "instance" {
			t.Errorf("instance %s was ended by %q", in.ID, in.EndedBy)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if deletes != 2 {
		t.Errorf("%d requests to end it, want the one that failed and the one that did it", deletes)
	}
}
