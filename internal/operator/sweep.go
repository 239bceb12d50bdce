package operator

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/controller/sweep"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/ledger"
)

// newSweeper makes the sweep of this installation's instances.
func newSweeper(mgr manager.Manager, cfg Config, id identity.Identity, accounts *account.Accounts, led *ledger.Ledger, recorder events.EventRecorder) *sweep.Sweeper {
	return &sweep.Sweeper{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Accounts: accounts, Ledger: led, Events: recorder,
		Clock: cfg.Clock, Timing: cfg.Sweep, Namespace: cfg.Namespace,
		Token: func(uid types.UID, attempt int32) string { return claim.Token(id.Installation, uid, attempt) },
		Identity: func(ctx context.Context) (string, error) {
			notes, err := identity.Check(ctx, mgr.GetAPIReader(), cfg.Namespace, id.Installation)
			return notes[v1alpha1.AnnotationConfirmSweep], err
		},
	}
}
