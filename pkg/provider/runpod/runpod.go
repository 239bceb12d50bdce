// Package runpod rents GPUs at RunPod, by REST v2; the older REST v1 and GraphQL APIs are being switched off.
//
// What is peculiar to it, each from the provider reference:
//
//   - An instance is a container, a pod; its GPUs and its disk are billed apart, and only the GPUs have a listed price (§2,
//     §8).
//   - There is no spot: the API has no bids, and interruptible pods are gone (§0). What vanishes was not reclaimed (§6).
//   - The catalogue lists types of GPUs with a hint of what is free in each data centre, per number of GPUs. It reserves
//     nothing, and a create often finds less than it said (§2, §9).
//   - "No capacity" has no code of its own; it is a 400 like every broken rule, told apart by its words (§7).
//   - There is no idempotency key. The owner tag is the pod's name, and an unclear create is looked up by it (§3).
//   - A new pod may be "not found" for half a minute (§3).
//   - Its port is published after it runs, and is another one after each restart (§4).
//   - What RAM a machine has is not listed. A newer server takes the least RAM that a pod may have; whether this one does is
//     read in its description of itself (§0, §3).
//   - Calls of all kinds are counted together, per minute, hour and day (§7). A Provider keeps to it, so there should be
//     one Provider per key.
//
// The API tells neither whose account a key opens nor what it has left, so a Provider is not provider.Identified, and an
// empty account shows in the first create only (§1).
package runpod

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// DefaultBaseURL is the vendor's API (provider reference §0).
const DefaultBaseURL = "https://api.runpod.io"

// Config is one account.
type Config struct {
	// APIKey is the account's key. Required. It needs to read and write pods and to read the catalogue; with billing it
	// tells what was charged too.
	APIKey string
	// BaseURL is the API's scheme and host; empty means DefaultBaseURL.
	BaseURL string
	// Transport carries the requests; nil means the standard one.
	Transport http.RoundTripper
	// Clock times the pace of calls; nil means the system's.
	Clock rest.Clock
	// PaceFactor stretches or shrinks the least time between calls that the vendor asks for: 0 means 1, a negative
	// value no pace at all. For simulated markets, whose time may run faster.
	PaceFactor float64
	// RetryMin is the first wait before a read is tried again; 0 means rest.DefaultShortestRetry.
	RetryMin time.Duration
	// Timeout bounds one attempt of a call; 0 means rest.DefaultTimeout.
	Timeout time.Duration
}

// EnvKeys are the names under which FromCredentials finds the key, best first: the vendor's own, and the name that any
// provider's Secret may use.
func EnvKeys() []string { return []string{"RUNPOD_API_KEY", "api-key"} }

// FromCredentials takes the key from a Secret's data or from the environment, by the names of EnvKeys; surrounding
// white space, which files and Secrets often carry, is not part of a key. The error names what is missing.
func FromCredentials(creds map[string]string) (Config, error) {
	for _, name := range EnvKeys() {
		if key := strings.TrimSpace(creds[name]); key != "" {
			return Config{APIKey: key}, nil
		}
	}
	return Config{}, fmt.Errorf("%s: no API key: set one of %s", provider.RunPod, strings.Join(EnvKeys(), ", "))
}

// Provider is one account at RunPod; it implements provider.Provider.
type Provider struct {
	rest   *rest.Client
	clock  rest.Clock
	server server
}

var _ provider.Provider = (*Provider)(nil)

// New makes the driver of one account. It makes no call; use CheckCredentials to try the key.
func New(c Config) (*Provider, error) {
	if strings.TrimSpace(c.APIKey) == "" {
		return nil, fmt.Errorf("%s: no API key", provider.RunPod)
	}
	if strings.ContainsAny(c.APIKey, "\r\n\t ") {
		return nil, fmt.Errorf("%s: the API key contains white space", provider.RunPod)
	}
	if c.BaseURL == "" {
		c.BaseURL = DefaultBaseURL
	}
	if c.Clock == nil {
		c.Clock = rest.System
	}
	key := c.APIKey
	client, err := rest.New(rest.Config{
		BaseURL:   c.BaseURL,
		Transport: c.Transport,
		Authorise: func(h http.Header) {
			h.Set("Authorization", "Bearer "+key)
			// A firewall in front turns away what names no client (§1).
			h.Set("User-Agent", "gpuscale")
		},
		Secrets:  []string{key},
		Budget:   budget(c.PaceFactor),
		Clock:    c.Clock,
		RetryMin: c.RetryMin,
		Timeout:  c.Timeout,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", provider.RunPod, err)
	}
	return &Provider{rest: client, clock: c.Clock}, nil
}

// budget keeps below all three of the vendor's windows, 60 calls a minute, 3000 an hour and 50000 a day (§7): at most
// 20+34 in any minute, 20+2057 in any hour and 20+49371 in any day.
func budget(factor float64) rest.Budget {
	if factor < 0 {
		return rest.Budget{}
	}
	if factor == 0 {
		factor = 1
	}
	return rest.Budget{Calls: 20, Every: time.Duration(float64(1750*time.Millisecond) * factor)}
}

const (
	// listLag: a pod has been "not found" for seconds after its create, and half a minute is called the least to wait
	// (§3). Twice that, since a pod that is given up too early is bought twice.
	listLag = time.Minute
	// minPollInterval and searchInterval leave a third of the budget to creates and ends: a list is a call, and a search
	// up to eight.
	minPollInterval = 5 * time.Second
	searchInterval  = 30 * time.Second
	// bodyLimit is the most bytes of a request's body (§7).
	bodyLimit = 100 << 10
	// commandLimit is the most bytes of a command. The vendor documents none; this much fits into a body however it has
	// to be escaped, which is seven bytes for one at worst.
	commandLimit = 12 << 10
	// minDiskGB: less has been answered like a lack of capacity (§3).
	minDiskGB = 40
)

// Name is provider.RunPod.
func (p *Provider) Name() provider.Name { return provider.RunPod }

// Capabilities are the provider reference's: no spot §0, lag and look-up by name §3, rate limits §7, billing per second
// §8, and a key in each pod that opens that pod only §1.
func (p *Provider) Capabilities() provider.Capabilities {
	return provider.Capabilities{
		Spot:               false,
		OnDemand:           true,
		Boot:               provider.BootContainer,
		ListLag:            listLag,
		CreateTimeout:      60 * time.Second,
		MinPollInterval:    minPollInterval,
		SearchInterval:     searchInterval,
		OffersOnce:         false,
		BootDataLimit:      commandLimit,
		IdempotentCreate:   false,
		SelfEnd:            provider.SelfEndFull,
		SelfEndBy:          provider.SelfEndByRunPodKey,
		BillingGranularity: time.Second,
	}
}
