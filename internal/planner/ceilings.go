package planner

import (
	"fmt"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
)

// Reserved is what a pool has promised.
type Reserved struct {
	Nodes   int
	GPUs    int
	Dollars money.Dollars
}

// ReservedIn adds up a pool's reservations, and those that its claims imply and its status has lost: money that is being
// spent counts whatever the status says.
func ReservedIn(pool *v1alpha1.GPUNodePool, claims []*v1alpha1.GPUNodeClaim) Reserved {
	var sum Reserved
	for _, r := range append(reserve.Missing(pool, claims), pool.Status.Reservations...) {
		sum = sum.plus(int(r.GPUs), r.DollarsPerHour)
	}
	return sum
}

func (r Reserved) plus(gpus int, dollars money.Dollars) Reserved {
	return Reserved{Nodes: r.Nodes + 1, GPUs: r.GPUs + gpus, Dollars: r.Dollars.Add(dollars)}
}

// forbids names the ceiling of pool that one more node of gpus at price would break, with the numbers; empty where none
// would.
func (r Reserved) forbids(pool *v1alpha1.GPUNodePool, gpus int, price money.Dollars) string {
	limits := pool.Spec.Limits
	switch {
	case r.Nodes >= int(pool.Spec.Scaling.MaxNodes):
		return fmt.Sprintf("maxNodes %d: %d reserved", pool.Spec.Scaling.MaxNodes, r.Nodes)
	case limits.MaxGPUs != nil && r.GPUs+gpus > int(*limits.MaxGPUs):
		return fmt.Sprintf("maxGPUs %d: %d reserved, cheapest fit has %d", *limits.MaxGPUs, r.GPUs, gpus)
	case limits.MaxCostPerHour.Less(r.Dollars.Add(price)):
		return fmt.Sprintf("maxCostPerHour %s: %s reserved, cheapest fit %s", limits.MaxCostPerHour, r.Dollars, price)
	}
	return ""
}

// left is what the pool's ceiling still has in dollars per hour.
func (r Reserved) left(pool *v1alpha1.GPUNodePool) money.Dollars {
	return pool.Spec.Limits.MaxCostPerHour.Sub(r.Dollars)
}
