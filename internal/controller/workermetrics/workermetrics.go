// Package workermetrics scrapes the agent of every Ready claim and re-exposes what engines and GPUs say on one listener,
// with labels that tell whose it is: claim, pool, provider, gpu_type and, for an engine's series, model.
//
// Exactly one replica scrapes, the leader: were all to, every sum over the series would count each worker once per
// replica. The others' listeners answer with nothing, so that a scraper finds every target up.
//
// A worker runs on a machine that others own, so nothing that it answers is trusted further than it must be: whose a
// series is, is read from the claim; an answer is bounded; what is not valid in full counts as no answer.
package workermetrics

import (
	"cmp"
	"context"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Workers are the agents' metrics. A workerclient.Client is one.
type Workers interface {
	// Metrics streams the answer of the claim's agent, at most limit bytes of it.
	Metrics(ctx context.Context, endpoint, claimUID string, limit int64) (io.ReadCloser, error)
}

// Settings say what is scraped, how often, and where it is served. The zero value serves nothing.
type Settings struct {
	// Addr is listened on; empty or "0" turns all of it off.
	Addr string
	// All re-exposes every family of vLLM's and of the GPUs, in place of the core set.
	All bool
	// Interval between two scrapes of a worker (15 s). What was scraped three of them ago is shown no more.
	Interval time.Duration
	// Timeout bounds one scrape (5 s, at most the interval).
	Timeout time.Duration
	// Concurrency bounds scrapes at once (64).
	Concurrency int
}

// DefaultInterval between two scrapes of a worker.
const DefaultInterval = 15 * time.Second

const (
	defaultTimeout     = 5 * time.Second
	defaultConcurrency = 64
)

// Off reports whether nothing is to be scraped or served.
func (s Settings) Off() bool { return s.Addr == "" || s.Addr == "0" }

func (s Settings) withDefaults() Settings {
	s.Interval = cmp.Or(s.Interval, DefaultInterval)
	s.Timeout = min(cmp.Or(s.Timeout, defaultTimeout), s.Interval)
	s.Concurrency = cmp.Or(s.Concurrency, defaultConcurrency)
	return s
}

// Reconciler tells a Scraper which workers there are.
type Reconciler struct {
	// Client reads claims from a cache.
	Client   client.Client
	Workers  Workers
	Settings Settings
	Clock    clock.WithTicker
	Log      logr.Logger

	scraper *Scraper
}

// SetupWithManager registers the controller, the scraper and the listener.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.scraper = New(r.Settings, r.Workers, r.Clock, r.Log)
	if err := mgr.Add(r.scraper); err != nil {
		return err
	}
	if err := mgr.Add(&listener{addr: r.Settings.Addr, handler: r.scraper.Handler(), log: r.Log}); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("workermetrics").For(&v1alpha1.GPUNodeClaim{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: min(4, runtime.GOMAXPROCS(0))}).Complete(r)
}

// Reconcile begins, changes or ends the scraping of one claim's worker.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.GPUNodeClaim
	if err := r.Client.Get(ctx, req.NamespacedName, &claim); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.scraper.Remove(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if target, ok := TargetOf(&claim); ok {
		r.scraper.Set(target) //nolint:contextcheck // A worker is scraped for longer than this call.
	} else {
		r.scraper.Remove(claim.Name)
	}
	return reconcile.Result{}, nil
}

// Target is a worker to scrape, and whose it is.
type Target struct {
	Claim, UID, Endpoint    string
	Pool, Provider, GPUType string
	// Models are those that are placed on the claim: the worker may speak of no other.
	Models []string
}

// TargetOf is the worker of a claim that is Ready.
func TargetOf(claim *v1alpha1.GPUNodeClaim) (Target, bool) {
	if claim.Status.Phase != v1alpha1.PhaseReady || claim.Status.Endpoint == "" || !claim.DeletionTimestamp.IsZero() {
		return Target{}, false
	}
	_, gpuType, _ := strings.Cut(claim.Status.GPU, "×")
	t := Target{Claim: claim.Name, UID: string(claim.UID), Endpoint: claim.Status.Endpoint, Pool: claim.Spec.Pool,
		Provider: claim.Status.Provider, GPUType: gpuType}
	for _, p := range claim.Spec.Placements {
		t.Models = append(t.Models, p.Workload)
	}
	return t, true
}
