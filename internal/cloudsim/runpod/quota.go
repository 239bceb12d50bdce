package runpod

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// quota counts all calls of the account together in three windows, each of which begins with its first call.
type quota struct {
	clock clock.PassiveClock
	off   bool

	mu      sync.Mutex
	windows []*quotaWindow
}

type quotaWindow struct {
	name   string
	limit  int
	length time.Duration
	began  time.Time
	used   int
}

func newQuota(c clock.PassiveClock, scale float64) *quota {
	if scale == 0 {
		scale = 1
	}
	q := &quota{clock: c, off: scale < 0}
	for _, w := range []quotaWindow{{name: "minute", limit: 60, length: time.Minute}, {name: "hour", limit: 3000, length: time.Hour},
		{name: "day", limit: 50_000, length: 24 * time.Hour}} {
		w.length = time.Duration(float64(w.length) * scale)
		q.windows = append(q.windows, &w)
	}
	return q
}

// admit counts a call and writes the headers that every answer has. Exceeded is the window that is used up, and after how
// long it begins again, in whole seconds.
func (q *quota) admit(h http.Header) (after time.Duration, exceeded string) {
	if q.off {
		return 0, ""
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	for _, w := range q.windows {
		if !now.Before(w.began.Add(w.length)) {
			w.began, w.used = now, 0
		}
		if w.used >= w.limit && exceeded == "" {
			after, exceeded = w.left(now), w.name
		}
	}
	var state, policy []string
	for _, w := range q.windows {
		if exceeded == "" {
			w.used++
		}
		state = append(state, fmt.Sprintf("%q;r=%d;t=%d", w.name, w.limit-w.used, int(w.left(now).Seconds())))
		policy = append(policy, fmt.Sprintf("%q;q=%d;w=%d", w.name, w.limit, int(w.length.Seconds())))
	}
	h.Set("RateLimit", strings.Join(state, ", "))
	h.Set("RateLimit-Policy", strings.Join(policy, ", "))
	return after, exceeded
}

func (w *quotaWindow) left(now time.Time) time.Duration {
	return time.Duration(math.Ceil(w.began.Add(w.length).Sub(now).Seconds())) * time.Second
}
