package rest

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// The first rest of each scope, and the longest that doubling leads to.
const (
	// A machine that failed once is mostly rented out, rebooting or being looked after: minutes. One that goes on
	// failing is broken, and its host has to notice.
	OfferBase = 10 * time.Minute
	OfferMax  = 6 * time.Hour

	// A model that cannot be served mostly needs a person to change something, and a change is another key and so needs
	// no waiting. The base only covers what passes by itself, such as a weights server that is down.
	WorkloadBase = 5 * time.Minute
	WorkloadMax  = time.Hour

	// A pool's mistakes are a person's too, and stop all of its models: not long, since what was wrong may lie outside
	// the pool (the server that the agent is fetched from) and then nothing in the pool changes when it is repaired.
	PoolBase = 5 * time.Minute
	PoolMax  = time.Hour

	// A provider's account is topped up or repaired within minutes of the alert, and everything waits for it.
	ProviderBase = time.Minute
	ProviderMax  = 30 * time.Minute
)

// forgiveAfter is how many times its last rest something must behave, counted from that rest's end, before a failure
// counts as its first again. A multiple of the rest, so that what failed often is watched for longer.
const forgiveAfter = 4

// bounds are the first and the longest rest of s.
func (s Scope) bounds() (base, longest time.Duration) {
	switch s {
	case ScopeWorkload:
		return WorkloadBase, WorkloadMax
	case ScopePool:
		return PoolBase, PoolMax
	case ScopeProvider:
		return ProviderBase, ProviderMax
	case ScopeOffer:
		return OfferBase, OfferMax
	}
	return OfferBase, OfferMax
}

// Book records what failed and how long it rests. The zero value is empty and ready to use; all methods may be called
// concurrently. It keeps an entry until it is forgiven, so its size is bounded by what fails within a day or so.
type Book struct {
	mu    sync.Mutex
	rests map[Key]Rest
}

// Fail records a failure of k at now and returns the rest that follows from it: the scope's base the first time, twice
// the last one each time after that, up to the scope's longest.
//
// A failure while k already rests does not count again, because what failed was begun before the rest: ten machines that
// fail in one outage are one failure. It replaces reason and message.
func (b *Book) Fail(k Key, reason, message string, now time.Time) Rest {
	return b.FailFor(k, 0, reason, message, now)
}

// FailFor is Fail with a first rest of at least atLeast, within the scope's longest.
func (b *Book) FailFor(k Key, atLeast time.Duration, reason, message string, now time.Time) Rest {
	b.mu.Lock()
	defer b.mu.Unlock()
	base, longest := k.Scope.bounds()
	base = min(max(base, atLeast), longest)

	r, known := b.rests[k]
	switch {
	case !known || r.forgiven(now):
		r = Rest{Key: k, Fails: 1, Since: now, Until: now.Add(base)}
	case now.Before(r.Until):
		if until := now.Add(base); atLeast > 0 && r.Until.Before(until) {
			r.Until = until
		}
	default:
		ttl := min(max(2*r.ttl(), base), longest)
		r.Fails, r.Since, r.Until = r.Fails+1, now, now.Add(ttl)
	}
	r.Reason, r.Message = reason, message
	if b.rests == nil {
		b.rests = map[Key]Rest{}
	}
	b.rests[k] = r
	return r
}

// Forgive ends the rest of k, if it rests, and forgets its failures. It reports whether there was anything to forgive.
func (b *Book) Forgive(k Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, had := b.rests[k]
	delete(b.rests, k)
	return had
}

// View is what rests at now. The view is the caller's and does not change.
func (b *Book) View(now time.Time) View {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(now)
	v := View{}
	for k, r := range b.rests {
		if now.Before(r.Until) {
			v[k] = r
		}
	}
	return v
}

// Entries are all that the book remembers at now, those included whose rest is over and whose failures still count, in
// a fixed order. It is what to give to Restore after a restart.
func (b *Book) Entries(now time.Time) []Rest {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(now)
	out := make([]Rest, 0, len(b.rests))
	for _, r := range b.rests {
		out = append(out, r)
	}
	slices.SortFunc(out, func(x, y Rest) int {
		return cmp.Or(cmp.Compare(x.Key.Scope, y.Key.Scope), cmp.Compare(x.Key.Provider, y.Key.Provider),
			cmp.Compare(x.Key.Value, y.Key.Value))
	})
	return out
}

// Restore adds entries of an earlier book. Where the book already has an entry of the same key, the one that rests
// longer stays, so that restoring late loses nothing.
func (b *Book) Restore(rests []Rest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rests == nil {
		b.rests = make(map[Key]Rest, len(rests))
	}
	for _, r := range rests {
		if have, ok := b.rests[r.Key]; !ok || have.Until.Before(r.Until) {
			b.rests[r.Key] = r
		}
	}
}

// prune drops what is forgiven.
func (b *Book) prune(now time.Time) {
	for k, r := range b.rests {
		if r.forgiven(now) {
			delete(b.rests, k)
		}
	}
}

// ttl is how long the entry rests or rested.
func (r Rest) ttl() time.Duration { return r.Until.Sub(r.Since) }

func (r Rest) forgiven(now time.Time) bool {
	return !now.Before(r.Until.Add(forgiveAfter * r.ttl()))
}
