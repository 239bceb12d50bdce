// Package tensordock rents GPUs at TensorDock, a marketplace of hosts in data centres that sells virtual machines.
//
// What is peculiar to it, each from the provider reference:
//
//   - An instance is a VM whose vCPUs, RAM and disk are chosen and billed apart from its GPUs (§2). The shapes that are
//     offered are chosen in search.go, and each is an offer with its own price.
//   - A refusal may come with status 200, and a bare array of complaints instead of an object (§3).
//   - There is no idempotency key. The owner tag goes into the name, and an unclear create is looked up by it (§3).
//   - The agent's port is reached on an address of the VM's own or by a forward; answers do not say which, nor, with an
//     address of its own, which port it is. So the name says it (create.go).
//   - A list shows little of each instance, so it is completed by a call for each (§4).
//   - Calls are slow, and limited per organisation to 100 a minute, whatever they are (§1, §7). A Provider keeps to it,
//     so there should be one Provider per token.
//   - A stopped VM goes on billing its disk and perhaps its GPUs, so nothing is ever stopped (§5). There is no spot.
package tensordock

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// DefaultBaseURL is the vendor's API (provider reference §0).
const DefaultBaseURL = "https://dashboard.tensordock.com"

// Config is one account.
type Config struct {
	// Token is the organisation's API token. Required.
	Token string
	// BaseURL is the API's scheme and host; empty means DefaultBaseURL.
	BaseURL string
	// Transport carries the requests; nil means the standard one.
	Transport http.RoundTripper
	// Clock times the pace of calls; nil means the system's.
	Clock rest.Clock
	// PaceFactor stretches or shrinks the least time between calls that the vendor asks for: 0 means 1, a negative
	// value no pace at all. For simulated markets, whose time may run faster.
	PaceFactor float64
	// Timeout bounds one attempt of a call; 0 means two minutes, since calls often take more than 12 s and have run into
	// 60 (§1).
	Timeout time.Duration
	// RetryMin is the first wait before a read is tried again; 0 means rest.DefaultShortestRetry.
	RetryMin time.Duration
}

// EnvKeys are the names under which FromCredentials finds the token, best first: the vendor's own, and the name that
// any provider's Secret may use.
func EnvKeys() []string { return []string{"TENSORDOCK_API_TOKEN", "api-key"} }

// FromCredentials takes the token from a Secret's data or from the environment, by the names of EnvKeys; surrounding
// white space, which files and Secrets often carry, is not part of a token. The error names what is missing.
func FromCredentials(creds map[string]string) (Config, error) {
	for _, name := range EnvKeys() {
		if token := strings.TrimSpace(creds[name]); token != "" {
			return Config{Token: token}, nil
		}
	}
	return Config{}, fmt.Errorf("%s: no API token: set one of %s", provider.TensorDock, strings.Join(EnvKeys(), ", "))
}

// Provider is one account at TensorDock; it implements provider.Provider. It is not provider.Identified: no call of
// the API says whose a token is.
type Provider struct {
	rest *rest.Client
}

var _ provider.Provider = (*Provider)(nil)

// New makes the driver of one account. It makes no call; use CheckCredentials to try the token.
func New(c Config) (*Provider, error) {
	if strings.TrimSpace(c.Token) == "" {
		return nil, fmt.Errorf("%s: no API token", provider.TensorDock)
	}
	if strings.ContainsAny(c.Token, "\r\n\t ") {
		return nil, fmt.Errorf("%s: the API token contains white space", provider.TensorDock)
	}
	if c.BaseURL == "" {
		c.BaseURL = DefaultBaseURL
	}
	if c.Timeout == 0 {
		c.Timeout = callTimeout
	}
	token := c.Token
	client, err := rest.New(rest.Config{
		BaseURL:   c.BaseURL,
		Transport: c.Transport,
		// In the header, not in the query, which ends up in logs (§1).
		Authorise: func(h http.Header) { h.Set("Authorization", "Bearer "+token) },
		Secrets:   []string{token},
		Timeout:   c.Timeout,
		Paces:     paces(c.PaceFactor),
		Clock:     c.Clock,
		RetryMin:  c.RetryMin,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", provider.TensorDock, err)
	}
	return &Provider{rest: client}, nil
}

const (
	// endpoint is all of the API: its calls are counted together (§7).
	endpoint = "api"
	// threshold is 100 calls a minute (§7).
	threshold = time.Minute / 100
	// callTimeout is the default of Config.Timeout.
	callTimeout = 120 * time.Second
	// createTimeout leaves time for the second order that a create may be (see CreateInstance).
	createTimeout = 180 * time.Second
	// bootDataLimit: no limit is documented. This is the least that a cloud with cloud-init takes, and what is proved
	// here.
	bootDataLimit = 16 << 10
)

// paces are the threshold and a tenth: the vendor counts from arrival, and a call that set up its connection arrives
// later after its start than the next one.
func paces(factor float64) map[string]time.Duration {
	if factor < 0 {
		return nil
	}
	if factor == 0 {
		factor = 1
	}
	return map[string]time.Duration{endpoint: time.Duration(float64(threshold) * 1.1 * factor)}
}

// Name is provider.TensorDock.
func (p *Provider) Name() provider.Name { return provider.TensorDock }

// Capabilities are the provider reference's: on-demand only §6, VMs §0, rate limit §7, billing §8. How long a new
// instance may be missing in lists is not known (§3), so the lag is a generous one. Whether a VM that powers itself off
// still pays for its GPU is not known either (§4), so it cannot end its own bill.
func (p *Provider) Capabilities() provider.Capabilities {
	return provider.Capabilities{
		OnDemand:           true,
		Boot:               provider.BootVM,
		ListLag:            time.Minute,
		CreateTimeout:      createTimeout,
		MinPollInterval:    30 * time.Second,
		SearchInterval:     30 * time.Second,
		BootDataLimit:      bootDataLimit,
		SelfEnd:            provider.SelfEndNone,
		BillingGranularity: time.Second,
	}
}
