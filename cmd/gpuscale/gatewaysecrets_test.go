package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// collector takes whatever traces are sent to it.
type collector struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.text.ReadFrom(r.Body) // What did not come is not found.
}

func (c *collector) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// TestTheGatewaysProcessTellsNoSecret runs the command with secrets in its environment and its file of keys, has it answer
// and refuse, and ends it with the output of a crash. Nothing that people or other programs can read of it
// has a secret or a prompt in it.
func TestTheGatewaysProcessTellsNoSecret(t *testing.T) {
	const key, backendKey, prompt = "sk-marked-client-key-93ab", "sk-marked-backend-key-07cd", "a marked prompt of somebody"
	const redisPassword = "marked-redis-password-5e21"
	traces := &collector{}
	otlp := httptest.NewServer(traces)
	defer otlp.Close()
	w := newLoadWorld(t)
	keys := filepath.Join(w.dir, "keys")
	if err := os.WriteFile(keys, []byte("alice="+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address, scrape := w.freeAddress(), w.freeAddress()
	pid := w.start(roleCommand, []string{"SSL_CERT_FILE=" + w.cert, "KUBECONFIG=/nonexistent", "REDIS_URL=redis://:" + redisPassword + "@127.0.0.1:1", "VLLM_API_KEY=" + backendKey,
		"OTEL_BSP_SCHEDULE_DELAY=50"}, "gateway", "--claims=false", "--listen", address, "--metrics-addr", scrape, "--keys-file", keys,
		"--otlp-endpoint", otlp.URL, "--backend", loadModel+"=https://"+w.backend)
	said := filepath.Join(w.dir, roleCommand+".log")
	log := func() string {
		text, err := os.ReadFile(said)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	var answers strings.Builder
	ask := func(model, as string) (status int, err error) {
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, prompt)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+loadPath, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+as)
		response, err := w.client.Do(r)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		fmt.Fprintf(&answers, "%v %s\n", response.Header, text)
		return response.StatusCode, err
	}
	w.until("it answers", func() error {
		if status, err := ask(loadModel, key); err != nil || status != http.StatusOK {
			return fmt.Errorf("%d, %w", status, err)
		}
		return nil
	})
	for as, want := range map[string]int{key + "x": http.StatusUnauthorized, backendKey: http.StatusUnauthorized} {
		if status, err := ask(loadModel, as); err != nil || status != want {
			t.Errorf("%d, %v, want %d", status, err, want)
		}
	}
	if status, err := ask("none", key); err != nil || status != http.StatusNotFound {
		t.Errorf("%d, %v", status, err)
	}
	w.until("its traces are sent", func() error {
		if !strings.Contains(traces.String(), "POST "+loadPath) {
			return errors.New("not yet")
		}
		return nil
	})
	response, err := w.client.Get("http://" + scrape + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	w.until("it ends like a crash", func() error {
		if !strings.Contains(log(), "\ngoroutine ") {
			return errors.New("no goroutines in its output")
		}
		return nil
	})

	for place, text := range map[string]string{"log and crash": log(), "traces": traces.String(), "metrics": string(metrics), "process list": string(line),
		"answers": answers.String()} {
		if text == "" {
			t.Errorf("%s: nothing to look at", place)
		}
		for what, secret := range map[string]string{"client's key": key, "backend's key": backendKey, "password of Redis": redisPassword, "prompt": prompt} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s: has the %s: …%s", place, what, text[max(0, i-100):i])
			}
		}
	}
}
