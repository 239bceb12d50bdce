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
	out, err := l.instances(ctx, selectSince, t.UnixMicro())
	return out, l.explain("list", "recent instances", err)
}

// EventsSince answers every event of a kind at t or later, whatever its token, oldest first.
func (l *Ledger) EventsSince(ctx context.Context, kind string, t time.Time) ([]Event, error) {
	out, err := l.events(ctx, selectKindSince, kind, t.UnixMicro())
	return out, l.explain("events of kind", kind, err)
}
