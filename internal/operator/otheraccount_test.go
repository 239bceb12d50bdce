package operator_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

const (
	// rotatedKey is another key of simKey's account, theirKey one of another account.
	rotatedKey = "sim-key-rotated-0123"
	theirKey   = "sim-key-of-others-45"
	simAccount = "10001"
	hisAccount = "20002"
)

// rekey replaces the key in a plot's Secret.
func (s *stage) rekey(p *plot, key string) {
	s.t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		secret := &corev1.Secret{}
		if err := s.client.Get(s.ctx, client.ObjectKey{Namespace: secretNS, Name: p.secret}, secret); err != nil {
			return err
		}
		secret.Data = map[string][]byte{"VASTAI_API_KEY": []byte(key)}
		return s.client.Update(s.ctx, secret)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// says waits for the plot's one claim to have a condition with a reason and these parts in its message.
func (s *stage) says(p *plot, condition, reason string, parts ...string) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s in %s says %s", p.name, p.region, reason), func() error {
		claims := s.claimsOf(p)
		if len(claims) != 1 {
			return fmt.Errorf("%d claims", len(claims))
		}
		c := meta.FindStatusCondition(claims[0].Status.Conditions, condition)
		if c == nil || c.Reason != reason {
			return fmt.Errorf("%s is %+v", condition, c)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("%q lacks %q", c.Message, part)
			}
		}
		return nil
	})
}

// scenes are one plot in each situation, in a range of machines of their own.
func scenes(from int, which ...situation) (all []*plot, offers []market.Offer) {
	for i, sit := range which {
		p, o := plots(from+i, sit, [][]string{nil})
		all, offers = append(all, p...), append(offers, o...)
	}
	return all, offers
}

// TestAnotherAccountsKeyEndsNothing: the Secret's key is replaced by one of another account, and the controller forgets
// the old one. To that account no machine of the first exists. Nothing of it is called gone or bought again, whatever the
// phase; it is said whose key is needed; and all of it ends when that is back.
func TestAnotherAccountsKeyEndsNothing(t *testing.T) {
	all, offers := scenes(20, situations[1:]...)
	s := newStage(t, offers)
	s.launch()
	for _, p := range all {
		s.lay(p)
	}
	for _, p := range all {
		s.await(p)
		if got := s.claimsOf(p)[0].Status.AccountID; got != simAccount {
			t.Errorf("%s: bought with account %q", p.name, got)
		}
	}
	s.stop()
	for _, p := range all {
		s.rekey(p, theirKey)
		s.release(p.region)
	}
	rented := len(s.rented())
	s.launch()
	for _, p := range all {
		condition := v1alpha1.ConditionInstanceRunning
		switch p.phase {
		case v1alpha1.PhaseDraining:
			condition = v1alpha1.ConditionInstanceGone
		case v1alpha1.PhaseProvisioning:
			if p.situation.region != wellMeant {
				condition = v1alpha1.ConditionInstanceCreated
			}
		}
		s.says(p, condition, v1alpha1.ReasonOtherAccount, "account "+simAccount, "account "+hisAccount, secretNS+"/"+p.secret)
	}
	ready := all[4]
	s.says(ready, v1alpha1.ConditionReady, v1alpha1.ReasonServing) // what serves goes on serving
	s.event("GPUNodeClaim", v1alpha1.ReasonOtherAccount)
	for _, p := range all {
		s.undo(p, "claim")
	}
	for _, p := range all {
		status := s.claimsOf(p)[0].Status
		which := cmp.Or(status.InstanceID, status.Attempt.Token)
		s.says(p, v1alpha1.ConditionInstanceGone, v1alpha1.ReasonOtherAccount, which, "account "+simAccount)
	}
	s.unharmed("another account's key", rented)
	s.rentedAtMost(rented)
	for _, in := range s.rented() {
		if in.Account != "vast-"+simAccount {
			t.Errorf("%s was rented with another account", in.ID)
		}
	}
	for _, p := range all {
		s.undo(p, "pool")
		s.rekey(p, rotatedKey) // the account's key returns, if not the same one
	}
	s.empty(all)
}

// TestAKeyRotatedWithinTheAccountChangesNothing across a restart, with an instance that serves and one in mid-create.
func TestAKeyRotatedWithinTheAccountChangesNothing(t *testing.T) {
	all, offers := scenes(30, situations[1], situations[5])
	s := newStage(t, offers)
	s.launch()
	for _, p := range all {
		s.lay(p)
	}
	for _, p := range all {
		s.await(p)
	}
	uids := map[string]bool{}
	for _, p := range all {
		uids[string(s.claimsOf(p)[0].UID)] = true
	}
	s.stop()
	for _, p := range all {
		s.rekey(p, rotatedKey)
		s.release(p.region)
	}
	s.launch()
	for _, p := range all {
		s.says(p, v1alpha1.ConditionReady, v1alpha1.ReasonServing)
		if !uids[string(s.claimsOf(p)[0].UID)] || s.liveOf(p) != 1 {
			t.Errorf("%s: replaced, or %d live", p.name, s.liveOf(p))
		}
	}
	s.unharmed("a rotated key", len(all))
	s.rentedAtMost(len(all))
	for _, p := range all {
		s.undo(p, "claim")
		s.undo(p, "pool")
	}
	s.empty(all)
}

// TestAClaimFromBeforeAccountsWereToldEndsAsBefore, and learns its account from the first key that shows its instance.
func TestAClaimFromBeforeAccountsWereToldEndsAsBefore(t *testing.T) {
	all, offers := scenes(40, situations[5], situations[5])
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
		c := s.claimsOf(p)[0]
		c.Status.AccountID = ""
		if err := s.client.Status().Update(s.ctx, &c); err != nil {
			t.Fatal(err)
		}
	}
	s.undo(all[0], "claim")
	s.launch()
	s.eventually("its account is learnt", func() error {
		if got := s.claimsOf(all[1])[0].Status.AccountID; got != simAccount {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	for _, p := range all {
		s.undo(p, "claim")
		s.undo(p, "pool")
	}
	s.empty(all)
}
