package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/localstack"
	"github.com/munhq/gpuscale/pkg/provider"
)

const (
	// Of the three models one is kept by its traffic alone, one by its pool, and one is cold.
	trafficModel, keptModel, frozenModel = "acme/traffic", "acme/kept", "acme/frozen"

	outageCooldown = 3 * time.Second
)

var outagePool = scenarioPool("outage", "100ms", "{name: acme/traffic}, {name: acme/kept, minReplicas: 1}, {name: acme/frozen}")

// controllers runs the command in a process of its own, against the simulated clouds.
func (r *replicas) controllers(name, ledger string) *exec.Cmd {
	r.t.Helper()
	urls := map[provider.Name]string{}
	for _, c := range r.stack.Clouds {
		urls[provider.Name(c.Provider)] = c.API
	}
	text, err := json.Marshal(urls)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "controller", "--kubeconfig", r.stack.Kubeconfig, "--ledger", "sqlite://"+ledger,
		"--metrics-addr", "0", "--worker-metrics-addr", "0", "--health-addr", "0",
		"--agent-url", r.stack.Agent.URL, "--agent-sha256", r.stack.Agent.SHA256)
	cmd.Env = append(os.Environ(), roleEnv+"="+roleController, cloudsEnv+"="+string(text))
	(&loadWorld{t: r.t, dir: r.t.TempDir()}).process(name, cmd)
	return cmd
}

// uids are the claims that nobody has begun to end, by UID.
func (r *replicas) uids() map[string]bool {
	r.t.Helper()
	var list v1alpha1.GPUNodeClaimList
	if err := r.cluster.List(r.t.Context(), &list); err != nil {
		r.t.Fatal(err)
	}
	out := map[string]bool{}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			out[string(list.Items[i].UID)] = true
		}
	}
	return out
}

// TestProcessesLoseControllersAndAPIServer: under mixed traffic the controllers and the API server are killed, and stay away
// for longer than a cooldown. The workers go on answering, a request for a cold model is held, and when both are back it is
// served by the one machine that was bought for it. The machines that served before are the same.
func TestProcessesLoseControllersAndAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	r := startReplicas(t, outagePool, trafficModel, func(o *localstack.Options) { o.Bare = true })
	ledger := filepath.Join(t.TempDir(), "ledger.db")
	controllers := r.controllers("controllers", ledger)
	url, _, _ := r.gateway("gateway", 0)
	(&loadWorld{t: t}).until("a machine for the kept model is bought", func() error { // Or one would be bought for both.
		if n := r.claims(); n != 1 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	wholly := func(model string, stream bool) {
		t.Helper()
		if o := r.askFor(model, url, stream, 5); !o.whole() {
			t.Errorf("%s, a stream %t, begun %t: %v, %q", model, stream, o.begun, o.err, o.text)
		}
	}
	var clients sync.WaitGroup
	clients.Go(func() { wholly(keptModel, true) })
	clients.Go(func() { wholly(trafficModel, false) })
	clients.Wait()
	var answered atomic.Int64
	end := make(chan struct{})
	for i := range 6 {
		clients.Go(func() {
			for turn := i; ; turn++ {
				select {
				case <-end:
					return
				default:
					wholly([]string{trafficModel, keptModel}[turn%2], turn%3 > 0)
					answered.Add(1)
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(end); clients.Wait() })
	defer stop()
	goesOn := func(when string) {
		t.Helper()
		before := answered.Load()
		(&loadWorld{t: t}).until("requests are answered "+when, func() error {
			if n := answered.Load() - before; n < 20 {
				return fmt.Errorf("%d were", n)
			}
			return nil
		})
	}
	goesOn("before")
	machines := r.uids()
	if rented := r.rented(); len(machines) != 2 || rented != 2 {
		t.Fatalf("%d claims and %d rented before", len(machines), rented)
	}

	if err := errors.Join(controllers.Process.Kill(), r.stack.Cluster().KillAPIServer()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cold := make(chan outcome, 1)
	go func() { cold <- r.askFor(frozenModel, url, true, 5) }()
	for time.Since(began) < 2*outageCooldown {
		goesOn("without controllers and API server")
	}
	select {
	case o := <-cold:
		t.Fatalf("the cold model's request ended: %v, %q", o.err, o.text)
	default:
	}
	if n := len(r.agents()); n != 2 {
		t.Errorf("%d workers run, of 2", n)
	}

	if err := r.stack.Cluster().RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	goesOn("with an API server")
	r.controllers("controllers again", ledger)
	o := <-cold
	if !o.whole() || !strings.HasPrefix(o.text, ": waiting for") {
		t.Errorf("the cold model's request: %v, %q", o.err, o.text)
	}
	for back := time.Now(); time.Since(back) < outageCooldown; {
		goesOn("with all of it")
	}
	now := r.uids()
	for uid := range machines {
		if !now[uid] {
			t.Errorf("claim %s ended; there are %v", uid, now)
		}
	}
	stop()
	maps.DeleteFunc(now, func(uid string, _ bool) bool { return machines[uid] })
	if rented := r.rented(); rented != 3 || len(now) > 1 {
		t.Errorf("%d were rented in all, and %v are new", rented, now)
	}
}
