package sweep

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/pkg/provider"
)

// model is a random world around Decide, with its own account of whose an instance is.
type model struct {
	now     time.Time
	history History
	claims  map[string]v1alpha1.GPUNodeClaim
	// cloud is what runs; alone is since when an instance has no claim, by the model's knowledge.
	cloud map[string]provider.Instance
	// lists counts, for each instance, the lists that showed it without a claim, and when the first of them began.
	unowned map[string]time.Time
	rows    map[string]ledger.Instance
	next    int
	stuck   map[string]bool
}

func newModel(t *rapid.T) *model {
	w := &model{now: t0, claims: map[string]v1alpha1.GPUNodeClaim{}, cloud: map[string]provider.Instance{},
		unowned: map[string]time.Time{}, rows: map[string]ledger.Instance{}, stuck: map[string]bool{}}
	for range rapid.IntRange(0, 6).Draw(t, "claims") {
		w.buy(t)
	}
	return w
}

// buy makes a claim with an instance, recorded or not yet.
func (w *model) buy(t *rapid.T) {
	w.next++
	uid, id := fmt.Sprint("u", w.next), fmt.Sprint(w.next)
	c := claimOf(uid, id, 1, w.now)
	w.cloud[id] = inst(id, c.Status.Attempt.Token, w.now)
	w.rows[c.Status.Attempt.Token] = ledger.Instance{Token: c.Status.Attempt.Token, ClaimUID: uid, Claim: c.Name, Pool: "pool",
		Provider: string(vast), InstanceID: id, IntendedAt: w.now}
	if rapid.Bool().Draw(t, "open") {
		c.Status.InstanceID, c.Status.Attempt.Outcome = "", v1alpha1.AttemptOpen
	}
	if rapid.IntRange(0, 3).Draw(t, "double") == 0 {
		w.next++
		w.cloud[fmt.Sprint(w.next)] = inst(fmt.Sprint(w.next), c.Status.Attempt.Token, w.now.Add(time.Second))
	}
	w.claims[uid] = c
}

func (w *model) step(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
	for _, uid := range slices.Sorted(maps.Keys(w.claims)) {
		switch rapid.IntRange(0, 9).Draw(t, "fate") {
		case 0: // the finalizer is removed by hand
			delete(w.claims, uid)
		case 1: // the claim ends as it should
			c := w.claims[uid]
			delete(w.cloud, c.Status.InstanceID)
			if c.Status.InstanceID != "" {
				delete(w.rows, c.Status.Attempt.Token)
				delete(w.claims, uid)
			}
		}
	}
	if rapid.Bool().Draw(t, "buys") {
		w.buy(t)
	}
	if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
		w.history, w.unowned = History{}, map[string]time.Time{}
	}
	failed := rapid.IntRange(0, 4).Draw(t, "list fails") == 0
	w.sweep(t, failed, func() bool { return rapid.IntRange(0, 2).Draw(t, "destroy fails") == 0 })
}

// sweep decides, checks the verdict against the model's own account, and does it.
func (w *model) sweep(t *rapid.T, failed bool, destroyFails func() bool) Verdict {
	s := w.snapshot(failed)
	v, h := Decide(w.history, s, policy)
	w.history = h
	owned := w.owned()
	orphans := 0
	for _, target := range v.Destroy {
		in := target.Instance
		switch {
		case failed:
			t.Fatalf("%s destroyed though its account did not answer", in.ID)
		case owned[in.ID]:
			t.Fatalf("%s destroyed, which a claim keeps", in.ID)
		case target.Claim != "":
			if w.claims[w.claimOf(in.Tag)].Name != target.Claim {
				t.Fatalf("%s is no second instance of %s", in.ID, target.Claim)
			}
		default:
			orphans++
			first, seen := w.unowned[in.ID]
			if !seen || w.now.Sub(first) < lag || w.now.Sub(in.CreatedAt) < minAge {
				t.Fatalf("%s destroyed too soon: without a claim since %s, made %s, now %s", in.ID, first, in.CreatedAt, w.now)
			}
		}
		if !destroyFails() {
			delete(w.cloud, in.ID)
		}
	}
	if orphans > policy.MaxOrphans {
		t.Fatalf("%d orphans in one sweep", orphans)
	}
	if orphans > 0 && len(w.claims) == 0 && w.believed() > 0 {
		t.Fatalf("%d orphans destroyed without a claim, and the ledger knows %d", orphans, w.believed())
	}
	for _, target := range v.Destroy {
		if row, ok := w.rows[target.Instance.Tag]; ok && target.Claim == "" && row.InstanceID == target.Instance.ID {
			row.DestroyAskedAt = &w.now
			w.rows[row.Token] = row
		}
	}
	for _, row := range v.Close {
		if w.running(row.Token) || w.claims[w.claimOf(row.Token)].Name != "" {
			t.Fatalf("%s closed, which runs or has a claim", row.Token)
		}
		delete(w.rows, row.Token)
	}
	w.note(failed, owned)
	return v
}

// note keeps the model's own account of who has been alone since when.
func (w *model) note(failed bool, owned map[string]bool) {
	if failed {
		return
	}
	for id, in := range w.cloud {
		_, has := w.claims[w.claimOf(in.Tag)]
		if owned[id] || has {
			delete(w.unowned, id)
		} else if _, seen := w.unowned[id]; !seen {
			w.unowned[id] = w.now
		}
	}
}

func (w *model) snapshot(failed bool) Snapshot {
	r := round{instances: slices.Collect(maps.Values(w.cloud)), claims: slices.Collect(maps.Values(w.claims))}
	s := r.snapshot()
	s.Now, s.Lists[0].Began = w.now, w.now
	s.Live = slices.Collect(maps.Values(w.rows))
	if failed {
		s.Lists, s.Silent = nil, []provider.Name{vast}
	}
	return s
}

// believed counts the ledger's rows that nobody has decided to end.
func (w *model) believed() (n int) {
	for _, r := range w.rows {
		if r.DestroyAskedAt == nil && w.now.Sub(r.IntendedAt) >= minAge {
			n++
		}
	}
	return n
}

func (w *model) claimOf(tag string) (uid string) {
	for uid, c := range w.claims {
		if c.Status.Attempt.Token == tag {
			return uid
		}
	}
	return ""
}

func (w *model) running(tag string) bool {
	for _, in := range w.cloud {
		if in.Tag == tag {
			return true
		}
	}
	return false
}

// owned are the instances that a claim keeps: the recorded, or while it is not known, the oldest.
func (w *model) owned() map[string]bool {
	out := map[string]bool{}
	for _, c := range w.claims {
		if c.Status.InstanceID != "" {
			out[c.Status.InstanceID] = true
			continue
		}
		best := ""
		for id, in := range w.cloud {
			if in.Tag == c.Status.Attempt.Token && (best == "" || in.CreatedAt.Before(w.cloud[best].CreatedAt)) {
				best = id
			}
		}
		out[best] = true
	}
	return out
}

// settle lets everything work for long enough, with a claim there, and insists that nothing is left over.
func (w *model) settle(t *rapid.T) {
	w.now = w.now.Add(2 * minAge)
	w.next++
	id := fmt.Sprint(w.next)
	keep := claimOf("keep", id, 1, w.now)
	w.claims["keep"], w.cloud[id] = keep, inst(id, keep.Status.Attempt.Token, w.now)
	works := func() bool { return false }
	for range 2*len(w.cloud) + 4 {
		w.now = w.now.Add(time.Minute)
		w.sweep(t, false, works)
	}
	seen := map[string]bool{}
	for _, in := range w.cloud {
		if w.claimOf(in.Tag) == "" || seen[in.Tag] {
			t.Fatalf("instance %s (%s) is left", in.ID, in.Tag)
		}
		seen[in.Tag] = true
	}
	if v := w.sweep(t, false, works); len(v.Surplus) != 0 || v.Halt != nil {
		t.Fatalf("still booked %+v, halt %+v", v.Surplus, v.Halt)
	}
}
