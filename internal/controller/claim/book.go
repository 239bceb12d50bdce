package claim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/pkg/money"
)

// Everything that the ledger is told after the purchase follows from the claim's status, so that nothing is lost while
// the ledger is away, whoever is killed meanwhile: it is told again until it has it, and the finalizer stays until then.

// maxRates bounds how many rates a claim remembers; the ledger has the older ones.
const maxRates = 100

// books is what this process knows to be in the ledger of each claim. It saves writes and nothing else: a process that
// has just started writes each claim once more.
type books struct {
	mu      sync.Mutex
	written map[types.UID]page
	// away: the last write failed; the next one is not before retryAt.
	away    bool
	retryAt time.Time
}

// page is one claim in the ledger.
type page struct {
	row     ledger.Instance
	rates   []v1alpha1.Rate
	events  []ledger.Event
	failure *ledger.Event
}

var errLedgerRests = errors.New("the ledger could not be written a moment ago; it is tried again soon")

// enter says what is written of a claim, or that it is not yet time to try again. While the ledger is away one claim at
// a time tries, so that a server that does not answer holds up no more than that one.
func (b *books) enter(uid types.UID, now time.Time, pause time.Duration) (page, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away {
		if now.Before(b.retryAt) {
			return page{}, errLedgerRests
		}
		b.retryAt = now.Add(pause)
	}
	return b.written[uid], nil
}

func (b *books) leave(uid types.UID, p page, err error, retryAt time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.written == nil {
		b.written = map[types.UID]page{}
	}
	b.written[uid] = p
	b.away, b.retryAt = err != nil, retryAt
}

func (b *books) forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.written, uid)
}

// book brings the ledger up to the claim's status. What it has got already is not written again.
func (v *visit) book(ctx context.Context) error {
	want := v.page()
	if want.row.Token == "" {
		return nil
	}
	have, err := v.books.enter(v.claim.UID, v.now(), v.Timing.DestroyRetry)
	if err != nil || reflect.DeepEqual(have, want) {
		return err
	}
	have, err = v.write(ctx, have, want)
	v.books.leave(v.claim.UID, have, err, v.now().Add(v.Timing.DestroyRetry))
	return err
}

// write adds to the ledger what want has and have has not, and returns what is there afterwards.
func (v *visit) write(ctx context.Context, have, want page) (page, error) {
	if have.row.Token != want.row.Token {
		have.row, have.rates, have.failure = ledger.Instance{}, nil, nil
	}
	if !reflect.DeepEqual(have.row, want.row) {
		row := want.row
		if moved := have.row.Token != "" && !slices.Equal(have.row.Shares, row.Shares); moved && reflect.DeepEqual(have.row.SharesFrom, row.SharesFrom) {
			now := v.now() // a model that left says nowhere when
			row.SharesFrom = &now
		}
		if err := v.Ledger.Update(ctx, row); err != nil {
			return have, err
		}
		have.row = want.row
	}
	for _, r := range want.rates {
		if slices.ContainsFunc(have.rates, func(o v1alpha1.Rate) bool { return o.From.Equal(&r.From) }) {
			continue
		}
		at, rate := r.From.Time, r.DollarsPerHour
		if err := v.Ledger.Update(ctx, ledger.Instance{Token: want.row.Token, Rate: &rate, RateFrom: &at}); err != nil {
			return have, err
		}
	}
	have.rates = want.rates
	fresh := want.events[min(len(have.events), len(want.events)):]
	if want.failure != nil && have.failure == nil {
		fresh = append(slices.Clone(fresh), *want.failure)
	}
	if err := v.Ledger.Note(ctx, fresh...); err != nil {
		return have, err
	}
	return want, nil
}

// page is what the ledger should have of the claim now.
func (v *visit) page() page {
	s := &v.claim.Status
	p := page{row: v.record()}
	if s.Attempt == nil {
		return p
	}
	p.rates = slices.Clone(s.Rates)
	for _, st := range s.Steps {
		e := ledger.Event{Token: s.Attempt.Token, At: st.At.Time, Kind: st.Name, Message: st.Message}
		var number int32
		if n, _ := fmt.Sscanf(st.Name, stepAttempt, &number); n == 1 {
			e.Token = Token(v.Installation, v.claim.UID, number)
			e.Kind = strings.TrimPrefix(st.Name, fmt.Sprintf(stepAttempt, number))
		}
		p.events = append(p.events, e)
	}
	if f := s.Failure; f != nil {
		p.failure = &ledger.Event{Token: s.Attempt.Token, At: f.At.Time, Kind: f.Reason, Message: f.Message}
	}
	return p
}

// record is the claim's row in the ledger, as complete as it is known; empty when nothing was ever asked for.
func (v *visit) record() ledger.Instance {
	s := v.claim.Status
	if s.Attempt == nil {
		return ledger.Instance{}
	}
	in := ledger.Instance{Token: s.Attempt.Token, ClaimUID: string(v.claim.UID), Claim: v.claim.Name, Pool: v.claim.Spec.Pool,
		Provider: s.Provider, Account: s.AccountID, CapacityType: s.CapacityType, Region: s.Region, OfferID: s.Attempt.OfferID, GPU: s.GPU,
		GPUCount: int(s.GPUCount), Price: s.Attempt.Price, IntendedAt: s.Attempt.WrittenAt.Time, InstanceID: s.InstanceID}
	in.CreatedAt, in.DestroyAskedAt, in.GoneAt = v.moment(stepCreated), v.moment(stepDestroyAsked), v.moment(stepGone)
	for _, p := range v.claim.Spec.Placements {
		in.Models = append(in.Models, p.Workload)
		in.Shares = append(in.Shares, ledger.Share{Model: p.Workload, Weight: int64(p.GPUs) * int64(p.GPUFraction)})
		if since := p.Since.Time; in.CreatedAt != nil && since.After(*in.CreatedAt) && (in.SharesFrom == nil || in.SharesFrom.Before(since)) {
			in.SharesFrom = &since
		}
	}
	if s.InstanceID != "" {
		price := s.Attempt.Price
		in.Rate = &price // until the provider says what it charges, see Rates
	}
	if !v.claim.DeletionTimestamp.IsZero() {
		in.EndReason = v.endReason()
	}
	in.Refused = s.Attempt.Outcome == v1alpha1.AttemptRefused && s.InstanceID == ""
	return in
}

// moment is when a step was reached; nil while it was not.
func (v *visit) moment(name string) *time.Time {
	for _, s := range v.claim.Status.Steps {
		if s.Name == name {
			at := s.At.Time
			return &at
		}
	}
	return nil
}

// charged notes a rate that the provider charges from now on.
func (v *visit) charged(rate money.Dollars) {
	s := &v.claim.Status
	s.DollarsPerHour = &rate
	s.Rates = append(s.Rates, v1alpha1.Rate{DollarsPerHour: rate, From: metav1.NewMicroTime(v.now())})
	s.Rates = s.Rates[max(0, len(s.Rates)-maxRates):]
}
