// Package claim carries a GPUNodeClaim through its life: it buys the instance, waits for it to serve, keeps watching it,
// and gives it back. One file per step; each step begins by asking whether it is settled.
//
// The order of writes is what makes it safe to kill at any line: finalizer, reservation (read uncached), ledger intent,
// attempt token, and only then the create call. An attempt whose outcome is not recorded is looked up by its token
// before anything is asked again.
package claim

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Accounts gives the account that a pool entry's credentials open. Holder gives the one that something was rented with,
// whatever the credentials lead to now, or none: what was rented with them can still be ended.
type Accounts interface {
	For(ctx context.Context, ref account.Ref) (*account.Account, error)
	Holder(ctx context.Context, ref account.Ref, identity string) (*account.Account, error)
}

// Workers talks to agents over mutual TLS.
type Workers interface {
	Status(ctx context.Context, endpoint, claimUID string) (agentapi.Status, error)
	PutModels(ctx context.Context, endpoint, claimUID string, desired agentapi.DesiredModels) error
	Drain(ctx context.Context, endpoint, claimUID, model string) error
	Forget(claimUID string)
}

// Ledger is the money history. Intend must be durable when it returns: without it nothing is bought.
type Ledger interface {
	Intend(ctx context.Context, in ledger.Instance) error
	Update(ctx context.Context, in ledger.Instance) error
	Abandon(ctx context.Context, token string) error
	Note(ctx context.Context, events ...ledger.Event) error
}

// BootMaker renders what an instance runs first.
type BootMaker interface {
	Boot(ctx context.Context, claim *v1alpha1.GPUNodeClaim, offer provider.Offer, can provider.Capabilities) (provider.Boot, error)
}

// Timing are the intervals of the controller. They are defaults of the product, shortened only in tests.
type Timing struct {
	// BootPoll is how often a booting instance or agent is looked at.
	BootPoll time.Duration
	// ReadyPoll is how often a serving agent is asked for its account of requests.
	ReadyPoll time.Duration
	// AgentTimeout bounds one call to an agent.
	AgentTimeout time.Duration
	// Skew is added to a provider's create time-out before a token is taken as dead.
	Skew time.Duration
	// LicenceWait is how long a claim waits for its reservation to be seen before it ends.
	LicenceWait time.Duration
	// DestroyRetry is the pause between two tries to end a rental; it is tried for ever.
	DestroyRetry time.Duration
}

// DefaultTiming is what production uses.
func DefaultTiming() Timing {
	return Timing{BootPoll: 2 * time.Second, ReadyPoll: 5 * time.Second, AgentTimeout: 5 * time.Second,
		Skew: 5 * time.Second, LicenceWait: time.Minute, DestroyRetry: 10 * time.Second}
}

// maxAttempts bounds how many offers one claim tries before the planner is asked again.
const maxAttempts = 10

// Reconciler is the claim controller. Its fields are set once, before SetupWithManager.
type Reconciler struct {
	Client client.Client
	// Reader reads past the cache: a licence to spend is never taken from a stale copy.
	Reader   client.Reader
	Accounts Accounts
	// SearchPatience is how long a provider is waited for before the offers of others are bought.
	SearchPatience time.Duration
	Workers        Workers
	Ledger         Ledger
	Rests          *rest.Book
	Strikes        *Strikes
	// Memory keeps what Rests and Strikes learn, and Recall fills them from it before anything is bought; see the function
	// Recall.
	Memory Memory
	Recall func(ctx context.Context) error
	Boot   BootMaker
	// HFToken reads the Hugging Face token of a pool.
	HFToken      func(ctx context.Context, ref v1alpha1.SecretReference) (string, error)
	Events       events.EventRecorder
	Clock        clock.Clock
	Timing       Timing
	Installation string
	// Lease is how long a worker goes on without a call before it ends its own rental, where it can; 0 is for ever.
	Lease time.Duration

	books books
	pools poolEditor
}

// longestPause bounds the wait after an error, so that every worker is called well within the shortest lease.
const longestPause = time.Minute

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("claim").
		For(&v1alpha1.GPUNodeClaim{}, builder.WithPredicates(byOthers())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 32,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, longestPause)}).
		Complete(r)
}

// byOthers lets pass what others do to a claim. What the status says this controller has written itself: an agent that
// loads has something new to say at each look, and a look at each write of it would write as fast as the API server can.
func byOthers() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
}

// next says how a step ended: go on to the following one, or stop here and look again after a time (0: when something
// changes).
type next struct {
	stop  bool
	after time.Duration
}

func proceed() next                     { return next{} }
func waitFor(d time.Duration) next      { return next{stop: true, after: d} }
func halt() next                        { return next{stop: true} }
func (n next) result() reconcile.Result { return reconcile.Result{RequeueAfter: n.after} }
func (v *visit) now() time.Time         { return v.Clock.Now() }
func (v *visit) pollBoot() next         { return waitFor(v.Timing.BootPoll) }

// Reconcile takes one claim as far as it can go now.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	claim := &v1alpha1.GPUNodeClaim{}
	if err := r.Client.Get(ctx, req.NamespacedName, claim); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	v := newVisit(r, claim)
	steps := v.upSteps()
	if !claim.DeletionTimestamp.IsZero() {
		steps = v.downSteps()
	}
	n, err := v.walk(ctx, steps)
	if perr := v.persist(ctx); perr != nil && err == nil {
		err = perr
	}
	if v.bookLater(ctx) {
		n.after = sooner(n.after, v.Timing.DestroyRetry)
	}
	if apierrors.IsConflict(err) {
		// Someone wrote the claim since it was read: nothing is wrong, the next look sees both.
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return n.result(), nil
}

// bookLater writes what the visit has found to the ledger and reports whether that has to be tried again. A claim that
// was let go has been written before.
func (v *visit) bookLater(ctx context.Context) bool {
	if !controllerutil.ContainsFinalizer(v.claim, v1alpha1.Finalizer) {
		return false
	}
	err := v.book(ctx)
	if err != nil && !errors.Is(err, errLedgerRests) {
		v.log(ctx).Error(err, "ledger not written, it is tried again", "token", v.claim.Status.Attempt.Token)
	}
	return err != nil
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// step is one stage of a claim's life.
type step func(ctx context.Context) (next, error)

func (v *visit) upSteps() []step {
	return []step{v.guard, v.endWhenAsked, v.purchase, v.run, v.connect, v.load, v.publish, v.serve}
}

func (v *visit) downSteps() []step {
	return []step{v.settleAttempt, v.drain, v.destroy, v.confirmGone, v.close}
}

func (v *visit) walk(ctx context.Context, steps []step) (next, error) {
	for _, s := range steps {
		n, err := s(ctx)
		if err != nil || n.stop {
			return n, err
		}
		if v.claim.Status.Failure != nil && v.claim.DeletionTimestamp.IsZero() {
			return v.endFailed(ctx)
		}
	}
	return halt(), nil
}
