package vllmsim

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// child starts the program in the test binary.
func child(t *testing.T, env []string, args ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append([]string{childEnv + "=1", "VLLM_SIM_LOAD_TIME=50ms", "VLLM_SIM_TTFT=0"}, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stderr
}

// up waits for the child's port and returns its base URL.
func up(t *testing.T, stderr io.Reader) string {
	t.Helper()
	scanner := bufio.NewScanner(stderr)
	for scanner.Scan() {
		if _, url, ok := strings.Cut(scanner.Text(), "Starting vLLM API server 0 on "); ok {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			return url
		}
	}
	t.Fatal("the server never came up")
	return ""
}

func exitCode(cmd *exec.Cmd) int {
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

func TestExitCodes(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := fmt.Sprint(busy.Addr().(*net.TCPAddr).Port)
	for _, c := range []struct {
		want int
		text string
		args []string
	}{
		{2, "vllm: error: unrecognized arguments: --no-such-flag", []string{"serve", "m", "--no-such-flag"}},
		{2, "vllm serve: error: argument --port: invalid int value: 'x'", []string{"serve", "m", "--port", "x"}},
		{2, "vllm serve: error: argument --port: expected one argument", []string{"serve", "m", "--port"}},
		{2, "invalid choice: 'run'", []string{"run"}},
		{1, "torch.OutOfMemoryError", []string{"serve", "sim/oom", "--port", "0"}},
		{1, "GatedRepoError", []string{"serve", "sim/gated", "--port", "0"}},
		{1, "[Errno 98] Address already in use", []string{"serve", "m", "--host", "127.0.0.1", "--port", port}},
	} {
		cmd, stderr := child(t, nil, c.args...)
		text, err := io.ReadAll(stderr)
		if err != nil {
			t.Fatal(err)
		}
		if got := exitCode(cmd); got != c.want || !bytes.Contains(text, []byte(c.text)) {
			t.Errorf("%v: exit %d\n%s", c.args, got, text)
		}
	}
}

func TestProcessServesAndEndsOnSIGTERM(t *testing.T) {
	cmd, stderr := child(t, []string{"VLLM_SIM_TOKENS_PER_SEC=0.001"}, "serve", "m", "--host", "127.0.0.1", "--port", "0",
		"--served-model-name", "a", "b", "--tensor-parallel-size=2", "--enforce-eager", "--max-model-len", "4k")
	base := up(t, stderr)
	if status, body := get(t, base+"/v1/models"); status != 200 || !strings.Contains(body, `"max_model_len":4000`) {
		t.Errorf("models: %d %s", status, body)
	}
	resp, err := post(t.Context(), t, base+chatPath, `{"model":"b","messages":[{"role":"user","content":"x"}],"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the stream ended cleanly")
	}
	if got := exitCode(cmd); got != 0 {
		t.Errorf("exit %d", got)
	}
}

func TestShutdownTimeoutLetsRequestsFinish(t *testing.T) {
	cmd, stderr := child(t, []string{"VLLM_SIM_TOKENS_PER_SEC=20"}, "serve", "m", "--host", "127.0.0.1", "--port", "0", "--shutdown-timeout", "60")
	base := up(t, stderr)
	resp, err := post(t.Context(), t, base+chatPath, `{"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":12}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
		t.Errorf("%v\n%s", err, body)
	}
	if got := exitCode(cmd); got != 0 {
		t.Errorf("exit %d", got)
	}
	if resp, err := http.Get(base + "/health"); err == nil {
		resp.Body.Close()
		t.Error("still listening")
	}
}

func TestHangIgnoresSIGTERMOnlyWhenAsked(t *testing.T) {
	cmd, stderr := child(t, nil, "serve", "sim/hang", "--port", "0")
	scanner := bufio.NewScanner(stderr)
	for scanner.Scan() && !strings.Contains(scanner.Text(), "model-00001-of-00004.safetensors") {
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stderr); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(cmd); got != exitInterrupted {
		t.Errorf("exit %d", got)
	}
	cmd, stderr = child(t, []string{"VLLM_SIM_FAILURE=ignore-sigterm"}, "serve", "m", "--host", "127.0.0.1", "--port", "0")
	base := up(t, stderr)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, _ := get(t, base+"/health"); status != 200 {
		t.Errorf("health %d", status)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(cmd); got != -1 {
		t.Errorf("exit %d", got)
	}
}

func TestCrashEndsTheProcess(t *testing.T) {
	cmd, stderr := child(t, []string{"VLLM_SIM_CRASH_DELAY=0"}, "serve", "sim/crash-after-1", "--host", "127.0.0.1", "--port", "0")
	base := up(t, stderr)
	body := `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`
	if status, _ := call(t, base+chatPath, body); status != 200 {
		t.Fatalf("first: %d", status)
	}
	// With no delay the answer may be lost with the process; both are real.
	if resp, err := post(t.Context(), t, base+chatPath, body); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("second: %d", resp.StatusCode)
		}
	}
	if got := exitCode(cmd); got != 1 {
		t.Errorf("exit %d", got)
	}
}

func TestFlagsInEverySpelling(t *testing.T) {
	none := func(string) string { return "" }
	cmd, err := ParseCommand([]string{"serve", "--port=9", "acme/m", "-tp", "2", "--max_model_len", "32K", "-O3",
		"--no-enable-prefix-caching", "--hf-overrides.x", "1", "--api-key", "a", "b", "--max-num-seqs", "4",
		"--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes", "-1", "--shutdown-timeout", "7",
		"--compilation-config", `{"level":3}`, "--load-format", "runai_streamer", "--data-parallel-size", "2"}, none)
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Model != "acme/m" || cmd.Port != 9 || cmd.TensorParallel != 2 || cmd.MaxModelLen != 32768 || cmd.MaxNumSeqs != 4 ||
		cmd.DataParallel != 2 || len(cmd.APIKeys) != 2 || cmd.GPUMemoryUtilization != 0.5 || cmd.ShutdownTimeout.Seconds() != 7 {
		t.Errorf("%+v", cmd)
	}
	if _, err := ParseCommand([]string{"serve", "m"}, func(name string) string {
		return map[string]string{"VLLM_SIM_TTFT": "soon"}[name]
	}); err == nil || !strings.Contains(err.Error(), "VLLM_SIM_TTFT") {
		t.Errorf("bad variable: %v", err)
	}
}

func TestMetricsHaveVLLMsNamesAndTypes(t *testing.T) {
	_, front := ready(t, `acme/"m"`, func(c *Config) { c.DataParallel = 2 })
	for range 2 {
		call(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}],"max_tokens":4}`)
	}
	families := scrape(t, front.URL)
	for kind, names := range map[dto.MetricType]string{
		dto.MetricType_GAUGE: "num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc engine_sleep_state cache_config_info",
		dto.MetricType_COUNTER: "prompt_tokens_total generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total " +
			"num_preemptions_total request_success_total",
		dto.MetricType_HISTOGRAM: "time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds " +
			"e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds " +
			"request_inference_time_seconds request_prompt_tokens request_generation_tokens request_max_num_generation_tokens " +
			"request_params_n request_params_max_tokens iteration_tokens_total",
	} {
		for _, name := range strings.Fields(names) {
			f := families["vllm:"+name]
			if f == nil || f.GetType() != kind {
				t.Errorf("%s: %v", name, f.GetType())
				continue
			}
			var engines []string
			for _, label := range f.GetMetric()[0].GetLabel() {
				if label.GetName() == "model_name" && label.GetValue() == `acme/"m"` || label.GetName() == "engine" {
					engines = append(engines, label.GetName())
				}
			}
			if !slices.Equal(engines, []string{"engine", "model_name"}) || len(f.GetMetric()) < 2 {
				t.Errorf("%s: labels %v of %d series", name, engines, len(f.GetMetric()))
			}
		}
	}
	for _, m := range families["vllm:generation_tokens_total"].GetMetric() {
		if m.GetCounter().GetValue() != 4 {
			t.Errorf("an engine made %v tokens", m.GetCounter().GetValue())
		}
	}
	if h := families["vllm:request_generation_tokens"].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 4 {
		t.Errorf("histogram %v", h)
	}
	if families["http_requests_total"] == nil {
		t.Error("no http_requests_total")
	}
	_, old := ready(t, "sim/old-metrics", nil)
	families = scrape(t, old.URL)
	if families["vllm:gpu_cache_usage_perc"] == nil || families["vllm:kv_cache_usage_perc"] != nil ||
		families["vllm:time_per_output_token_seconds"] == nil || families["vllm:inter_token_latency_seconds"] != nil ||
		families["vllm:gpu_prefix_cache_queries_total"] == nil {
		t.Error("old names are wrong")
	}
}
