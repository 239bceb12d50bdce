package vastai_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
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

// A rented instance is a real agent at the address that the API shows: it finds the GPU that was offered, serves a
// model, and is gone with its engine when the instance is destroyed.
func TestRentedInstanceServesAModel(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the real agent")
	}
	ca := must(pki.NewCA("5f2c91ab", time.Now()))
	pair := must(ca.Worker(claimUID, time.Hour, time.Now()))
	data := must(bootstrap.BootData(bootstrap.Params{Boot: agentapi.Boot{Installation: ca.Installation(), ClaimUID: claimUID,
		ClaimName: "test", CertPEM: string(pair.CertPEM), KeyPEM: string(pair.KeyPEM), CAPEM: string(ca.PEM()),
		GPUs: agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24}}}))

	m := market.New(market.Config{Provider: "vast.ai", Offers: []market.Offer{offer4090()}, Body: processes(t)})
	defer m.Close()
	srv := httptest.NewServer(vastai.New(m, vastai.Options{Keys: []string{key}, LimitScale: -1, LogDelay: -1}))
	defer srv.Close()
	r := &rig{t: t, market: m, url: srv.URL, client: srv.Client()}

	id, _ := r.rent(with(order(), "env", object{"GPUSCALE_BOOT": data, "-p 9443:9443": "1"}))
	var endpoint string
	until(t, "published", func() bool {
		in := r.show(id)
		published, ok := in["ports"].(object)
		if ok {
			endpoint = net.JoinHostPort(strings.TrimSpace(in["public_ipaddr"].(string)),
				objects(published["9443/tcp"])[0]["HostPort"].(string))
		}
		return ok
	})
	client := must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, time.Now())), ca.PEM()))
	defer client.Close()
	var status agentapi.Status
	until(t, "answering", func() bool {
		var err error
		status, err = client.Status(t.Context(), endpoint, claimUID)
		return err == nil
	})
	until(t, "found its GPU", func() bool {
		status, _ = client.Status(t.Context(), endpoint, claimUID)
		return len(status.GPUs) == 1
	})
	if g := status.GPUs[0]; g.Name != "NVIDIA GeForce RTX 4090" || g.MemoryMB != 24564 {
		t.Errorf("GPU %+v", g)
	}
	if err := client.PutModels(t.Context(), endpoint, claimUID, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{{Name: "qwen", Source: "acme/qwen", GPUs: 1, GPUFraction: 500}}}); err != nil {
		t.Fatal(err)
	}
	until(t, "ready", func() bool {
		status, _ = client.Status(t.Context(), endpoint, claimUID)
		return len(status.Models) == 1 && status.Models[0].State == agentapi.StateReady
	})
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

	_, out := r.call("PUT", "/api/v0/instances/request_logs/"+id+"/", object{"tail": "50"})
	if _, logs := r.raw("", "GET", strings.TrimPrefix(fmt.Sprint(out["result_url"]), r.url), nil); len(logs) == 0 {
		t.Error("no logs")
	} else if strings.Contains(string(logs), "PRIVATE KEY") || strings.Contains(string(logs), data) {
		t.Error("the logs tell the boot data")
	}
	if status, _ := r.call("DELETE", "/api/v0/instances/"+id+"/", nil); status != 200 {
		t.Errorf("destroy: %d", status)
	}
	until(t, "silent", func() bool {
		c, err := net.DialTimeout("tcp", endpoint, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}

// A tenant without boot data gets what a container gets whose command fails.
func TestRentedInstanceWithoutBootDataExits(t *testing.T) {
	m := market.New(market.Config{Provider: "vast.ai", Offers: []market.Offer{offer4090()},
		Body: must(process.New(process.Options{Agent: "/bin/true", VLLM: "/bin/true", Root: t.TempDir()}))})
	defer m.Close()
	srv := httptest.NewServer(vastai.New(m, vastai.Options{Keys: []string{key}, LimitScale: -1}))
	defer srv.Close()
	r := &rig{t: t, market: m, url: srv.URL, client: srv.Client()}
	id, _ := r.rent(with(order(), "env", object{"-p 9443:9443": "1"}))
	until(t, "exited", func() bool { return r.show(id)["actual_status"] == "exited" })
	if in := r.show(id); in["ports"] != nil || !strings.Contains(fmt.Sprint(in["status_msg"]), "GPUSCALE_BOOT") {
		t.Errorf("%v %v", in["ports"], in["status_msg"])
	}
}
