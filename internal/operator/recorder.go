package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxNote is the most bytes that a note is given: the API refuses an event whose note is over 1,024, and a person would
// then not hear of a failure just because its engine had much to say.
const maxNote = 1000

// noteHead is how much of the beginning is kept of a longer one. The end is kept too: an engine's last lines are there.
const noteHead = 300

const (
	// reporter is the controller that events name.
	reporter = "gpuscale"
	// seriesFor is how long after an event the same one is a repetition of it and not another.
	seriesFor = 6 * time.Minute
	// maxSeries bounds how many events are known again. One that is not is written anew.
	maxSeries = 4096
	// countEvery is how often what was repeated meanwhile is added to the count in the cluster.
	countEvery = time.Minute
	// maxUnwritten bounds what waits for the API server.
	maxUnwritten = 8192
	// An event is given up after so many tries, two minutes in all, at which nothing was heard of the API server.
	recordTries, recordPause = 12, 10 * time.Second
	// lastWords bounds how long the events of a process that is told to end are still written.
	lastWords = 2 * time.Second
)

// recorder writes events of the events.k8s.io kind for every controller alike. Nothing waits for it: events are written
// behind, and lost where the API server is away for longer than a few minutes.
//
// client-go's recorder keeps each event whole for six minutes, in all 14 KB for each claim that starts. This one keeps a
// name and a count. It is safe for concurrent use.
type recorder struct {
	client   client.Writer
	scheme   *runtime.Scheme
	clock    clock.WithTicker
	log      logr.Logger
	instance string
	seed     maphash.Seed
	queue    chan *eventsv1.Event

	mu sync.Mutex
	// last is the newest event's time in nanoseconds, which its name is made of: no two have the same.
	last int64
	// recent are *series by what is the same in a repetition, repeated those of them with something to count.
	recent   *lru.Cache
	repeated map[uint64]*series
}

// series is an event and its repetitions.
type series struct {
	namespace, name string
	// count is how often it happened, said how often according to the cluster.
	count, said int32
	seen        time.Time
}

func newRecorder(c client.Writer, scheme *runtime.Scheme, clk clock.WithTicker, log logr.Logger) *recorder {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &recorder{client: c, scheme: scheme, clock: clk, log: log, instance: reporter + "-" + host, seed: maphash.MakeSeed(),
		queue: make(chan *eventsv1.Event, maxUnwritten), recent: lru.New(maxSeries), repeated: map[uint64]*series{}}
}

// Eventf records an event with a note of at most maxNote bytes.
func (r *recorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	ref, err := reference.GetReference(r.scheme, regarding)
	if err != nil {
		r.log.Error(err, "an event about something unknown is not written", "reason", reason)
		return
	}
	e := &eventsv1.Event{ReportingController: reporter, ReportingInstance: r.instance, Type: eventtype, Reason: reason,
		Action: action, Note: bounded(fmt.Sprintf(note, args...)), Regarding: *ref}
	if related != nil {
		if e.Related, err = reference.GetReference(r.scheme, related); err != nil {
			r.log.Error(err, "what an event is related to is unknown", "reason", reason)
		}
	}
	if !r.isNew(e) {
		return
	}
	select {
	case r.queue <- e:
	default:
		r.log.Info("an event is lost: too many wait for the API server", "reason", reason, "about", ref.Name)
	}
}

// isNew gives an event its time and name, or counts it as a repetition of one that has them.
func (r *recorder) isNew(e *eventsv1.Event) bool {
	key := r.key(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	known, _ := r.recent.Get(key)
	if s, ok := known.(*series); ok && now.Sub(s.seen) < seriesFor {
		s.count, s.seen = s.count+1, now
		r.repeated[key] = s
		return false
	}
	r.last = max(now.UnixNano(), r.last+1)
	e.EventTime = metav1.NewMicroTime(now)
	e.Name = fmt.Sprintf("%s.%x", e.Regarding.Name, r.last)
	e.Namespace = cmp.Or(e.Regarding.Namespace, metav1.NamespaceDefault)
	r.recent.Add(key, &series{namespace: e.Namespace, name: e.Name, count: 1, said: 1, seen: now})
	return true
}

// key is of what an event has in common with its repetitions. As in client-go, an object that was written since is another.
func (r *recorder) key(e *eventsv1.Event) uint64 {
	return maphash.Comparable(r.seed, struct {
		kind, reason, action string
		regarding, related   corev1.ObjectReference
	}{e.Type, e.Reason, e.Action, e.Regarding, orNothing(e.Related)})
}

func orNothing(ref *corev1.ObjectReference) corev1.ObjectReference {
	if ref == nil {
		return corev1.ObjectReference{}
	}
	return *ref
}

// bounded cuts a note to what the API takes.
func bounded(note string) string {
	if len(note) <= maxNote {
		return note
	}
	return strings.ToValidUTF8(note[:noteHead], "") + " … " + strings.ToValidUTF8(note[len(note)-(maxNote-noteHead):], "")
}

// NeedLeaderElection is false, so that what the controllers said last is written after they have stopped.
func (r *recorder) NeedLeaderElection() bool { return false }

// Start writes events until ctx ends, and what is left then if that does not take long.
func (r *recorder) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { r.write(ctx) })
	wg.Go(func() { r.countOn(ctx) })
	wg.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	for last.Err() == nil {
		select {
		case e := <-r.queue:
			r.create(last, e)
		default:
			return nil
		}
	}
	return nil
}

// write writes one event after the other: a herd's would else take the API server from what they tell of.
func (r *recorder) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			r.create(ctx, e)
		}
	}
}

// create writes one event. An answer of the API server is final, whatever it is.
func (r *recorder) create(ctx context.Context, e *eventsv1.Event) {
	var err error
	for range recordTries {
		err = r.client.Create(ctx, e)
		var answer apierrors.APIStatus
		if err == nil || apierrors.IsAlreadyExists(err) {
			return
		}
		if errors.As(err, &answer) {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(recordPause):
		}
	}
	r.log.Info("an event is lost", "reason", e.Reason, "about", e.Regarding.Name, "error", err.Error())
}

// countOn adds to events in the cluster how often they were repeated.
func (r *recorder) countOn(ctx context.Context) {
	tick := r.clock.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		for _, s := range r.uncounted() {
			if err := r.client.Patch(ctx, &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}, s.patch()); err != nil {
				// It may have expired, or not be written yet. The next repetition counts this one too.
				r.log.V(1).Info("a repeated event is not counted", "name", s.name, "error", err.Error())
			}
		}
	}
}

// uncounted are the series with a count that the cluster has not heard of. Those that have ended are forgotten.
func (r *recorder) uncounted() []series {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []series
	for key, s := range r.repeated {
		if s.said < s.count {
			s.said = s.count
			out = append(out, *s)
		}
		if r.clock.Now().Sub(s.seen) >= seriesFor {
			delete(r.repeated, key)
		}
	}
	return out
}

func (s series) patch() client.Patch {
	seen := metav1.NewMicroTime(s.seen).UTC().Format(metav1.RFC3339Micro)
	return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"series":{"count":%d,"lastObservedTime":%q}}`, s.count, seen))
}
