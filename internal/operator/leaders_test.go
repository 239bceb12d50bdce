package operator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/operator"
)

// late delivers everything that a watch says some time after it was said.
type late struct {
	next  http.RoundTripper
	delay time.Duration
	// each holds every other request.
	each time.Duration
}

func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		time.Sleep(l.each)
		return l.next.RoundTrip(r)
	}
	resp, err := l.next.RoundTrip(r)
	if err == nil {
		resp.Body = newLateBody(resp.Body, l.delay)
	}
	return resp, err
}

// lateBody is a stream whose pieces can be read a while after they came.
type lateBody struct {
	io.Closer
	pieces chan piece
	left   []byte
	delay  time.Duration
}

type piece struct {
	at   time.Time
	data []byte
	err  error
}

func newLateBody(from io.ReadCloser, delay time.Duration) *lateBody {
	b := &lateBody{Closer: from, pieces: make(chan piece, 10000), delay: delay}
	go func() {
		defer close(b.pieces)
		for {
			data := make([]byte, 32<<10)
			n, err := from.Read(data)
			b.pieces <- piece{time.Now(), data[:n], err}
			if err != nil {
				return
			}
		}
	}()
	return b
}

// Read blocks until the next piece is old enough.
func (b *lateBody) Read(p []byte) (int, error) {
	if len(b.left) == 0 {
		next, ok := <-b.pieces
		if !ok {
			return 0, io.EOF
		}
		time.Sleep(time.Until(next.at.Add(b.delay)))
		if b.left = next.data; len(b.left) == 0 {
			return 0, next.err
		}
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

func delayed(c *rest.Config, watches, each time.Duration) *rest.Config {
	c = rest.CopyConfig(c)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return late{next, watches, each} })
	return c
}

// beside runs a second replica next to the first until the test has cleaned up.
func beside(t *testing.T, w *world, second operator.Config) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.operate(ctx, second) }()
	// Registered before the first one's end, so that it outlives it.
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("second replica: %v", err)
		}
	})
}

// TestTwoReplicasWithStaleCachesBuyOnce runs two replicas that both believe to lead, one of which hears of everything a
// second late.
func TestTwoReplicasWithStaleCachesBuyOnce(t *testing.T) {
	var offers []market.Offer
	for i := range 8 {
		offers = append(offers, offer(fmt.Sprint(3001+i)))
	}
	w := start(t, offers, func(w *world, _ *market.Config, _ *simOptions) {
		w.configure = func(c *operator.Config) {
			second := *c
			second.Rest = delayed(c.Rest, time.Second, 0)
			beside(t, w, second)
		}
	})
	w.pool()
	var pods []*corev1.Pod
	for i := range 4 {
		pods = append(pods, w.pod(fmt.Sprintf("acme/m%d", i)))
	}
	for _, p := range pods {
		w.podSays(p, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	}
	w.rentedAtMost(len(pods))
	if peak := w.market.Books().Peak().Live; peak > len(pods) {
		t.Errorf("%d instances at once for %d pods", peak, len(pods))
	}
}

// TestASlowAPIServerBuysOnce holds every request for a while, and every watch for longer.
func TestASlowAPIServerBuysOnce(t *testing.T) {
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, func(w *world, _ *market.Config, _ *simOptions) {
		w.configure = func(c *operator.Config) { c.Rest = delayed(c.Rest, 500*time.Millisecond, 150*time.Millisecond) }
	})
	w.pool()
	w.podSays(w.pod("acme/tiny"), corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.rentedAtMost(1)
}

// severed is a connection that breaks and stays broken.
type severed struct {
	next http.RoundTripper
	cut  <-chan struct{}
}

func (s severed) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-s.cut:
		return nil, errors.New("no route to host")
	default:
		return s.next.RoundTrip(r)
	}
}

// TestALeaseLostWhileACreateIsInTheAir cuts the leader off from Kubernetes between its request and the answer, which
// comes while it still believes to lead and can write nothing down. The second replica takes over.
func TestALeaseLostWhileACreateIsInTheAir(t *testing.T) {
	asked := make(chan struct{})
	var once sync.Once
	lost := make(chan error, 1)
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, func(w *world, m *market.Config, _ *simOptions) {
		m.Faults.Delay = time.Second
		w.beforeCreate = func(*world) { once.Do(func() { close(asked) }) }
		w.configure = func(c *operator.Config) {
			c.LeaderElection = true
			c.Lease.Duration, c.Lease.Renew, c.Lease.Retry = 4*time.Second, 3*time.Second, 300*time.Millisecond
			first := *c
			first.Rest = rest.CopyConfig(c.Rest)
			first.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return severed{next, asked} })
			ctx, cancel := context.WithCancel(context.Background())
			t.Cleanup(cancel)
			go func() { lost <- operator.Run(ctx, first) }()
			w.eventually("the first replica leads", func() error {
				lease := &coordinationv1.Lease{}
				if err := w.client.Get(w.ctx, client.ObjectKey{Namespace: secretNS, Name: "gpuscale-controller"}, lease); err != nil {
					return err
				}
				if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
					return errors.New("nobody does")
				}
				return nil
			})
		}
	})
	w.market.FailNext(market.OpCreate, market.Late)
	w.pool()
	w.podSays(w.pod("acme/tiny"), corev1.ConditionTrue, v1alpha1.PodReasonServed)
	if err := <-lost; err == nil {
		t.Error("the first replica never lost its lease")
	}
	w.rentedAtMost(1)
}
