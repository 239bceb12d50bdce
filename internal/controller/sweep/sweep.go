// Package sweep finds instances that carry this installation's owner tag and that no claim accounts for, and ends them:
// what a claim that was deleted by force left behind, a purchase that took effect after it was given up, a second
// instance for one token. Whatever does not carry the tag is never listed, and so never touched.
//
// Decide is pure and holds every rule; the rest of the package only asks and does. The rules are written so that doubt
// ends nothing: the cloud is listed before the claims are read, an instance must be without a claim on two lists a list
// lag apart and be old enough, a sweep ends a bounded number, and an empty list of claims that the ledger contradicts
// ends none and calls a person instead.
//
// An instance that no claim accounts for takes part in the ceilings meanwhile: the pool that pays for it carries a
// reservation in its name (see reserve.SurplusName) until it is confirmed gone.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/metrics"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Ledger is the money history, which remembers what the claims may have forgotten.
type Ledger interface {
	Live(ctx context.Context) ([]ledger.Instance, error)
	Get(ctx context.Context, token string) (ledger.Instance, error)
	Update(ctx context.Context, in ledger.Instance) error
	Event(ctx context.Context, e ledger.Event) error
}

// Timing are the sweep's intervals and bounds. They are defaults of the product, shortened only in tests.
type Timing struct {
	// Period is the pause between two sweeps.
	Period time.Duration
	// MinAge and MaxOrphans are the policy's.
	MinAge     time.Duration
	MaxOrphans int
	// ListTimeout bounds the wait for one account's list.
	ListTimeout time.Duration
}

// DefaultTiming is what production uses.
func DefaultTiming() Timing {
	return Timing{Period: time.Minute, MinAge: 10 * time.Minute, MaxOrphans: 5, ListTimeout: time.Minute}
}

// Sweeper is the sweep's runnable. Its fields are set once, before SetupWithManager.
type Sweeper struct {
	// Client finds out which accounts there are; Reader, past the cache, decides what has a claim.
	Client   client.Client
	Reader   client.Reader
	Accounts Accounts
	Ledger   Ledger
	Events   events.EventRecorder
	Clock    clock.WithTicker
	Timing   Timing
	// Token is the owner tag of a claim's nth attempt.
	Token func(uid types.UID, attempt int32) string
	// Identity makes sure that this is still the installation that the tags belong to, and returns the code by which a
	// person confirms a halted sweep.
	Identity func(ctx context.Context) (confirmed string, err error)
	// Namespace of the installation: what concerns no object is said there.
	Namespace string

	history History
}

// SetupWithManager registers the sweep.
func (s *Sweeper) SetupWithManager(mgr ctrl.Manager) error { return mgr.Add(s) }

// NeedLeaderElection is true: two sweeps at once would each hold the other's purchase for nobody's.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until ctx ends. It returns nil: what fails is tried again in the next sweep.
func (s *Sweeper) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("sweep"))
	ticker := s.Clock.NewTicker(s.Timing.Period)
	defer ticker.Stop()
	for {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "sweep given up; the next one begins anew")
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// Sweep looks once and acts on it. An error means that nothing was decided. It is not for concurrent use.
func (s *Sweeper) Sweep(ctx context.Context) error {
	confirmed, err := s.Identity(ctx)
	if errors.Is(err, identity.ErrCloned) {
		s.alert(ctx, &Halt{Message: err.Error()})
		return nil
	}
	if err != nil {
		return err
	}
	snap, accounts, err := s.look(ctx)
	if missing(err) {
		s.alert(ctx, &Halt{Message: "the claims cannot be listed, so nothing is known to be theirs: " + err.Error()})
		return nil
	}
	if err != nil {
		return err
	}
	snap.Confirmed = confirmed
	var verdict Verdict
	verdict, s.history = Decide(s.history, snap, Policy{MinAge: s.Timing.MinAge, MaxOrphans: s.Timing.MaxOrphans, Token: s.Token})
	s.alert(ctx, verdict.Halt)
	s.book(ctx, snap.Pools, verdict.Surplus)
	for _, t := range verdict.Destroy {
		s.destroy(ctx, t, accounts[t.Account].Driver, snap)
	}
	for _, row := range verdict.Close {
		if err := s.Ledger.Update(ctx, row); err != nil {
			log.FromContext(ctx).Error(err, "ledger not updated", "token", row.Token)
		}
	}
	return nil
}

// missing: the API server does not know the kind any more.
func missing(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// look lists the cloud first and reads the claims after it: whatever the lists show was bought by a claim that is there
// by then, or by none.
func (s *Sweeper) look(ctx context.Context) (Snapshot, accountSet, error) {
	accounts, silent, err := s.accounts(ctx)
	if err != nil {
		return Snapshot{}, nil, err
	}
	snap := Snapshot{Silent: silent}
	s.list(ctx, accounts, &snap)
	var (
		claims v1alpha1.GPUNodeClaimList
		pools  v1alpha1.GPUNodePoolList
	)
	if err := s.Reader.List(ctx, &claims); err != nil {
		return Snapshot{}, nil, err
	}
	// Without the pools the ceilings cannot be kept; the machines can.
	if err := s.Reader.List(ctx, &pools); err != nil && !missing(err) {
		return Snapshot{}, nil, err
	}
	snap.Claims, snap.Pools, snap.Now = claims.Items, pools.Items, s.Clock.Now()
	snap.Live, snap.LedgerErr = s.Ledger.Live(ctx)
	if len(snap.Claims) == 0 && snap.LedgerErr == nil {
		snap.Known, snap.LedgerErr = s.known(ctx, snap.Lists)
	}
	return snap, accounts, nil
}

// known asks the ledger for every tag that is listed.
func (s *Sweeper) known(ctx context.Context, lists []List) (map[string]bool, error) {
	known := map[string]bool{}
	for _, l := range lists {
		for _, in := range l.Instances {
			_, err := s.Ledger.Get(ctx, in.Tag)
			if err != nil && !errors.Is(err, ledger.ErrUnknown) {
				return nil, err
			}
			known[in.Tag] = err == nil
		}
	}
	return known, nil
}

// alert says that the sweep is halted, in every sweep anew, or that it is free.
func (s *Sweeper) alert(ctx context.Context, h *Halt) {
	if h == nil {
		metrics.SweepHalted.Set(0)
		return
	}
	metrics.SweepHalted.Set(1)
	message := h.Message + "; nothing is destroyed"
	if h.Code != "" {
		message += fmt.Sprintf(". Restore the claims or end the machines at the provider. If all of this may be destroyed, "+
			"annotate Secret %s/%s with %s=%s", s.Namespace, identity.SecretCA, v1alpha1.AnnotationConfirmSweep, h.Code)
	}
	log.FromContext(ctx).Error(nil, "sweep halted", "why", message)
	s.event(v1alpha1.ReasonSweepHalted, message)
}

// event is about the installation, which has no object of its own but its namespace.
func (s *Sweeper) event(reason, message string) {
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Namespace: s.Namespace, Name: s.Namespace}
	s.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, "Sweep", "%s", message)
}

// book has every pool's status carry what no claim accounts for.
func (s *Sweeper) book(ctx context.Context, pools []v1alpha1.GPUNodePool, want map[string][]v1alpha1.Reservation) {
	for i := range pools {
		name := pools[i].Name
		if len(want[name]) == 0 && !reserve.HasSurplus(&pools[i]) {
			continue
		}
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			pool := &v1alpha1.GPUNodePool{}
			if err := s.Reader.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
				return client.IgnoreNotFound(err)
			}
			if !reserve.SetSurplus(pool, want[name]) {
				return nil
			}
			return s.Client.Status().Update(ctx, pool)
		})
		if err != nil {
			log.FromContext(ctx).Error(err, "instances without a claim not booked yet", "pool", name)
		}
	}
}

// destroy asks for one end. What fails is still there in the next sweep.
func (s *Sweeper) destroy(ctx context.Context, t Target, driver provider.Provider, snap Snapshot) {
	name, in := string(t.Instance.Provider), t.Instance
	if t.Claim == "" {
		s.decided(ctx, in)
	}
	err := driver.DestroyInstance(ctx, in.ID)
	if err != nil && provider.KindOf(err) != provider.NotFound {
		metrics.DestroyFailures.WithLabelValues(name).Inc()
		log.FromContext(ctx).Error(err, "not destroyed", "instance", in.ID, "provider", name, "tag", in.Tag)
		s.event(v1alpha1.ReasonDestroyFailed, fmt.Sprintf("%s instance %s (%s) is still rented: %v", name, in.ID, in.Tag, err))
		return
	}
	log.FromContext(ctx).Info("asked for the end of an instance", "instance", in.ID, "provider", name, "tag", in.Tag, "claim", t.Claim)
	if t.Again {
		return
	}
	if t.Claim == "" {
		metrics.SweepOrphans.WithLabelValues(name).Inc()
		s.event(v1alpha1.ReasonOrphanDestroyed, fmt.Sprintf("%s instance %s carries this installation's tag %s and belongs to no claim", name, in.ID, in.Tag))
		return
	}
	metrics.SweepSurplus.WithLabelValues(name).Inc()
	for i := range snap.Claims {
		if c := &snap.Claims[i]; c.Name == t.Claim {
			s.Events.Eventf(c, nil, corev1.EventTypeWarning, v1alpha1.ReasonDestroying, "Sweep",
				"a second instance %s carries this claim's token %s; asked for its end", in.ID, in.Tag)
		}
	}
}

// decided writes into the ledger that an instance without a claim is being ended, before it is: should this process end
// in between, the row is known to be nobody's. A row that was closed as refused is reopened by what did come of it, so
// that its cost is counted.
func (s *Sweeper) decided(ctx context.Context, in provider.Instance) {
	row, err := s.Ledger.Get(ctx, in.Tag)
	if errors.Is(err, ledger.ErrUnknown) || err == nil && row.InstanceID != "" && row.InstanceID != in.ID {
		return
	}
	now := s.Clock.Now()
	if err == nil {
		update := ledger.Instance{Token: in.Tag, InstanceID: in.ID, DestroyAskedAt: &now, EndReason: reasonSwept}
		if !in.CreatedAt.IsZero() {
			update.CreatedAt = &in.CreatedAt
		}
		err = s.Ledger.Update(ctx, update)
	}
	if err == nil {
		err = s.Ledger.Event(ctx, ledger.Event{Token: in.Tag, At: now, Kind: v1alpha1.ReasonOrphanDestroyed,
			Message: "no claim accounts for instance " + in.ID})
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "ledger not updated", "token", in.Tag)
	}
}
