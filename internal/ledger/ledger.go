// Package ledger is the money history: one row for every instance ever intended, what happened to it, what it cost and
// why it ended. It is written before money is spent and outlives the claims. One schema and one SQL serve SQLite (local
// and small installations) and Postgres.
package ledger

import (
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// Instance is the row of one purchase, keyed by its token. Rows are written whole and idempotently: a field that is
// known stays known, so that a write repeated or late does no harm.
type Instance struct {
	// Token is the owner tag of the attempt.
	Token        string
	ClaimUID     string
	Claim        string
	Pool         string
	Provider     string
	CapacityType string
	Region       string
	OfferID      string
	// GPU reads like "1×RTX4090".
	GPU      string
	GPUCount int
	// Models that it was bought for.
	Models []string
	// Price is the offer's all-in $/h.
	Price      money.Dollars
	IntendedAt time.Time

	// Refused: the provider certainly rented nothing.
	Refused    bool
	InstanceID string
	// CreatedAt is when it began to bill; nil until known.
	CreatedAt *time.Time
	// Rate is the all-in $/h that is paid; a change begins a new stretch of the cost at the time of the write.
	Rate *money.Dollars
	// DestroyAskedAt is when the provider accepted the end, GoneAt when it was confirmed.
	DestroyAskedAt *time.Time
	GoneAt         *time.Time
	EndReason      string
}

// Event is one line of an instance's history.
type Event struct {
	Token   string
	At      time.Time
	Kind    string
	Message string
}
