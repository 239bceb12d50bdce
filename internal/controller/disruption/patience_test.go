package disruption

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/planner"
)

// TestACooldownTakesItsTime: a clock of the day that jumps shortens no cooldown, and a restart starts none anew.
func TestACooldownTakesItsTime(t *testing.T) {
	const cooldown = 10 * time.Minute
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	c := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "1"}}
	used := func(at time.Time) planner.IdleVerdict {
		return planner.IdleVerdict{Since: at, EndsAt: at.Add(cooldown)}
	}
	min := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	var p patience
	must := func(what string, v planner.IdleVerdict, now time.Time, up, want time.Duration) {
		t.Helper()
		if got := p.left(c, v, now, up); got != want {
			t.Errorf("%s: %s left, want %s", what, got, want)
		}
	}
	must("just used", used(noon), noon, min(100), min(10))
	must("the clock jumps ahead", used(noon), noon.Add(time.Hour), min(101), min(9))
	must("nearly over", used(noon), noon.Add(time.Hour), min(109), min(1))
	must("the same use, a little later by another reckoning", used(noon.Add(jitter/2)), noon.Add(time.Hour), min(109), min(1))
	must("used again", used(noon.Add(70*time.Minute)), noon.Add(70*time.Minute), min(109), min(10))
	must("over", used(noon.Add(70*time.Minute)), noon.Add(80*time.Minute), min(119), 0)
	must("busy", planner.IdleVerdict{}, noon.Add(80*time.Minute), min(119), 0)
	must("idle again", used(noon.Add(80*time.Minute)), noon.Add(81*time.Minute), min(120), min(9))
	c.UID = "2"
	must("another claim of that name", used(noon), noon.Add(min(4)), min(120), min(6))
	p = patience{}
	must("after a restart", used(noon), noon.Add(min(25)), min(0), 0)
	p.forget("c")
	must("forgotten", used(noon), noon.Add(min(3)), min(5), min(7))
}
