package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

const (
	// DefaultHoldLimit is how long a request waits for a worker.
	DefaultHoldLimit = 10 * time.Minute
	// DefaultMaxHeld is how many requests may wait at once.
	DefaultMaxHeld = 2000
	// DefaultMaxHeldBytes is how large their bodies may be together.
	DefaultMaxHeldBytes = 256 << 20

	// firstHeartbeat is how long a client of a stream waits for a sign, and then for the next.
	firstHeartbeat = 5 * time.Second
	heartbeat      = 5 * time.Second
	// heartbeatWrite is how long a client may take to accept one.
	heartbeatWrite = 10 * time.Second

	// Workers that are in the picture and did not take the request are asked again when the picture changes, and from
	// time to time: what keeps them need not show there.
	firstRetry = time.Second
	lastRetry  = 5 * time.Second

	// unknownFor is how long a model may be unknown before those that wait for it are told: a claim that failed and the
	// one after it need not follow at once.
	unknownFor = time.Minute

	statusUnknownModel = http.StatusNotFound
	codeShuttingDown   = "shutting_down"
)

// room bounds what waits, over all models.
type room struct {
	maxHeld  int
	maxBytes int64

	mu    sync.Mutex
	held  int
	bytes int64
}

// enter takes a place, or says why there is none.
func (r *room) enter(bytes int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.held >= r.maxHeld:
		return fmt.Sprintf("%d requests are waiting for a worker already", r.held)
	case r.bytes+int64(bytes) > r.maxBytes:
		return fmt.Sprintf("the requests that wait for a worker have %d bytes already", r.bytes)
	}
	r.held++
	r.bytes += int64(bytes)
	return ""
}

func (r *room) leave(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held--
	r.bytes -= int64(bytes)
}

// wait is a request's waiting, over all times that it does.
type wait struct {
	// client is written to while the request waits, if it asked for a stream.
	client *heldWriter
	// counted: the request is among those that a worker has.
	counted bool

	since    time.Time // of the first wait; zero before
	waited   time.Duration
	told     bool // the metric has it
	deadline time.Time
	next     time.Time // heartbeat
	retry    time.Duration
	unknown  time.Time // since when the model is; zero while it is not
}

// routed counts the request as one that a worker has.
func (e *exchange) routed() {
	if !e.wait.counted {
		e.wait.counted = true
		e.g.tally.outstanding(e.model, 1, e.g.cfg.Clock.Now())
	}
}

// waited counts, once, how long a request waited and how that ended: err is why it got no worker.
func (e *exchange) waited(err error) {
	if !e.wait.since.IsZero() && !e.wait.told {
		e.wait.told = true
		e.g.metrics.hold.ended(e.model, e.wait.waited, err)
	}
}

// done is the end of the request.
func (e *exchange) done() {
	e.release()
	e.unrouted()
	e.waited(nil)
	e.giveBuffer()
}

func (e *exchange) unrouted() {
	if e.wait.counted {
		e.wait.counted = false
		e.g.tally.outstanding(e.model, -1, e.g.cfg.Clock.Now())
	}
}

// mayHold tells whether waiting is of any use to a request that no worker of the picture took. One that waited goes on
// to; others wait unless workers are merely busy, when the client does better to come back.
func (e *exchange) mayHold(tried *attempts, m registry.Model) bool {
	switch {
	case e.g.cfg.HoldLimit <= 0:
		return false
	case !e.wait.since.IsZero():
		return true
	case tried.full, tried.last == nil && e.g.cfg.Registry.Full(e.model):
		return false
	}
	// Without demand in Redis, nothing that waits here brings a worker.
	return m.Workers > 0 || m.Stage != "" || e.g.cfg.Demand != nil
}

// hold waits until a worker is acquired, and returns nil; or returns why there is none: an *apiError, or the context's
// error when the client left.
func (e *exchange) hold(tried *attempts) error {
	model, problem := e.g.known(e.model)
	if problem == nil && !e.mayHold(tried, model) || problem != nil && e.wait.since.IsZero() {
		return e.exhausted(tried)
	}
	now := e.g.cfg.Clock.Now()
	if why := e.g.room.enter(len(e.body)); why != "" {
		e.g.metrics.hold.refused.WithLabelValues(e.model).Inc()
		return roomFull(expectedWait(model, now), why)
	}
	e.unrouted()
	hold := e.g.metrics.hold
	hold.held.WithLabelValues(e.model).Inc()
	hold.bytes.Add(float64(len(e.body)))
	if e.g.tally.hold(e.model, model.Workers == 0) && model.Workers == 0 {
		hold.coldStarts.WithLabelValues(e.model).Inc()
	}
	if e.wait.since.IsZero() {
		e.wait.since, e.wait.deadline, e.wait.next = now, now.Add(e.g.cfg.HoldLimit), now.Add(firstHeartbeat)
		e.wait.retry = firstRetry
	} else {
		e.wait.retry = min(2*e.wait.retry, lastRetry)
	}
	err := e.waitForWorker(tried)
	e.g.room.leave(len(e.body))
	e.g.tally.release(e.model)
	hold.bytes.Sub(float64(len(e.body)))
	hold.held.WithLabelValues(e.model).Dec()
	e.wait.waited += e.g.cfg.Clock.Since(now)
	if err != nil {
		e.waited(err)
	}
	return err
}

func (e *exchange) waitForWorker(tried *attempts) error {
	place := e.g.cfg.Registry.Wait(e.model, e.wait.since)
	defer place.Leave()
	asked := e.g.cfg.Clock.Now()
	for turn := place.First(); ; {
		if turn && e.acquire(tried) {
			return nil
		}
		if err := e.ended(); err != nil {
			return err
		}
		now := e.g.cfg.Clock.Now()
		model, problem := e.standing(now)
		if problem != nil {
			return problem
		}
		if err := e.beat(model, now); err != nil {
			return err
		}
		again := asked.Add(e.wait.retry)
		t := e.g.cfg.Clock.NewTimer(e.nextLook(model.Workers > 0 || len(tried.skip) > 0, again).Sub(now))
		turn = false
		select {
		case <-e.ctx.Done():
		case <-place.Turn():
			turn = true
			tried.again()
		case <-t.C():
			if now := e.g.cfg.Clock.Now(); !now.Before(again) {
				asked, turn = now, place.First()
				tried.again()
			}
		}
		t.Stop()
	}
}

// standing looks at what is waited for, and says when waiting is over.
func (e *exchange) standing(now time.Time) (registry.Model, *apiError) {
	model, problem := e.g.known(e.model)
	switch {
	case problem == nil:
		e.wait.unknown = time.Time{}
	case e.wait.unknown.IsZero():
		e.wait.unknown = now
	case now.Sub(e.wait.unknown) >= unknownFor:
		return model, problem
	}
	if !now.Before(e.wait.deadline) {
		return model, holdExpired(e.model, e.g.cfg.HoldLimit, model.Stage, expectedWait(model, now))
	}
	return model, nil
}

// nextLook is when something is to be done though nothing happened.
func (e *exchange) nextLook(refused bool, again time.Time) time.Time {
	next := e.wait.deadline
	if refused && again.Before(next) {
		next = again
	}
	if e.wait.client.streams() && e.wait.next.Before(next) {
		next = e.wait.next
	}
	if gone := e.wait.unknown.Add(unknownFor); !e.wait.unknown.IsZero() && gone.Before(next) {
		next = gone
	}
	return next
}

// beat sends a heartbeat when it is time for one.
func (e *exchange) beat(model registry.Model, now time.Time) error {
	if !e.wait.client.streams() || now.Before(e.wait.next) {
		return nil
	}
	for !now.Before(e.wait.next) {
		e.wait.next = e.wait.next.Add(heartbeat)
	}
	return e.wait.client.heartbeat(heartbeatText(e.model, model, now.Sub(e.wait.since), expectedWait(model, now)), now.Add(heartbeatWrite))
}

// heartbeatText is a comment of an event stream: clients drop it, people read it.
func heartbeatText(name string, m registry.Model, waited, expected time.Duration) string {
	stage := m.Stage
	switch {
	case m.Workers > 0:
		stage = "its workers take no more now"
	case stage == "":
		stage = "no machine yet"
	}
	return fmt.Sprintf(": waiting for %q: %s; waited %ds, about %ds more\n\n", name, strings.Join(strings.Fields(stage), " "),
		int(waited.Seconds()), int(expected.Seconds()))
}

const (
	// defaultBoot stands for boots until one was seen: a small image and a small model on a fast host take less, a large
	// model more.
	defaultBoot = 4 * time.Minute
	// loading stands for what is left of a boot whose beginning is not known.
	loading = time.Minute
	// overdue is said of what has taken longer than expected.
	overdue = 15 * time.Second
)

// expectedWait is how long a model still takes until it serves, in whole seconds, by the boots seen.
func expectedWait(m registry.Model, now time.Time) time.Duration {
	boot := m.Boot
	if boot <= 0 {
		boot = defaultBoot
	}
	switch {
	case m.Workers > 0:
		return retrySoon
	case !m.Since.IsZero():
		boot -= max(0, now.Sub(m.Since))
		boot = max(boot, overdue)
	case m.Stage != "":
		boot = min(boot, loading)
	}
	return max(time.Second, boot.Round(time.Second))
}

// again forgets which workers did not take the request. How many were lost with it stays.
func (a *attempts) again() {
	clear(a.skip)
	a.stale, a.staleUsed = "", false
}

func roomFull(after time.Duration, why string) *apiError {
	e := tooMany(after, "The model has no worker yet, and the request cannot wait for one here: %s.", why)
	e.Code = "too_many_waiting"
	return e
}

func holdExpired(model string, limit time.Duration, stage string, after time.Duration) *apiError {
	if stage == "" {
		stage = "no machine yet"
	}
	e := unavailable(after, "model_not_ready", "The model %q was not ready within %s (%s). Try again later.", model, limit, stage)
	e.Param = &modelParam
	return e
}
