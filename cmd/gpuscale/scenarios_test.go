package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

const (
	edgeModel    = "acme/edge"
	edgeCooldown = 3 * time.Second
)

var edgePool = scenarioPool("edge", "1h", "{name: acme/edge}")

// claims is how many there are.
func (r *replicas) claims() int {
	r.t.Helper()
	var list v1alpha1.GPUNodeClaimList
	if err := r.cluster.List(r.t.Context(), &list); err != nil {
		r.t.Fatal(err)
	}
	return len(list.Items)
}

// whole asks for one answer and insists on all of it.
func (r *replicas) whole(url, when string, stream bool) {
	r.t.Helper()
	if o := r.ask(url, stream, 5); !o.whole() {
		r.t.Errorf("%s: begun %t, %v, %q", when, o.begun, o.err, o.text)
	}
}

// TestProcessesLoseRedisAndTrickleAtTheCooldownsEdge: a first request wakes a model from zero; under traffic through two
// gateways Redis is killed, stays away for two cooldowns and comes back empty, which ends, buys and breaks nothing; then
// requests come one by one, just when the cooldown is over, and each is answered; then there is nothing left.
func TestProcessesLoseRedisAndTrickleAtTheCooldownsEdge(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	r := startReplicas(t, edgePool, edgeModel)
	one, _, _ := r.gateway("one", 0)
	two, _, _ := r.gateway("two", 0)
	r.whole(one, "from zero", true)

	var clients sync.WaitGroup
	var answered atomic.Int64
	end := make(chan struct{})
	for i := range 6 {
		clients.Go(func() {
			for turn := i; ; turn++ {
				select {
				case <-end:
					return
				default:
				}
				r.whole([]string{one, two}[turn%2], "under traffic", turn%3 > 0)
				answered.Add(1)
			}
		})
	}
	stop := sync.OnceFunc(func() { close(end); clients.Wait() })
	defer stop()
	stays := func(when string) {
		t.Helper()
		before := answered.Load()
		for began := time.Now(); time.Since(began) < 2*edgeCooldown; time.Sleep(100 * time.Millisecond) {
			if claims, rented := r.claims(), r.rented(); claims != 1 || rented != 1 {
				t.Fatalf("%s: %d claims, %d rented", when, claims, rented)
			}
		}
		if answered.Load() == before {
			t.Errorf("%s: nothing was answered", when)
		}
	}
	r.redis.Kill(t)
	stays("without Redis")
	r.redis.Restart(t)
	stays("with an empty Redis")
	stop()

	const edge = 4
	last := time.Now()
	for i := range edge {
		time.Sleep(time.Until(last.Add(edgeCooldown + time.Duration(i)*300*time.Millisecond)))
		r.whole([]string{one, two}[i%2], fmt.Sprintf("%d at the edge", i), i%2 == 0)
		last = time.Now()
	}
	if n := r.rented(); n > 1+edge {
		t.Errorf("%d were rented for %d requests at the edge", n-1, edge)
	}
	(&loadWorld{t: t}).until("nothing is left", func() error {
		if n := r.claims(); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
}
