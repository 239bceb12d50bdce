package operator_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/internal/reserve"
)

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

func privateCluster() localkubetest.Option { return localkubetest.Private() }

// tear deletes an object and its finalizers: what a person does who wants it gone and does not know what it stands for.
func (s *stage) tear(o client.Object) {
	s.t.Helper()
	s.delete(o)
	err := s.client.Patch(s.ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	if client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
}

// said waits for a warning about the installation and returns the newest.
func (s *stage) said(reason string, parts ...string) (note string) {
	s.t.Helper()
	s.eventually("the namespace says "+reason, func() error {
		var list eventsv1.EventList
		if err := s.client.List(s.ctx, &list, client.InNamespace(secretNS)); err != nil {
			return err
		}
		for _, e := range list.Items {
			ok := e.Reason == reason && e.Type == corev1.EventTypeWarning && e.Regarding.Kind == "Namespace"
			for _, part := range parts {
				ok = ok && strings.Contains(e.Note, part)
			}
			if ok {
				note = e.Note
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
	return note
}

// unharmed insists that the same machines live for some sweeps on.
func (s *stage) unharmed(what string, n int) {
	s.t.Helper()
	until := time.Now().Add(s.cfg.Sweep.MinAge + 5*s.cfg.Sweep.Period)
	for time.Now().Before(until) {
		if live := len(s.market.Books().Live()); live != n {
			s.t.Fatalf("%s: %d machines live, want %d\n%s", what, live, n, s.dump())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *stage) ready(n int) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d claims are ready", n), func() error {
		ready := 0
		for _, c := range s.claims() {
			if c.Status.Phase == v1alpha1.PhaseReady && c.DeletionTimestamp.IsZero() {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d are", ready)
		}
		return nil
	})
}

// TestTheSweepEndsWhatNoClaimAccountsFor and touches nobody else's.
func TestTheSweepEndsWhatNoClaimAccountsFor(t *testing.T) {
	s := newStage(t, []market.Offer{offer("1001"), offer("1002"), offer("1003"), offer("1004"), offer("1005"), offer("1006"), offer("1007"), offer("1008")})
	s.launch()
	pool := s.pool(func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.MaxNodes = 2 })
	s.pod("acme/one")
	s.pod("acme/two")
	s.ready(2)
	mine := s.market.Books().Live()[0]
	theirs := map[string]bool{}
	for _, label := range []string{"", "my own machine", "gs-deadbeef-0123456789abcdef", "gs-", strings.ToUpper(mine.Label)} {
		in, err := s.market.Rent(market.RentRequest{Account: mine.Account, OfferID: s.market.Offers()[0].ID, DiskGB: 10, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		theirs[in.ID] = true
	}
	s.stop() // a controller that sees the deletion before the finalizer is off ends the machine itself
	torn := s.claims()[0]
	s.tear(&torn)
	s.launch()
	s.eventually("its machine counts in the pool until it is gone", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if !reserve.HasSurplus(pool) {
			return fmt.Errorf("%+v", pool.Status.Reservations)
		}
		return nil
	})
	s.said(v1alpha1.ReasonOrphanDestroyed, torn.Status.InstanceID, torn.Status.Attempt.Token)
	s.eventually("it is gone, and forgotten", func() error {
		if err := s.client.Get(s.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		for _, in := range s.market.Books().Live() {
			if in.ID == torn.Status.InstanceID {
				return fmt.Errorf("it lives")
			}
		}
		if reserve.HasSurplus(pool) {
			return fmt.Errorf("%+v", pool.Status.Reservations)
		}
		return nil
	})
	for _, in := range s.market.Books().Instances {
		if theirs[in.ID] && in.State == market.Gone {
			t.Errorf("someone else's machine %s (%q) was destroyed", in.ID, in.Label)
		}
	}
	if peak := s.market.Books().Peak().Live - len(theirs); peak > 2 {
		t.Errorf("%d machines at once, maxNodes is 2", peak)
	}
	s.give(pool, len(theirs))
}

// give takes the pool back, so that only n machines of others are left.
func (s *stage) give(pool *v1alpha1.GPUNodePool, n int) {
	s.t.Helper()
	s.delete(pool)
	s.eventually("everything is given back", func() error {
		if live := len(s.market.Books().Live()); live != n || len(s.claims()) > 0 {
			return fmt.Errorf("%d machines, %d claims", live, len(s.claims()))
		}
		return client.IgnoreNotFound(s.client.Get(s.ctx, client.ObjectKeyFromObject(pool), pool))
	})
}

// TestASecondInstanceOfAClaimIsEnded within a sweep, and the recorded one kept.
func TestASecondInstanceOfAClaimIsEnded(t *testing.T) {
	s := newStage(t, []market.Offer{offer("1001"), offer("1002")})
	s.launch()
	pool := s.pool()
	s.pod("acme/one")
	s.ready(1)
	kept := s.market.Books().Live()[0]
	twin, err := s.market.Rent(market.RentRequest{Account: kept.Account, OfferID: s.market.Offers()[0].ID, DiskGB: 10, Label: kept.Label})
	if err != nil {
		t.Fatal(err)
	}
	s.eventually("the twin is gone", func() error {
		for _, in := range s.market.Books().Live() {
			if in.ID == twin.ID {
				return fmt.Errorf("it lives")
			}
		}
		return nil
	})
	if live := s.market.Books().Live(); len(live) != 1 || live[0].ID != kept.ID {
		t.Errorf("%d live", len(live))
	}
	s.event("GPUNodeClaim", v1alpha1.ReasonDestroying)
	s.give(pool, 0)
}

// TestAnEmptiedClusterDestroysNothingAndAlerts until a person confirms exactly this.
func TestAnEmptiedClusterDestroysNothingAndAlerts(t *testing.T) {
	s := newStage(t, []market.Offer{offer("1001"), offer("1002")})
	s.cfg.Getenv = func(name string) string { return map[string]string{"VASTAI_API_KEY": simKey}[name] }
	s.launch()
	pool := s.pool()
	pod := s.pod("acme/one")
	s.ready(1)
	s.stop()
	s.remove(pod)
	torn := s.claims()[0]
	s.tear(&torn)
	s.tear(pool)
	s.launch()
	note := s.said(v1alpha1.ReasonSweepHalted, torn.Status.InstanceID, "no GPUNodeClaim", "nothing is destroyed")
	s.unharmed("an emptied cluster", 1)
	s.confirm("0123456789ab")
	s.unharmed("a confirmation of something else", 1)
	s.confirm(regexp.MustCompile(v1alpha1.AnnotationConfirmSweep + "=([0-9a-f]+)").FindStringSubmatch(note)[1])
	s.eventually("it is destroyed when a person says so", func() error {
		if n := len(s.live()); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	s.confirm("")
}

func (s *stage) confirm(code string) {
	s.t.Helper()
	s.editCA(func(o *corev1.Secret) {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.AnnotationConfirmSweep, code)
	})
}

func (s *stage) editCA(edit func(*corev1.Secret)) {
	s.t.Helper()
	ca := &corev1.Secret{}
	if err := s.client.Get(s.ctx, client.ObjectKey{Namespace: secretNS, Name: identity.SecretCA}, ca); err != nil {
		s.t.Fatal(err)
	}
	edit(ca)
	if err := s.client.Update(s.ctx, ca); err != nil {
		s.t.Fatal(err)
	}
}

// TestAClonedInstallationDestroysNothingAndAlerts, started anew or made a clone while it runs.
func TestAClonedInstallationDestroysNothingAndAlerts(t *testing.T) {
	s := newStage(t, []market.Offer{offer("1001"), offer("1002"), offer("1003")})
	s.launch()
	pool := s.pool()
	s.pod("acme/one")
	s.pod("acme/two")
	s.ready(2)
	var cluster []byte
	s.editCA(func(o *corev1.Secret) { cluster, o.Data["cluster"] = o.Data["cluster"], []byte("another") })
	s.said(v1alpha1.ReasonSweepHalted, "InstallationCloned")
	// A machine that carries the tag and has no claim here may well have one in the installation that this was cloned from.
	mine := s.market.Books().Live()[0]
	orphan, err := s.market.Rent(market.RentRequest{Account: mine.Account, OfferID: s.market.Offers()[0].ID, DiskGB: 10,
		Label: mine.Label[:12] + "0000000000000000"})
	if err != nil {
		t.Fatal(err)
	}
	s.unharmed("a clone that runs", 3)
	s.stop()
	if err := operator.Run(s.ctx, s.cfg); err == nil || !strings.Contains(err.Error(), "InstallationCloned") {
		t.Errorf("a clone started: %v", err)
	}
	s.unharmed("a clone that was refused", 3)
	s.editCA(func(o *corev1.Secret) { o.Data["cluster"] = cluster })
	s.launch()
	s.said(v1alpha1.ReasonOrphanDestroyed, orphan.ID) // in its own cluster it is an orphan indeed
	s.give(pool, 0)
}

// TestAWrongKubeconfigDestroysNothingAndAlerts: another cluster, with this installation's key and ledger.
func TestAWrongKubeconfigDestroysNothingAndAlerts(t *testing.T) {
	s := newStage(t, []market.Offer{offer("1001"), offer("1002")})
	s.cfg.Getenv = func(name string) string { return map[string]string{"VASTAI_API_KEY": simKey}[name] }
	s.launch()
	pool := s.pool()
	s.pod("acme/one")
	s.ready(1)
	s.stop()
	wrong := newStage(t, nil, privateCluster())
	wrong.cfg.LedgerURL, wrong.cfg.Getenv, wrong.cfg.BaseURLs = s.cfg.LedgerURL, s.cfg.Getenv, s.cfg.BaseURLs
	wrong.launch()
	wrong.said(v1alpha1.ReasonSweepHalted, s.market.Books().Live()[0].ID)
	s.unharmed("a wrong kubeconfig", 1)
	wrong.stop()
	s.launch()
	s.give(pool, 0)
}
