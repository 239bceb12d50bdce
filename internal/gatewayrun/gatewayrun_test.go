package gatewayrun_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	testclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway/backends"
	"github.com/munhq/gpuscale/internal/gatewayrun"
)

const model = "Qwen/Qwen3-0.6B"

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs a gateway in front of one plain backend, without a cluster.
func start(t *testing.T, keysFile string) (api, metrics string, clock *testclock.FakeClock) {
	t.Helper()
	engine := vllmsim.New(vllmsim.Config{Model: model})
	t.Cleanup(engine.Abort)
	server := httptest.NewServer(engine.Handler())
	t.Cleanup(server.Close)
	backend, err := backends.Parse(model + "=" + server.URL)
	if err != nil {
		t.Fatal(err)
	}
	clock = testclock.NewFakeClock(time.Now())
	cfg := gatewayrun.Config{Listener: listen(t), Metrics: listen(t), KeysFile: keysFile, Backends: []backends.Backend{backend},
		Grace: time.Second, Log: logr.Discard(), Clock: clock}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- gatewayrun.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	api, metrics = "http://"+cfg.Listener.Addr().String(), "http://"+cfg.Metrics.Addr().String()
	eventually(t, "ready", func() bool { code, _ := call(t, http.MethodGet, api+"/readyz", "", ""); return code == http.StatusOK })
	return api, metrics, clock
}

func call(t *testing.T, method, url, key, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

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

func TestAPlainBackendWithoutACluster(t *testing.T) {
	api, metrics, _ := start(t, "")
	code, text := call(t, http.MethodPost, api+"/v1/chat/completions", "", `{"messages":[{"role":"user","content":"x"}],"max_tokens":7}`)
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	if code, text := call(t, http.MethodPost, api+"/v1/chat/completions", "", `{"model":"none"}`); code != http.StatusNotFound {
		t.Errorf("%d %s", code, text)
	}
	eventually(t, "the tokens are counted, on the metrics' own listener", func() bool {
		_, text := call(t, http.MethodGet, metrics+"/metrics", "", "")
		return strings.Contains(text, `gpuscale_gateway_tokens_total{kind="completion",model="`+model+`",source="usage"} 7`)
	})
	if code, _ := call(t, http.MethodGet, api+"/metrics", "", ""); code != http.StatusNotFound {
		t.Errorf("the clients' listener has metrics: %d", code)
	}
}

func TestKeysAreReadAgainWhenTheyChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alice=sk-1\n")
	api, _, clock := start(t, path)
	is := func(key string) int {
		code, _ := call(t, http.MethodGet, api+"/v1/models", key, "")
		return code
	}
	if is("sk-1") != http.StatusOK || is("sk-2") != http.StatusUnauthorized {
		t.Fatal("the first keys")
	}
	becomes := func(text, open, shut string) {
		t.Helper()
		write(text)
		eventually(t, text, func() bool {
			clock.Step(time.Minute)
			return is(open) == http.StatusOK && is(shut) == http.StatusUnauthorized
		})
	}
	becomes("bob=sk-2\n", "sk-2", "sk-1")
	becomes("alice\n", "sk-2", "")
	write("") // A broken file neither opens nor shuts.
	for range 5 {
		clock.Step(time.Minute)
		if is("sk-2") != http.StatusOK || is("") != http.StatusUnauthorized {
			t.Fatal("an empty file changed the keys")
		}
	}
	becomes("carol=sk-3 concurrency=1\n", "sk-3", "sk-2")
}

func TestWhatCannotRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone")
	for name, cfg := range map[string]gatewayrun.Config{
		"nothing to serve": {},
		"no keys file":     {KeysFile: path},
	} {
		cfg.Listener, cfg.Log, cfg.Clock = listen(t), logr.Discard(), testclock.NewFakeClock(time.Now())
		if err := gatewayrun.Run(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
