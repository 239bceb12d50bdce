// Package verda rents GPUs at Verda, formerly DataCrunch: whole virtual machines with a public address and no firewall.
//
// What is peculiar to it, each from the provider reference:
//
//   - A client id and secret are exchanged for a token, which opens the API for an hour (§1).
//   - An offer is put together from the prices of types, the stock of spot and of on-demand, which are apart, and the
//     price of a disk; prices are text or numbers (§2).
//   - A machine runs a stored script once. Scripts, of which an account has few, and an SSH key, which it must have, are
//     objects of their own; new ids are plain text (§3).
//   - There is no idempotency key. The owner tag is the hostname, and the port is in the description, because the vendor
//     knows an address only (§3, §4).
//   - An instance that is shut down bills on, a delete is refused while one is provisioned, and its disk goes only if it is
//     named. Disks bill while detached and in the trash (§5, §8).
//   - A spot instance that is taken back is "discontinued", or is not listed any more, without notice (§6).
//   - The rate of an instance may be per GPU or for all (§2), so none is read back; its price is fixed at its creation.
package verda

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// DefaultBaseURL is the vendor's API (provider reference §1).
const DefaultBaseURL = "https://api.verda.com/v1"

// Config is one account.
type Config struct {
	// ClientID and ClientSecret are the account's credentials. Required.
	ClientID, ClientSecret string
	// BaseURL is the API's scheme, host and prefix; empty means DefaultBaseURL.
	BaseURL string
	// Transport carries the requests; nil means the standard one.
	Transport http.RoundTripper
	// Clock times paces and tokens; nil means the system's.
	Clock rest.Clock
	// PaceFactor stretches or shrinks the least time between calls: 0 means 1, a negative value no pace at all.
	PaceFactor float64
	// Timeout bounds one attempt of a call; 0 means rest.DefaultTimeout.
	Timeout time.Duration
	// RetryMin is the first wait before a read is tried again; 0 means rest.DefaultShortestRetry.
	RetryMin time.Duration
}

// The names under which FromCredentials finds the credentials.
const (
	envID     = "VERDA_CLIENT_ID"
	envSecret = "VERDA_CLIENT_SECRET"
)

// EnvKeys are the names under which FromCredentials finds the credentials; both are needed.
func EnvKeys() []string { return []string{envID, envSecret} }

// FromCredentials takes the credentials from a Secret's data or from the environment, by the names of EnvKeys. The
// error names what is missing.
func FromCredentials(creds map[string]string) (Config, error) {
	c := Config{ClientID: strings.TrimSpace(creds[envID]), ClientSecret: strings.TrimSpace(creds[envSecret])}
	var missing []string
	if c.ClientID == "" {
		missing = append(missing, envID)
	}
	if c.ClientSecret == "" {
		missing = append(missing, envSecret)
	}
	if len(missing) > 0 {
		return Config{}, fmt.Errorf("%s: no credentials: set %s", provider.Verda, strings.Join(missing, " and "))
	}
	return c, nil
}

// Provider is one account at Verda; it implements provider.Provider.
type Provider struct {
	rest   *rest.Client
	tokens *tokens
	clock  rest.Clock

	// ended holds the ids of discontinued instances of which the vendor said, asked to end them, that they have ended: it
	// may list them for ever.
	ended sync.Map

	mu    sync.Mutex
	keyID string    // of the SSH key, once known
	swept time.Time // when tidy last ran
}

var _ provider.Provider = (*Provider)(nil)

// New makes the driver of one account. It makes no call; use CheckCredentials to try the credentials.
func New(c Config) (*Provider, error) {
	for _, v := range []string{c.ClientID, c.ClientSecret} {
		if v == "" || strings.ContainsAny(v, "\r\n\t ") {
			return nil, fmt.Errorf("%s: client id or secret is empty or contains white space", provider.Verda)
		}
	}
	if c.BaseURL == "" {
		c.BaseURL = DefaultBaseURL
	}
	if c.Clock == nil {
		c.Clock = rest.System
	}
	t := newTokens(c)
	client, err := rest.New(rest.Config{
		BaseURL:   c.BaseURL,
		Transport: c.Transport,
		Authorise: func(h http.Header) { h.Set("Authorization", "Bearer "+t.now()) },
		Secrets:   []string{c.ClientSecret},
		Paces:     paces(c.PaceFactor),
		Clock:     c.Clock,
		Timeout:   c.Timeout,
		RetryMin:  c.RetryMin,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", provider.Verda, err)
	}
	return &Provider{rest: client, tokens: t, clock: c.Clock}, nil
}

// The endpoints that are paced apart. The vendor's limits are not published (§7): these are far below what its own
// clients do.
const (
	endpointCatalogue = "catalogue"
	endpointInstances = "instances"
	endpointWrites    = "writes"
)

func paces(factor float64) map[string]time.Duration {
	if factor < 0 {
		return nil
	}
	if factor == 0 {
		factor = 1
	}
	out := map[string]time.Duration{endpointCatalogue: 200 * time.Millisecond, endpointInstances: 500 * time.Millisecond,
		endpointWrites: 200 * time.Millisecond}
	for endpoint, gap := range out {
		out[endpoint] = time.Duration(float64(gap) * factor)
	}
	return out
}

const (
	// scriptLimit is ours: the vendor's is not known, and cloud-init's user data are this long elsewhere.
	scriptLimit = 16 << 10
	// minDiskGB is the smallest OS volume (§3); maxDiskGB is ours, as the vendor names no largest.
	minDiskGB = 50
	maxDiskGB = 2000
	// hostnameLimit is a DNS label's, less what other clients leave free (§3).
	hostnameLimit = 60
)

// Name is provider.Verda.
func (p *Provider) Name() provider.Name { return provider.Verda }

// Capabilities are the provider reference's: boot §3, interruption §6, billing §8. A machine that powers itself off bills
// on, so that it cannot end its own rental. How late a new instance is listed is not documented.
func (p *Provider) Capabilities() provider.Capabilities {
	return provider.Capabilities{
		Spot:               true,
		OnDemand:           true,
		Boot:               provider.BootVM,
		ListLag:            10 * time.Second,
		CreateTimeout:      90 * time.Second,
		MinPollInterval:    5 * time.Second,
		SearchInterval:     10 * time.Second,
		BootDataLimit:      scriptLimit,
		SelfEnd:            provider.SelfEndNone,
		MinimumBilling:     10 * time.Minute,
		BillingGranularity: 10 * time.Minute,
	}
}
