package verda_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/verda"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
	"github.com/munhq/gpuscale/pkg/provider"
	driver "github.com/munhq/gpuscale/pkg/provider/verda"
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
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "github.com/munhq/gpuscale/cmd/"+name)
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

// A rented machine is a real agent at an address of its own: it finds the GPU that was offered, Docker and the image,
// serves a model from a container, and is gone with it when the instance is destroyed.
func TestRentedMachineServesAModel(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("builds and runs the real agent, at one of the many loopback addresses that Linux has")
	}
	ca := must(pki.NewCA("5f2c91ab", time.Now()))
	pair := must(ca.Worker(claimUID, time.Hour, time.Now()))
	config := verda.Config(1)
	config.Body, config.Boot, config.Faults, config.Broken = processes(t), market.Boot{}, market.FaultRates{}, 0
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
		Boot: agentapi.Boot{Installation: ca.Installation(), ClaimUID: claimUID, ClaimName: "test", CertPEM: string(pair.CertPEM),
			KeyPEM: string(pair.KeyPEM), CAPEM: string(ca.PEM()), GPUs: agentapi.GPUExpectation{Name: "L40S", Count: 1, VRAMGB: 48}},
	}))
	in := must(p.CreateInstance(t.Context(), provider.CreateRequest{Offer: offer, Tag: "gs-5f2c91ab-0000000000000001",
		MaxPrice: offer.Price, DiskGB: 60, Boot: boot}))
	until(t, "running", func() bool {
		in = must(p.GetInstance(t.Context(), in.ID))
		return in.State == provider.StateRunning && in.Address != ""
	})
	endpoint := net.JoinHostPort(in.Address, "9443")
	if in.Port != 9443 || in.Address == "127.0.0.1" {
		t.Errorf("reached at %s port %d", in.Address, in.Port)
	}
	serves(t, ca, endpoint)

	until(t, "accepted", func() bool { return p.DestroyInstance(t.Context(), in.ID) == nil })
	until(t, "silent", func() bool {
		c, err := net.DialTimeout("tcp", endpoint, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if left := api.Leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// serves has a model served at an endpoint, and an answer from it.
func serves(t *testing.T, ca *pki.CA, endpoint string) {
	t.Helper()
	client := must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, time.Now())), ca.PEM()))
	defer client.Close()
	var status agentapi.Status
	until(t, "answering", func() bool {
		var err error
		status, err = client.Status(t.Context(), endpoint, claimUID)
		return err == nil
	})
	if err := client.PutModels(t.Context(), endpoint, claimUID, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{{Name: "qwen", Source: "acme/qwen", GPUs: 1, GPUFraction: 500}}}); err != nil {
		t.Fatal(err)
	}
	until(t, "ready", func() bool {
		status, _ = client.Status(t.Context(), endpoint, claimUID)
		return len(status.Models) == 1 && status.Models[0].State == agentapi.StateReady
	})
	var steps []string
	for _, step := range status.Steps {
		steps = append(steps, step.Name)
	}
	if got := strings.Join(steps, " "); got != "Booted GPUsFound RuntimeFound ImagePulled Downloading Loading Warmed Ready" {
		t.Errorf("steps %s", got)
	}
	gateway := must(workerclient.New(must(ca.Client(agentapi.RoleGateway, time.Hour, time.Now())), ca.PEM()))
	defer gateway.Close()
	request := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+endpoint+"/v1/chat/completions",
		bytes.NewBufferString(`{"model":"qwen","max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`)))
	request.Header.Set("Content-Type", "application/json")
	answer, err := must(gateway.Transport(claimUID)).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	text := must(io.ReadAll(answer.Body))
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"choices"`) {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
}
