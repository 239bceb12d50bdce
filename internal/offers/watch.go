package offers

import "time"

// minWatch is the shortest poll that can be had of a provider without a limit of its own; it only keeps an interval of
// zero from spinning.
const minWatch = 100 * time.Millisecond

// Watch has the account polled at least every so often, as far as the provider allows, until Unwatch. A tag stands for
// whoever is interested; watching it again replaces its interval. While nobody watches nothing is polled.
func (o *Observer) Watch(tag string, every time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, ok := o.watched[tag]; ok && was == every {
		return
	}
	o.watched[tag] = every
	o.rewatch()
}

// Unwatch ends Watch for a tag. It is harmless where there is none.
func (o *Observer) Unwatch(tag string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.watched[tag]; ok {
		delete(o.watched, tag)
		o.rewatch()
	}
}

// rewatch wakes poll; the caller holds mu.
func (o *Observer) rewatch() {
	select {
	case o.rewatched <- struct{}{}:
	default: // it has not woken from the last time yet, and will see this too
	}
}

// interval is the pause between polls that is wanted now, or false while nobody watches.
func (o *Observer) interval() (time.Duration, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	shortest, wanted := time.Duration(0), false
	for _, every := range o.watched {
		if !wanted || every < shortest {
			shortest, wanted = every, true
		}
	}
	return max(shortest, o.lane.pause, minWatch), wanted
}

// poll lists while somebody watches. Lists made for Find count: the next is due an interval after the last began.
func (o *Observer) poll() {
	tried := time.Time{}
	for o.life.Err() == nil {
		every, wanted := o.interval()
		if !wanted {
			select {
			case <-o.rewatched:
			case <-o.life.Done():
			}
			continue
		}
		good, _ := o.Latest()
		last := tried
		if good.Began.After(last) {
			last = good.Began
		}
		if wait := last.Add(every).Sub(o.clock.Now()); !last.IsZero() && wait > 0 {
			o.wait(wait)
			continue
		}
		// An error is in Latest, and the next attempt is an interval away; what failed longer is held back by the lane.
		tried = o.clock.Now()
		_, _ = o.List(o.life, tried)
	}
}

// wait returns after d, when the watchers change, or at the end.
func (o *Observer) wait(d time.Duration) {
	timer := o.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-o.rewatched:
	case <-o.life.Done():
	}
}
