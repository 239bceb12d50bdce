// Package vastai rents GPUs at Vast.ai, a marketplace of machines that individuals and data centres offer.
//
// What is peculiar to it, each from the provider reference:
//
//   - An instance is a container on a rented host; its GPU, disk and traffic are billed apart (§2, §8).
//   - Spot is a bid. Leaving the price out of a create buys on-demand without a word (§3).
//   - There is no idempotency key. The owner tag goes into the label, and an unclear create is looked up by it (§3).
//   - A bad key is answered 404, as is a missing instance; only the body tells them apart (§1, §5).
//   - Search needs no key, so it proves nothing about the credentials (§1).
//   - Calls are limited by a least time between two of a kind, per key and address (§7). A Provider keeps to it, so
//     there should be one Provider per key.
package vastai

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// DefaultBaseURL is the vendor's API (provider reference §1).
const DefaultBaseURL = "https://console.vast.ai"

// Config is one account.
type Config struct {
	// APIKey is the account's key. Required. It needs the scopes misc, instance_read and instance_write; with
	// user_read the balance is checked too, and it is known whose account it is.
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
	// Timeout bounds one attempt of a call; 0 means rest.DefaultTimeout.
	Timeout time.Duration
	// RetryMin is the first wait before a read is tried again; 0 means rest.DefaultShortestRetry.
	RetryMin time.Duration
}

// EnvKeys are the names under which FromCredentials finds the key, best first: ours, the vendor's own, and the name
// that any provider's Secret may use.
func EnvKeys() []string { return []string{"VASTAI_API_KEY", "VAST_API_KEY", "api-key"} }

// FromCredentials takes the key from a Secret's data or from the environment, by the names of EnvKeys; surrounding
// white space, which files and Secrets often carry, is not part of a key. The error names what is missing.
func FromCredentials(creds map[string]string) (Config, error) {
	for _, name := range EnvKeys() {
		if key := strings.TrimSpace(creds[name]); key != "" {
			return Config{APIKey: key}, nil
		}
	}
	return Config{}, fmt.Errorf("%s: no API key: set one of %s", provider.VastAI, strings.Join(EnvKeys(), ", "))
}

// Provider is one account at Vast.ai; it implements provider.Provider.
type Provider struct {
	rest *rest.Client
}

var (
	_ provider.Provider   = (*Provider)(nil)
	_ provider.Identified = (*Provider)(nil)
)

// New makes the driver of one account. It makes no call; use CheckCredentials to try the key.
func New(c Config) (*Provider, error) {
	if strings.TrimSpace(c.APIKey) == "" {
		return nil, fmt.Errorf("%s: no API key", provider.VastAI)
	}
	if strings.ContainsAny(c.APIKey, "\r\n\t ") {
		return nil, fmt.Errorf("%s: the API key contains white space", provider.VastAI)
	}
	if c.BaseURL == "" {
		c.BaseURL = DefaultBaseURL
	}
	key := c.APIKey
	client, err := rest.New(rest.Config{
		BaseURL:   c.BaseURL,
		Transport: c.Transport,
		// In the header, not in the query, which ends up in logs (§1).
		Authorise: func(h http.Header) { h.Set("Authorization", "Bearer "+key) },
		Secrets:   []string{key},
		Paces:     paces(c.PaceFactor),
		Clock:     c.Clock,
		Timeout:   c.Timeout,
		RetryMin:  c.RetryMin,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", provider.VastAI, err)
	}
	return &Provider{rest: client}, nil
}

// The endpoints that are limited apart.
const (
	endpointSearch  = "search"
	endpointCreate  = "create"
	endpointGet     = "get"
	endpointList    = "list"
	endpointDestroy = "destroy"
	endpointUser    = "user"
	endpointCharges = "charges"
)

// thresholds are the vendor's least times between two calls (§7). That of the user endpoint is not documented.
func thresholds() map[string]time.Duration {
	return map[string]time.Duration{
		endpointSearch:  searchInterval,
		endpointCreate:  4500 * time.Millisecond,
		endpointGet:     2 * time.Second,
		endpointList:    time.Second,
		endpointDestroy: 3 * time.Second,
		endpointUser:    time.Second,
		endpointCharges: time.Second,
	}
}

// paces are the thresholds and a tenth: the vendor counts from arrival, and a call that set up its connection arrives
// later after its start than the next one.
func paces(factor float64) map[string]time.Duration {
	if factor < 0 {
		return nil
	}
	if factor == 0 {
		factor = 1
	}
	out := thresholds()
	for endpoint, gap := range out {
		out[endpoint] = time.Duration(float64(gap) * 1.1 * factor)
	}
	return out
}

const (
	// searchInterval: ten searches a minute (§7).
	searchInterval = 6 * time.Second
	// commandLimit is the most bytes of onstart and args together (§3).
	commandLimit = 4096
	// minDiskGB is the smallest disk that can be rented (§3).
	minDiskGB = 8
)

// Name is provider.VastAI.
func (p *Provider) Name() provider.Name { return provider.VastAI }

// Capabilities are the provider reference's: lag and label look-up §3, command limit §3, rate limits §7, billing §8,
// and an instance key that can destroy its own instance §3.
func (p *Provider) Capabilities() provider.Capabilities {
	return provider.Capabilities{
		Spot:               true,
		OnDemand:           true,
		Boot:               provider.BootContainer,
		ListLag:            10 * time.Second,
		CreateTimeout:      60 * time.Second,
		MinPollInterval:    2 * time.Second,
		SearchInterval:     searchInterval,
		OffersOnce:         true,
		BootDataLimit:      commandLimit,
		IdempotentCreate:   false,
		SelfEnd:            provider.SelfEndFull,
		SelfEndBy:          provider.SelfEndByVastKey,
		BillingGranularity: time.Second,
	}
}
