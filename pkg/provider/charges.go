package provider

import (
	"context"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// Charge is what a provider's own account says that one rental has cost so far.
type Charge struct {
	InstanceID string
	// From and To are what the figure covers, as exactly as the provider says.
	From, To time.Time
	// Amount is all that was charged (GPU, disk, traffic), rounded half up to the micro-dollar.
	Amount money.Amount
	// Step is the coarseness of the provider's figure: a micro-dollar where it is exact.
	Step money.Amount
}

// Accountant is a Provider whose account of charges can be read. It is optional: where there is none, what a rental cost
// is known only from its rates and times.
type Accountant interface {
	// Charges returns a charge for every rental that was charged anything between two times, each with its whole amount
	// so far, or an error. A rental may be missing, or its To lie behind, until the provider has done its sums.
	Charges(ctx context.Context, from, to time.Time) ([]Charge, error)
}

// AccountantOf is p's account, if it has one. It looks through wrappers that have Unwrap() Provider.
func AccountantOf(p Provider) (Accountant, bool) { return powerOf[Accountant](p) }
