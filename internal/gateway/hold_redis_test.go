package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/wish"
	"github.com/munhq/gpuscale/internal/wish/redistest"
)

// TestRedisHangsAndLosesAll has a real one stop in the middle, end, and come back empty, and requests that do not need it.
func TestRedisHangsAndLosesAll(t *testing.T) {
	server := redistest.Start(t)
	store := must(wish.Open(server.URL(), installation, clock.RealClock{}))
	defer store.Close()
	w := newWorld(t, func(c *gateway.Config) {
		c.HoldLimit, c.Demand, c.GatewayID = gateway.DefaultHoldLimit, store, "gw"
	})
	warm := w.add(nil)
	const cold = "cold"
	picture := registry.Snapshot{Models: []registry.Known{{Name: cold}}, Workers: []registry.Worker{{Claim: "c", ClaimUID: warm.uid,
		Endpoint: warm.endpoint, Models: map[string]registry.State{model: registry.Ready}}}}
	w.reg.Apply(picture)
	go w.gw.WriteDemand(t.Context())
	reader := must(wish.Open(server.URL(), installation, clock.RealClock{}))
	defer reader.Close()
	held := func() int {
		d, err := reader.Read(t.Context())
		if err != nil {
			return -1
		}
		n := 0
		for _, e := range d.Models[cold] {
			n += e.Held
		}
		return n
	}
	wakes := reader.Wakes(t.Context())
	<-wakes
	first := w.asking(chatPath, `{"model":"cold","messages":[]}`)
	eventually(t, "the first is written", func() bool { return held() == 1 })
	select {
	case <-wakes:
	case <-time.After(20 * time.Second):
		t.Fatal("no wake")
	}

	server.Pause(t)
	second := w.asking(chatPath, `{"model":"cold","messages":[]}`)
	w.wantMetric(`gpuscale_gateway_held{model="cold"} 2`)
	w.wantMetric(`gpuscale_gateway_redis_up 0`)
	begun := time.Now()
	if a := w.ask(chatPath, chat(`,"max_tokens":1`)); a.status != http.StatusOK || time.Since(begun) > 2*time.Second {
		t.Errorf("to a ready worker: %d after %s", a.status, time.Since(begun))
	}
	if a := w.get("/readyz"); a.status != http.StatusOK {
		t.Errorf("/readyz: %d", a.status)
	}
	server.Kill(t)
	server.Restart(t)
	eventually(t, "both are written to the new one", func() bool { return held() == 2 })
	w.wantMetric(`gpuscale_gateway_redis_up 1`)
	if text := w.log.String(); !strings.Contains(text, "demand cannot be written") || strings.Contains(text, redistest.Password) {
		t.Error(text)
	}
	picture.Workers[0].Models[cold] = registry.Ready
	w.reg.Apply(picture)
	for _, got := range []<-chan answer{first, second} {
		// The engine does not know the model, which is its own answer.
		if a := take(t, "released", got); a.status != http.StatusNotFound || strings.Contains(a.text, "gpuscale") {
			t.Errorf("%d %q", a.status, a.text)
		}
	}
	eventually(t, "none is written", func() bool { return held() == 0 })
	w.wantMetric(fmt.Sprintf(`gpuscale_gateway_cold_starts_total{model=%q} 1`, cold))
}
