package planner

import (
	"fmt"
	"testing"

	"github.com/munhq/gpuscale/internal/bench"
)

// TestPlanFigures plans for 10,000 pods in 500 shapes against 5,000 offers, and for a tenth of the pods in as many shapes
// as they have. While nothing is recorded it plans once for few.
func TestPlanFigures(t *testing.T) {
	const models, shapes, offers, small, large = 20, 500, 5000, 1000, 10000
	if !bench.Recording() {
		if plan := Make(herd(200, models, 10, 100)); len(plan.Unmet) > 0 || len(plan.Purchases) == 0 {
			t.Fatal(say(plan))
		}
		return
	}
	few, many := timePlan(t, herd(small, models, shapes, offers)), timePlan(t, herd(large, models, shapes, offers))
	bench.Record(t, "plan.time", float64(many.NsPerOp())/1e6)
	bench.Record(t, "plan.allocated", float64(many.AllocedBytesPerOp())/1e6)
	bench.Record(t, "plan.growth", float64(many.NsPerOp())/large/(float64(few.NsPerOp())/small))
}

func timePlan(t *testing.T, s Snapshot) testing.BenchmarkResult {
	t.Helper()
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if plan := Make(s); len(plan.Unmet) > 0 {
				b.Fatal(say(Plan{Unmet: plan.Unmet[:1]}))
			}
		}
	})
	if r.N == 0 {
		t.Fatal("no plan was made")
	}
	t.Log(fmt.Sprint(r, r.MemString()))
	return r
}
