package localstack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/localkube"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

const (
	coldModel = "acme/cold"
	coldPool  = `
apiVersion: gpuscale.io/v1alpha1
kind: GPUNodePool
metadata: {name: cold}
spec:
  providers: [{name: vast.ai, nodeType: standalone, maxPrice: 0.50, apiKeySecret: {name: gpuscale-provider-credentials, namespace: gpuscale-system}}]
  requirements: {gpuTypes: ["RTX 4090", "RTX 3090"], minVRAM: 24}
  scaling: {minNodes: 0, maxNodes: 6, batchWindow: "1h", cooldownPeriod: "3s"}
  bootstrap: {image: "vllm/vllm-openai:latest"}
  limits: {maxGPUs: 12, maxCostPerHour: 3.00}
  models: [{name: acme/cold}]
`
)

// realPrograms builds what instances run.
func realPrograms(t *testing.T) string {
	t.Helper()
	root, err := localkube.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./cmd/gpuscale-agent", "./cmd/vllm-sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// coldStack is a stack with a real Redis and a pool whose model nothing but requests asks for.
func coldStack(t *testing.T) (*Stack, client.Client) {
	t.Helper()
	redis := redistest.Start(t)
	s, err := Start(t.Context(), Options{BinDir: realPrograms(t), RedisURL: redis.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log, _ := os.ReadFile(s.LogFile)
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if strings.Contains(string(log), redistest.Password) {
			t.Error("the log has the password of Redis")
		}
		if t.Failed() {
			t.Logf("the log:\n%s", log[max(0, len(log)-20000):])
		}
	})
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(s.Rest, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.GPUNodePool{}
	if err := yaml.UnmarshalStrict([]byte(coldPool), pool); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	until(t, "the gateway knows the model", func(ctx context.Context) error {
		_, err := s.call(ctx, http.MethodGet, "/v1/models/"+coldModel, "")
		return err
	})
	return s, c
}

func until(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	last := errors.New("not looked at")
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 90*time.Second, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

// call returns a whole answer with status 200.
func (s *Stack) call(ctx context.Context, method, path, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.Gateway+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", response.StatusCode, text)
	}
	return string(text), err
}

// complete asks for a completion, as a stream or not, and returns what came before its first event.
func (s *Stack) complete(ctx context.Context, stream bool) (heartbeats string, err error) {
	body, err := json.Marshal(map[string]any{"model": coldModel, "stream": stream, "max_tokens": 5,
		"messages": []map[string]string{{"role": "user", "content": "hello"}}})
	if err != nil {
		return "", err
	}
	text, err := s.call(ctx, http.MethodPost, "/v1/chat/completions", string(body))
	switch {
	case err != nil:
	case stream && !strings.HasSuffix(text, "data: [DONE]\n\n"), !stream && !strings.Contains(text, `"choices"`):
		err = fmt.Errorf("not a whole answer: %q", text)
	}
	heartbeats, _, _ = strings.Cut(text, "data:")
	return heartbeats, err
}

// TestTheFirstRequestWakesFromZeroAndAHundredBuyOne is a cold start with all that takes part: a hundred clients of a model
// at zero, a boot, their answers from one machine; its end; and requests that arrive while it ends.
func TestTheFirstRequestWakesFromZeroAndAHundredBuyOne(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	s, c := coldStack(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	begun := time.Now()
	type outcome struct {
		heartbeats string
		err        error
	}
	const clients = 100
	outcomes := make(chan outcome, clients)
	for i := range clients {
		go func() {
			h, err := s.complete(ctx, i%2 == 0)
			outcomes <- outcome{h, err}
		}()
	}
	var heard string
	for range clients {
		o := <-outcomes
		if o.err != nil {
			t.Error(o.err)
		}
		heard += o.heartbeats
	}
	t.Logf("a hundred were answered %s after they asked; a heartbeat: %s", time.Since(begun).Round(100*time.Millisecond),
		heard[:max(0, strings.Index(heard, "\n"))])
	if !strings.Contains(heard, `: waiting for "acme/cold": `) || !strings.Contains(heard, "ing") {
		t.Errorf("no heartbeat: %q", heard)
	}
	if n := s.Cloud("vast.ai").market.Books().Rented; n != 1 {
		t.Errorf("%d were bought", n)
	}

	// As soon as its end has begun, somebody asks again.
	until(t, "the machine is given back", func(ctx context.Context) error {
		var claims v1alpha1.GPUNodeClaimList
		if err := c.List(ctx, &claims); err != nil {
			return err
		}
		if len(claims.Items) != 1 || claims.Items[0].DeletionTimestamp == nil {
			return fmt.Errorf("%d claims, none ends", len(claims.Items))
		}
		return nil
	})
	for i := range 10 {
		go func() {
			h, err := s.complete(ctx, i%2 == 0)
			outcomes <- outcome{h, err}
		}()
	}
	for range 10 {
		if o := <-outcomes; o.err != nil {
			t.Errorf("during the scale-down: %v", o.err)
		}
	}
	if n := s.Cloud("vast.ai").market.Books().Rented; n != 2 {
		t.Errorf("%d were bought in all", n)
	}
	until(t, "nothing is left", func(context.Context) error {
		if live := s.Cloud("vast.ai").market.Books().Live(); len(live) > 0 {
			return fmt.Errorf("%d live", len(live))
		}
		return nil
	})
}
