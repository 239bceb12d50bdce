package reserve_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
)

// TestNeverAboveACeiling draws any sequence of changes and asks after each whether the account is within the pool's
// ceilings and adds up.
func TestNeverAboveACeiling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := drawPool(t)
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			name := fmt.Sprintf("c%d", rapid.IntRange(0, 9).Draw(t, "claim"))
			dollars := money.FromMicros(rapid.Int64Range(0, 2_000_000).Draw(t, "dollars"))
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0, 1:
				before := pool.DeepCopy()
				r := v1alpha1.Reservation{Claim: name, DollarsPerHour: dollars, GPUs: int32(rapid.IntRange(1, 8).Draw(t, "gpus"))}
				if err := reserve.Add(pool, r); err != nil && len(before.Status.Reservations) != len(pool.Status.Reservations) {
					t.Fatalf("a refused Add changed the account: %v", err)
				}
			case 2:
				was, _ := reserve.Find(pool, name)
				reserve.Lower(pool, name, dollars)
				if is, ok := reserve.Find(pool, name); ok && was.DollarsPerHour.Less(is.DollarsPerHour) {
					t.Fatalf("%s rose from %s to %s", name, was.DollarsPerHour, is.DollarsPerHour)
				}
			case 3:
				reserve.Release(pool, name)
				if _, ok := reserve.Find(pool, name); ok {
					t.Fatalf("%s is still there after Release", name)
				}
			}
			checkSums(t, pool)
		}
	})
}

func drawPool(t *rapid.T) *v1alpha1.GPUNodePool {
	gpus := int32(rapid.IntRange(0, 20).Draw(t, "maxGPUs"))
	pool := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pool.Spec.Scaling.MaxNodes = int32(rapid.IntRange(0, 6).Draw(t, "maxNodes"))
	pool.Spec.Limits.MaxCostPerHour = money.FromMicros(rapid.Int64Range(0, 5_000_000).Draw(t, "maxCost"))
	if rapid.Bool().Draw(t, "limit GPUs") {
		pool.Spec.Limits.MaxGPUs = &gpus
	}
	return pool
}

func checkSums(t *rapid.T, pool *v1alpha1.GPUNodePool) {
	var (
		dollars money.Dollars
		gpus    int32
		names   = map[string]bool{}
	)
	for _, r := range pool.Status.Reservations {
		dollars, gpus = dollars.Add(r.DollarsPerHour), gpus+r.GPUs
		if names[r.Claim] {
			t.Fatalf("claim %s is reserved for twice", r.Claim)
		}
		names[r.Claim] = true
	}
	s, l := pool.Status, pool.Spec.Limits
	if s.Nodes != int32(len(names)) || s.GPUs != gpus || s.DollarsPerHour != dollars {
		t.Fatalf("totals %d, %d, %s do not add up from %+v", s.Nodes, s.GPUs, s.DollarsPerHour, s.Reservations)
	}
	if s.Nodes > pool.Spec.Scaling.MaxNodes || l.MaxCostPerHour.Less(dollars) || l.MaxGPUs != nil && gpus > *l.MaxGPUs {
		t.Fatalf("over a ceiling: %d nodes, %d GPUs, %s", s.Nodes, gpus, dollars)
	}
}

func TestDropOrphans(t *testing.T) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	pool := &v1alpha1.GPUNodePool{}
	for name, age := range map[string]time.Duration{"old-orphan": 61 * time.Second, "new-orphan": 59 * time.Second, "old-claim": time.Hour} {
		pool.Status.Reservations = append(pool.Status.Reservations,
			v1alpha1.Reservation{Claim: name, Since: metav1.NewTime(now.Add(-age))})
	}
	dropped := reserve.DropOrphans(pool, now, reserve.OrphanAge, func(claim string) bool { return claim == "old-claim" })
	if len(dropped) != 1 || dropped[0] != "old-orphan" {
		t.Errorf("dropped %v, want old-orphan only", dropped)
	}
	if pool.Status.Nodes != 2 {
		t.Errorf("%d nodes left, want 2", pool.Status.Nodes)
	}
}

// TestMissing: a status that was lost is rebuilt from what may still be rented, and from nothing else.
func TestMissing(t *testing.T) {
	claim := func(name string, edit func(*v1alpha1.GPUNodeClaim)) *v1alpha1.GPUNodeClaim {
		c := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.Pool, c.Spec.MaxPrice, c.Spec.Requirements.GPUCount = "p", money.MustParse("0.44"), 1
		edit(c)
		return c
	}
	attempt := func(o v1alpha1.AttemptOutcome) func(*v1alpha1.GPUNodeClaim) {
		return func(c *v1alpha1.GPUNodeClaim) { c.Status.Attempt = &v1alpha1.Attempt{Outcome: o} }
	}
	claims := []*v1alpha1.GPUNodeClaim{
		claim("never-asked", func(*v1alpha1.GPUNodeClaim) {}),
		claim("refused", attempt(v1alpha1.AttemptRefused)),
		claim("open", attempt(v1alpha1.AttemptOpen)),
		claim("created", attempt(v1alpha1.AttemptCreated)),
		claim("gone", func(c *v1alpha1.GPUNodeClaim) {
			attempt(v1alpha1.AttemptCreated)(c)
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionInstanceGone, Status: metav1.ConditionTrue}}
		}),
		claim("elsewhere", func(c *v1alpha1.GPUNodeClaim) { attempt(v1alpha1.AttemptOpen)(c); c.Spec.Pool = "q" }),
	}
	pool := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	missing := reserve.Missing(pool, claims)
	reserve.Restore(pool, missing)
	if pool.Status.Nodes != 2 || pool.Status.DollarsPerHour != money.MustParse("0.88") {
		t.Errorf("restored %d nodes at %s, want the open and the created one", pool.Status.Nodes, pool.Status.DollarsPerHour)
	}
	if again := reserve.Missing(pool, claims); len(again) != 0 {
		t.Errorf("%d still missing after Restore", len(again))
	}
}

func TestAPlanHoldsForAPoolThatPromisesNothingNew(t *testing.T) {
	since := metav1.NewTime(time.Unix(1e9, 0))
	pool := func(edit func(*v1alpha1.GPUNodePool)) *v1alpha1.GPUNodePool {
		p := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1", Generation: 3, ResourceVersion: "7"}}
		p.Status.Reservations = []v1alpha1.Reservation{
			{Claim: "a", DollarsPerHour: money.FromMicros(300), GPUs: 2, Since: since},
			{Claim: "b", DollarsPerHour: money.FromMicros(100), GPUs: 1, Since: since}}
		edit(p)
		return p
	}
	same := pool(func(*v1alpha1.GPUNodePool) {})
	for name, c := range map[string]struct {
		edit func(*v1alpha1.GPUNodePool)
		want bool
	}{
		"only its version": {func(p *v1alpha1.GPUNodePool) { p.ResourceVersion = "8"; p.Status.ReadyNodes = 4 }, true},
		"one released":     {func(p *v1alpha1.GPUNodePool) { reserve.Release(p, "a") }, true},
		"one lowered":      {func(p *v1alpha1.GPUNodePool) { reserve.Lower(p, "a", money.FromMicros(200)) }, true},
		"one more": {func(p *v1alpha1.GPUNodePool) {
			p.Status.Reservations = append(p.Status.Reservations, v1alpha1.Reservation{Claim: "c", Since: since})
		}, false},
		"one dearer":      {func(p *v1alpha1.GPUNodePool) { p.Status.Reservations[1].DollarsPerHour = money.FromMicros(101) }, false},
		"more GPUs":       {func(p *v1alpha1.GPUNodePool) { p.Status.Reservations[1].GPUs = 2 }, false},
		"one made anew":   {func(p *v1alpha1.GPUNodePool) { p.Status.Reservations[0].Since = metav1.NewTime(since.Add(time.Second)) }, false},
		"another spec":    {func(p *v1alpha1.GPUNodePool) { p.Generation = 4 }, false},
		"another pool":    {func(p *v1alpha1.GPUNodePool) { p.UID = "2" }, false},
		"one that ends":   {func(p *v1alpha1.GPUNodePool) { p.DeletionTimestamp = &since }, false},
		"an empty status": {func(p *v1alpha1.GPUNodePool) { p.Status.Reservations = nil }, true},
	} {
		if got := reserve.PromisesNothingNew(same, pool(c.edit)); got != c.want {
			t.Errorf("%s: the plan holds: %t, want %t", name, got, c.want)
		}
	}
}
