package verda

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// early is how long before its end a token is replaced (§1).
const early = time.Minute

// keptTokens is how many earlier tokens no error may show.
const keptTokens = 7

// tokens has the account's token of the moment. It may be used concurrently: one caller fetches, the others wait for it.
type tokens struct {
	grant clientcredentials.Config
	http  *http.Client
	clock rest.Clock
	turn  chan struct{} // held by whoever fetches one

	mu    sync.Mutex
	token string
	until time.Time
	all   []string // every token there was, for redaction
}

func newTokens(c Config) *tokens {
	transport := c.Transport
	if transport == nil {
		transport = cleanhttp.DefaultPooledTransport()
	}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = rest.DefaultTimeout
	}
	return &tokens{
		grant: clientcredentials.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret,
			TokenURL: strings.TrimSuffix(c.BaseURL, "/") + "/oauth2/token", AuthStyle: oauth2.AuthStyleInParams},
		http: &http.Client{Transport: jsonGrant{transport}, Timeout: timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		clock: c.Clock, turn: make(chan struct{}, 1),
	}
}

// now is the latest token, for a request whose caller has just called ensure.
func (t *tokens) now() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.token
}

// known are all tokens that there were.
func (t *tokens) known() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

func (t *tokens) good(refused string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.token != "" && t.token != refused && t.clock.Now().Before(t.until)
}

// ensure has a token that is good for a while, and is not the one that was refused.
func (t *tokens) ensure(ctx context.Context, refused string) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.turn }()
	if t.good(refused) {
		return nil
	}
	got, err := t.grant.Token(context.WithValue(ctx, oauth2.HTTPClient, t.http))
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.until = got.AccessToken, t.clock.Now().Add(time.Duration(got.ExpiresIn)*time.Second-early)
	// A lease of an hour each: the last ones are all that can still be of use to anyone.
	t.all = append(t.all[max(0, len(t.all)-keptTokens):len(t.all):len(t.all)], t.token)
	return nil
}

// jsonGrant sends the library's form as the JSON that the vendor documents, and as the form that it is where JSON is
// refused, as the vendor's own client does (§1).
type jsonGrant struct{ next http.RoundTripper }

// RoundTrip sends the grant.
func (g jsonGrant) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	_ = r.Body.Close() // It was read.
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for name := range form {
		fields[name] = form.Get(name)
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	resp, err := g.next.RoundTrip(with(r, "application/json", body))
	if err != nil || resp.StatusCode != http.StatusUnsupportedMediaType && resp.StatusCode != http.StatusBadRequest {
		return resp, err
	}
	_ = resp.Body.Close() // The second answer counts.
	return g.next.RoundTrip(with(r, "application/x-www-form-urlencoded", text))
}

func with(r *http.Request, kind string, body []byte) *http.Request {
	out := r.Clone(r.Context())
	out.Header.Set("Content-Type", kind)
	out.Header.Set("Accept", "application/json")
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return out
}
