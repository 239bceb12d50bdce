package account

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRecentReadsOnceAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		w := &world{secrets: map[string]map[string][]byte{"ns/a": secret("VASTAI_API_KEY", "one")}}
		a := New(life, w.options())
		recent := func() *Account {
			acc, err := a.Recent(t.Context(), vast("a"))
			if err != nil {
				t.Fatal(err)
			}
			return acc
		}
		first := recent()
		w.secrets["ns/a"] = secret("VASTAI_API_KEY", "two")
		if recent() != first {
			t.Error("the Secret was read again within the moment")
		}
		time.Sleep(recentAge + 1)
		second := recent()
		if second == first {
			t.Error("a replaced key is not noticed after the moment")
		}
		w.secrets["ns/a"] = secret("VASTAI_API_KEY", "one")
		if mustFor(t, a, vast("a")) != first || recent() != first {
			t.Error("what somebody else has read is not taken over")
		}
		delete(w.secrets, "ns/a")
		time.Sleep(recentAge + 1)
		if acc, err := a.Recent(t.Context(), vast("a")); err == nil {
			t.Errorf("an old account in place of an error: %v", acc.Fingerprint)
		}
		a.Close(first)
		a.Close(second)
		end()
		synctest.Wait()
	})
}

func TestRecentIsReadOnceForAllWhoCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		w := &world{secrets: map[string]map[string][]byte{"ns/a": secret("VASTAI_API_KEY", "one")}}
		o := w.options()
		var reads atomic.Int32
		answer, next := make(chan struct{}), o.Secrets
		o.Secrets = func(ctx context.Context, ns, name string) (map[string][]byte, error) {
			reads.Add(1)
			<-answer
			return next(ctx, ns, name)
		}
		a := New(life, o)
		hasty, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := a.Recent(hasty, vast("a")); !errors.Is(err, context.Canceled) {
				t.Errorf("who stopped waiting is told %v", err)
			}
		})
		synctest.Wait()
		for range 32 {
			wg.Go(func() {
				if _, err := a.Recent(t.Context(), vast("a")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		close(answer)
		wg.Wait()
		if n := reads.Load(); n != 1 {
			t.Errorf("33 who came together read %d times", n)
		}
		for _, acc := range a.All() {
			a.Close(acc)
		}
		end()
		synctest.Wait()
	})
}
