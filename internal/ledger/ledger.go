// Package ledger is the money history: one row for every instance ever intended, what happened to it, what it cost and
// why it ended. It is written before money is spent and outlives the claims. One schema and one SQL serve SQLite (local
// and small installations) and Postgres.
//
// It has no clock: every time is the caller's, kept in UTC to the microsecond.
package ledger

import (
	"errors"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

var (
	// ErrUnknown is what Get answers for a token that was never written.
	ErrUnknown = errors.New("ledger: no such instance")
	// ErrClosed is what Intend answers when nothing may be bought under the token any more: its instance is confirmed
	// gone, or this very intent was refused.
	ErrClosed = errors.New("ledger: the token is used up")
)

// Instance is the row of one purchase, keyed by its token. Rows are written whole and idempotently: a field that is
// known stays known, so that a write repeated or late does no harm.
//
// The zero value of a field (an empty text, 0, $0, nil, the zero time) means "not known" and changes nothing.
type Instance struct {
	// Token is the owner tag of the attempt.
	Token    string
	ClaimUID string
	Claim    string
	Pool     string
	Provider string
	// Account is the one that it was bought with, in the provider's own numbering; empty where that cannot be told.
	Account      string
	CapacityType string
	Region       string
	OfferID      string
	// GPU reads like "1×RTX4090".
	GPU      string
	GPUCount int
	// Models that it was bought for.
	Models []string
	// Shares are the models that it serves, each with its part of it, and SharesFrom since when; nil is from the
	// beginning. They are kept per SharesFrom as rates are per RateFrom, and Get and Live answer the latest.
	Shares     []Share
	SharesFrom *time.Time
	// Price is the offer's all-in $/h.
	Price      money.Dollars
	IntendedAt time.Time
	// BillingStep is the granularity of the provider's billing, BillingLeast the shortest time that is charged.
	BillingStep  time.Duration
	BillingLeast time.Duration

	// Refused: the provider certainly rented nothing. It never holds together with an InstanceID.
	Refused    bool
	InstanceID string
	// CreatedAt is when it began to bill; nil until known.
	CreatedAt *time.Time
	// Rate is the all-in $/h that is paid, and RateFrom since when; nil is since it began to bill. A change of rate is
	// written with the time of the change, which begins a new stretch of the cost; without one it is taken for the
	// first rate, and ignored when that is known. Get and Live answer the latest.
	Rate     *money.Dollars
	RateFrom *time.Time
	// DestroyAskedAt is when the provider accepted the end, GoneAt when it was confirmed.
	DestroyAskedAt *time.Time
	GoneAt         *time.Time
	EndReason      string
	// Bill is what the provider's own account says that it cost from beginning to end; nil until that was read. The
	// first one that is written stays.
	Bill *Bill
}

// Share is a model's part of an instance: its weight among the weights of all.
type Share struct {
	Model  string `json:"model"`
	Weight int64  `json:"weight"`
}

// Bill is a figure of a provider's account: Amount is exact to the Step, as far as the provider says.
type Bill struct {
	Amount money.Amount
	Step   money.Amount
}

// Event is one line of an instance's history.
type Event struct {
	Token   string
	At      time.Time
	Kind    string
	Message string
}
