package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// fromStart is the stretch that begins with the bill, whenever that was.
const fromStart = 0

// maxMessage bounds an event: a provider's error may carry a whole page.
const maxMessage = 4096

// Intend records that an instance is about to be asked for. When it returns nil the intent is on disk and Live answers
// it, until Update says that it was refused or is gone. Token and IntendedAt are required; Refused is ignored.
//
// Repeating it does nothing. Repeated with a later IntendedAt, as when an unclear attempt is made again with a fresh
// offer, it replaces the offer (provider to price) and IntendedAt; an earlier refusal no longer counts then. An
// IntendedAt before the recorded one leaves the offer as it is. A token that is used up answers ErrClosed.
func (l *Ledger) Intend(ctx context.Context, in Instance) error {
	if in.IntendedAt.IsZero() {
		return fmt.Errorf("ledger: intent of %q without its time", in.Token)
	}
	in.Refused = false
	return l.put(ctx, "intend", intendInstance, in)
}

// Update adds what has become known of an instance, whether or not it was intended here. Repeated, late or out of order
// it does no harm: a known text or number stays as it is, of two times the earlier stays, a rate is kept per RateFrom
// and shares per SharesFrom, and refused and gone are never taken back. Token is required.
func (l *Ledger) Update(ctx context.Context, in Instance) error {
	return l.put(ctx, "update", updateInstance, in)
}

// Event adds a line to a token's history. A second one with the same token, time (to the microsecond) and kind changes
// nothing. Messages are cut at 4 KB. Token, At and Kind are required.
func (l *Ledger) Event(ctx context.Context, e Event) error { return l.Note(ctx, e) }

// Note is Event for several lines, all or none of which are written.
func (l *Ledger) Note(ctx context.Context, events ...Event) error {
	for _, e := range events {
		if e.Token == "" || e.At.IsZero() || e.Kind == "" {
			return errors.New("ledger: event without token, time or kind")
		}
	}
	if len(events) == 0 {
		return nil
	}
	token := events[0].Token
	if err := l.ensure(ctx); err != nil {
		return l.explain("event of", token, err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return l.explain("event of", token, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, and before it another error is on its way
	for _, e := range events {
		if _, err := tx.ExecContext(ctx, insertEvent, e.Token, e.At.UnixMicro(), clean(e.Kind), clean(e.Message)); err != nil {
			return l.explain("event of", token, err)
		}
	}
	return l.explain("event of", token, tx.Commit())
}

// put writes a row with its rate and shares in one transaction.
func (l *Ledger) put(ctx context.Context, what, statement string, in Instance) error {
	if in.Token == "" {
		return fmt.Errorf("ledger: %s without a token", what)
	}
	row, err := values(in)
	if err != nil {
		return err
	}
	if err := l.ensure(ctx); err != nil {
		return l.explain(what, in.Token, err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return l.explain(what, in.Token, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, and before it another error is on its way
	done, err := tx.ExecContext(ctx, statement, row...)
	if err != nil {
		return l.explain(what, in.Token, err)
	}
	switch n, err := done.RowsAffected(); {
	case err != nil:
		return l.explain(what, in.Token, err)
	case n == 0:
		return l.explain(what, in.Token, ErrClosed)
	}
	if err := putStretches(ctx, tx, in); err != nil {
		return l.explain(what, in.Token, err)
	}
	return l.explain(what, in.Token, tx.Commit())
}

// putStretches writes what has a time from which it holds.
func putStretches(ctx context.Context, tx *sql.Tx, in Instance) error {
	// $0 is not known: nobody rents a GPU for nothing, but a claim that has ended shows that rate.
	if in.Rate != nil && in.Rate.Micros() > 0 {
		if _, err := tx.ExecContext(ctx, insertRate, in.Token, startOf(in.RateFrom), in.Rate.Micros()); err != nil {
			return err
		}
	}
	if len(in.Shares) == 0 {
		return nil
	}
	shares, err := json.Marshal(in.Shares)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, insertShares, in.Token, startOf(in.SharesFrom), string(shares))
	return err
}

// Abandon marks an intent as refused if there is one under the token: for a purchase of which it is certain that it was
// never asked for, and not certain that it was written down. It does nothing to a token that is unknown or has an
// instance.
func (l *Ledger) Abandon(ctx context.Context, token string) error {
	if err := l.ensure(ctx); err != nil {
		return l.explain("abandon", token, err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	_, err := l.write.ExecContext(ctx, refuseIntent, token)
	return l.explain("abandon", token, err)
}

// explain says what failed where.
func (l *Ledger) explain(what, token string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ledger: %s %s in %s: %w", what, token, l.where, err)
}

// values are a row's in the order of columns.
func values(in Instance) ([]any, error) {
	models := ""
	if len(in.Models) > 0 {
		list, err := json.Marshal(in.Models)
		if err != nil {
			return nil, fmt.Errorf("ledger: models of %s: %w", in.Token, err)
		}
		models = string(list)
	}
	refused := 0
	if in.Refused {
		refused = 1
	}
	var billed, billedStep sql.NullInt64
	if in.Bill != nil {
		billed = sql.NullInt64{Int64: in.Bill.Amount.Micros(), Valid: true}
		billedStep = sql.NullInt64{Int64: in.Bill.Step.Micros(), Valid: true}
	}
	return []any{in.Token, clean(in.ClaimUID), clean(in.Claim), clean(in.Pool), clean(in.Provider), clean(in.CapacityType),
		clean(in.Region), clean(in.OfferID), clean(in.GPU), in.GPUCount, models, in.Price.Micros(), micros(&in.IntendedAt),
		refused, clean(in.InstanceID), micros(in.CreatedAt), micros(in.DestroyAskedAt), micros(in.GoneAt), clean(in.EndReason),
		in.BillingStep.Microseconds(), in.BillingLeast.Microseconds(), billed, billedStep,
		clean(in.Account)}, nil
}

func startOf(t *time.Time) int64 {
	if at := micros(t); at.Valid {
		return at.Int64
	}
	return fromStart
}

func micros(t *time.Time) sql.NullInt64 {
	if t == nil || t.IsZero() {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: true}
}

// clean makes text that comes from outside storable: Postgres refuses NUL and broken UTF-8.
func clean(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")
}
