package offers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/pkg/provider"
)

// DefaultMaxAge is how old a search result may be when the caller does not say. Marketplace offers are taken within
// minutes; a planner that runs every few seconds should not search each time.
const DefaultMaxAge = 20 * time.Second

// keptFor is how long a result that nobody asks for stays in memory.
const keptFor = 10 * time.Minute

// Catalogue is what one account can rent, searched at most as often as the provider allows and shared by all callers.
// All methods may be called concurrently.
type Catalogue struct {
	// life ends the searches in the background, which outlive the caller that began them.
	life   context.Context
	driver provider.Provider
	clock  clock.Clock
	lane   *lane

	mu       sync.Mutex
	searches map[string]*search
	// gone has the time at which each forgotten offer was found to be gone, until no search is under way that began
	// before it; where offers are rented once, until no answer is kept that began before it.
	gone map[string]time.Time
	// taken are the offers that somebody is about to rent; always empty where an offer can be rented again.
	taken map[string]bool
	// once: see provider.Capabilities.OffersOnce.
	once bool
}

// search is one query's answer, or its being fetched.
type search struct {
	// done is closed when the rest is final; before, only the lane's holder touches offers and err.
	done   chan struct{}
	offers []provider.Offer
	err    error

	// Under Catalogue.mu.
	finished bool
	began    time.Time
	ended    time.Time
	outdated bool
	hold     hold
	// before is how long the search before this one took.
	before time.Duration
}

// NewCatalogue returns the empty catalogue of one account. Searches in the background end with life, and every call
// after that fails.
func NewCatalogue(life context.Context, driver provider.Provider, c clock.Clock) *Catalogue {
	caps := driver.Capabilities()
	return &Catalogue{
		life: life, driver: driver, clock: c, lane: newLane(c, caps.SearchInterval), once: caps.OffersOnce,
		searches: map[string]*search{}, gone: map[string]time.Time{}, taken: map[string]bool{},
	}
}

// Offers returns the whole answer to q but for what is taken or forgotten, at most maxAge old; 0 means DefaultMaxAge, and an age below the provider's
// search interval counts as that interval. Callers that ask the same at once share one search. The slice is the
// caller's; what its elements point to is shared and must not be changed.
//
// There are either all offers or an error, never an older list in place of an error. After a failure the same error is
// returned for a short while without asking the provider, for as long as it says where it does, and for all queries
// where it concerns the whole account. A ctx that ends gives Unavailable; the search goes on for the others.
func (c *Catalogue) Offers(ctx context.Context, q provider.OfferQuery, maxAge time.Duration) ([]provider.Offer, error) {
	s := c.find(normal(q), maxAge)
	select {
	case <-s.done:
		return c.left(s), s.err
	case <-ctx.Done():
		return nil, givenUp(c.driver.Name(), "search", ctx.Err())
	}
}

// left are the offers of a finished search that can still be had.
func (c *Catalogue) left(s *search) []provider.Offer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.taken)+len(c.gone) == 0 || !c.once {
		return slices.Clone(s.offers)
	}
	out := make([]provider.Offer, 0, len(s.offers))
	for _, o := range s.offers {
		if at, gone := c.gone[o.ID]; !c.taken[o.ID] && (!gone || s.began.After(at)) {
			out = append(out, o)
		}
	}
	return out
}

// Take keeps an offer for the caller, who is about to rent it, and reports whether it could be had: where an offer is
// rented once, callers who choose from the same answer at once would all ask for the cheapest, and all but one be
// refused. Nobody else is given it until Release. Where an offer can be rented again it is always true and keeps nothing.
func (c *Catalogue) Take(offerID string) bool {
	if !c.once {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, gone := c.gone[offerID]; gone || c.taken[offerID] {
		return false
	}
	c.taken[offerID] = true
	return true
}

// Release ends what Take began. An offer that was not forgotten meanwhile is there for all again.
func (c *Catalogue) Release(offerID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, offerID)
}

// Forget says that an offer cannot be had any more (OfferGone) or was just rented: no list that is here already shows it
// again. Where an offer is rented once, the list stays good for the others. Elsewhere it answers no other call: the next
// one searches again, at the provider's pace, so an offer whose ID can be rented several times is soon back and one that
// is gone is not; only callers that wait for a search already under way may still be shown it.
func (c *Catalogue) Forget(offerID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.once {
		c.gone[offerID] = c.clock.Now()
		return
	}
	underWay := false
	for _, s := range c.searches {
		if !s.finished {
			underWay = true
		} else if has(s.offers, offerID) {
			s.outdated = true
		}
	}
	if underWay {
		c.gone[offerID] = c.clock.Now()
	}
}

// find returns the search that answers q, after beginning it if need be.
func (c *Catalogue) find(q provider.OfferQuery, maxAge time.Duration) *search {
	maxAge = max(cmp.Or(maxAge, DefaultMaxAge), c.lane.pause)
	key := keyOf(q)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	last := c.searches[key]
	if last != nil && (!last.finished || last.answers(now, maxAge)) {
		return last
	}
	c.prune(now)
	s := &search{done: make(chan struct{})}
	if last != nil {
		s.hold, s.before = last.hold, last.took()
	}
	if err := c.lane.held(); err != nil {
		// Not stored, so that a list still young enough for another caller survives.
		s.err = err
		close(s.done)
		return s
	}
	c.searches[key] = s
	go c.run(s, q)
	return s
}

// answers reports whether a finished search, good or failed, may be given to a caller at now.
func (s *search) answers(now time.Time, maxAge time.Duration) bool {
	if s.err != nil {
		return s.hold.active(now) != nil
	}
	return !s.outdated && now.Sub(s.ended) <= maxAge
}

func (c *Catalogue) run(s *search, q provider.OfferQuery) {
	c.lane.do(c.life, func(ctx context.Context) (err error) {
		c.begin(s)
		s.offers, err = c.driver.SearchOffers(ctx, q)
		return err
	}, func(err error) {
		if err != nil {
			s.offers = nil
		}
		if c.life.Err() != nil && err != nil {
			err = givenUp(c.driver.Name(), "search", c.life.Err())
		}
		s.err = err
		c.finish(s)
		close(s.done)
	})
}

func (c *Catalogue) begin(s *search) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.began = c.clock.Now()
}

func (c *Catalogue) finish(s *search) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.finished, s.ended = true, c.clock.Now()
	if !s.began.IsZero() { // otherwise the error is not an answer to this question, and the lane keeps it
		s.hold.note(s.err, s.ended)
	}
	for id, at := range c.gone {
		shown := has(s.offers, id)
		if !c.once && !s.began.After(at) && shown {
			s.outdated = true
		}
		if !c.beganBefore(at) || c.once && s.began.After(at) && shown { // or it is there again
			delete(c.gone, id)
		}
	}
}

// beganBefore reports whether a search is under way that may have been answered before at, or, where offers are rented
// once, whether such an answer is kept.
func (c *Catalogue) beganBefore(at time.Time) bool {
	for _, s := range c.searches {
		if (!s.finished || c.once) && !s.began.IsZero() && !s.began.After(at) {
			return true
		}
	}
	return false
}

// prune drops finished searches that nobody asked for in a long time.
func (c *Catalogue) prune(now time.Time) {
	for key, s := range c.searches {
		if s.finished && now.Sub(s.ended) > max(keptFor, c.lane.pause) && s.hold.active(now) == nil {
			delete(c.searches, key)
		}
	}
}

func has(offers []provider.Offer, id string) bool {
	return slices.ContainsFunc(offers, func(o provider.Offer) bool { return o.ID == id })
}

// normal is q with what does not change its meaning taken out, so that equal questions share an answer.
func normal(q provider.OfferQuery) provider.OfferQuery {
	q.DiskGB = max(q.DiskGB, 1)
	q.Regions = slices.Clone(q.Regions)
	slices.Sort(q.Regions)
	q.Regions = slices.Compact(q.Regions)
	return q
}

// keyOf spells a normal query; %q keeps regions with odd characters apart.
func keyOf(q provider.OfferQuery) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", q.CapacityType, q.DiskGB)
	for _, r := range q.Regions {
		fmt.Fprintf(&b, " %q", r)
	}
	return b.String()
}
