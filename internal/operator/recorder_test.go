package operator

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apiServer notes what is written to it; refuse answers creates instead where it is not nil.
type apiServer struct {
	client.Writer
	refuse func(try int) error

	mu      sync.Mutex
	tries   int
	created []*eventsv1.Event
	patches []string
}

func (a *apiServer) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tries++
	if a.refuse != nil {
		if err := a.refuse(a.tries); err != nil {
			return err
		}
	}
	a.created = append(a.created, o.(*eventsv1.Event))
	return nil
}

func (a *apiServer) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	data, err := p.Data(o)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.patches = append(a.patches, o.GetNamespace()+"/"+o.GetName()+" "+string(data))
	return err
}

// recording runs a recorder on stepped time while f records, and for wait longer.
func recording(t *testing.T, a *apiServer, wait time.Duration, f func(*recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		scheme, err := Scheme()
		if err != nil {
			t.Fatal(err)
		}
		r := newRecorder(a, scheme, clock.RealClock{}, logr.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.Start(ctx); err != nil {
				t.Error(err)
			}
		})
		f(r)
		time.Sleep(wait)
		cancel()
		wg.Wait()
	})
}

func aPod(version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: version}}
}

func TestNotesFitTheAPI(t *testing.T) {
	for _, message := range []string{"100 % of a short one", strings.Repeat("é", 5000), "first: " + strings.Repeat("é", 5000) + " last"} {
		a := &apiServer{}
		recording(t, a, time.Second, func(r *recorder) { r.Eventf(aPod("1"), nil, "Warning", "R", "A", "%s", message) })
		if len(a.created) != 1 {
			t.Fatalf("%d events", len(a.created))
		}
		note := a.created[0].Note
		head, tail, _ := strings.Cut(note, " … ")
		if len(note) > 1024 || !utf8.ValidString(note) || !strings.HasPrefix(message, head) || !strings.HasSuffix(message, tail) {
			t.Errorf("%d bytes became %d: %.40q", len(message), len(note), note)
		}
	}
}

func TestARepeatedEventIsCounted(t *testing.T) {
	a := &apiServer{}
	recording(t, a, 30*time.Minute, func(r *recorder) {
		for range 3 {
			r.Eventf(aPod("1"), nil, "Normal", "R", "A", "same")
			time.Sleep(time.Second)
		}
		r.Eventf(aPod("2"), nil, "Normal", "R", "A", "the pod was written since")
		r.Eventf(aPod("1"), nil, "Normal", "Other", "A", "another reason")
		time.Sleep(seriesFor + time.Second)
		r.Eventf(aPod("1"), nil, "Normal", "R", "A", "long after")
	})
	names := map[string]bool{}
	for _, e := range a.created {
		names[e.Name] = true
		if e.Namespace != "ns" || e.Regarding.Kind != "Pod" || e.Regarding.UID != "u" || e.EventTime.IsZero() || e.ReportingController != "gpuscale" {
			t.Errorf("event %+v", e)
		}
	}
	if len(a.created) != 4 || len(names) != 4 {
		t.Errorf("%d events of %d names", len(a.created), len(names))
	}
	if len(a.patches) != 1 || !strings.HasPrefix(a.patches[0], "ns/"+a.created[0].Name+" ") || !strings.Contains(a.patches[0], `"count":3`) {
		t.Errorf("counted: %q", a.patches)
	}
}

func TestAnEventOutlivesAnOutageAndNotARefusal(t *testing.T) {
	away := &apiServer{refuse: func(try int) error {
		if try < 4 {
			return errors.New("connection refused")
		}
		return nil
	}}
	recording(t, away, time.Minute, func(r *recorder) { r.Eventf(aPod("1"), nil, "Normal", "R", "A", "n") })
	if len(away.created) != 1 || away.tries != 4 {
		t.Errorf("after an outage: %d events, %d tries", len(away.created), away.tries)
	}
	refused := &apiServer{refuse: func(int) error { return apierrors.NewForbidden(eventsv1.Resource("events"), "x", nil) }}
	recording(t, refused, time.Hour, func(r *recorder) { r.Eventf(aPod("1"), nil, "Normal", "R", "A", "n") })
	if refused.tries != 1 {
		t.Errorf("asked %d times for what was refused", refused.tries)
	}
}

func TestLastWordsAreWrittenAndNobodyWaits(t *testing.T) {
	a := &apiServer{}
	recording(t, a, 0, func(r *recorder) {
		for i := range 100 {
			r.Eventf(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: strconv.Itoa(i)}}, nil, "Normal", "R", "A", "n")
		}
	})
	if len(a.created) != 100 || a.created[0].Namespace != "default" {
		t.Errorf("%d events written", len(a.created))
	}
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	stopped := newRecorder(a, scheme, clock.RealClock{}, logr.Discard())
	for i := range maxUnwritten + 10 {
		stopped.Eventf(aPod(strconv.Itoa(i)), nil, "Normal", "R", "A", "n")
	}
	if n := len(stopped.queue); n != maxUnwritten {
		t.Errorf("%d wait", n)
	}
}
