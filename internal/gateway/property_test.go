package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// TestWhateverDiesNothingStaysCounted lets clients leave, workers refuse, break, hang, die, leave the registry and come
// back, at random, and then looks at every count there is. newWorld looks at the registry's own.
func TestWhateverDiesNothingStaysCounted(t *testing.T) {
	for seed := range int64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, func(c *gateway.Config) {
				c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice", Concurrency: 6}, "bob": {Secret: "sk-bob"}}
			})
			w.reg.Limit(8)
			for i := range 4 {
				w.add(func(c *vllmsim.Config) { c.TokensPerSecond = 3000 }).hook(misbehaves(seed*100 + int64(i)))
			}
			ctx, calm := context.WithCancel(t.Context())
			var trouble, clients sync.WaitGroup
			trouble.Go(func() { w.trouble(ctx, rand.New(rand.NewSource(seed))) })
			for i := range 12 {
				clients.Go(func() { w.impatient(rand.New(rand.NewSource(seed*1000+int64(i))), 25) })
			}
			clients.Wait()
			calm()
			trouble.Wait()
			for _, line := range []string{`gpuscale_gateway_in_flight{model="` + model + `"} 0`,
				`gpuscale_gateway_key_in_flight{key="alice"} 0`, `gpuscale_gateway_key_in_flight{key="bob"} 0`} {
				w.wantMetric(line)
			}
			eventually(t, "nothing is outstanding", func() bool {
				for _, n := range w.reg.Outstanding() {
					if n != 0 {
						return false
					}
				}
				return true
			})
			if text := w.metrics(); strings.Contains(text, "} -") {
				t.Errorf("a metric is negative:\n%s", text)
			}
		})
	}
}

// misbehaves is a worker that answers, breaks off or hangs until its caller leaves, at random.
func misbehaves(seed int64) func(http.ResponseWriter, *http.Request) bool {
	var mu sync.Mutex
	r := rand.New(rand.NewSource(seed))
	return func(rw http.ResponseWriter, request *http.Request) bool {
		mu.Lock()
		n := r.Intn(12)
		mu.Unlock()
		switch n {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			rw.WriteHeader(http.StatusBadGateway)
		case 2:
			rw.WriteHeader(http.StatusInternalServerError)
		case 3:
			<-request.Context().Done()
		case 4:
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, "data: {}\n\n")
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		default:
			return false
		}
		return true
	}
}

// trouble changes the workers until ctx ends, and then makes them all well.
func (w *world) trouble(ctx context.Context, r *rand.Rand) {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			w.publish()
			return
		case <-tick.C:
		}
		a := w.workers[r.Intn(len(w.workers))]
		switch r.Intn(4) {
		case 0:
			a.refuse.Store([]string{"", "", agentapi.RefusedFull, agentapi.RefusedDraining}[r.Intn(4)])
		case 1:
			a.server.CloseClientConnections()
		case 2: // One leaves.
			w.reg.Apply(registry.Snapshot{Models: []registry.Known{{Name: model}}, Workers: w.all(a)})
		case 3:
			w.publish()
		}
	}
}

// impatient asks n times, and leaves every third time before the answer is there.
func (w *world) impatient(r *rand.Rand, n int) {
	for range n {
		ctx, leave := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if r.Intn(3) == 0 {
			time.AfterFunc(time.Duration(r.Intn(8))*time.Millisecond, leave)
		}
		body := chat(fmt.Sprintf(`,"stream":%t,"max_tokens":%d`, r.Intn(2) == 0, 1+r.Intn(30)))
		response, err := w.post(ctx, chatPath, body, "Authorization", "Bearer "+[]string{"sk-alice", "sk-bob"}[r.Intn(2)])
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body) // Broken or not: only the counts matter.
			_ = response.Body.Close()
		}
		leave()
	}
}

func TestAHungWorkerDelaysNobodyElse(t *testing.T) {
	w := newWorld(t, nil)
	hung, good := w.add(nil), w.add(nil)
	hung.hook(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	ctx, leave := context.WithCancel(t.Context())
	var stuck sync.WaitGroup
	stuck.Go(func() { // It goes to the hung one, sooner or later.
		for ctx.Err() == nil {
			if response, err := w.post(ctx, chatPath, chat("")); err == nil {
				_ = response.Body.Close()
			}
		}
	})
	eventually(t, "a request hangs", func() bool { return hung.requests.Load() == 1 })
	before, start := good.requests.Load(), time.Now()
	for range 50 {
		if got := w.ask(chatPath, chat(`,"max_tokens":2`)); got.status != http.StatusOK {
			t.Errorf("%d %q", got.status, got.text)
		}
	}
	if n := good.requests.Load() - before; n < 50 || hung.requests.Load() != 1 {
		t.Errorf("%d went to the good one, %d to the hung one", n, hung.requests.Load())
	}
	t.Logf("50 requests beside the hung one took %s", time.Since(start))
	leave()
	stuck.Wait()
}

func TestAWorkerThatLeavesTheRegistryFinishesItsRequests(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(nil)
	goOn := make(chan struct{})
	a.hook(func(http.ResponseWriter, *http.Request) bool { <-goOn; return false })
	got := make(chan answer, 1)
	go func() { got <- w.ask(chatPath, chat(`,"stream":true,"max_tokens":4`)) }()
	eventually(t, "it is under way", func() bool { return a.requests.Load() == 1 })
	w.reg.Apply(registry.Snapshot{Models: []registry.Known{{Name: model}}})
	wantError(t, w.ask(chatPath, chat("")), http.StatusServiceUnavailable, "model_not_ready")
	close(goOn)
	if answer := <-got; answer.status != http.StatusOK || lastEvent(t, answer.text) != "[DONE]" {
		t.Errorf("%d %q", answer.status, answer.text)
	}
	eventually(t, "it is forgotten", func() bool { return len(w.reg.Outstanding()) == 0 })
}

func TestAWorkerThatFailsIsSetAside(t *testing.T) {
	w := newWorld(t, nil)
	bad, good := w.add(nil), w.add(nil)
	bad.hook(func(rw http.ResponseWriter, _ *http.Request) bool {
		http.Error(rw, "CUDA error", http.StatusInternalServerError)
		return true
	})
	failed, start := 0, time.Now()
	for range 20 {
		if got := w.ask(chatPath, chat(`,"max_tokens":1`)); got.status != http.StatusOK {
			failed++
		}
	}
	// Three, and a probe for each second that passed meanwhile on a slow machine.
	most := 3 + int64(time.Since(start)/time.Second)
	if n := bad.requests.Load(); failed != int(n) || n < 3 || n > most || good.requests.Load() != 20-n {
		t.Errorf("the failing worker got %d of 20 requests", n)
	}
	w.wantMetric(`gpuscale_gateway_workers{model="` + model + `",state="healthy"} 1`)
	if !strings.Contains(w.log.String(), "set aside") {
		t.Error("nothing is said of it")
	}
}
