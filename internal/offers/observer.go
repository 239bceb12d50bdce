package offers

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/pkg/provider"
)

// tagMark begins every owner tag, whichever installation's.
const tagMark = "gs-"

// Observer lists the installation's instances at one account, for claims, interruption and sweep together, so that the
// number of calls does not grow with the number of instances. All methods may be called concurrently.
type Observer struct {
	life     context.Context
	driver   provider.Provider
	clock    clock.Clock
	filter   provider.InstanceFilter
	lane     *lane
	onChange func(Change)

	mu sync.Mutex
	// good is the last list that succeeded; its Began is zero while there is none.
	good Listing
	// err is why the last attempt failed, nil if it did not.
	err     error
	hold    hold
	current *listCall
	// queued is the call after current, for callers that current began too early for.
	queued  *listCall
	watched map[string]time.Duration
	// rewatched holds a token when watched changed.
	rewatched chan struct{}
}

// listCall is a list being fetched. began and result are final once done is closed.
type listCall struct {
	done    chan struct{}
	began   time.Time // zero until the call is made; under Observer.mu
	listing Listing
	err     error
}

// NewObserver returns the observer of the instances at one account whose tag starts with tagPrefix
// ("gs-<installation>-"), which must not be empty: without it other people's machines would be listed as ours.
//
// onChange, which may be nil, is told of every difference from one list to the next, in order and one at a time; before
// the first list there is nothing, so it tells of every instance. It is told after the list can be read and must return
// quickly: the next list waits for it. Everything ends with life, and every call after that fails.
func NewObserver(life context.Context, driver provider.Provider, tagPrefix string, c clock.Clock, onChange func(Change)) *Observer {
	if !strings.HasPrefix(tagPrefix, tagMark) || tagPrefix == tagMark {
		panic("offers: an observer without its installation's tag prefix: " + tagPrefix)
	}
	if onChange == nil {
		onChange = func(Change) {}
	}
	o := &Observer{
		life: life, driver: driver, clock: c, filter: provider.InstanceFilter{TagPrefix: tagPrefix},
		lane: newLane(c, driver.Capabilities().MinPollInterval), onChange: onChange,
		watched: map[string]time.Duration{}, rewatched: make(chan struct{}, 1),
	}
	go o.poll()
	return o
}

// Find looks for the instance with an owner tag or ID in a list that began at notOlderThan or later, and says when it
// began. It answers from the last list if that will do, else it waits for a new one, shared with everybody who waits
// and no sooner than the provider allows. A notOlderThan that is still to come is waited for.
//
// Absence is only ever told from a complete list; a list that failed is the error. Absence means that the provider did
// not show an instance with our tag at asOf. An instance younger than the list lag may be missing, and so may one whose
// tag somebody removed: to call it gone, find it absent twice with asOf a list lag apart, the first no earlier than the
// list lag after its creation, and have GetInstance say NotFound of its ID where that is known.
//
// A tag of another installation, which no list here could ever show, is Invalid.
func (o *Observer) Find(ctx context.Context, tagOrID string, notOlderThan time.Time) (found provider.Instance, ok bool, asOf time.Time, err error) {
	if tagOrID == "" || strings.HasPrefix(tagOrID, tagMark) && !o.filter.Selects(tagOrID) {
		return provider.Instance{}, false, time.Time{}, provider.Errorf(o.driver.Name(), "list", provider.Invalid,
			"%q is not a tag that starts with %q, so a list would not show it", tagOrID, o.filter.TagPrefix)
	}
	l, err := o.List(ctx, notOlderThan)
	if err != nil {
		return provider.Instance{}, false, time.Time{}, err
	}
	found, ok = l.Find(tagOrID)
	return found, ok, l.Began, nil
}

// List returns a complete list that began at notOlderThan or later, as Find does.
func (o *Observer) List(ctx context.Context, notOlderThan time.Time) (Listing, error) {
	if err := sleepUntil(ctx, o.clock, notOlderThan); err != nil {
		return Listing{}, givenUp(o.driver.Name(), "list", err)
	}
	l, call, err := o.answer(notOlderThan)
	if call == nil {
		return l, err
	}
	select {
	case <-call.done:
		return call.listing, call.err
	case <-ctx.Done():
		return Listing{}, givenUp(o.driver.Name(), "list", ctx.Err())
	}
}

// Latest is the last complete list, with a zero Began if there is none yet, and the error of the last attempt, nil if it
// succeeded. It calls nobody.
func (o *Observer) Latest() (Listing, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.good, o.err
}

// answer returns a list or an error at once, or the call that will have one.
func (o *Observer) answer(notOlderThan time.Time) (Listing, *listCall, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.good.Began.IsZero() && !o.good.Began.Before(notOlderThan) {
		return o.good, nil, nil
	}
	if c := o.current; c != nil && (c.began.IsZero() || !c.began.Before(notOlderThan)) {
		return Listing{}, c, nil
	}
	if o.current == nil {
		if err := o.hold.active(o.clock.Now()); err != nil {
			return Listing{}, nil, err
		}
		o.current = o.start()
		return Listing{}, o.current, nil
	}
	if o.queued == nil {
		o.queued = &listCall{done: make(chan struct{})}
	}
	return Listing{}, o.queued, nil
}

// start begins a call in the background; the caller holds mu.
func (o *Observer) start() *listCall {
	c := &listCall{done: make(chan struct{})}
	go o.run(c)
	return c
}

func (o *Observer) run(c *listCall) {
	var all []provider.Instance
	o.lane.do(o.life, func(ctx context.Context) (err error) {
		// The time is taken before the question is asked, so that a list is never believed newer than it is.
		o.mu.Lock()
		c.began = o.clock.Now()
		o.mu.Unlock()
		all, err = o.driver.ListInstances(ctx, o.filter)
		return err
	}, func(err error) {
		if err != nil && o.life.Err() != nil {
			err = givenUp(o.driver.Name(), "list", o.life.Err())
		}
		for _, change := range o.settle(c, all, err) {
			o.onChange(change)
		}
	})
}

// settle publishes the outcome of c, lets the queued call begin, and returns what changed.
func (o *Observer) settle(c *listCall, all []provider.Instance, err error) (changed []Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer close(c.done)
	o.err, c.err = err, err
	if !c.began.IsZero() {
		o.hold.note(err, o.clock.Now())
	}
	if err == nil {
		c.listing = newListing(c.began, all, o.filter)
		changed = c.listing.changes(o.good)
		o.good = c.listing
	}
	o.current, o.queued = o.queued, nil
	if o.current == nil {
		return changed
	}
	if err != nil {
		// A provider that just failed is not asked again for those who queued; they get the same error.
		o.current.err = err
		close(o.current.done)
		o.current = nil
		return changed
	}
	go o.run(o.current)
	return changed
}
