package runpod_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/internal/workerclient"
	"github.com/munhq/gpuscale/pkg/provider"
	driver "github.com/munhq/gpuscale/pkg/provider/runpod"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A real agent process, rented by the driver and reached where the driver says, is then called by nobody and ends its own
// rental with the key that the provider gave its pod: also when the provider fails at first, and no more than that.
func TestARentedPodEndsItself(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the real agent")
	}
	cfg := calm()
	cfg.Boot, cfg.Body = market.Boot{}, cloudsimtest.Processes(t)
	m := market.New(cfg)
	defer m.Close()
	api := runpod.New(m, runpod.Options{Keys: []string{key}, PortLag: -1})
	var mu sync.Mutex
	var ends []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			mu.Lock()
			ends = append(ends, r.URL.Path)
			mu.Unlock()
			if r.Header.Get("Authorization") == "Bearer "+key {
				t.Error("the account's key ended the rental")
			}
		}
		api.ServeHTTP(w, r)
	}))
	defer srv.Close()

	account := must(driver.New(driver.Config{APIKey: key, BaseURL: srv.URL}))
	ca, said := cloudsimtest.Boot(agentapi.GPUExpectation{Name: "L4", Count: 1, VRAMGB: 24})
	// As the driver declares it, so that what it claims is what the façade grants.
	boot := bootstrap.Leased(said, 3*time.Second, account.Capabilities(), srv.URL)
	container := must(bootstrap.Container(bootstrap.Params{Image: "vllm/vllm-openai:v0.10.1", Boot: boot}))
	var offer provider.Offer
	for _, o := range must(account.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 50})) {
		if o.GPU == "L4" && o.GPUCount == 1 {
			offer = o
		}
	}
	m.FailNext(market.OpDestroy, market.ServerError)
	in := must(account.CreateInstance(t.Context(), provider.CreateRequest{Offer: offer, Tag: "gs-5f2c91ab-0000000000000001",
		MaxPrice: offer.Price, DiskGB: 50, Boot: container}))

	client := must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, time.Now())), ca.PEM()))
	defer client.Close()
	var lease *agentapi.Lease
	cloudsimtest.Until(t, "answered where the driver says", func() bool {
		seen, err := account.GetInstance(t.Context(), in.ID)
		if err != nil || seen.Port == 0 {
			return false
		}
		status, err := client.Status(t.Context(), net.JoinHostPort(seen.Address, strconv.Itoa(seen.Port)), cloudsimtest.ClaimUID)
		lease = status.Lease
		return err == nil
	})
	if lease == nil || lease.SelfEnd != agentapi.SelfEndRunPod {
		t.Errorf("lease %+v", lease)
	}
	cloudsimtest.Until(t, "ended", func() bool { return len(m.Books().Live()) == 0 })
	for _, r := range m.Books().Instances {
		if r.ID != in.ID || r.EndedBy != "instance" {
			t.Errorf("pod %s was ended by %q", r.ID, r.EndedBy)
		}
	}
	if _, err := account.GetInstance(t.Context(), in.ID); provider.KindOf(err) != provider.NotFound {
		t.Errorf("afterwards: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ends) != 2 || ends[0] != "/v2/pods/"+in.ID || ends[1] != ends[0] {
		t.Errorf("asked %q, want the one that failed and the one that did it", ends)
	}
}
