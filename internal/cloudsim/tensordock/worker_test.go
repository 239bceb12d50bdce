package tensordock_test

import (
	"net"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

const claimUID = "0b8f3e52-6f0d-4b54-9c62-1f0a6c1de3aa"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// processes builds the real programs.
func processes(t *testing.T) *process.Factory {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"gpuscale-agent", "vllm-sim"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, name), "github.com/munhq/gpuscale/cmd/"+name)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return must(process.New(process.Options{Agent: filepath.Join(dir, "gpuscale-agent"), VLLM: filepath.Join(dir, "vllm-sim"),
		Root: t.TempDir(), Env: map[string]string{"VLLM_SIM_LOAD_TIME": "100ms", "VLLM_SIM_TTFT": "1ms"}}))
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("never %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A VM that the driver rents with the boot script of VMs is a real agent at the forwarded port: it serves a model in
// Docker, and is gone when the VM is destroyed.
func TestARentedVMServesAModel(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the real agent")
	}
	m := market.New(market.Config{Provider: "tensordock", InstanceID: tensordock.InstanceID, Offers: machine("4411"), Body: processes(t)})
	defer m.Close()
	srv := httptest.NewServer(tensordock.New(m, tensordock.Options{Tokens: []string{token}, LimitScale: -1, NoPublicIPs: true,
		PortsAfter: 200 * time.Millisecond}))
	defer srv.Close()
	p := must(drivers.New(provider.TensorDock, map[string]string{"TENSORDOCK_API_TOKEN": token}, drivers.Options{BaseURL: srv.URL, PaceFactor: -1}))

	ca := must(pki.NewCA("5f2c91ab", time.Now()))
	pair := must(ca.Worker(claimUID, time.Hour, time.Now()))
	boot := must(bootstrap.For(p.Capabilities(), bootstrap.Params{Image: "vllm/vllm-openai:v0.10.1",
		Agent: bootstrap.Agent{URL: "https://downloads.example/agent", SHA256: "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"},
		Boot: agentapi.Boot{Installation: ca.Installation(), ClaimUID: claimUID, ClaimName: "test", CertPEM: string(pair.CertPEM),
			KeyPEM: string(pair.KeyPEM), CAPEM: string(ca.PEM()), GPUs: agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24}}}))
	offers := must(p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: provider.OnDemand, DiskGB: 50}))
	inst := must(p.CreateInstance(t.Context(), provider.CreateRequest{Offer: offers[0], Tag: "gs-5f2c91ab-0000000000000001", DiskGB: 50,
		MaxPrice: offers[0].Price, Boot: boot}))

	var address string
	until(t, "published", func() bool {
		got := must(p.GetInstance(t.Context(), inst.ID))
		address = net.JoinHostPort(got.Address, strconv.Itoa(got.Port))
		return got.Port != 0
	})
	client := must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, time.Now())), ca.PEM()))
	defer client.Close()
	var status agentapi.Status
	until(t, "found its GPU", func() bool {
		status, _ = client.Status(t.Context(), address, claimUID)
		return len(status.GPUs) == 1
	})
	if err := client.PutModels(t.Context(), address, claimUID, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{{Name: "qwen", Source: "acme/qwen", GPUs: 1, GPUFraction: 500}}}); err != nil {
		t.Fatal(err)
	}
	until(t, "ready", func() bool {
		status, _ = client.Status(t.Context(), address, claimUID)
		return len(status.Models) == 1 && status.Models[0].State == agentapi.StateReady
	})
	if err := p.DestroyInstance(t.Context(), inst.ID); err != nil {
		t.Error(err)
	}
	until(t, "silent", func() bool {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}
