package offers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// glance is how long an answer is waited for that is known to take longer than the caller's patience: enough to be given
// one that is here already.
const glance = 50 * time.Millisecond

// Soon is Offers for a caller who has others to ask. It waits for as long as patience, once: while a search takes longer
// than that, and as long as the last answer to the same question did, it hardly waits at all, so that one slow provider
// holds nobody up again and again. The search goes on, and its answer is there for whoever asks within maxAge of it.
//
// What came too late is Unavailable and wraps ErrTooSlow.
func (c *Catalogue) Soon(ctx context.Context, q provider.OfferQuery, maxAge, patience time.Duration) ([]provider.Offer, error) {
	wait := patience
	if c.slow(q, patience) {
		wait = min(glance, patience)
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	found, err := c.Offers(within, q, maxAge)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, &provider.Error{Provider: c.driver.Name(), Op: "search", Kind: provider.Unavailable,
			Message: fmt.Sprintf("no answer within %s", patience), Err: ErrTooSlow}
	}
	return found, err
}

// ErrTooSlow is wrapped by the error of a search that was not waited for to its end.
var ErrTooSlow = errors.New("its offers count when they come")

// slow reports whether the answer to q takes longer than limit, as far as its last two searches tell.
func (c *Catalogue) slow(q provider.OfferQuery, limit time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.searches[keyOf(normal(q))]
	switch {
	case s == nil:
		return false
	case s.finished:
		return s.took() >= limit
	}
	return s.before >= limit || !s.began.IsZero() && c.clock.Now().Sub(s.began) >= limit
}

// took is how long a finished search waited for the provider.
func (s *search) took() time.Duration {
	if s.began.IsZero() {
		return s.before
	}
	return s.ended.Sub(s.began)
}
