// Package agentfile looks, before anything is bought, whether instances could fetch the agent that they will be told to.
// An instance that cannot says so only in its own log, which no provider's API shows, and bills until its boot times out.
package agentfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/bootstrap"
)

const (
	// goodFor is how long a file that was right is taken to stay so, askAgain how long any other outcome counts.
	goodFor  = time.Hour
	askAgain = time.Minute
	// patience bounds one download: a purchase waits for it.
	patience = 20 * time.Second
	// maxBytes is more than any agent has.
	maxBytes = 64 << 20
)

// WrongError says for certain that no instance can boot with the agent: the server says that there is none, or another
// file is there than the pinned one. URL is without its query, which may be a signature: pods of any namespace show it.
type WrongError struct{ URL, Why string }

func (e *WrongError) Error() string { return fmt.Sprintf("the agent at %s %s", e.URL, e.Why) }

// Checker fetches agents as instances would. It is safe for concurrent use; checks of one file wait for each other.
type Checker struct {
	client *http.Client
	clock  clock.PassiveClock

	mu   sync.Mutex
	seen map[file]*verdict
}

type file struct{ url, sum string }

// verdict is held while its file is fetched, so that a server that hangs holds up nobody else's purchases.
type verdict struct {
	mu    sync.Mutex
	err   error
	until time.Time
}

// New makes a Checker that has looked at nothing yet. A nil transport is the standard one.
func New(transport http.RoundTripper, c clock.PassiveClock) *Checker {
	return &Checker{client: &http.Client{Transport: transport, Timeout: patience}, clock: c, seen: map[file]*verdict{}}
}

// Check is nil where the agent is as pinned, for each processor that has one, and a *WrongError where it certainly is not.
// Any other error means that it cannot be seen from here, which says nothing about the instances. An outcome is kept: a
// good one for an hour, any other for a minute.
func (c *Checker) Check(ctx context.Context, a bootstrap.Agent) error {
	for _, arch := range []string{"amd64", "arm64"} {
		address, sum := a.For(arch)
		if address == "" {
			continue
		}
		if err := c.one(ctx, file{address, sum}); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checker) one(ctx context.Context, f file) error {
	c.mu.Lock()
	v := c.seen[f]
	if v == nil {
		v = &verdict{}
		c.seen[f] = v
	}
	c.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.clock.Now().Before(v.until) {
		return v.err
	}
	err := c.fetch(ctx, f)
	if ctx.Err() != nil {
		return err // It says more about the caller than about the file.
	}
	keep := askAgain
	if err == nil {
		keep = goodFor
	}
	v.err, v.until = err, c.clock.Now().Add(keep)
	return err
}

func (c *Checker) fetch(ctx context.Context, f file) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return err
	}
	shown, _, _ := strings.Cut(f.url, "?")
	response, err := c.client.Do(request)
	if quoting := (*url.Error)(nil); errors.As(err, &quoting) {
		err = quoting.Err
	}
	if err != nil {
		return fmt.Errorf("fetching the agent from %s: %w", shown, err)
	}
	defer func() { _ = response.Body.Close() }() // What was read decides.
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		return &WrongError{shown, "is not there: the server answers " + response.Status}
	default:
		return fmt.Errorf("fetching the agent from %s: the server answers %s", shown, response.Status)
	}
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(response.Body, maxBytes+1))
	if err != nil {
		return fmt.Errorf("fetching the agent from %s: %w", shown, err)
	}
	if n > maxBytes {
		return &WrongError{shown, fmt.Sprintf("is over %d MiB", maxBytes>>20)}
	}
	if got := hex.EncodeToString(hash.Sum(nil)); !strings.EqualFold(got, f.sum) {
		return &WrongError{shown, fmt.Sprintf("has SHA-256 %s, not %s", got, f.sum)}
	}
	return nil
}
