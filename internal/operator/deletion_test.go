package operator_test

import (
	"fmt"
	"os"
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

func (s *stage) claimsOf(p *plot) (out []v1alpha1.GPUNodeClaim) {
	s.t.Helper()
	for _, c := range s.claims() {
		if c.Spec.Pool == p.pool {
			out = append(out, c)
		}
	}
	return out
}

// liveOf is what the market bills in the plot's region.
func (s *stage) liveOf(p *plot) (n int) {
	for _, in := range s.market.Books().Live() {
		if strings.HasSuffix(in.Offer.Region, ", "+p.region) {
			n++
		}
	}
	return n
}

// await waits until the plot is where its situation wants it.
func (s *stage) await(p *plot) {
	s.t.Helper()
	deleted := false
	s.eventually(p.name+" in "+p.region, func() error {
		claims := s.claimsOf(p)
		if len(claims) != 1 {
			return fmt.Errorf("%d claims", len(claims))
		}
		c := claims[0]
		if p.phase == v1alpha1.PhaseDraining && c.Status.Phase == v1alpha1.PhaseReady && !deleted {
			s.delete(&c)
			deleted = true
		}
		failing := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionInstanceGone)
		switch {
		case c.Status.Phase != p.phase:
			return fmt.Errorf("phase %s", c.Status.Phase)
		case p.broken == market.StuckLoading && c.Status.InstanceID == "":
			return fmt.Errorf("nothing rented yet")
		case p.situation.region == unclear && s.liveOf(p) == 0:
			return fmt.Errorf("nothing rented yet")
		case p.phase == v1alpha1.PhaseDraining && (failing == nil || failing.Reason != v1alpha1.ReasonDestroyFailed):
			return fmt.Errorf("not failing yet: %+v", failing)
		}
		return nil
	})
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

// empty waits until nothing of the plots is left, in the cluster or in the market.
func (s *stage) empty(all []*plot) {
	s.t.Helper()
	s.eventually("nothing is left", func() error {
		for _, p := range all {
			if n := s.liveOf(p); n > 0 {
				return fmt.Errorf("%s, deleted as %v: %d still rented", p.region, p.order, n)
			}
			if claims := s.claimsOf(p); len(claims) > 0 {
				return fmt.Errorf("%s, deleted as %v: claim %s is left", p.region, p.order, claims[0].Name)
			}
			err := s.client.Get(s.ctx, client.ObjectKey{Name: p.pool}, &v1alpha1.GPUNodePool{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s, deleted as %v: the pool is left (%w)", p.region, p.order, err)
			}
		}
		return nil
	})
}

// ordersFor is a third of the orders, each of which comes in at least two situations; all of them with
// GPUSCALE_TEST_ALL_ORDERS, which takes minutes.
func ordersFor(i int) (out [][]string) {
	for n, order := range orders() {
		if os.Getenv("GPUSCALE_TEST_ALL_ORDERS") != "" || n%3 == i%3 {
			out = append(out, order)
		}
	}
	return out
}

// TestDeletionInEveryOrderStrandsNothing: pool, claim, Secret and provider entry, in every phase of the claim.
func TestDeletionInEveryOrderStrandsNothing(t *testing.T) {
	for i, sit := range situations {
		t.Run(sit.name, func(t *testing.T) {
			all, offers := plots(i, sit, ordersFor(i))
			s := newStage(t, offers)
			s.launch()
			for _, p := range all {
				s.lay(p)
			}
			for _, p := range all {
				s.await(p)
			}
			for step := range 4 {
				for _, p := range all {
					s.undo(p, p.order[step])
				}
			}
			for _, p := range all {
				s.release(p.region)
			}
			s.empty(all)
		})
	}
}

// TestWithoutAKeyItIsSaidWhichAndEndedWhenTheKeyReturns also across a restart, which forgets the key.
func TestWithoutAKeyItIsSaidWhichAndEndedWhenTheKeyReturns(t *testing.T) {
	var (
		all    []*plot
		offers []market.Offer
	)
	for i, sit := range situations {
		p, o := plots(10+i, sit, [][]string{{"Secret", "claim", "pool", "entry"}})
		all, offers = append(all, p...), append(offers, o...)
	}
	s := newStage(t, offers)
	s.launch()
	for _, p := range all {
		s.lay(p)
	}
	for _, p := range all {
		s.await(p)
	}
	s.stop()
	for _, p := range all {
		for _, what := range p.order {
			s.undo(p, what)
		}
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

// TestTheCRDsAreDeleted in either order: their objects hold them until the last machine is gone.
func TestTheCRDsAreDeleted(t *testing.T) {
	for _, order := range [][]string{{"gpunodeclaims", "gpunodepools"}, {"gpunodepools", "gpunodeclaims"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			p, offers := plots(1, situations[5], [][]string{nil})
			s := newStage(t, append(offers, offer("9001")), privateCluster())
			s.launch()
			s.lay(p[0])
			s.await(p[0])
			for _, plural := range order {
				crd := &unstructured.Unstructured{}
				crd.SetGroupVersionKind(crdKind)
				crd.SetName(plural + ".gpuscale.io")
				s.delete(crd)
			}
			s.eventually("the CRDs and the machine are gone", func() error {
				for _, plural := range order {
					crd := &unstructured.Unstructured{}
					crd.SetGroupVersionKind(crdKind)
					if err := s.client.Get(s.ctx, client.ObjectKey{Name: plural + ".gpuscale.io"}, crd); !apierrors.IsNotFound(err) {
						return fmt.Errorf("%s is left (%w)", plural, err)
					}
				}
				if n := len(s.live()); n > 0 {
					return fmt.Errorf("%d machines", n)
				}
				return nil
			})
			// Nothing is bought without them either, though the pod still asks.
			time.Sleep(time.Second)
			if n := len(s.live()); n > 0 {
				t.Errorf("%d machines", n)
			}
		})
	}
}
