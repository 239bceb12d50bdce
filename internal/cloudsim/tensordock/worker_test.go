package tensordock_test

import (
	"net"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A VM that the driver rents with the boot script of VMs is a real agent at the forwarded port: it serves a model in
// Docker, and is gone when the VM is destroyed.
func TestARentedVMServesAModel(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the real agent")
	}
	m := market.New(market.Config{Provider: "tensordock", InstanceID: tensordock.InstanceID, Offers: machine("4411"), Body: cloudsimtest.Processes(t)})
	defer m.Close()
	srv := httptest.NewServer(tensordock.New(m, tensordock.Options{Tokens: []string{token}, LimitScale: -1, NoPublicIPs: true,
		PortsAfter: 200 * time.Millisecond}))
	defer srv.Close()
	p := must(drivers.New(provider.TensorDock, map[string]string{"TENSORDOCK_API_TOKEN": token}, drivers.Options{BaseURL: srv.URL, PaceFactor: -1}))

	ca, said := cloudsimtest.Boot(agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24})
	boot := must(bootstrap.For(p.Capabilities(), bootstrap.Params{Image: "vllm/vllm-openai:v0.10.1",
		Agent: bootstrap.Agent{URL: "https://downloads.example/agent", SHA256: "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"},
		Boot:  said}))
	offers := must(p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 50}))
	inst := must(p.CreateInstance(t.Context(), provider.CreateRequest{Offer: offers[0], Tag: "gs-5f2c91ab-0000000000000001", DiskGB: 50,
		MaxPrice: offers[0].Price, Boot: boot}))

	var address string
	cloudsimtest.Until(t, "published", func() bool {
		got := must(p.GetInstance(t.Context(), inst.ID))
		address = net.JoinHostPort(got.Address, strconv.Itoa(got.Port))
		return got.Port != 0
	})
	cloudsimtest.Serves(t, ca, address)
	if err := p.DestroyInstance(t.Context(), inst.ID); err != nil {
		t.Error(err)
	}
	cloudsimtest.Silent(t, address)
}
