// Package planner turns a snapshot of pools, claims, workloads, offers and rests into a plan: what to buy and why each
// unmet workload is unmet. It is pure: no client, no context, no clock or randomness of its own, so that the same code
// answers "what would be bought" offline, runs in the simulator and decides in the controller.
package planner

import (
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Snapshot is everything that a plan is made from. The planner changes nothing in it.
type Snapshot struct {
	Now time.Time
	// Pools with the resourceVersion that reservations will be written against.
	Pools []*v1alpha1.GPUNodePool
	// Claims, all that exist, in any phase.
	Claims    []*v1alpha1.GPUNodeClaim
	Workloads []demand.Workload
	// Markets are the search results, one for each pool entry's provider account, capacity type, disk and regions.
	Markets []Market
	Rests   rest.View
	// Purchases are the times of recent purchases by workload key, for the bound on purchases per hour.
	Purchases map[string][]time.Time
	// MaxPurchasesPerHour bounds purchases per workload; 0 means DefaultMaxPurchasesPerHour.
	MaxPurchasesPerHour int
}

// DefaultMaxPurchasesPerHour is how many instances one workload may buy in an hour, whatever the cause.
const DefaultMaxPurchasesPerHour = 6

// Market is what one pool entry can buy now.
type Market struct {
	// Pool and Entry (index into spec.providers) that this market belongs to.
	Pool  string
	Entry int
	// Account is the credential's fingerprint, the key under which a provider rests.
	Account string
	Offers  []provider.Offer
	// Err is why there are no offers: provider down, credentials bad, still searching. For people.
	Err string
}

// Plan is what to do.
type Plan struct {
	// Bindings place replicas on claims that have room, by claim in the order in which they are filled.
	Bindings []Binding
	// Purchases in the order in which they were decided: by priority, then by who has waited longest.
	Purchases []Purchase
	// Unmet says why each workload that lacks replicas gets none now, by workload key.
	Unmet []Unmet
}

// Purchase is a reservation and the claim that it is for.
type Purchase struct {
	// Pool whose money is spent, in the state that the snapshot had it in.
	Pool string
	// ClaimName is derived from the first workload's key and the replica's ordinal, so that a second planner that sees the
	// same demand meets AlreadyExists (see ClaimName).
	ClaimName   string
	Spec        v1alpha1.GPUNodeClaimSpec
	Reservation v1alpha1.Reservation
	// Offer is the one that the plan was made with, for explanation; the claim picks the cheapest fresh one.
	Offer provider.Offer
	// Reason is one line for people: how many offers, why this one.
	Reason string
}

// Unmet is a workload that lacks replicas and why.
type Unmet struct {
	Workload string
	Missing  int
	// Reason is one of the pod condition reasons NoOffers, CeilingReached, Resting, NoPool.
	Reason string
	// Message has the numbers ("214 offers: 180 over $0.50, 22 wrong GPU, 12 resting until 10:32").
	Message string
	// RetryAt is when something known changes (a rest ends); zero where only the world can change it.
	RetryAt time.Time
}
