package vllmsim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestModelNamesSelectFailures(t *testing.T) {
	for model, want := range map[string]Fault{
		"sim/oom": {FailOOM, 0}, "acme/sim/gated": {FailGated, 0}, "sim/oom-7b": {FailOOM, 0},
		"sim/hang": {FailHang, 0}, "Sim/Crash-after-3": {FailCrash, 3}, "sim/stream-eof-after-12b": {}, "sim/kv-cache": {FailKVCache, 0},
		"sim/hanger": {}, "sim/tiny": {}, "oom": {}, "sim/stream-error": {FailStreamError, 0},
	} {
		if got, ok := FaultOfModel(model); got != want && ok || ok != (want.Failure != "") {
			t.Errorf("%s: %v %v, want %v", model, got, ok, want)
		}
	}
	if _, err := ParseFaults("oom,typo"); err == nil {
		t.Error("a typing error was accepted")
	}
	if got, err := ParseFaults("old-metrics, crash-after-2"); err != nil || len(got) != 2 || got[1].After != 2 {
		t.Errorf("%v %v", got, err)
	}
}

func TestLoadFailuresWriteTheirTraceback(t *testing.T) {
	for failure, want := range map[Failure]string{
		FailOOM:       "torch.OutOfMemoryError: CUDA out of memory",
		FailKVCache:   "larger than the available KV cache memory",
		FailNotFound:  "404 Client Error: Not Found for url: https://huggingface.co/sim/not-found/",
		FailGated:     "GatedRepoError: 401 Client Error",
		FailDiskFull:  "No space left on device",
		FailLoadError: "are not supported for now",
		FailGPUs:      "larger than the number of available GPUs",
	} {
		cfg := DefaultConfig("sim/" + string(failure))
		cfg.Clock = newStepClock()
		s := New(cfg)
		if st := s.Status(); st.Phase != PhaseImporting || st.Progress != 0 {
			t.Errorf("%s: starts as %+v", failure, st)
		}
		var log bytes.Buffer
		var failed *LoadError
		if err := s.Boot(t.Context(), &log); !errors.As(err, &failed) || failed.Failure != failure {
			t.Errorf("%s: Boot gave %v", failure, err)
		}
		if !strings.Contains(log.String(), want) || strings.Contains(log.String(), "Application startup") {
			t.Errorf("%s: log is\n%s", failure, log.String())
		}
		if st := s.Status(); st.Phase != PhaseExited || st.ExitCode != 1 || st.Reason == "" {
			t.Errorf("%s: ends as %+v", failure, st)
		}
		if got := strings.Join(s.Logs(), "\n") + "\n"; got != log.String() {
			t.Errorf("%s: Logs differ from what Boot wrote", failure)
		}
	}
}

func TestResourcesDecideTheLoad(t *testing.T) {
	for want, change := range map[Failure]func(*Config){
		FailOOM:     func(c *Config) { c.GPUMemoryGiB, c.WeightsGiB = 24, 30 },
		"":          func(c *Config) { c.GPUMemoryGiB, c.WeightsGiB, c.TensorParallel = 24, 30, 2 },
		FailGPUs:    func(c *Config) { c.GPUs, c.TensorParallel = 1, 2 },
		FailKVCache: func(c *Config) { c.KVBlocks, c.MaxModelLen = 10, 161 },
	} {
		cfg := Config{Model: "m"}
		change(&cfg)
		if got := New(cfg).loadFailure; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if New(Config{Model: "sim/needs-token", HubToken: true}).loadFailure != "" || New(Config{Model: "sim/needs-token"}).loadFailure != FailGated {
		t.Error("needs-token does not follow the token")
	}
}

func TestPhasesPassOnTheClockAlone(t *testing.T) {
	clock := newStepClock()
	cfg := DefaultConfig("m")
	cfg.LoadTime, cfg.Clock = 100*time.Second, clock
	s := New(cfg)
	var phases []Phase
	for range 21 {
		if st := s.Status(); len(phases) == 0 || phases[len(phases)-1] != st.Phase {
			phases = append(phases, st.Phase)
		}
		if s.Status().Phase != PhaseServing {
			func() {
				defer func() {
					r := recover()
					if err, _ := r.(error); !errors.Is(err, http.ErrAbortHandler) {
						t.Errorf("a loading server answered: %v", r)
					}
				}()
				s.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/health", nil))
			}()
		}
		clock.advance(5 * time.Second)
	}
	want := []Phase{PhaseImporting, PhaseDownloading, PhaseLoading, PhaseCompiling, PhaseProfiling, PhaseServing}
	if len(phases) != len(want) {
		t.Errorf("phases %v", phases)
	}
	hung := New(Config{Model: "sim/hang", LoadTime: time.Second, Clock: clock})
	clock.advance(time.Hour)
	if st := hung.Status(); st.Phase != PhaseDownloading {
		t.Errorf("hung is %+v", st)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := hung.Boot(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("hung Boot: %v", err)
	}
}

func TestStreamFailuresSpareTheFirstRequests(t *testing.T) {
	body := `{"messages":[{"role":"user","content":"x"}],"stream":true}`
	check := func(failure Failure) []string {
		_, front := ready(t, "sim/"+string(failure)+"-after-1", nil)
		if status, _ := call(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`); status != 200 {
			t.Fatalf("%s: the probe got %d", failure, status)
		}
		data, status, err := events(t, front.URL+chatPath, body)
		if status != 200 || err != nil || len(data) < 4 { // role and three tokens
			t.Fatalf("%s: %d %v %v", failure, status, data, err)
		}
		if got := finished(t, front.URL, "error"); got != 1 {
			t.Errorf("%s: %v errors counted", failure, got)
		}
		return data
	}
	data := check(FailStreamError)
	if len(data) != 6 || !strings.HasPrefix(data[4], `{"error":{"message":`) || data[5] != "[DONE]" {
		t.Errorf("stream-error: %v", data)
	}
	data = check(FailStreamEOF)
	if len(data) != 4 || strings.Contains(data[3], `"finish_reason":"`) {
		t.Errorf("stream-eof: %v", data)
	}
}

func TestFreezeStopsEveryTokenAndNothingElse(t *testing.T) {
	s, front := ready(t, "sim/freeze-after-1", nil)
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/completions",
			strings.NewReader(`{"model":"sim/freeze-after-1","prompt":"x","max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Errorf("before: %v", err)
	}
	before := s.engines[0].meter.promptTokens
	for range 2 {
		if err := ask(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("frozen: %v", err)
		}
	}
	if status, _ := get(t, front.URL+"/health"); status != http.StatusOK || s.engines[0].meter.promptTokens != before {
		t.Errorf("health is %d, %v prompt tokens were counted after %v", status, s.engines[0].meter.promptTokens, before)
	}
}

func TestStreamHangHoldsTheConnection(t *testing.T) {
	_, front := ready(t, "sim/stream-hang", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := post(ctx, t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}],"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read := make(chan error, 1)
	var got bytes.Buffer
	go func() {
		_, err := io.Copy(&got, resp.Body)
		read <- err
	}()
	eventually(t, "three tokens made", func() bool {
		return scrape(t, front.URL)["vllm:generation_tokens_total"].GetMetric()[0].GetCounter().GetValue() == 3
	})
	select {
	case err := <-read:
		t.Fatalf("the stream ended: %v", err)
	default:
	}
	if status, _ := get(t, front.URL+"/health"); status != 200 {
		t.Errorf("health %d: a hang must not show there", status)
	}
	cancel()
	if err := <-read; err == nil {
		t.Error("a cancelled stream ended cleanly")
	}
}

func TestCrashListsModelsThenDies(t *testing.T) {
	clock := newStepClock()
	s, front := ready(t, "sim/crash", func(c *Config) { c.Clock = clock; c.CrashDelay = time.Second })
	if status, body := get(t, front.URL+"/v1/models"); status != 200 || !strings.Contains(body, "sim/crash") {
		t.Fatalf("models: %d %s", status, body)
	}
	status, value := call(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}]}`)
	if status != 500 || !strings.Contains(value["error"].(map[string]any)["message"].(string), "EngineCore") {
		t.Errorf("crash: %d %v", status, value)
	}
	<-s.EngineDied()
	if status, _ := get(t, front.URL+"/health"); status != 503 {
		t.Errorf("health of the dead: %d", status)
	}
	if st := s.Status(); st.Phase != PhaseDead {
		t.Errorf("%+v", st)
	}
	clock.advance(time.Second)
	if st := s.Status(); st.Phase != PhaseExited || st.ExitCode != 1 {
		t.Errorf("%+v", st)
	}
	if resp, err := http.Get(front.URL + "/health"); err == nil {
		resp.Body.Close()
		t.Error("the exited answered")
	}
}

func TestCrashFailsWhatIsInFlight(t *testing.T) {
	s, front := ready(t, "sim/crash-after-1", func(c *Config) { c.TokensPerSecond = 0.001 })
	got := make(chan []string, 1)
	go func() {
		data, _, _ := events(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}],"stream":true}`)
		got <- data
	}()
	eventually(t, "the stream runs", func() bool { return s.Status().Running == 1 })
	if status, _ := call(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}]}`); status != 500 {
		t.Errorf("second: %d", status)
	}
	data := <-got
	if len(data) < 2 || !strings.Contains(data[len(data)-2], `"code":500`) {
		t.Errorf("stream got %v", data)
	}
}

func TestOtherOddities(t *testing.T) {
	_, front := ready(t, "sim/unauthorized", nil)
	if status, body := get(t, front.URL+"/v1/models"); status != 401 || body != `{"error":"Unauthorized"}` {
		t.Errorf("unauthorized: %d %s", status, body)
	}
	_, front = ready(t, "sim/unhealthy-after-1", nil)
	if status, _ := get(t, front.URL+"/health"); status != 200 {
		t.Errorf("health before: %d", status)
	}
	call(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}]}`)
	if status, _ := get(t, front.URL+"/health"); status != 503 {
		t.Errorf("health after: %d", status)
	}
}

func TestDrainRefusesAndAbortBreaks(t *testing.T) {
	s, front := ready(t, "m", func(c *Config) { c.TTFT = time.Hour })
	failed := make(chan error, 1)
	go func() {
		resp, err := post(t.Context(), t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}]}`)
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	eventually(t, "it runs", func() bool { return s.Status().Running == 1 })
	s.Drain()
	if status, _ := call(t, front.URL+chatPath, `{"messages":[{"role":"user","content":"x"}]}`); status != 503 {
		t.Errorf("while draining: %d", status)
	}
	s.Abort()
	if err := <-failed; err == nil {
		t.Error("an aborted request was answered")
	}
	eventually(t, "counted", func() bool { return finished(t, front.URL, "abort") == 1 })
}

func TestIdleServersCostNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	servers := make([]*Server, 1000)
	for i := range servers {
		servers[i] = New(Config{Model: "m"})
		w := httptest.NewRecorder()
		servers[i].Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != 200 {
			t.Fatal(w.Code)
		}
	}
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}
