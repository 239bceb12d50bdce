package claim

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/pkg/provider"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// visitAt is a visit to a claim whose instance was made at noon with a lease of an hour.
func visitAt(after time.Duration) *visit {
	c := &v1alpha1.GPUNodeClaim{}
	c.Status.Provider, c.Status.Lease = "vast.ai", &v1alpha1.Duration{Duration: time.Hour}
	c.Status.Steps = []v1alpha1.Step{{Name: stepCreated, At: metav1.NewMicroTime(noon)}}
	return newVisit(&Reconciler{Clock: clocktesting.NewFakeClock(noon.Add(after)), Events: events.NewFakeRecorder(10)}, c)
}

// TestWhoIsToBlameForAnInstanceThatIsGone: nobody, where it can have ended its own rental.
func TestWhoIsToBlameForAnInstanceThatIsGone(t *testing.T) {
	contact := func(after time.Duration) func(*v1alpha1.GPUNodeClaimStatus) {
		return func(s *v1alpha1.GPUNodeClaimStatus) { s.LastContactAt = &metav1.MicroTime{Time: noon.Add(after)} }
	}
	silentSince := func(after time.Duration) func(*v1alpha1.GPUNodeClaimStatus) {
		return func(s *v1alpha1.GPUNodeClaimStatus) {
			s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAgentConnected, Status: metav1.ConditionFalse,
				Reason: v1alpha1.ReasonAgentUnreachable, LastTransitionTime: metav1.NewTime(noon.Add(after))}}
		}
	}
	for name, tt := range map[string]struct {
		at     time.Duration
		change []func(*v1alpha1.GPUNodeClaimStatus)
		nobody bool
	}{
		"never called for a lease":          {61 * time.Minute, nil, true},
		"never called, too early":           {59 * time.Minute, nil, false},
		"called a lease ago":                {5 * time.Hour, []func(*v1alpha1.GPUNodeClaimStatus){contact(4 * time.Hour)}, true},
		"called less than a lease ago":      {5 * time.Hour, []func(*v1alpha1.GPUNodeClaimStatus){contact(4*time.Hour + time.Minute)}, false},
		"no lease":                          {5 * time.Hour, []func(*v1alpha1.GPUNodeClaimStatus){func(s *v1alpha1.GPUNodeClaimStatus) { s.Lease = nil }}, false},
		"we called and it never answered":   {5 * time.Hour, []func(*v1alpha1.GPUNodeClaimStatus){contact(time.Hour), silentSince(time.Hour)}, false},
		"we came back and it has just gone": {5 * time.Hour, []func(*v1alpha1.GPUNodeClaimStatus){contact(time.Hour), silentSince(5 * time.Hour)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := visitAt(tt.at)
			for _, change := range tt.change {
				change(&v.claim.Status)
			}
			v.lost(v1alpha1.ReasonInstanceLost, "gone")
			reason, culprit := v1alpha1.ReasonInstanceLost, v1alpha1.CulpritOffer
			if tt.nobody {
				reason, culprit = v1alpha1.ReasonLeaseExpired, v1alpha1.CulpritNone
			}
			if f := v.claim.Status.Failure; f.Reason != reason || f.Culprit != culprit {
				t.Errorf("%s blamed on %s, want %s on %s", f.Reason, f.Culprit, reason, culprit)
			}
		})
	}
}

// TestContactIsWrittenNowAndThen, not at every look.
func TestContactIsWrittenNowAndThen(t *testing.T) {
	v := visitAt(0)
	clock := v.Clock.(*clocktesting.FakeClock)
	written := 0
	for range 720 { // an hour of looks
		before := v.claim.Status.LastContactAt
		v.contacted()
		if v.claim.Status.LastContactAt != before {
			written++
		}
		clock.Step(5 * time.Second)
	}
	if written != contactsPerLease {
		t.Errorf("written %d times in a lease, want %d", written, contactsPerLease)
	}
}

func TestWhatAnAgentAnnounces(t *testing.T) {
	at := noon.Add(2 * time.Minute)
	for name, tt := range map[string]struct {
		notice         *agentapi.Notice
		lease          *agentapi.Lease
		status, reason string // of Interrupted
		failure        string
		culprit        v1alpha1.Culprit
		until          bool
	}{
		"nothing":             {},
		"taken at a time":     {notice: &agentapi.Notice{Kind: agentapi.NoticeInterrupted, At: &at}, status: "True", reason: v1alpha1.ReasonInterruptionNotice, failure: v1alpha1.ReasonInterruptionNotice, culprit: v1alpha1.CulpritOffer, until: true},
		"taken at any moment": {notice: &agentapi.Notice{Kind: agentapi.NoticeInterrupted}, status: "True", reason: v1alpha1.ReasonInterruptionNotice, failure: v1alpha1.ReasonInterruptionNotice, culprit: v1alpha1.CulpritOffer},
		"maintenance":         {notice: &agentapi.Notice{Kind: agentapi.NoticeMaintenance}, status: "True", reason: v1alpha1.ReasonInterruptionNotice, failure: v1alpha1.ReasonInterruptionNotice, culprit: v1alpha1.CulpritOffer},
		"a hint":              {notice: &agentapi.Notice{Kind: agentapi.NoticeRebalance}, status: "False", reason: v1alpha1.ReasonRebalanceRecommended},
		"a word of next year": {notice: &agentapi.Notice{Kind: "teleport"}},
		"lease held":          {lease: &agentapi.Lease{State: agentapi.LeaseHeld, Tries: 3}},
		"end refused so far":  {lease: &agentapi.Lease{State: agentapi.LeaseEnding}},
		"end granted":         {lease: &agentapi.Lease{State: agentapi.LeaseEnding, Granted: true}, failure: v1alpha1.ReasonLeaseExpired, culprit: v1alpha1.CulpritNone},
	} {
		t.Run(name, func(t *testing.T) {
			v := visitAt(0)
			v.leaving(tt.lease)
			v.noticed(tt.notice)
			c := meta.FindStatusCondition(v.claim.Status.Conditions, v1alpha1.ConditionInterrupted)
			if c == nil {
				c = &metav1.Condition{}
			}
			if string(c.Status) != tt.status || c.Reason != tt.reason {
				t.Errorf("Interrupted is %s %s, want %s %s", c.Status, c.Reason, tt.status, tt.reason)
			}
			f := v.claim.Status.Failure
			if f == nil {
				f = &v1alpha1.Failure{}
			}
			if f.Reason != tt.failure || f.Culprit != tt.culprit || v.strikes(*f) && tt.culprit == v1alpha1.CulpritOffer {
				t.Errorf("failure %+v, want %s of %s, and no strike against a model", f, tt.failure, tt.culprit)
			}
			if got := v.claim.Status.ReclaimAt; (got != nil) != tt.until || got != nil && !got.Time.Equal(at) {
				t.Errorf("taken at %v", got)
			}
		})
	}
}

// TestWhenAHostLeaves: its claim ends just as long before as requests may run on, and a quarter of an hour at the most.
func TestWhenAHostLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		ends, drain time.Duration // 0: no end, the default
		acts        bool
	}{
		"no end":                    {0, 0, false},
		"a year":                    {365 * 24 * time.Hour, 0, false},
		"too early by default":      {5*time.Minute + time.Second, 0, false},
		"by default":                {5 * time.Minute, 0, true},
		"too early for the pool":    {2 * time.Minute, time.Minute, false},
		"as long as the pool gives": {10 * time.Minute, 10 * time.Minute, true},
		"a pool that gives a day":   {16 * time.Minute, 24 * time.Hour, false},
		"and a quarter of an hour":  {15 * time.Minute, 24 * time.Hour, true},
		"over, and it runs on":      {-time.Second, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := visitAt(time.Hour)
			pool := &v1alpha1.GPUNodePool{}
			pool.Name, v.claim.Spec.Pool = "p", "p"
			if tt.drain > 0 {
				pool.Spec.Scaling.DrainTimeout = &v1alpha1.Duration{Duration: tt.drain}
			}
			v.Client = pools{pool: pool}
			in := provider.Instance{State: provider.StateRunning}
			if tt.ends != 0 {
				in.EndsAt = v.now().Add(tt.ends)
			}
			v.hostLeaves(t.Context(), in)
			f := v.claim.Status.Failure
			if acts := f != nil && f.Reason == v1alpha1.ReasonInterruptionNotice && f.Culprit == v1alpha1.CulpritOffer; acts != tt.acts || !acts && f != nil {
				t.Errorf("failure %+v", f)
			}
			if at := v.claim.Status.ReclaimAt; (at != nil) != tt.acts || at != nil && !at.Time.Equal(in.EndsAt) {
				t.Errorf("it leaves at %s, the claim says %v", in.EndsAt, at)
			}
		})
	}
}

// pools is an API server with one pool.
type pools struct {
	client.Client
	pool *v1alpha1.GPUNodePool
}

func (p pools) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	*into.(*v1alpha1.GPUNodePool) = *p.pool
	return nil
}
