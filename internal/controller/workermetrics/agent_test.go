package workermetrics_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/controller/workermetrics"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// TestARealAgentsMetrics scrapes a gpuscale-agent process with two vllm-sim processes, one with old names, and an
// nvidia-smi beside them.
func TestARealAgentsMetrics(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"gpuscale-agent", "vllm-sim"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, name), "github.com/munhq/gpuscale/cmd/"+name).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	ca := must(pki.NewCA("5f2c91ab", time.Now()))
	factory := must(process.New(process.Options{Agent: filepath.Join(bin, "gpuscale-agent"), VLLM: filepath.Join(bin, "vllm-sim"), Root: t.TempDir(),
		Env: map[string]string{"VLLM_SIM_LOAD_TIME": "10ms", "VLLM_SIM_TTFT": "1ms"}}))
	b := must(factory.Start(t.Context(), body.Spec{InstanceID: "one", Port: 9443, GPU: body.GPU{Name: "NVIDIA GeForce RTX 4090", MemoryMB: 24564, Count: 1, Driver: "570.86.15", CUDA: "12.8", ComputeCap: "8.9"},
		Env: map[string]string{agentapi.EnvBoot: base64.StdEncoding.EncodeToString(must(json.Marshal(bootFor(ca, 0))))}}))
	t.Cleanup(func() { b.Kill(); <-b.Done() })
	host, port := b.Address()
	endpoint := net.JoinHostPort(host, strconv.Itoa(port))
	client := must(workerclient.New(must(ca.Client(agentapi.RoleController, time.Hour, time.Now())), ca.PEM()))
	t.Cleanup(client.Close)
	desired := agentapi.DesiredModels{Generation: 1, Models: []agentapi.DesiredModel{
		{Name: "new", Source: "acme/qwen", GPUs: 1, GPUFraction: 400}, {Name: "old", Source: "sim/old-metrics", GPUs: 1, GPUFraction: 400}}}
	wait(t, time.Minute, func() error { return client.PutModels(t.Context(), endpoint, uid(0), desired) })

	s := workermetrics.New(workermetrics.Settings{Interval: time.Second, All: true}, client, clock.RealClock{}, logr.Discard())
	s.Set(workermetrics.Target{Claim: "a", UID: uid(0), Endpoint: endpoint, Pool: "p", Provider: "vast.ai", GPUType: "RTX4090", Models: []string{"new", "old"}})
	run(t, s)
	for _, want := range []struct {
		family string
		labels map[string]string
	}{
		{"gpuscale_worker_vllm_kv_cache_usage_perc", map[string]string{"model": "new", "engine": "0"}},
		{"gpuscale_worker_vllm_kv_cache_usage_perc", map[string]string{"model": "old", "engine": "0"}},
		{"gpuscale_worker_vllm_prefix_cache_queries_total", map[string]string{"model": "old"}},
		{"gpuscale_worker_vllm_inter_token_latency_seconds", map[string]string{"model": "old"}},
		{"gpuscale_worker_vllm_inter_token_latency_seconds", map[string]string{"model": "new"}},
		{"gpuscale_worker_vllm_request_success_total", map[string]string{"model": "new", "finished_reason": "stop"}},
		{"gpuscale_worker_gpu_temperature_celsius", map[string]string{"gpu": "0"}},
		{"gpuscale_worker_gpu_info", map[string]string{"driver_version": "570.86.15"}},
		{"gpuscale_worker_up", nil},
	} {
		wait(t, time.Minute, func() error { return has(s.Handler(), want.family, want.labels) })
	}
	// What vLLM has dropped since, "all" passes on as it is.
	known := map[string]bool{"gpuscale_worker_vllm_num_requests_swapped": true, "gpuscale_worker_vllm_cpu_cache_usage_perc": true}
	for _, f := range workermetrics.Catalogue() {
		known[f.Name] = true
	}
	for name := range exposition(s.Handler()) {
		if !known[name] && !strings.HasPrefix(name, "gpuscale_worker_scrape") && name != "gpuscale_worker_up" && name != "gpuscale_worker_series_dropped" {
			t.Errorf("%s is not in the catalogue", name)
		}
	}
}

// exposition is what is served now, or nil when it is not valid.
func exposition(handler http.Handler) map[string]*dto.MetricFamily {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(recorder.Body)
	if err != nil {
		return nil
	}
	return families
}

// has says why there is no series of claim a with these labels.
func has(handler http.Handler, family string, labels map[string]string) error {
	all := exposition(handler)
	for _, m := range all[family].GetMetric() {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		fits := have["claim"] == "a" && have["pool"] == "p" && have["provider"] == "vast.ai" && have["gpu_type"] == "RTX4090"
		for name, value := range labels {
			fits = fits && have[name] == value
		}
		if fits {
			return nil
		}
	}
	return fmt.Errorf("no %s with %v among %d families: %v", family, labels, len(all), all[family])
}
