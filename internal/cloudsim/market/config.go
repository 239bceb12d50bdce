package market

import (
	"strconv"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
)

// Config is a market. Its zero value is one without delays, faults, limits or offers; Realistic is one with all of them.
type Config struct {
	// Seed and Provider decide everything that is not asked for.
	Seed     int64
	Provider string
	// Clock is the real one when nil.
	Clock clock.WithDelayedExecution
	// Offers are the machines at the start.
	Offers []Offer
	// Body makes the software of instances; inert bodies when nil.
	Body body.Factory

	Boot    Boot
	Walk    Walk
	Reclaim Reclaim
	Limits  Limits
	Faults  FaultRates
	Billing Billing

	// Broken is the share of machines that are broken in one way or another, on top of those whose offers say so.
	Broken float64
	// ListLag is how long a new instance stays invisible to Get and List.
	ListLag time.Duration
	// DestroyLag is how long an instance lives on, billed and visible, after its end was promised.
	DestroyLag time.Duration
	// Afterlife is how long an instance that is gone is still shown as such.
	Afterlife time.Duration
	// LowBidStays: a bid under the minimum leaves a stopped instance behind, besides failing.
	LowBidStays bool
	// StableOfferIDs: an offer keeps its id and is on sale whenever there is stock.
	StableOfferIDs bool
	// SpotPaysFloor: a spot instance pays the floor at which it was rented, not its bid.
	SpotPaysFloor bool
	// OfferID and InstanceID spell the nth id; decimal numbers when nil.
	OfferID, InstanceID func(n int64) string
}

// Boot is how long a machine takes from the order until its software starts. Each time is stretched by up to Jitter
// (0.5 is half as long again), constantly for one machine.
type Boot struct {
	// Accept lasts until the host reports at all, Create until the container is made, Load until it runs.
	Accept, Create, Load time.Duration
	Jitter               float64
}

// Walk moves prices every Step by up to the given share of the listed price. A zero Step keeps them still.
type Walk struct {
	Step           time.Duration
	OnDemand, Spot float64
}

// Reclaim is how spot instances are taken back.
type Reclaim struct {
	// PerHour is the chance per hour and running instance, as a rate. Zero means only when asked or outbid.
	PerHour float64
	// Notice is the time between the announcement and the taking.
	Notice time.Duration
	// Destroys: the instance is gone, instead of stopped with its disk kept and billed.
	Destroys bool
	// Hold is how long someone else has the GPUs afterwards.
	Hold time.Duration
	// Resumes: a stopped instance starts again by itself after Hold, if it is still there.
	Resumes bool
}

// Limits are the account's. Zero means none.
type Limits struct {
	Instances, GPUs int
	// Credit is what may be spent altogether.
	Credit Nano
}

// Billing is how time is charged.
type Billing struct {
	// Granularity is the step; one second when zero. Minimum is the least that one rental of a GPU is charged for.
	Granularity, Minimum time.Duration
}

const (
	firstOfferID    = 28_000_001
	firstInstanceID = 31_000_001
)

func (c *Config) complete() {
	if c.Clock == nil {
		c.Clock = clock.RealClock{} //gpuscale:clock the default where a test gives none
	}
	if c.Body == nil {
		c.Body = body.Inert()
	}
	if c.OfferID == nil {
		c.OfferID = func(n int64) string { return strconv.FormatInt(firstOfferID+n, 10) }
	}
	if c.InstanceID == nil {
		c.InstanceID = func(n int64) string { return strconv.FormatInt(firstInstanceID+n, 10) }
	}
	if c.Billing.Granularity == 0 {
		c.Billing.Granularity = time.Second
	}
	if c.Faults.Hold == 0 {
		c.Faults.Hold = 30 * time.Second
	}
	if c.Faults.Delay == 0 {
		c.Faults.Delay = 3 * time.Second
	}
}

// Realistic is a market with the default catalogue in which things take as long, and go wrong as often, as users of
// such markets report.
func Realistic(provider string, seed int64) Config {
	return Config{
		Seed: seed, Provider: provider, Offers: DefaultOffers(seed),
		Boot:    Boot{Accept: 3 * time.Second, Create: 5 * time.Second, Load: 70 * time.Second, Jitter: 1.5},
		Walk:    Walk{Step: time.Minute, OnDemand: 0.05, Spot: 0.15},
		Reclaim: Reclaim{PerHour: 0.05, Hold: 10 * time.Minute, Resumes: true},
		Limits:  Limits{Instances: 100, GPUs: 200, Credit: 1000 * Nano1},
		Faults: FaultRates{Share: map[Fault]float64{ServerError: 0.003, Timeout: 0.001, LostAnswer: 0.002,
			Truncated: 0.001, Slow: 0.01, TooMany: 0.002}},
		Broken:      0.06,
		ListLag:     2 * time.Second,
		DestroyLag:  2 * time.Second,
		LowBidStays: true,
	}
}
