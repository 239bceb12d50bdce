package operator_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// TestAnAgentThatCannotBeFetchedBuysNothing: a machine that cannot fetch its agent would bill until its boot times out,
// so the pool that names it rests before one is bought, and buys once the file is there.
func TestAnAgentThatCannotBeFetchedBuysNothing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent-amd64" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "agent")
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256([]byte("agent"))
	names := func(path, hash string) func(*v1alpha1.GPUNodePool) {
		return func(p *v1alpha1.GPUNodePool) {
			p.Spec.Bootstrap.AgentURL, p.Spec.Bootstrap.AgentSHA256 = server.URL+path, hash
		}
	}
	w := start(t, []market.Offer{offer("1001")})
	pool := w.pool(names("/agent-{arch}", hex.EncodeToString(sum[:])))
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonResting, "/agent-amd64 is not there: the server answers 404")
	w.event("GPUNodeClaim", v1alpha1.ReasonAgentUnavailable)
	w.rentedAtMost(0)

	w.edit(pool, names("/mistaken", strings.Repeat("0", 64)))
	w.podSays(pod, corev1.ConditionFalse, v1alpha1.PodReasonResting, "has SHA-256 "+hex.EncodeToString(sum[:]))
	w.rentedAtMost(0)

	// The change of the pool ends its rest.
	w.edit(pool, names("/mended", hex.EncodeToString(sum[:])))
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
}

// edit changes the pool as a person would.
func (w *world) edit(pool *v1alpha1.GPUNodePool, edit func(*v1alpha1.GPUNodePool)) {
	w.t.Helper()
	w.eventually("the pool changes", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		edit(pool)
		return w.client.Update(w.ctx, pool)
	})
}
