package operator_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gatewayrun"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

// front is a gateway that a test's clients ask.
type front struct {
	t      *testing.T
	url    string
	client *http.Client
}

// front runs a gateway, with what it holds in Redis where there is one, and returns when it knows the cluster.
func (w *world) front(redis *redistest.Server) *front {
	w.t.Helper()
	f := &front{t: w.t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	w.t.Cleanup(f.client.CloseIdleConnections)
	f.url = w.gateway(nil, func(c *gatewayrun.Config) {
		c.HoldLimit, c.ID = gateway.DefaultHoldLimit, "test-"+rand.Text()
		if redis != nil {
			c.RedisURL = redis.URL()
		}
	})
	w.eventually("the gateway is ready", func() error {
		response, err := f.client.Get(f.url + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", response.Status)
		}
		return nil
	})
	return f
}

// ask sends one request and says what is wrong with its answer.
func (f *front) ask(model string, stream bool, tokens int) error {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"ignore_eos":true,"messages":[{"role":"user","content":"hello"}]}`,
		model, tokens, stream)
	// It may outlive whatever goes on around it, but not for ever.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := f.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%d: %s", response.StatusCode, text)
	case stream && !strings.HasSuffix(string(text), "data: [DONE]\n\n"), !stream && !strings.Contains(string(text), `"choices"`):
		return fmt.Errorf("not a whole answer: %q", text)
	}
	return nil
}

// asks is ask whose outcome comes by the channel.
func (f *front) asks(model string, stream bool, tokens int) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f.ask(model, stream, tokens) }()
	return done
}

// traffic has clients ask one time after the other, streams and others, until it is stopped, which tells how many answers
// there were. Each must be whole.
func (f *front) traffic(model string, clients, tokens int) (answered func() int64, stop func()) {
	var n atomic.Int64
	var all sync.WaitGroup
	end := make(chan struct{})
	for i := range clients {
		all.Go(func() {
			for turn := i; ; turn++ {
				select {
				case <-end:
					return
				default:
				}
				if err := f.ask(model, turn%2 == 0, tokens); err != nil {
					f.t.Errorf("%s: %v", model, err)
					return
				}
				n.Add(1)
			}
		})
	}
	once := sync.OnceFunc(func() { close(end); all.Wait() })
	f.t.Cleanup(once)
	return n.Load, once
}
