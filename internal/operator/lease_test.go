package operator_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// caller is a gateway as workers know one, which calls the worker of one claim.
type caller struct {
	*workerclient.Client
	t        *testing.T
	uid      string
	endpoint string
}

func (w *world) caller(claim v1alpha1.GPUNodeClaim) *caller {
	w.t.Helper()
	id, err := identity.Ensure(w.ctx, w.client, w.client, secretNS, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := id.CA.Client(agentapi.RoleGateway, time.Hour, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := workerclient.New(pair, id.CAPEM)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return &caller{c, w.t, string(claim.UID), claim.Status.Endpoint}
}

// stream asks for so many tokens and returns once the first is there; the rest comes by the channel.
func (c *caller) stream(model string, tokens int) <-chan string {
	c.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":true,"ignore_eos":true,"messages":[{"role":"user","content":"hello"}]}`, model, tokens)
	transport, err := c.Transport(c.uid)
	if err != nil {
		c.t.Fatal(err)
	}
	// It may outlive whatever goes on around it.
	request, err := http.NewRequestWithContext(context.WithoutCancel(c.t.Context()), http.MethodPost,
		"https://"+c.endpoint+"/v1/chat/completions", bytes.NewBufferString(body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := transport.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusOK {
		c.t.Fatalf("stream: %v %v", response, err)
	}
	all := make(chan string, 1)
	go func() {
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			text = append(text, "broken: "+err.Error()...)
		}
		all <- string(text)
	}()
	return all
}

// slow makes engines write twenty tokens a second.
func slow(p *v1alpha1.GPUNodePool) {
	p.Spec.Bootstrap.Env = []v1alpha1.EnvVar{{Name: "VLLM_SIM_TOKENS_PER_SEC", Value: "20"}}
}

// TestTheBillEndsByItself ends the controllers for good: the worker outlives its lease for as long as a gateway calls or a
// request streams, and then ends its own rental. A controller that comes back closes the claim and blames nobody: on the one
// machine that there is the model is served again at once.
func TestTheBillEndsByItself(t *testing.T) {
	const lease = 2 * time.Second
	s := newStage(t, []market.Offer{offer("1001")})
	s.cfg.WorkerLease = lease
	s.launch()
	s.pool(slow)
	pod := s.pod("acme/tiny")
	s.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	for watched := time.Now(); time.Since(watched) < 2*lease; time.Sleep(50 * time.Millisecond) {
		s.mustLive(1, "while the controller calls")
	}
	claim := s.claims()[0]
	if claim.Status.Lease.Or(0) != lease || claim.Status.LastContactAt == nil {
		t.Errorf("the claim has lease %v, last contact %v", claim.Status.Lease, claim.Status.LastContactAt)
	}
	s.stop()

	gateway := s.caller(claim)
	for began := time.Now(); time.Since(began) < 2*lease; time.Sleep(lease / 4) {
		if _, err := gateway.Status(t.Context(), gateway.endpoint, gateway.uid); err != nil {
			t.Fatal(err)
		}
		s.mustLive(1, "while the gateway calls")
	}
	began := time.Now()
	answer := <-gateway.stream("acme/tiny", 100)
	if took := time.Since(began); took < 2*lease || !strings.Contains(answer, "[DONE]") {
		t.Fatalf("a stream of %s ended with %q", took, answer[max(0, len(answer)-100):])
	}
	s.mustLive(1, "when the stream had ended")

	quiet := time.Now()
	s.eventually("the worker ends its own rental", func() error {
		if n := len(s.live()); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	if took := time.Since(quiet); took < lease*9/10 {
		t.Errorf("it ended after %s without a call, its lease is %s", took, lease)
	}
	if all := s.rented(); len(all) != 1 || all[0].EndedBy != "instance" {
		t.Errorf("rented %d, ended by %q", len(all), all[0].EndedBy)
	}

	s.launch()
	s.failed(v1alpha1.ReasonLeaseExpired, v1alpha1.CulpritNone)
	s.eventually("the same machine is rented again", func() error {
		if n := len(s.rented()); n != 2 {
			return fmt.Errorf("%d rented", n)
		}
		return nil
	})
	s.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	end := s.watch.Ended()[0]
	if gone := meta.FindStatusCondition(end.Status.Conditions, v1alpha1.ConditionInstanceGone); gone == nil || gone.Reason != v1alpha1.ReasonGone {
		t.Errorf("InstanceGone is %+v", gone)
	}
	s.machines("1001", "1001")
	l, err := ledger.Open(t.Context(), s.cfg.LedgerURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s.eventually("the ledger says why", func() error {
		row, err := l.Get(t.Context(), end.Status.Attempt.Token)
		if err != nil {
			return err
		}
		if row.EndReason != v1alpha1.ReasonLeaseExpired || row.GoneAt == nil {
			return fmt.Errorf("reason %q, gone %v", row.EndReason, row.GoneAt)
		}
		return nil
	})
	s.remove(pod)
	s.eventually("the claim is gone", func() error {
		if n := len(s.claims()) + len(s.live()); n > 0 {
			return fmt.Errorf("%d claims and instances", n)
		}
		return nil
	})
}

func (w *world) mustLive(n int, when string) {
	w.t.Helper()
	if got := len(w.live()); got != n {
		w.t.Fatalf("%d live %s, want %d\n%s", got, when, n, w.dump())
	}
}
