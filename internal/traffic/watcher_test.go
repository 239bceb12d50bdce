package traffic

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/wish"
)

// shelf is a store whose every reading is a step of the test's.
type shelf struct {
	reads chan chan<- wish.Demand
	wakes chan struct{}
}

func (s *shelf) Read(ctx context.Context) (wish.Demand, error) {
	answer := make(chan wish.Demand)
	select {
	case s.reads <- answer:
	case <-ctx.Done():
		return wish.Demand{}, ctx.Err()
	}
	d, said := <-answer
	if !said {
		return d, errors.New("nobody is there")
	}
	return d, nil
}

func (s *shelf) Wakes(context.Context) <-chan struct{} { return s.wakes }

// next answers the reading that is under way or comes, or fails it where there is no answer.
func (s *shelf) next(t *testing.T, what string, answer *wish.Demand) {
	t.Helper()
	select {
	case read := <-s.reads:
		if answer != nil {
			read <- *answer
		}
		close(read)
	case <-time.After(20 * time.Second):
		t.Fatal("not read: " + what)
	}
}

func (s *shelf) quiet(t *testing.T, what string) {
	t.Helper()
	select {
	case <-s.reads:
		t.Fatal("read " + what)
	case <-time.After(100 * time.Millisecond): // nothing shows that something does not happen
	}
}

// TestAWakeIsHeardWithoutWaiting: with the clock standing still only the signal can be why the store is read again. What it
// holds is told to the controllers at once, and once.
func TestAWakeIsHeardWithoutWaiting(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.GPUNodePoolSpec{Models: []v1alpha1.PoolModel{{Name: "m"}}}}
	pools := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).Build()
	now, s := testclock.NewFakeClock(epoch), &shelf{make(chan chan<- wish.Demand), make(chan struct{}, 1)}
	w := NewWatcher(s, pools, now, Settings{}, logr.Discard())
	one, two := w.Changes(), w.Changes()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	// rests lets the least time between two readings pass, after which only a wake or the interval ends the wait.
	rests := func() {
		t.Helper()
		for range 2 {
			for deadline := time.Now().Add(20 * time.Second); !now.HasWaiters(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it waits for nothing")
				}
			}
			now.Step(pause)
		}
	}
	told := func(what string, want int) {
		t.Helper()
		for i, c := range []<-chan event.GenericEvent{one, two} {
			n := len(c)
			for range n {
				<-c
			}
			if n != want {
				t.Errorf("%s: controller %d was told %d times, want %d", what, i, n, want)
			}
		}
	}

	s.next(t, "at the start", &wish.Demand{Whole: true})
	rests()
	told("nothing is asked for", 0)
	s.quiet(t, "though nothing happened")
	s.wakes <- struct{}{}
	s.next(t, "at a wake", &wish.Demand{Whole: true, Models: m(wish.Entry{Held: 1})})
	rests()
	told("a request waits", 1)
	if got := w.Buying()["m"]; got != 1 {
		t.Errorf("%d may be bought", got)
	}
	s.wakes <- struct{}{}
	s.next(t, "at a wake that changes nothing", &wish.Demand{Whole: true, Models: m(wish.Entry{Held: 1})})
	rests()
	told("nothing has changed", 0)

	now.Step(readEvery)
	s.next(t, "after its interval", nil)
	rests()
	told("the store is lost", 1)
	if keeping, known := w.Keeping(); len(w.Buying()) > 0 || keeping["m"] != 1 || known {
		t.Errorf("without the store: buying %v, keeping %v, known %v", w.Buying(), keeping, known)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
