package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/ledger/postgrestest"
	"github.com/munhq/gpuscale/pkg/money"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

func after(minutes int) *time.Time {
	t := noon.Add(time.Duration(minutes) * time.Minute)
	return &t
}

func dollars(s string) *money.Dollars {
	d := money.MustParse(s)
	return &d
}

func open(t testing.TB, address string) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// onFile is a ledger whose reads and writes are apart, as in production.
func onFile(t testing.TB) *Ledger {
	t.Helper()
	return open(t, "sqlite://"+filepath.Join(t.TempDir(), "ledger.db"))
}

func onPostgres(t testing.TB) *Ledger {
	t.Helper()
	return open(t, postgrestest.URL(t))
}

// onBoth runs a test on a file and on a server.
func onBoth(t *testing.T, test func(*testing.T, *Ledger)) {
	t.Run("sqlite", func(t *testing.T) { test(t, onFile(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, onPostgres(t)) })
}

func full(token string) Instance {
	return Instance{
		Token: token, ClaimUID: "uid-1", Claim: "llama-0", Pool: "chat", Provider: "runpod", Account: "10001", CapacityType: "spot",
		Region: "EU-RO-1", OfferID: "offer-1", GPU: "2×RTX4090", GPUCount: 2, Models: []string{"llama", "qwen \"7b\""},
		Price: money.MustParse("0.681234"), IntendedAt: noon, InstanceID: "pod-9", CreatedAt: after(1),
		Rate: dollars("0.65"), RateFrom: after(30), DestroyAskedAt: after(90), GoneAt: after(95), EndReason: "Idle",
		Shares: []Share{{"llama", 1000}, {"qwen \"7b\"", 500}}, SharesFrom: after(20), BillingStep: time.Second,
		BillingLeast: time.Minute, Bill: &Bill{Amount: money.AmountFromMicros(987_654), Step: money.AmountFromMicros(1)},
	}
}

func intent(token string) Instance {
	in := full(token)
	in.InstanceID, in.CreatedAt, in.Rate, in.RateFrom = "", nil, nil, nil
	in.DestroyAskedAt, in.GoneAt, in.EndReason, in.Bill, in.Shares, in.SharesFrom = nil, nil, "", nil, nil, nil
	return in
}

func mustGet(t testing.TB, l *Ledger, token string) Instance {
	t.Helper()
	in, err := l.Get(context.Background(), token)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func equal(t testing.TB, got, want Instance) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %s\nwant %s", show(got), show(want))
	}
}

func show(in Instance) string {
	return fmt.Sprintf("%+v rate %v from %v created %v asked %v gone %v", in, in.Rate, in.RateFrom, in.CreatedAt,
		in.DestroyAskedAt, in.GoneAt)
}

func do(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func live(t testing.TB, l *Ledger) []string {
	t.Helper()
	list, err := l.Live(context.Background())
	do(t, err)
	var out []string
	for _, in := range list {
		out = append(out, in.Token)
	}
	slices.Sort(out)
	return out
}

func TestEveryFieldComesBack(t *testing.T) {
	// A field that the ledger forgot would be zero on both sides and equal.
	v := reflect.ValueOf(full("a"))
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "Refused" {
			t.Errorf("full leaves %s empty", name)
		}
	}
	for name, l := range map[string]*Ledger{"memory": open(t, "sqlite::memory:"), "file": onFile(t), "postgres": onPostgres(t)} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			do(t, l.Intend(ctx, intent("a")))
			equal(t, mustGet(t, l, "a"), intent("a"))
			do(t, l.Update(ctx, full("a")))
			equal(t, mustGet(t, l, "a"), full("a"))
			do(t, l.Update(ctx, mustGet(t, l, "a")))
			equal(t, mustGet(t, l, "a"), full("a"))

			do(t, l.Update(ctx, full("never intended")), l.Update(ctx, Instance{Token: "bare"}))
			equal(t, mustGet(t, l, "never intended"), full("never intended"))
			equal(t, mustGet(t, l, "bare"), Instance{Token: "bare"})
			if _, err := l.Get(ctx, "b"); !errors.Is(err, ErrUnknown) {
				t.Errorf("an unknown token: %v", err)
			}
		})
	}
}

func TestTimesAreKeptInUTCToTheMicrosecond(t *testing.T) {
	onBoth(t, testTimesAreKeptInUTCToTheMicrosecond)
}

func testTimesAreKeptInUTCToTheMicrosecond(t *testing.T, l *Ledger) {
	in := intent("a")
	in.IntendedAt = noon.Add(789 * time.Nanosecond).In(time.FixedZone("east", 2*3600))
	do(t, l.Intend(t.Context(), in))
	equal(t, mustGet(t, l, "a"), intent("a"))
}

func TestIntentRepeated(t *testing.T) { onBoth(t, testIntentRepeated) }

func testIntentRepeated(t *testing.T, l *Ledger) {
	ctx := t.Context()
	do(t, l.Intend(ctx, intent("a")), l.Intend(ctx, intent("a")))
	equal(t, mustGet(t, l, "a"), intent("a"))

	fresh := intent("a")
	fresh.OfferID, fresh.Price, fresh.Provider, fresh.Region = "offer-2", money.MustParse("0.9"), "vastai", ""
	fresh.IntendedAt = *after(5)
	do(t, l.Intend(ctx, fresh))
	equal(t, mustGet(t, l, "a"), fresh)

	do(t, l.Intend(ctx, intent("a"))) // an older one, late
	equal(t, mustGet(t, l, "a"), fresh)

	same := fresh
	same.OfferID = "offer-3" // within the same microsecond, or with a clock that stands still
	do(t, l.Intend(ctx, same))
	equal(t, mustGet(t, l, "a"), same)
	if got := live(t, l); !slices.Equal(got, []string{"a"}) {
		t.Errorf("live: %v", got)
	}
}

func TestUpdateDoesNotReplaceTheOffer(t *testing.T) { onBoth(t, testUpdateDoesNotReplaceTheOffer) }

func testUpdateDoesNotReplaceTheOffer(t *testing.T, l *Ledger) {
	ctx := t.Context()
	other := full("a")
	other.OfferID, other.Price, other.Pool, other.Models, other.GPUCount = "x", money.MustParse("9"), "y", []string{"z"}, 8
	other.IntendedAt, other.EndReason, other.InstanceID = *after(7), "Other", "pod-10"
	do(t, l.Intend(ctx, intent("a")), l.Update(ctx, full("a")), l.Update(ctx, other))
	equal(t, mustGet(t, l, "a"), full("a"))
}

func TestRefused(t *testing.T) { onBoth(t, testRefused) }

func testRefused(t *testing.T, l *Ledger) {
	ctx := t.Context()
	refusal := intent("a")
	refusal.Refused = true
	do(t, l.Intend(ctx, intent("a")), l.Update(ctx, refusal), l.Update(ctx, intent("a")))
	equal(t, mustGet(t, l, "a"), refusal)
	if got := live(t, l); len(got) != 0 {
		t.Errorf("refused and live: %v", got)
	}
	if err := l.Intend(ctx, intent("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("the refused intent once more: %v", err)
	}

	// The refusal was recorded, but the claim's status was not: the attempt is made again under its token.
	again := intent("a")
	again.IntendedAt = *after(5)
	do(t, l.Intend(ctx, again))
	equal(t, mustGet(t, l, "a"), again)
	do(t, l.Update(ctx, refusal)) // of the first intent
	if got := live(t, l); !slices.Equal(got, []string{"a"}) {
		t.Errorf("an old refusal hides a new intent: %v", got)
	}
	again.Refused = true
	do(t, l.Update(ctx, again))
	if got := live(t, l); len(got) != 0 {
		t.Errorf("refused again and live: %v", got)
	}
}

func TestAnInstanceIsLiveUntilItIsGoneWhateverWasRefused(t *testing.T) {
	onBoth(t, testAnInstanceIsLiveUntilItIsGoneWhateverWasRefused)
}

func testAnInstanceIsLiveUntilItIsGoneWhateverWasRefused(t *testing.T, l *Ledger) {
	ctx := t.Context()
	do(t, l.Intend(ctx, intent("a")), l.Update(ctx, Instance{Token: "a", Refused: true}),
		l.Update(ctx, Instance{Token: "a", InstanceID: "pod-9", DestroyAskedAt: after(3)}))
	if got := live(t, l); !slices.Equal(got, []string{"a"}) || mustGet(t, l, "a").Refused {
		t.Errorf("live: %v", got)
	}
	do(t, l.Update(ctx, Instance{Token: "a", GoneAt: after(4)}), l.Update(ctx, Instance{Token: "a"}))
	if got := live(t, l); len(got) != 0 {
		t.Errorf("live: %v", got)
	}
	late := intent("a")
	late.IntendedAt = *after(60)
	if err := l.Intend(ctx, late); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), l.where) {
		t.Errorf("an intent for what is gone: %v", err)
	}
}

func TestLiveOldestFirstWithTheirRates(t *testing.T) { onBoth(t, testLiveOldestFirstWithTheirRates) }

func testLiveOldestFirstWithTheirRates(t *testing.T, l *Ledger) {
	ctx := t.Context()
	for i, token := range []string{"c", "a", "b"} {
		in := intent(token)
		in.IntendedAt = *after(i)
		do(t, l.Intend(ctx, in))
		for _, m := range []int{20, 10} {
			do(t, l.Update(ctx, Instance{Token: token, Rate: dollars(fmt.Sprintf("0.%d", m)), RateFrom: after(m)}))
		}
	}
	list, err := l.Live(ctx)
	do(t, err)
	for i, token := range []string{"c", "a", "b"} {
		if len(list) != 3 || list[i].Token != token || *list[i].Rate != *dollars("0.20") || !list[i].RateFrom.Equal(*after(20)) {
			t.Fatalf("live: %+v", list)
		}
	}
}

func TestEvents(t *testing.T) { onBoth(t, testEvents) }

func testEvents(t *testing.T, l *Ledger) {
	ctx := t.Context()
	first := Event{Token: "a", At: noon, Kind: "Created", Message: "pod-9"}
	later := Event{Token: "a", At: *after(1), Kind: "Gone"}
	do(t, l.Event(ctx, later), l.Event(ctx, first), l.Event(ctx, Event{Token: "b", At: noon, Kind: "Created"}),
		l.Event(ctx, Event{Token: "a", At: noon, Kind: "Created", Message: "again"}))
	got, err := l.Events(ctx, "a")
	do(t, err)
	if !slices.Equal(got, []Event{first, later}) {
		t.Errorf("events: %+v", got)
	}
	hostile := Event{Token: "c", At: noon, Kind: "Error", Message: "a\x00b\xff" + strings.Repeat("é", maxMessage)}
	do(t, l.Event(ctx, hostile))
	if got, err = l.Events(ctx, "c"); err != nil || len(got) != 1 || !strings.HasPrefix(got[0].Message, "abé") || len(got[0].Message) > maxMessage {
		t.Errorf("a hostile message: %v %.20q", err, got)
	}
	if got, err = l.Events(ctx, "nobody"); err != nil || len(got) != 0 {
		t.Errorf("no events: %v %v", got, err)
	}
}

func TestIncompleteWritesAreRefused(t *testing.T) { onBoth(t, testIncompleteWritesAreRefused) }

func testIncompleteWritesAreRefused(t *testing.T, l *Ledger) {
	ctx := t.Context()
	timeless := intent("a")
	timeless.IntendedAt = time.Time{}
	for name, err := range map[string]error{
		"intent without token": l.Intend(ctx, intent("")),
		"intent without time":  l.Intend(ctx, timeless),
		"update without token": l.Update(ctx, Instance{}),
		"event without token":  l.Event(ctx, Event{At: noon, Kind: "x"}),
		"event without time":   l.Event(ctx, Event{Token: "a", Kind: "x"}),
		"event without kind":   l.Event(ctx, Event{Token: "a", At: noon}),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if got := live(t, l); len(got) != 0 {
		t.Errorf("written all the same: %v", got)
	}
}

// TestTheFirstRateIsNotRewritten: a claim writes its whole row at its end, with the rate of then and no time for it.
func TestTheFirstRateIsNotRewritten(t *testing.T) { onBoth(t, testTheFirstRateIsNotRewritten) }

func testTheFirstRateIsNotRewritten(t *testing.T, l *Ledger) {
	ctx := t.Context()
	rate := func(r string, from *time.Time) error {
		return l.Update(ctx, Instance{Token: "a", CreatedAt: after(0), Rate: dollars(r), RateFrom: from})
	}
	do(t, rate("0.50", nil), rate("0.80", after(30)), rate("0.80", nil), rate("0.90", after(30)), rate("0", nil))
	if in := mustGet(t, l, "a"); *in.Rate != *dollars("0.80") || !in.RateFrom.Equal(*after(30)) {
		t.Errorf("latest: %s", show(in))
	}
	got, err := l.Costs(ctx, noon, *after(60), *after(60))
	do(t, err)
	if len(got) != 1 || got[0].Cost != amount(t, "0.65") {
		t.Errorf("costs: %+v", got)
	}
}
