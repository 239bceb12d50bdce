package cloudsimtest

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// ClaimUID is the claim's that workers are rented for.
const ClaimUID = "0b8f3e52-6f0d-4b54-9c62-1f0a6c1de3aa"

// now dates certificates: real agents check them.
func now() time.Time { return time.Now() } //gpuscale:clock agents are real processes

// must is v, where making it cannot go wrong.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Processes builds the real programs that run on instances, with an engine that is soon ready.
func Processes(t testing.TB) *process.Factory {
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

// Until asks again and again until it is so, for a minute.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never %s", what)
		}
	}
}

// Boot is what a worker of a new installation is told at first.
func Boot(gpu agentapi.GPUExpectation) (*pki.CA, agentapi.Boot) {
	ca := must(pki.NewCA("5f2c91ab", now()))
	pair := must(ca.Worker(ClaimUID, time.Hour, now()))
	return ca, agentapi.Boot{Installation: ca.Installation(), ClaimUID: ClaimUID, ClaimName: "test", CertPEM: string(pair.CertPEM),
		KeyPEM: string(pair.KeyPEM), CAPEM: string(ca.PEM()), GPUs: gpu}
}

// Serves has a worker serve a model, and takes an answer from it. It returns what the worker says of itself.
func Serves(t testing.TB, ca *pki.CA, endpoint string) agentapi.Status {
	t.Helper()
	client := must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, now())), ca.PEM()))
	defer client.Close()
	var status agentapi.Status
	Until(t, "found its GPU", func() bool {
		var err error
		status, err = client.Status(t.Context(), endpoint, ClaimUID)
		return err == nil && len(status.GPUs) == 1
	})
	if err := client.PutModels(t.Context(), endpoint, ClaimUID, agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{{Name: "qwen", Source: "acme/qwen", GPUs: 1, GPUFraction: 500}}}); err != nil {
		t.Fatal(err)
	}
	Until(t, "ready", func() bool {
		var err error
		status, err = client.Status(t.Context(), endpoint, ClaimUID)
		return err == nil && len(status.Models) == 1 && status.Models[0].State == agentapi.StateReady
	})
	gateway := must(workerclient.New(must(ca.Client(agentapi.RoleGateway, time.Hour, now())), ca.PEM()))
	defer gateway.Close()
	request := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+endpoint+"/v1/chat/completions",
		bytes.NewBufferString(`{"model":"qwen","max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`)))
	request.Header.Set("Content-Type", "application/json")
	answer, err := must(gateway.Transport(ClaimUID)).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"choices"`) {
		t.Errorf("%d %s %v", answer.StatusCode, text, err)
	}
	return status
}

// Silent waits until nobody listens at an endpoint any more.
func Silent(t testing.TB, endpoint string) {
	t.Helper()
	Until(t, "silent", func() bool {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", endpoint)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}
