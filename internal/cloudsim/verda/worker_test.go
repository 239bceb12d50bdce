package verda_test

import (
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/verda"
	"github.com/munhq/gpuscale/pkg/provider"
	driver "github.com/munhq/gpuscale/pkg/provider/verda"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A rented machine is a real agent at an address of its own: it finds the GPU that was offered, Docker and the image,
// serves a model from a container, and is gone with it when the instance is destroyed.
func TestRentedMachineServesAModel(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("builds and runs the real agent, at one of the many loopback addresses that Linux has")
	}
	ca, said := cloudsimtest.Boot(agentapi.GPUExpectation{Name: "L40S", Count: 1, VRAMGB: 48})
	config := verda.Config(1)
	config.Body, config.Boot, config.Faults, config.Broken = cloudsimtest.Processes(t), market.Boot{}, market.FaultRates{}, 0
	config.ListLag, config.DestroyLag = 0, 0
	m := market.New(config)
	defer m.Close()
	api := verda.New(m, verda.Options{Clients: verda.Clients([]string{"key"})})
	srv := httptest.NewServer(api)
	defer srv.Close()
	p := must(driver.New(driver.Config{ClientID: "client-of-key", ClientSecret: "key", BaseURL: srv.URL, PaceFactor: -1}))

	var offer provider.Offer
	for _, o := range must(p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.Spot, DiskGB: 60})) {
		if o.GPU == "L40S" {
			offer = o
		}
	}
	boot := must(bootstrap.For(p.Capabilities(), bootstrap.Params{
		Image: "vllm/vllm-openai:v0.33.0", Agent: bootstrap.Agent{URL: "https://downloads.example/agent", SHA256: strings.Repeat("0a", 32)},
		Boot: said,
	}))
	in := must(p.CreateInstance(t.Context(), provider.CreateRequest{Offer: offer, Tag: "gs-5f2c91ab-0000000000000001",
		MaxPrice: offer.Price, DiskGB: 60, Boot: boot}))
	cloudsimtest.Until(t, "running", func() bool {
		in = must(p.GetInstance(t.Context(), in.ID))
		return in.State == provider.StateRunning && in.Address != ""
	})
	endpoint := net.JoinHostPort(in.Address, "9443")
	if in.Port != 9443 || in.Address == "127.0.0.1" {
		t.Errorf("reached at %s port %d", in.Address, in.Port)
	}
	var steps []string
	for _, step := range cloudsimtest.Serves(t, ca, endpoint).Steps {
		steps = append(steps, step.Name)
	}
	if got := strings.Join(steps, " "); got != "Booted GPUsFound RuntimeFound ImagePulled Downloading Loading Warmed Ready" {
		t.Errorf("steps %s", got)
	}

	cloudsimtest.Until(t, "accepted", func() bool { return p.DestroyInstance(t.Context(), in.ID) == nil })
	cloudsimtest.Silent(t, endpoint)
	if left := api.Leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
