package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// Get answers what is known of a token's instance, or an error that is ErrUnknown.
func (l *Ledger) Get(ctx context.Context, token string) (Instance, error) {
	found, err := l.histories(ctx, selectOne, token)
	if err == nil && len(found) == 0 {
		err = ErrUnknown
	}
	if err != nil {
		return Instance{}, l.explain("get", token, err)
	}
	return found[0].latest(), nil
}

// Live answers every instance that may cost money: intended, and neither refused nor confirmed gone. Oldest first.
func (l *Ledger) Live(ctx context.Context) ([]Instance, error) {
	out, err := l.instances(ctx, selectLive)
	return out, l.explain("list", "live instances", err)
}

// Events answers a token's history, oldest first; none for a token that has none.
func (l *Ledger) Events(ctx context.Context, token string) ([]Event, error) {
	out, err := l.events(ctx, selectEvents, token)
	return out, l.explain("events of", token, err)
}

// Unbilled answers the instances that ended after a time and whose bill is not known. Oldest first.
func (l *Ledger) Unbilled(ctx context.Context, since time.Time) ([]Instance, error) {
	out, err := l.instances(ctx, selectUnbilled, since.UnixMicro())
	return out, l.explain("list", "unbilled instances", err)
}

// history is an instance, without its rate and shares, and all that it has had of both, by start.
type history struct {
	instance Instance
	rates    []stretch
	shares   []sharing
}

// stretch is a rate and since when it is paid; the zero time is from the beginning.
type stretch struct {
	from time.Time
	rate money.Dollars
}

// sharing is who serves on an instance and since when; the zero time is from the beginning.
type sharing struct {
	from   time.Time
	shares []Share
}

// latest is the instance with the rate and the shares of now.
func (h history) latest() Instance {
	in := h.instance
	if n := len(h.rates); n > 0 {
		last := h.rates[n-1]
		in.Rate = &last.rate
		if !last.from.IsZero() {
			in.RateFrom = &last.from
		}
	}
	if n := len(h.shares); n > 0 {
		last := h.shares[n-1]
		in.Shares = last.shares
		if !last.from.IsZero() {
			in.SharesFrom = &last.from
		}
	}
	return in
}

// instances runs a statement made of selectHistories, and answers each instance as it is now.
func (l *Ledger) instances(ctx context.Context, statement string, args ...any) ([]Instance, error) {
	found, err := l.histories(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	out := make([]Instance, 0, len(found))
	for _, h := range found {
		out = append(out, h.latest())
	}
	return out, nil
}

// events runs a statement that selects the columns of events.
func (l *Ledger) events(ctx context.Context, statement string, args ...any) ([]Event, error) {
	if err := l.ensure(ctx); err != nil {
		return nil, err
	}
	rows, err := l.read.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has what went wrong
	var out []Event
	for rows.Next() {
		var (
			e  Event
			at int64
		)
		if err := rows.Scan(&e.Token, &at, &e.Kind, &e.Message); err != nil {
			return nil, err
		}
		e.At = time.UnixMicro(at).UTC()
		out = append(out, e)
	}
	return out, rows.Err()
}

// histories runs a statement made of selectHistories, which answers a line per rate.
func (l *Ledger) histories(ctx context.Context, statement string, args ...any) ([]history, error) {
	if err := l.ensure(ctx); err != nil {
		return nil, err
	}
	rows, err := l.read.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has what went wrong
	var out []history
	for rows.Next() {
		line, err := scan(rows)
		if err != nil {
			return nil, err
		}
		if n := len(out); n == 0 || out[n-1].instance.Token != line.instance.Token {
			out = append(out, history{instance: line.instance})
		}
		h := &out[len(out)-1]
		h.rates = append(h.rates, line.rates...)
		h.shares = append(h.shares, line.shares...)
	}
	return out, rows.Err()
}

// scan reads a line: an instance with at most one rate or one sharing.
func scan(rows *sql.Rows) (history, error) {
	var (
		in                           Instance
		models                       string
		price, step, least           int64
		intended, created, end, gone sql.NullInt64
		billed, billedStep           sql.NullInt64
		starts, rate                 sql.NullInt64
		shares                       sql.NullString
		refused                      int
	)
	err := rows.Scan(&in.Token, &in.ClaimUID, &in.Claim, &in.Pool, &in.Provider, &in.CapacityType, &in.Region, &in.OfferID,
		&in.GPU, &in.GPUCount, &models, &price, &intended, &refused, &in.InstanceID, &created, &end, &gone, &in.EndReason,
		&step, &least, &billed, &billedStep, &in.Account, &starts, &rate, &shares)
	if err != nil {
		return history{}, err
	}
	if models != "" {
		if err := json.Unmarshal([]byte(models), &in.Models); err != nil {
			return history{}, fmt.Errorf("models of %s: %w", in.Token, err)
		}
	}
	in.Price = money.FromMicros(price)
	in.Refused = refused == 1 && in.InstanceID == ""
	in.CreatedAt, in.DestroyAskedAt, in.GoneAt = moment(created), moment(end), moment(gone)
	in.BillingStep, in.BillingLeast = time.Duration(step)*time.Microsecond, time.Duration(least)*time.Microsecond
	if at := moment(intended); at != nil {
		in.IntendedAt = *at
	}
	if billed.Valid {
		in.Bill = &Bill{Amount: money.AmountFromMicros(billed.Int64), Step: money.AmountFromMicros(billedStep.Int64)}
	}
	out := history{instance: in}
	if !starts.Valid {
		return out, nil
	}
	var from time.Time
	if starts.Int64 != fromStart {
		from = *moment(starts)
	}
	if shares.String == "" {
		out.rates = []stretch{{from: from, rate: money.FromMicros(rate.Int64)}}
		return out, nil
	}
	s := sharing{from: from}
	if err := json.Unmarshal([]byte(shares.String), &s.shares); err != nil {
		return history{}, fmt.Errorf("shares of %s: %w", in.Token, err)
	}
	out.shares = []sharing{s}
	return out, nil
}

func moment(micros sql.NullInt64) *time.Time {
	if !micros.Valid {
		return nil
	}
	t := time.UnixMicro(micros.Int64).UTC()
	return &t
}
