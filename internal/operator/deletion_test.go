package operator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/money"
)

// situation is a phase of a claim, and how a market and a driver keep it there.
type situation struct {
	name   string
	phase  v1alpha1.Phase
	region string
	broken market.Breakage
}

var situations = []situation{
	{"Pending", v1alpha1.PhasePending, wellMeant, ""},
	{"create in the air", v1alpha1.PhaseProvisioning, inTheAir, ""},
	{"create unclear", v1alpha1.PhaseProvisioning, unclear, ""},
	{"starting", v1alpha1.PhaseProvisioning, wellMeant, market.StuckLoading},
	{"Bootstrapping", v1alpha1.PhaseBootstrapping, wellMeant, market.Unreachable},
	{"Ready", v1alpha1.PhaseReady, wellMeant, ""},
	{"Draining", v1alpha1.PhaseDraining, undying, ""},
}

// plot is one pool with its own Secret, model and region, so that many share one cluster, controller and market.
type plot struct {
	situation
	region, secret, pool, model string
	order                       []string
}

// orders are all orders in which a pool, its claim, its Secret and its provider entry can be deleted.
func orders() (out [][]string) {
	var permute func(done, left []string)
	permute = func(done, left []string) {
		if len(left) == 0 {
			out = append(out, append([]string{}, done...))
		}
		for i := range left {
			rest := append(append([]string{}, left[:i]...), left[i+1:]...)
			permute(append(append([]string{}, done...), left[i]), rest)
		}
	}
	permute(nil, []string{"pool", "claim", "Secret", "entry"})
	return out
}

// plots lays out one for each order, in one situation, with an offer of its own for each.
func plots(i int, s situation, all [][]string) (out []*plot, offers []market.Offer) {
	for j, order := range all {
		p := &plot{situation: s, order: order, region: fmt.Sprintf("%s%d%02d", s.region, i, j)}
		p.secret, p.pool, p.model = "key-"+strings.ToLower(p.region), "p-"+strings.ToLower(p.region), "acme/"+strings.ToLower(p.region)
		o := offer(fmt.Sprintf("1%d%02d", i, j))
		o.Region, o.Broken = "Oslo, "+p.region, s.broken
		out, offers = append(out, p), append(offers, o)
	}
	return out, offers
}

// plotsInEach is plots in every situation, with each order or with every few-th of them, others in each situation.
func plotsInEach(first int, all [][]string, few, begin int) (out []*plot, offers []market.Offer) {
	for i, sit := range situations {
		var some [][]string
		for n, order := range all {
			if n%few == (begin+i)%few {
				some = append(some, order)
			}
		}
		p, o := plots(first+i, sit, some)
		out, offers = append(out, p...), append(offers, o...)
	}
	return out, offers
}

// raceDetector makes each plot cost three times as much; with it there are fewer. What it finds, it finds in these too.
var raceDetector bool

// unlessRacing is all, or few with the detector.
func unlessRacing(all, few int) int {
	if raceDetector {
		return few
	}
	return all
}

// lay makes a plot's Secret, pool and demand.
func (s *stage) lay(p *plot) {
	s.t.Helper()
	s.putSecret(p)
	s.pool(func(o *v1alpha1.GPUNodePool) {
		o.Name = p.pool
		if p.phase == v1alpha1.PhasePending { // nothing is bought for a model whose token cannot be read
			o.Spec.Bootstrap.HFTokenSecret = &v1alpha1.SecretReference{Namespace: secretNS, Name: "no-such-token"}
		}
		o.Spec.Providers[0].Regions = []string{p.region}
		o.Spec.Providers[0].APIKeySecret.Name = p.secret
	})
	s.pod(p.model, v1alpha1.AnnotationPool, p.pool)
}

func (s *stage) putSecret(p *plot) {
	s.t.Helper()
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNS, Name: p.secret}, StringData: map[string]string{"VASTAI_API_KEY": simKey}})
}

func (s *stage) claimsOf(p *plot) []v1alpha1.GPUNodeClaim { return s.claimsByPool()[p.pool] }

// liveOf is what the market bills in the plot's region.
func (s *stage) liveOf(p *plot) int { return s.liveByRegion()[p.region] }

// claimsByPool is read once for many plots.
func (s *stage) claimsByPool() map[string][]v1alpha1.GPUNodeClaim {
	s.t.Helper()
	out := map[string][]v1alpha1.GPUNodeClaim{}
	for _, c := range s.claims() {
		out[c.Spec.Pool] = append(out[c.Spec.Pool], c)
	}
	return out
}

// liveByRegion is what the market bills in each plot's region.
func (s *stage) liveByRegion() map[string]int {
	out := map[string]int{}
	for _, in := range s.market.Books().Live() {
		out[strings.TrimPrefix(in.Offer.Region, "Oslo, ")]++
	}
	return out
}

// layAll makes all plots, then waits until each is where its situation wants it.
func (s *stage) layAll(all []*plot) {
	s.t.Helper()
	for _, p := range all {
		s.lay(p)
	}
	s.await(all...)
}

// await waits until each plot is where its situation wants it.
func (s *stage) await(all ...*plot) {
	s.t.Helper()
	defer func(begin time.Time) {
		s.t.Logf("%d plots in their phases after %s", len(all), time.Since(begin).Round(time.Second))
	}(time.Now())
	deleted := map[string]bool{}
	s.within(plotsWait, "every plot is in its phase", func() error {
		var missing []string
		claims, live := s.claimsByPool(), s.liveByRegion()
		for _, p := range all {
			of := claims[p.pool]
			if len(of) == 1 && p.phase == v1alpha1.PhaseDraining && of[0].Status.Phase == v1alpha1.PhaseReady && !deleted[p.pool] {
				s.delete(&of[0])
				deleted[p.pool] = true
			}
			if err := p.stands(of, live[p.region]); err != nil {
				missing = append(missing, fmt.Sprintf("%s in %s: %v", p.name, p.region, err))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d are not, the first: %s", len(missing), len(all), missing[0])
		}
		return nil
	})
}

// stands reports why a plot is not where its situation wants it.
func (p *plot) stands(claims []v1alpha1.GPUNodeClaim, live int) error {
	if len(claims) != 1 {
		return fmt.Errorf("%d claims", len(claims))
	}
	c := claims[0]
	failing := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionInstanceGone)
	switch {
	case c.Status.Phase != p.phase:
		return fmt.Errorf("phase %s", c.Status.Phase)
	case p.broken == market.StuckLoading && c.Status.InstanceID == "":
		return fmt.Errorf("nothing rented yet")
	case p.situation.region == unclear && live == 0:
		return fmt.Errorf("nothing rented yet")
	case p.phase == v1alpha1.PhaseDraining && (failing == nil || failing.Reason != v1alpha1.ReasonDestroyFailed):
		return fmt.Errorf("not failing yet: %+v", failing)
	}
	return nil
}

func (s *stage) delete(o client.Object) {
	s.t.Helper()
	if err := s.client.Delete(s.ctx, o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
}

// undo deletes one of the plot's objects.
func (s *stage) undo(p *plot, what string) {
	s.t.Helper()
	switch what {
	case "pool":
		s.delete(&v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: p.pool}})
	case "Secret":
		s.delete(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNS, Name: p.secret}})
	case "claim":
		for _, c := range s.claimsOf(p) {
			s.delete(&c)
		}
	case "entry":
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			pool := &v1alpha1.GPUNodePool{}
			if err := s.client.Get(s.ctx, client.ObjectKey{Name: p.pool}, pool); err != nil {
				return err
			}
			pool.Spec.Providers = []v1alpha1.ProviderSpec{{Name: "gcp", MaxPrice: money.MustParse("0.50")}}
			return s.client.Update(s.ctx, pool)
		})
		if err != nil && !apierrors.IsNotFound(err) {
			s.t.Fatal(err)
		}
	}
}

// undoStep is one step of every plot's order.
func (s *stage) undoStep(all []*plot, step int) {
	s.t.Helper()
	for _, p := range all {
		if step < len(p.order) {
			s.undo(p, p.order[step])
		}
	}
}

// empty waits until nothing of the plots is left, in the cluster or in the market.
func (s *stage) empty(all []*plot) {
	s.t.Helper()
	defer func(begin time.Time) {
		s.t.Logf("%d plots empty after %s", len(all), time.Since(begin).Round(time.Second))
	}(time.Now())
	s.within(plotsWait, "nothing is left", func() error {
		var list v1alpha1.GPUNodePoolList
		if err := s.client.List(s.ctx, &list); err != nil {
			return err
		}
		pools := map[string]bool{}
		for _, p := range list.Items {
			pools[p.Name] = true
		}
		claims, live := s.claimsByPool(), s.liveByRegion() // after the pools
		for _, p := range all {
			if of := claims[p.pool]; len(of) > 0 && !pools[p.pool] {
				s.t.Fatalf("%s in %s, deleted as %v: the pool is gone before its claim %s", p.name, p.region, p.order, of[0].Name)
			}
			what := fmt.Sprintf("%s in %s, deleted as %v", p.name, p.region, p.order)
			switch of := claims[p.pool]; {
			case live[p.region] > 0:
				return fmt.Errorf("%s: %d still rented", what, live[p.region])
			case len(of) > 0:
				return fmt.Errorf("%s: claim %s is left", what, of[0].Name)
			case pools[p.pool]:
				return fmt.Errorf("%s: the pool is left", what)
			}
		}
		return nil
	})
}

// manyPlots has the controllers look less often than for a few, and lets a create be in the air until all plots stand.
func (s *stage) manyPlots() {
	s.cfg.Timing.BootPoll, s.cfg.Timing.ReadyPoll, s.cfg.Sweep.Period = time.Second, 2*time.Second, 2*time.Second
	s.unruly.createTimeout = plotsWait
}

// plotsWait is for all plots together, on a busy machine with the race detector.
const plotsWait = 3 * time.Minute

// TestDeletionInEveryOrderStrandsNothing: pool, claim, Secret and provider entry in every order, with the claim in every
// phase, all side by side: they mostly wait.
func TestDeletionInEveryOrderStrandsNothing(t *testing.T) {
	all, offers := plotsInEach(0, orders(), unlessRacing(1, 8), 0)
	s := newStage(t, offers)
	s.manyPlots()
	s.launch()
	s.layAll(all)
	for step := range 4 {
		s.undoStep(all, step)
	}
	for _, p := range all {
		s.release(p.region)
	}
	s.empty(all)
}

// TestWithoutAKeyItIsSaidWhichAndEndedWhenTheKeyReturns also across a restart, which forgets the key.
func TestWithoutAKeyItIsSaidWhichAndEndedWhenTheKeyReturns(t *testing.T) {
	all, offers := plotsInEach(10, [][]string{{"Secret", "claim", "pool", "entry"}}, 1, 0)
	s := newStage(t, offers)
	s.launch()
	s.layAll(all)
	s.stop()
	for step := range 4 {
		s.undoStep(all, step)
	}
	for _, p := range all {
		s.release(p.region)
	}
	rented := len(s.live())
	s.launch()
	for _, p := range all[1:] {
		s.eventually(p.name+" says what is stranded", func() error {
			claims := s.claimsOf(p)
			if len(claims) != 1 {
				return fmt.Errorf("%d claims", len(claims))
			}
			c := claims[0]
			gone := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionInstanceGone)
			if gone == nil || gone.Status != metav1.ConditionFalse || gone.Reason != v1alpha1.ReasonCredentialsUnavailable {
				return fmt.Errorf("it says %+v", gone)
			}
			which := c.Status.InstanceID
			if which == "" {
				which = c.Status.Attempt.Token
			}
			for _, part := range []string{which, "vast.ai", secretNS + "/" + p.secret} {
				if !strings.Contains(gone.Message, part) {
					return fmt.Errorf("%q lacks %q", gone.Message, part)
				}
			}
			return nil
		})
	}
	s.event("GPUNodeClaim", v1alpha1.ReasonCredentialsUnavailable)
	if n := len(s.live()); n != rented {
		t.Errorf("%d of %d machines are left without a key to end them with", n, rented)
	}
	for _, p := range all {
		s.putSecret(p)
	}
	s.empty(all)
	for _, p := range all {
		s.undo(p, "Secret")
	}
}

// before are all sets of a plot's objects, those that are deleted before something else is.
func before() (out [][]string) {
	all := []string{"Secret", "entry", "claim", "pool"}
	for set := range 1 << len(all) {
		var some []string
		for i, what := range all {
			if set&(1<<i) != 0 {
				some = append(some, what)
			}
		}
		out = append(out, some)
	}
	return out
}

// TestTheCRDsAreDeleted in either order, with claims in every phase and every set of the other objects deleted before (each
// set in each phase under one of the two orders), the rest after: the CRDs' objects hold them until the last machine is
// gone.
func TestTheCRDsAreDeleted(t *testing.T) {
	for n, order := range [][]string{{"gpunodeclaims", "gpunodepools"}, {"gpunodepools", "gpunodeclaims"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			all, offers := plotsInEach(1, before(), unlessRacing(2, 16), n)
			s := newStage(t, append(offers, offer("9001")), privateCluster())
			s.manyPlots()
			s.launch()
			s.layAll(all)
			for step := range 4 {
				s.undoStep(all, step)
			}
			for _, plural := range order {
				s.delete(crdOf(plural))
			}
			for _, p := range all { // what its order has left
				for _, what := range []string{"entry", "Secret"} {
					if !slices.Contains(p.order, what) {
						s.undo(p, what)
					}
				}
				s.release(p.region)
			}
			s.within(plotsWait, "the CRDs and the machines are gone", func() error {
				for _, plural := range order {
					crd := crdOf(plural)
					if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(crd), crd); !apierrors.IsNotFound(err) {
						return fmt.Errorf("%s is left (%w)", plural, err)
					}
				}
				if n := len(s.live()); n > 0 {
					return fmt.Errorf("%d machines", n)
				}
				return nil
			})
			// Nothing is bought without them either, though the pods still ask.
			time.Sleep(time.Second)
			if n := len(s.live()); n > 0 {
				t.Errorf("%d machines", n)
			}
		})
	}
}

func crdOf(plural string) *unstructured.Unstructured {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	crd.SetName(plural + ".gpuscale.io")
	return crd
}
