package ledger_test

import (
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/ledger"
)

func TestWhatWasBoughtAndSaidLately(t *testing.T) {
	ctx := t.Context()
	l, err := ledger.Open(ctx, "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, in := range []ledger.Instance{
		{Token: "old", IntendedAt: at.Add(-time.Minute), Models: []string{"m"}},
		{Token: "new", IntendedAt: at, Models: []string{"m"}},
		{Token: "refused", IntendedAt: at.Add(time.Minute), Models: []string{"m"}},
	} {
		if err := l.Intend(ctx, in); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Update(ctx, ledger.Instance{Token: "refused", Refused: true}); err != nil {
		t.Fatal(err)
	}
	got, err := l.Since(ctx, at)
	if err != nil || len(got) != 1 || got[0].Token != "new" || got[0].Models[0] != "m" {
		t.Errorf("%+v, %v; want the one that was not refused", got, err)
	}
	for i, kind := range []string{"A", "B", "A", "A"} {
		if err := l.Event(ctx, ledger.Event{Token: "new", At: at.Add(time.Duration(i-1) * time.Second), Kind: kind, Message: kind}); err != nil {
			t.Fatal(err)
		}
	}
	events, err := l.EventsSince(ctx, "A", at)
	if err != nil || len(events) != 2 || !events[0].At.Equal(at.Add(time.Second)) {
		t.Errorf("%+v, %v; want the two later ones of kind A", events, err)
	}
}
