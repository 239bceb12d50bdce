package claim

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/pkg/provider"
)

// leased records with what lease the instance is bought.
func (v *visit) leased(caps provider.Capabilities) {
	v.claim.Status.Lease, v.claim.Status.LastContactAt = nil, nil
	if v.Lease > 0 && caps.SelfEnd != provider.SelfEndNone {
		v.claim.Status.Lease = &v1alpha1.Duration{Duration: v.Lease}
	}
}

// contactsPerLease is how many times within a lease the time of the latest answer is written down. It is what a controller
// that was away has to go by, and not worth a write at every look.
const contactsPerLease = 8

// contacted records that the worker answered, and so began its lease anew.
func (v *visit) contacted() {
	s, now := &v.claim.Status, v.now()
	if lease := s.Lease.Or(0); lease > 0 && (s.LastContactAt == nil || now.Sub(s.LastContactAt.Time) >= lease/contactsPerLease) {
		s.LastContactAt = &metav1.MicroTime{Time: now}
	}
}

// lapsed says why an instance that is gone may have ended its own rental; empty when it cannot have. It cannot when this
// controller was there and got no answer: the machine was unreachable then, which is its own fault.
func (v *visit) lapsed() string {
	s := v.claim.Status
	last := v.createdAt()
	if s.LastContactAt != nil {
		last = s.LastContactAt.Time
	}
	lease := s.Lease.Or(0)
	if lease <= 0 || v.now().Sub(last) < lease {
		return ""
	}
	silent := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAgentConnected)
	if silent != nil && silent.Status == metav1.ConditionFalse && v.now().Sub(silent.LastTransitionTime.Time) >= lease/2 {
		return ""
	}
	return fmt.Sprintf("this controller last reached the worker at %s, and after %s without a call it ends its own rental",
		last.UTC().Format(time.RFC3339), v1alpha1.FormatDuration(lease))
}

// lost ends the claim of an instance that is there no more. Nobody is to blame for one whose lease had run out.
func (v *visit) lost(reason, message string) {
	if why := v.lapsed(); why != "" {
		v.fail("Run", v1alpha1.ReasonLeaseExpired, v1alpha1.CulpritNone, message+"; "+why)
		return
	}
	v.fail("Run", reason, v.blame(), message)
}

// leaving ends the claim of a worker that says that it is ending its own rental.
func (v *visit) leaving(l *agentapi.Lease) {
	if l != nil && l.Granted {
		v.fail("Run", v1alpha1.ReasonLeaseExpired, v1alpha1.CulpritNone, fmt.Sprintf(
			"nobody called the worker for %s, and it has asked %s to end the rental", time.Duration(l.Seconds)*time.Second, v.claim.Status.Provider))
	}
}
