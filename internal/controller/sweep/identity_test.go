package sweep

import (
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// by says which credential gave the round's list, and whose account it opens.
func by(fingerprint, identity string, more func(*Snapshot)) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Lists[0].Account, s.Lists[0].Identity = fingerprint, identity
		if more != nil {
			more(s)
		}
	}
}

// TestAnotherAccountsListClosesNoRow: what another account does not show is not gone, across restarts too.
func TestAnotherAccountsListClosesNoRow(t *testing.T) {
	old := t0.Add(-time.Hour)
	in := inst("1", "gs-inst-x-1", old)
	claims := []v1alpha1.GPUNodeClaim{claimOf("other", "9", 1, old)}
	row := ledger.Instance{Token: in.Tag, ClaimUID: "x", Provider: string(vast), Account: "10001", InstanceID: "1",
		IntendedAt: old, DestroyAskedAt: &old}
	intended := ledger.Instance{Token: "n", ClaimUID: "n", Provider: string(vast), Account: "10001", IntendedAt: old}
	before := ledger.Instance{Token: "v", ClaimUID: "v", Provider: string(vast), InstanceID: "3", IntendedAt: old, DestroyAskedAt: &old}
	rows := func(s *Snapshot) { s.Live = []ledger.Instance{row, intended, before} }
	shown := round{0, []provider.Instance{in}, claims, by("a", "10001", rows)}
	away := func(n int, fingerprint, identity string) round {
		return round{time.Duration(n) * lag, nil, claims, by(fingerprint, identity, rows)}
	}
	for name, c := range map[string]struct {
		rounds []round
		want   []string
	}{
		"the same key":                          {[]round{away(0, "a", "10001"), away(1, "a", "10001")}, []string{"gs-inst-x-1", "n", "v"}},
		"another key of the account":            {[]round{away(0, "b", "10001"), away(1, "b", "10001")}, []string{"gs-inst-x-1", "n", "v"}},
		"another account":                       {[]round{away(0, "b", "20002"), away(1, "b", "20002")}, []string{"v"}},
		"an account that cannot be told":        {[]round{away(0, "b", ""), away(1, "b", "")}, []string{"v"}},
		"another account after the first":       {[]round{away(0, "a", "10001"), away(1, "b", "20002")}, []string{"v"}},
		"seen, then another account's":          {[]round{shown, away(1, "b", "20002"), away(2, "b", "20002")}, nil}, // v a round before
		"seen, then another key of the account": {[]round{shown, away(1, "b", "10001"), away(2, "b", "10001")}, []string{"gs-inst-x-1"}},
	} {
		_, v := play(c.rounds...)
		var got []string
		for _, r := range v.Close {
			got = append(got, r.Token)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: closed %v, want %v", name, got, c.want)
		}
	}
}

// TestAnotherAccountsListFreesNoCeiling: an orphan counts until its own account does not show it, and after a restart
// that forgot whose it was, as the ledger has it.
func TestAnotherAccountsListFreesNoCeiling(t *testing.T) {
	old := t0.Add(-time.Hour)
	in := inst("1", "gs-inst-x-1", old)
	claims := []v1alpha1.GPUNodeClaim{claimOf("other", "9", 1, old)}
	row := ledger.Instance{Token: in.Tag, ClaimUID: "x", Provider: string(vast), Account: "10001", Pool: "pool",
		Price: money.MustParse("0.30"), InstanceID: "1", IntendedAt: old, DestroyAskedAt: &old}
	for _, restart := range []bool{false, true} {
		pool := v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
		var h History
		n := 0
		booked := func(instances []provider.Instance, fingerprint, identity string, ledgerErr error) bool {
			edit := func(s *Snapshot) {
				s.Pools, s.Live, s.LedgerErr = []v1alpha1.GPUNodePool{*pool.DeepCopy()}, []ledger.Instance{row}, ledgerErr
				if ledgerErr != nil {
					s.Live = nil
				}
			}
			var v Verdict
			v, h = Decide(h, round{time.Duration(n) * lag, instances, claims, by(fingerprint, identity, edit)}.snapshot(), policy)
			n++
			reserve.SetSurplus(&pool, v.Surplus["pool"])
			return reserve.HasSurplus(&pool)
		}
		if !booked([]provider.Instance{in}, "a", "10001", nil) {
			t.Fatal("not booked")
		}
		if restart {
			h = History{}
			for range 3 {
				if !booked(nil, "a", "10001", errors.New("down")) {
					t.Fatal("freed though nothing says whose it is")
				}
			}
			h = History{}
		}
		for range 4 {
			if !booked(nil, "b", "20002", nil) || !booked(nil, "b", "", nil) {
				t.Fatalf("restart %v: freed on another account's word", restart)
			}
		}
		booked(nil, "c", "10001", nil)
		if booked(nil, "c", "10001", nil) {
			t.Errorf("restart %v: not freed on the account's own word", restart)
		}
	}
}
