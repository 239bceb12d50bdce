package provisioning

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func minute(n int) time.Time { return t0.Add(time.Duration(n) * time.Minute) }

// rows is a history, or why there is none.
type rows struct {
	list []ledger.Instance
	err  error
}

func (r rows) Since(_ context.Context, t time.Time) (out []ledger.Instance, err error) {
	for _, in := range r.list {
		if !in.IntendedAt.Before(t) {
			out = append(out, in)
		}
	}
	return out, r.err
}

// claimAt is a claim for model m, made at a minute; outcome is what became of its attempt, none where empty.
func claimAt(uid string, made int, outcome v1alpha1.AttemptOutcome) *v1alpha1.GPUNodeClaim {
	c := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(minute(made))}}
	c.Spec.Placements = []v1alpha1.Placement{{Workload: "m"}}
	if outcome != "" {
		c.Status.Attempt = &v1alpha1.Attempt{Outcome: outcome, WrittenAt: metav1.NewMicroTime(minute(made))}
	}
	return c
}

func ending(c *v1alpha1.GPUNodeClaim) *v1alpha1.GPUNodeClaim {
	at := metav1.NewTime(t0)
	c.DeletionTimestamp = &at
	return c
}

func (p *purchases) minutesOf(workload string, since int) (out []int) {
	for _, at := range p.since(minute(since))[workload] {
		out = append(out, int(at.Sub(t0).Minutes()))
	}
	slices.Sort(out)
	return out
}

// TestPurchasesAreCountedOnce: what exists, what is on its way, what is over, and what earlier processes bought.
func TestPurchasesAreCountedOnce(t *testing.T) {
	pool := &v1alpha1.GPUNodePool{}
	pool.Status.Reservations = []v1alpha1.Reservation{
		{Claim: "on-its-way", Workloads: []string{"m"}, Since: metav1.NewTime(minute(9))}, // the claim is not seen yet
		{Claim: "made", Workloads: []string{"m"}, Since: metav1.NewTime(minute(1))},
	}
	p := &purchases{}
	claims := []*v1alpha1.GPUNodeClaim{claimAt("made", 1, v1alpha1.AttemptCreated), claimAt("open", 2, v1alpha1.AttemptOpen),
		claimAt("new", 3, ""), ending(claimAt("gave up", 4, v1alpha1.AttemptRefused)), ending(claimAt("cancelled", 5, "")),
		ending(claimAt("ending", 6, v1alpha1.AttemptCreated)), ending(claimAt("unclear", 7, v1alpha1.AttemptOpen))}
	p.see([]*v1alpha1.GPUNodePool{pool}, claims)
	if got, want := p.minutesOf("m", 0), []int{1, 2, 3, 6, 7, 9}; !slices.Equal(got, want) {
		t.Errorf("bought at %v, want %v", got, want)
	}
	history := rows{list: []ledger.Instance{
		{ClaimUID: "made", Models: []string{"m"}, IntendedAt: minute(1)},
		{ClaimUID: "gone", Models: []string{"m", "n"}, IntendedAt: minute(0)},
		{ClaimUID: "long ago", Models: []string{"m"}, IntendedAt: minute(-61)}}}
	if err := p.recall(t.Context(), rows{err: errors.New("down")}, minute(-60)); err == nil {
		t.Error("a ledger that is down was recalled")
	}
	for range 2 {
		if err := p.recall(t.Context(), history, minute(-60)); err != nil {
			t.Fatal(err)
		}
	}
	// All claims are gone; what they bought is not forgotten, and what they did not buy is.
	pool.Status.Reservations = nil
	p.see([]*v1alpha1.GPUNodePool{pool}, nil)
	if got, want := p.minutesOf("m", 0), []int{0, 1, 6}; !slices.Equal(got, want) {
		t.Errorf("bought at %v, want %v", got, want)
	}
	if got := p.minutesOf("n", 0); !slices.Equal(got, []int{0}) {
		t.Errorf("a model that shared was bought for at %v", got)
	}
	// A restart knows it from the ledger alone.
	fresh := &purchases{}
	if err := fresh.recall(t.Context(), history, minute(-60)); err != nil {
		t.Fatal(err)
	}
	if got, want := fresh.minutesOf("m", -60), []int{0, 1}; !slices.Equal(got, want) {
		t.Errorf("after a restart: %v, want %v", got, want)
	}
	if got := p.minutesOf("m", 2); !slices.Equal(got, []int{6}) {
		t.Errorf("an hour on: %v", got)
	}
}
