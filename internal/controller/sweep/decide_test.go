package sweep

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

const (
	lag    = 10 * time.Second
	minAge = 10 * time.Minute
	vast   = provider.VastAI
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func tokenOf(uid types.UID, n int32) string { return fmt.Sprintf("gs-inst-%s-%d", uid, n) }

var policy = Policy{MinAge: minAge, MaxOrphans: 2, Token: tokenOf}

// claimOf is a claim that holds instance id under its nth attempt, or whose attempt is open where id is empty.
func claimOf(uid, id string, n int32, written time.Time) v1alpha1.GPUNodeClaim {
	c := v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + uid, UID: types.UID(uid)}}
	c.Spec.Pool, c.Spec.MaxPrice, c.Spec.Requirements.GPUCount = "pool", money.MustParse("0.50"), 1
	c.Status.Provider, c.Status.InstanceID, c.Status.Attempts = string(vast), id, n
	c.Status.Attempt = &v1alpha1.Attempt{Number: n, Token: tokenOf(types.UID(uid), n), Outcome: v1alpha1.AttemptOpen,
		WrittenAt: metav1.NewMicroTime(written)}
	if id != "" {
		c.Status.Attempt.Outcome = v1alpha1.AttemptCreated
	}
	return c
}

func inst(id, tag string, born time.Time) provider.Instance {
	return provider.Instance{Provider: vast, ID: id, Tag: tag, CreatedAt: born, GPUCount: 1, State: provider.StateRunning}
}

// round is one sweep at a time after t0.
type round struct {
	after     time.Duration
	instances []provider.Instance
	claims    []v1alpha1.GPUNodeClaim
	edit      func(*Snapshot)
}

func (r round) snapshot() Snapshot {
	now := t0.Add(r.after)
	s := Snapshot{Now: now, Claims: r.claims, Lists: []List{{Account: "a", Provider: vast, Began: now, Lag: lag,
		CreateTimeout: time.Minute, Instances: r.instances}}, Known: map[string]bool{}}
	for _, in := range r.instances {
		s.Known[in.Tag] = true
	}
	if r.edit != nil {
		r.edit(&s)
	}
	return s
}

// ids of what is to be destroyed, after each round.
func play(rounds ...round) (destroyed [][]string, last Verdict) {
	var h History
	for _, r := range rounds {
		last, h = Decide(h, r.snapshot(), policy)
		var ids []string
		for _, t := range last.Destroy {
			ids = append(ids, t.Instance.ID)
		}
		destroyed = append(destroyed, ids)
	}
	return destroyed, last
}

func TestDecide(t *testing.T) {
	old, young := t0.Add(-time.Hour), t0.Add(-time.Minute)
	other := claimOf("other", "9", 1, old) // so that there is a claim
	orphan := inst("1", "gs-inst-gone-1", old)
	cs := func(c ...v1alpha1.GPUNodeClaim) []v1alpha1.GPUNodeClaim { return append(c, other) }
	is := func(i ...provider.Instance) []provider.Instance { return i }
	silent := func(s *Snapshot) { s.Lists, s.Silent = nil, []provider.Name{vast} }
	refused := claimOf("c", "", 1, old)
	refused.Status.Attempt.Outcome = v1alpha1.AttemptRefused
	gone := claimOf("c", "1", 1, old)
	gone.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionInstanceGone, Status: metav1.ConditionTrue}}
	nameless := orphan
	nameless.CreatedAt = time.Time{}
	tokenC := tokenOf("c", 1)
	for name, c := range map[string]struct {
		rounds []round
		want   string
	}{
		"orphan, two lists a lag apart":    {[]round{{0, is(orphan), cs(), nil}, {lag, is(orphan), cs(), nil}}, "|1"},
		"orphan, lists too close":          {[]round{{0, is(orphan), cs(), nil}, {lag - 1, is(orphan), cs(), nil}}, "|"},
		"the same list twice":              {[]round{{0, is(orphan), cs(), nil}, {0, is(orphan), cs(), nil}}, "|"},
		"orphan, too young":                {[]round{{0, is(inst("1", "gs-inst-x-1", young)), cs(), nil}, {lag, is(inst("1", "gs-inst-x-1", young)), cs(), nil}, {9 * time.Minute, is(inst("1", "gs-inst-x-1", young)), cs(), nil}}, "||1"},
		"no time of creation":              {[]round{{0, is(nameless), cs(), nil}, {lag, is(nameless), cs(), nil}, {minAge - 1, is(nameless), cs(), nil}, {minAge, is(nameless), cs(), nil}}, "|||1"},
		"a failed list between counts not": {[]round{{0, is(orphan), cs(), nil}, {lag, nil, cs(), silent}, {2 * lag, is(orphan), cs(), nil}}, "||1"},
		"owned in between":                 {[]round{{0, is(inst("1", tokenC, old)), cs(), nil}, {lag, is(inst("1", tokenC, old)), cs(claimOf("c", "1", 1, old)), nil}, {2 * lag, is(inst("1", tokenC, old)), cs(), nil}}, "||"},
		"recorded":                         {[]round{{0, is(inst("1", tokenC, old)), cs(claimOf("c", "1", 1, old)), nil}, {lag, is(inst("1", tokenC, old)), cs(claimOf("c", "1", 1, old)), nil}}, "|"},
		"recorded, tag of something else":  {[]round{{0, is(orphan), cs(claimOf("c", "1", 1, old)), nil}, {lag, is(orphan), cs(claimOf("c", "1", 1, old)), nil}}, "|"},
		"create in the air":                {[]round{{0, is(inst("1", tokenC, old)), cs(claimOf("c", "", 1, t0)), nil}, {lag, is(inst("1", tokenC, old)), cs(claimOf("c", "", 1, t0)), nil}}, "|"},
		"second instance, recorded kept":   {[]round{{0, is(inst("1", tokenC, old), inst("2", tokenC, young)), cs(claimOf("c", "2", 1, old)), nil}}, "1"},
		"second, recorded not listed":      {[]round{{0, is(inst("1", tokenC, old)), cs(claimOf("c", "2", 1, old)), nil}}, "1"},
		"two, purchase may be under way":   {[]round{{0, is(inst("1", tokenC, old), inst("2", tokenC, young)), cs(claimOf("c", "", 1, t0)), nil}}, ""},
		"two, none recorded, oldest kept":  {[]round{{0, is(inst("2", tokenC, young), inst("1", tokenC, old)), cs(claimOf("c", "", 1, old)), nil}}, "2"},
		"late instance of an attempt ago":  {[]round{{0, is(inst("1", tokenC, old)), cs(claimOf("c", "", 2, t0)), nil}}, "1"},
		"refused, but there":               {[]round{{0, is(inst("1", tokenC, old)), cs(refused), nil}, {lag, is(inst("1", tokenC, old)), cs(refused), nil}}, "|1"},
		"called gone, but there":           {[]round{{0, is(inst("1", tokenC, old)), cs(gone), nil}, {lag, is(inst("1", tokenC, old)), cs(gone), nil}}, "|1"},
		"bounded, the stuck ones last":     {[]round{{0, is(orphan, inst("2", "b", old), inst("3", "c", old)), cs(), nil}, {lag, is(orphan, inst("2", "b", old), inst("3", "c", old)), cs(), nil}, {2 * lag, is(orphan, inst("2", "b", old), inst("3", "c", old)), cs(), nil}}, "|1 2|3 1"},
	} {
		got, _ := play(c.rounds...)
		var said []string
		for _, ids := range got {
			said = append(said, strings.Join(ids, " "))
		}
		if s := strings.Join(said, "|"); s != c.want {
			t.Errorf("%s: destroyed %q, want %q", name, s, c.want)
		}
	}
}

// TestAnEmptyListOfClaims: what the ledger contradicts destroys nothing, until a person says so.
func TestAnEmptyListOfClaims(t *testing.T) {
	old := t0.Add(-time.Hour)
	in := inst("1", "gs-inst-x-1", old)
	row := ledger.Instance{Token: in.Tag, ClaimUID: "x", Claim: "claim-x", Pool: "pool", Provider: string(vast), InstanceID: "1", IntendedAt: old}
	asked := row
	asked.DestroyAskedAt = &old
	elsewhere := row
	elsewhere.Token, elsewhere.InstanceID = "gs-inst-y-1", "77"
	nothing := ledger.Instance{Token: "gs-inst-z-1", ClaimUID: "z", Provider: string(vast), IntendedAt: old}
	live := func(rows ...ledger.Instance) func(*Snapshot) { return func(s *Snapshot) { s.Live = rows } }
	for name, c := range map[string]struct {
		edit      func(*Snapshot)
		halted    bool
		destroyed int
	}{
		"the ledger has it live":               {live(row), true, 0},
		"the ledger has another live":          {live(elsewhere), true, 0},
		"the ledger holds it for ended":        {live(), false, 1},
		"its end was decided before":           {live(asked), false, 1},
		"a purchase of which nothing came":     {live(nothing), false, 1},
		"the ledger never heard of it":         {func(s *Snapshot) { s.Known = nil }, true, 0},
		"the ledger does not answer":           {func(s *Snapshot) { s.LedgerErr = errors.New("down") }, true, 0},
		"confirmed":                            {func(s *Snapshot) { s.Live, s.Confirmed = []ledger.Instance{row}, code([]string{row.Token}) }, false, 1},
		"confirmed for something else":         {func(s *Snapshot) { s.Live, s.Confirmed = []ledger.Instance{row}, code([]string{"x"}) }, true, 0},
		"confirmed for less":                   {func(s *Snapshot) { s.Live, s.Confirmed = []ledger.Instance{row, elsewhere}, code([]string{row.Token}) }, true, 0},
		"nothing to fear, ledger down":         {func(s *Snapshot) { s.Lists[0].Instances, s.LedgerErr = nil, errors.New("down") }, false, 0},
		"nothing listed, but the ledger knows": {func(s *Snapshot) { s.Lists, s.Live = nil, []ledger.Instance{row} }, true, 0},
	} {
		r := round{0, []provider.Instance{in}, nil, c.edit}
		again := r
		again.after = lag
		_, v := play(r, again)
		if (v.Halt != nil) != c.halted || len(v.Destroy) != c.destroyed {
			t.Errorf("%s: halt %+v, %d destroyed", name, v.Halt, len(v.Destroy))
		}
		if v.Halt != nil && !strings.Contains(v.Halt.Message, "1") {
			t.Errorf("%s: %q does not say which", name, v.Halt.Message)
		}
	}
}

// TestTheLedgerIsClosed: rows end that no claim can end, and no other.
func TestTheLedgerIsClosed(t *testing.T) {
	old := t0.Add(-time.Hour)
	in := inst("1", "gs-inst-x-1", old)
	row := ledger.Instance{Token: in.Tag, ClaimUID: "x", Provider: string(vast), InstanceID: "1", IntendedAt: old}
	unseen := ledger.Instance{Token: "u", ClaimUID: "u", Provider: string(vast), InstanceID: "5", IntendedAt: old}
	asked := ledger.Instance{Token: "q", ClaimUID: "q", Provider: string(vast), InstanceID: "6", IntendedAt: old, DestroyAskedAt: &old}
	never := ledger.Instance{Token: "n", ClaimUID: "n", Provider: string(vast), IntendedAt: old}
	claimed := ledger.Instance{Token: "c", ClaimUID: "other", Provider: string(vast), IntendedAt: old}
	recent := ledger.Instance{Token: "r", ClaimUID: "r", Provider: string(vast), IntendedAt: t0}
	rows := func(s *Snapshot) { s.Live = []ledger.Instance{row, unseen, asked, never, claimed, recent} }
	claims := []v1alpha1.GPUNodeClaim{claimOf("other", "9", 1, old)}
	closed := func(rounds ...round) (out []string) {
		_, v := play(rounds...)
		for _, r := range v.Close {
			out = append(out, r.Token)
			if (r.GoneAt == nil) != r.Refused || r.EndReason == "" {
				t.Errorf("closed as %+v", r)
			}
		}
		slices.Sort(out)
		return out
	}
	shown := round{0, []provider.Instance{in}, claims, rows}
	away := func(after time.Duration) round { return round{after, nil, claims, rows} }
	if got := closed(shown, away(lag), away(2*lag)); !slices.Equal(got, []string{"gs-inst-x-1"}) {
		t.Errorf("closed %v", got) // the others were closed a round before
	}
	if got := closed(shown, away(lag)); !slices.Equal(got, []string{"n", "q"}) {
		t.Errorf("closed %v", got)
	}
	if got := closed(away(0), away(lag)); !slices.Equal(got, []string{"n", "q"}) {
		t.Errorf("closed %v", got)
	}
	deaf := away(lag)
	deaf.edit = func(s *Snapshot) { rows(s); s.Silent = []provider.Name{vast} }
	if got := closed(away(0), deaf); len(got) != 0 {
		t.Errorf("closed %v on half an answer", got)
	}
}

// TestCeilingsCountWhatNoClaimAccountsFor: until it is confirmed gone, also across a restart.
func TestCeilingsCountWhatNoClaimAccountsFor(t *testing.T) {
	old := t0.Add(-time.Hour)
	tag := tokenOf("c", 1)
	two := []provider.Instance{inst("1", tag, old), inst("2", tag, old.Add(time.Second))}
	claims := []v1alpha1.GPUNodeClaim{claimOf("c", "1", 1, old)}
	pool := v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
	var h History
	step := func(r round) Verdict {
		r.edit = func(s *Snapshot) { s.Pools = []v1alpha1.GPUNodePool{*pool.DeepCopy()} }
		var v Verdict
		v, h = Decide(h, r.snapshot(), policy)
		reserve.SetSurplus(&pool, v.Surplus["pool"])
		return v
	}
	step(round{0, two, claims, nil})
	if pool.Status.Nodes != 1 || pool.Status.GPUs != 1 || pool.Status.DollarsPerHour != money.MustParse("0.50") {
		t.Fatalf("booked %+v", pool.Status)
	}
	h = History{} // a restart, and the list is late in showing it
	for i, want := range []int32{1, 1, 0} {
		if step(round{time.Duration(i+1) * lag, two[:1], claims, nil}); i < 2 && pool.Status.Nodes < want && i == 0 || i == 2 && pool.Status.Nodes != 0 {
			t.Errorf("round %d: %+v", i, pool.Status.Reservations)
		}
	}
	if reserve.HasSurplus(&pool) {
		t.Error("still booked")
	}
}

// TestNothingOwnedIsEverDestroyed plays random worlds: claims come, buy, lose and end; lists fail; destroys fail.
func TestNothingOwnedIsEverDestroyed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newModel(t)
		for range rapid.IntRange(5, 40).Draw(t, "rounds") {
			w.step(t)
		}
		w.settle(t)
	})
}
