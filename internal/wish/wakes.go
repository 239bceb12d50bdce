package wish

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// silence is how long a subscription may be without a word before it is asked for one, and then until it is given up.
	// Nothing else tells a connection that is dead from one on which nothing happens.
	silence = 3 * time.Second
	// again is the pause before a lost subscription is made anew.
	again = 500 * time.Millisecond
)

// Wakes signals when a gateway began to hold requests for a model, and each time that its connection to Redis was made,
// for what it may have missed without one. Signals that are not taken become one. It connects again for ever, and
// closes the channel when ctx ends.
func (s *Store) Wakes(ctx context.Context) <-chan struct{} {
	wakes := make(chan struct{}, 1)
	go func() {
		defer close(wakes)
		for ctx.Err() == nil {
			s.listen(ctx, wakes)
			t := s.clock.NewTimer(again)
			select {
			case <-ctx.Done():
			case <-t.C():
			}
			t.Stop()
		}
	}()
	return wakes
}

// listen hands one subscription's signals on until it is lost or ctx ends.
func (s *Store) listen(ctx context.Context, wakes chan<- struct{}) {
	dial, cancel := bounded(ctx)
	defer cancel()
	sub := s.client.Subscribe(dial, s.channel())
	defer sub.Close() //nolint:errcheck // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer stop()
	asked := false
	for ctx.Err() == nil {
		got, err := sub.ReceiveTimeout(ctx, silence)
		var timeout net.Error
		switch {
		case err == nil:
		case errors.As(err, &timeout) && timeout.Timeout() && !asked:
			asked = true
			if ping(ctx, sub) != nil {
				return
			}
			continue
		default:
			return
		}
		asked = false
		if _, pong := got.(*redis.Pong); pong {
			continue
		}
		select {
		case wakes <- struct{}{}:
		default:
		}
	}
}

func ping(ctx context.Context, sub *redis.PubSub) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return sub.Ping(ctx)
}
