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
	found, err := l.histories(ctx, selectLive)
	if err != nil {
		return nil, l.explain("list", "live instances", err)
	}
	out := make([]Instance, 0, len(found))
	for _, h := range found {
		out = append(out, h.latest())
	}
	return out, nil
}

// Events answers a token's history, oldest first; none for a token that has none.
func (l *Ledger) Events(ctx context.Context, token string) ([]Event, error) {
	rows, err := l.read.QueryContext(ctx, selectEvents, token)
	if err != nil {
		return nil, l.explain("events of", token, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err has what went wrong
	var out []Event
	for rows.Next() {
		var (
			e  Event
			at int64
		)
		if err := rows.Scan(&e.Token, &at, &e.Kind, &e.Message); err != nil {
			return nil, l.explain("events of", token, err)
		}
		e.At = time.UnixMicro(at).UTC()
		out = append(out, e)
	}
	return out, l.explain("events of", token, rows.Err())
}

// history is an instance, without its rate, and every rate it has had, by start.
type history struct {
	instance Instance
	rates    []stretch
}

// stretch is a rate and since when it is paid; the zero time is from the beginning.
type stretch struct {
	from time.Time
	rate money.Dollars
}

// latest is the instance with the rate that is paid now.
func (h history) latest() Instance {
	in := h.instance
	if n := len(h.rates); n > 0 {
		last := h.rates[n-1]
		in.Rate = &last.rate
		if !last.from.IsZero() {
			in.RateFrom = &last.from
		}
	}
	return in
}

// histories runs a statement made of selectHistories, which answers a line per rate.
func (l *Ledger) histories(ctx context.Context, statement string, args ...any) ([]history, error) {
	rows, err := l.read.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has what went wrong
	var out []history
	for rows.Next() {
		in, rate, err := scan(rows)
		if err != nil {
			return nil, err
		}
		if n := len(out); n == 0 || out[n-1].instance.Token != in.Token {
			out = append(out, history{instance: in})
		}
		if rate != nil {
			h := &out[len(out)-1]
			h.rates = append(h.rates, *rate)
		}
	}
	return out, rows.Err()
}

func scan(rows *sql.Rows) (Instance, *stretch, error) {
	var (
		in                           Instance
		models                       string
		price                        int64
		intended, created, end, gone sql.NullInt64
		starts, rate                 sql.NullInt64
		refused                      int
	)
	err := rows.Scan(&in.Token, &in.ClaimUID, &in.Claim, &in.Pool, &in.Provider, &in.CapacityType, &in.Region, &in.OfferID,
		&in.GPU, &in.GPUCount, &models, &price, &intended, &refused, &in.InstanceID, &created, &end, &gone, &in.EndReason,
		&starts, &rate)
	if err != nil {
		return Instance{}, nil, err
	}
	if models != "" {
		if err := json.Unmarshal([]byte(models), &in.Models); err != nil {
			return Instance{}, nil, fmt.Errorf("models of %s: %w", in.Token, err)
		}
	}
	in.Price = money.FromMicros(price)
	in.Refused = refused == 1 && in.InstanceID == ""
	in.CreatedAt, in.DestroyAskedAt, in.GoneAt = moment(created), moment(end), moment(gone)
	if at := moment(intended); at != nil {
		in.IntendedAt = *at
	}
	if !starts.Valid {
		return in, nil, nil
	}
	s := &stretch{rate: money.FromMicros(rate.Int64)}
	if starts.Int64 != fromStart {
		s.from = *moment(starts)
	}
	return in, s, nil
}

func moment(micros sql.NullInt64) *time.Time {
	if !micros.Valid {
		return nil
	}
	t := time.UnixMicro(micros.Int64).UTC()
	return &t
}
