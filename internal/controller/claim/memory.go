package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/offers/rest"
)

// eventMemory is the kind of the ledger's events that hold what a controller that starts anew must know: what rests, and
// on which machine a workload failed. Both are kept in memory; without them each restart would buy once more for a model
// that can never load.
const eventMemory = "Memory"

// remembered is longer than any rest counts: the longest rest and the time after it until it is forgiven.
const remembered = 5 * rest.OfferMax

// memory is such an event's message.
type memory struct {
	Rests    []rest.Rest `json:"rests,omitempty"`
	Struck   []struck    `json:"struck,omitempty"`
	Forgiven []rest.Key  `json:"forgiven,omitempty"`
	// Served are workloads whose strikes no longer count.
	Served []string `json:"served,omitempty"`
}

// struck is one failure that may turn out to be the workload's.
type struck struct {
	Workload string `json:"workload"`
	Step     string `json:"step"`
	Machine  string `json:"machine"`
}

// remember writes to the ledger what a restart must not lose. A ledger that cannot be written is no reason to keep a
// failed machine; it keeps anything from being bought as well.
func (v *visit) remember(ctx context.Context, m memory) {
	if v.claim.Status.Attempt == nil || len(m.Rests)+len(m.Struck)+len(m.Forgiven)+len(m.Served) == 0 {
		return
	}
	for i := range m.Rests {
		m.Rests[i].Message = lastBytes(m.Rests[i].Message, 1000)
	}
	text, err := json.Marshal(m)
	if err == nil {
		err = v.Memory.Event(ctx, ledger.Event{Token: v.claim.Status.Attempt.Token, At: v.now(), Kind: eventMemory, Message: string(text)})
	}
	if err != nil {
		v.log(ctx).Error(err, "what rests is not written down", "claim", v.claim.Name)
	}
}

// lastBytes keeps the end, where an engine's own words are: the ledger cuts what is too long and leaves broken JSON.
func lastBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[len(s)-n:]
}

// Memory is where the ledger keeps what a restart must not lose.
type Memory interface {
	Event(ctx context.Context, e ledger.Event) error
	EventsSince(ctx context.Context, kind string, t time.Time) ([]ledger.Event, error)
}

// Recall fills rests and strikes with what earlier processes learnt and that still counts at now. Repeating it does no
// harm. An entry that cannot be read is left out, and is in the error.
func Recall(ctx context.Context, h Memory, rests *rest.Book, strikes *Strikes, now time.Time) error {
	events, err := h.EventsSince(ctx, eventMemory, now.Add(-remembered))
	if err != nil {
		return err
	}
	var odd []error
	for _, e := range events {
		var m memory
		if err := json.Unmarshal([]byte(e.Message), &m); err != nil {
			odd = append(odd, fmt.Errorf("memory of %s: %w", e.Token, err))
			continue
		}
		rests.Restore(m.Rests)
		for _, s := range m.Struck {
			strikes.Strike(s.Workload, s.Step, s.Machine)
		}
		for _, k := range m.Forgiven {
			rests.Forgive(k)
		}
		for _, w := range m.Served {
			strikes.Clear(w)
		}
	}
	return errors.Join(odd...)
}
