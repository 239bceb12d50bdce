package vllmsim

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const childEnv = "GPUSCALE_TEST_VLLM_SIM_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// stepClock moves only by waiting or by advance.
type stepClock struct {
	mu  sync.Mutex
	now time.Time
}

func newStepClock() *stepClock {
	return &stepClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

func (c *stepClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *stepClock) Wait(ctx context.Context, d time.Duration) error {
	if d > 0 {
		c.advance(d)
	}
	return ctx.Err()
}

// ready starts a server that serves at once and without delays.
func ready(t *testing.T, model string, change func(*Config)) (*Server, *httptest.Server) {
	t.Helper()
	cfg := Config{Model: model}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	front := httptest.NewUnstartedServer(s.Handler())
	front.Config.ErrorLog = nil
	front.Start()
	t.Cleanup(front.Close)
	t.Cleanup(s.Abort)
	return s, front
}

func post(ctx context.Context, t *testing.T, url, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// call posts and decodes a JSON answer.
func call(t *testing.T, url, body string) (int, map[string]any) {
	t.Helper()
	resp, err := post(t.Context(), t, url, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var value map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&value); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, value
}

// events reads a stream to its end and returns the data of its events.
func events(t *testing.T, url, body string) (data []string, status int, err error) {
	t.Helper()
	resp, err := post(t.Context(), t, url, body)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	scanner := bufio.NewScanner(resp.Body)
	for scanner.Scan() {
		if text, ok := strings.CutPrefix(scanner.Text(), "data: "); ok {
			data = append(data, text)
		}
	}
	return data, resp.StatusCode, scanner.Err()
}

func scrape(t *testing.T, base string) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := http.Get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatalf("metrics do not parse: %v", err)
	}
	return families
}

func finished(t *testing.T, base, reason string) float64 {
	t.Helper()
	for _, m := range scrape(t, base)["vllm:request_success_total"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "finished_reason" && label.GetValue() == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// eventually fails the test if condition does not come true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
