package ledger

import (
	"context"
	"time"
)

const selectSince = selectHistories + `WHERE i.intended_at >= $1 AND (i.refused = 0 OR i.instance_id <> '')` + inOrder

const selectKindSince = `SELECT token, happened_at, kind, message FROM events
	WHERE kind = $1 AND happened_at >= $2 ORDER BY happened_at, token`

// Since answers every instance that was intended at t or later and that may have been rented, oldest first. It is how a
// controller that has just started knows what was bought before.
func (l *Ledger) Since(ctx context.Context, t time.Time) ([]Instance, error) {
	found, err := l.histories(ctx, selectSince, t.UnixMicro())
	if err != nil {
		return nil, l.explain("list", "recent instances", err)
	}
	out := make([]Instance, 0, len(found))
	for _, h := range found {
		out = append(out, h.latest())
	}
	return out, nil
}

// EventsSince answers every event of a kind at t or later, whatever its token, oldest first.
func (l *Ledger) EventsSince(ctx context.Context, kind string, t time.Time) ([]Event, error) {
	rows, err := l.read.QueryContext(ctx, selectKindSince, kind, t.UnixMicro())
	if err != nil {
		return nil, l.explain("events of kind", kind, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err has what went wrong
	var out []Event
	for rows.Next() {
		var (
			e  Event
			at int64
		)
		if err := rows.Scan(&e.Token, &at, &e.Kind, &e.Message); err != nil {
			return nil, l.explain("events of kind", kind, err)
		}
		e.At = time.UnixMicro(at).UTC()
		out = append(out, e)
	}
	return out, l.explain("events of kind", kind, rows.Err())
}
