package operator

import (
	"context"
	"sync"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/offers/rest"
)

// recallOnce returns a function that fills rests and strikes from the ledger at the first call that succeeds. It is
// called when something is about to be planned or bought and not at start: a standby that becomes the leader after days
// must know what failed until then.
func recallOnce(h claim.Memory, rests *rest.Book, strikes *claim.Strikes, c clock.PassiveClock) func(context.Context) error {
	var mu sync.Mutex
	done := false
	return func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return nil
		}
		err := claim.Recall(ctx, h, rests, strikes, c.Now())
		done = err == nil
		return err
	}
}
