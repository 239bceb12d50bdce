// Package clouds is the list of the simulated clouds: for each provider that has a façade, a market and the provider's
// API in front of it. `gpuscale up` runs all of them, and `--market sim` asks all of them.
package clouds

import (
	"net/http"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/runpod"
	"github.com/munhq/gpuscale/internal/cloudsim/tensordock"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
	"github.com/munhq/gpuscale/internal/cloudsim/verda"
)

// Cloud is one simulated provider.
type Cloud struct {
	// Provider is its name as a pool spells it.
	Provider string
	// Credentials are what the account that a key opens is reached with, by the names of the environment.
	Credentials func(key string) map[string]string
	// Market is the supply for a seed, with the provider's own habits.
	Market func(seed int64) market.Config
	// API is the provider's API in front of a market. Serve it from a real HTTP server: faults cut connections.
	API func(m *market.Market, a Access) http.Handler
}

// Access is who may call, and how often.
type Access struct {
	// Keys all open the one account.
	Keys []string
	// Unlimited switches the provider's limits on calls off.
	Unlimited bool
}

// All lists the simulated clouds in the order in which they are shown. A new façade is one line here.
func All() []Cloud {
	return []Cloud{
		{Provider: "vast.ai", Credentials: one("VASTAI_API_KEY"), Market: habits("vast.ai", nil), API: vastAI},
		{Provider: "runpod", Credentials: one("RUNPOD_API_KEY"), Market: runpod.Config, API: runPod},
		{Provider: "verda", Credentials: verda.Credentials, Market: verda.Config, API: verdaAPI},
		{Provider: "tensordock", Credentials: one("TENSORDOCK_API_TOKEN"), Market: tensordock.Config, API: tensorDock},
	}
}

// Calm is the market of a cloud at real prices in which everything goes well and minutes take seconds. Prices walk less
// than a bid is above the floor, so that nobody is outbid by chance.
func (c Cloud) Calm(seed int64) market.Config {
	m := c.Market(seed)
	m.Boot = market.Boot{Accept: 300 * time.Millisecond, Create: 500 * time.Millisecond, Load: 1500 * time.Millisecond, Jitter: 0.5}
	if m.Walk.Step > 0 { // list prices stay what they are
		m.Walk = market.Walk{Step: time.Minute, OnDemand: 0.05, Spot: 0.05}
	}
	m.Reclaim.PerHour = 0
	m.Faults = market.FaultRates{}
	m.Broken = 0
	m.ListLag, m.DestroyLag = 500*time.Millisecond, 500*time.Millisecond
	return m
}

// one is for a provider whose credential is a single key.
func one(name string) func(string) map[string]string {
	return func(key string) map[string]string { return map[string]string{name: key} }
}

// habits is a realistic market with what is peculiar to a provider on top.
func habits(provider string, change func(*market.Config)) func(int64) market.Config {
	return func(seed int64) market.Config {
		c := market.Realistic(provider, seed)
		if change != nil {
			change(&c)
		}
		return c
	}
}

// scale is what the façades multiply their limits by.
func (a Access) scale() float64 {
	if a.Unlimited {
		return -1
	}
	return 1
}

func vastAI(m *market.Market, a Access) http.Handler {
	return vastai.New(m, vastai.Options{Keys: a.Keys, LimitScale: a.scale()})
}

func runPod(m *market.Market, a Access) http.Handler {
	return runpod.New(m, runpod.Options{Keys: a.Keys, LimitScale: a.scale(), MinRAM: true})
}

// tensorDock has no addresses to give away: bodies are at ports of one.
func tensorDock(m *market.Market, a Access) http.Handler {
	return tensordock.New(m, tensordock.Options{Tokens: a.Keys, LimitScale: a.scale(), NoPublicIPs: true, PortsAfter: 2 * time.Second})
}

func verdaAPI(m *market.Market, a Access) http.Handler {
	return verda.New(m, verda.Options{Clients: verda.Clients(a.Keys)})
}
