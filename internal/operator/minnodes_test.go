package operator_test

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// TestMinNodesAreBoughtKeptAndReplaced: a pool without demand has the nodes that it asks for, Ready and empty; a model goes
// on one of them at no cost and leaves it empty again; a lost one is replaced; lowered, they go.
func TestMinNodesAreBoughtKeptAndReplaced(t *testing.T) {
	w := start(t, offers(3))
	pool := w.pool(func(p *v1alpha1.GPUNodePool) {
		p.Spec.Scaling.MinNodes, p.Spec.Scaling.MaxNodes = 1, 1
		p.Spec.Scaling.CooldownPeriod.Duration = time.Second
	})
	w.ready(1)
	if c := w.claims()[0]; len(c.Spec.Placements) != 0 || c.Status.InstanceID == "" {
		t.Fatalf("%+v", c)
	}
	w.during(4*time.Second, 1, 1, "without demand")

	pod := w.pod("acme/tiny")
	w.podSays(pod, "True", v1alpha1.PodReasonServed)
	w.remove(pod)
	w.eventually("it is empty again", func() error {
		if c := w.claims()[0]; len(c.Spec.Placements) > 0 {
			return fmt.Errorf("it has %+v", c.Spec.Placements)
		}
		return nil
	})
	w.ready(1)
	w.rentedAtMost(1)

	if err := w.market.Reclaim(w.live()[0].ID); err != nil {
		t.Fatal(err)
	}
	w.failed(v1alpha1.ReasonInterrupted, v1alpha1.CulpritOffer)
	w.eventually("it is replaced", func() error {
		if n := len(w.live()); n != 1 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	w.ready(1)

	w.eventually("the pool asks for none", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		pool.Spec.Scaling.MinNodes = 0
		return w.client.Update(w.ctx, pool)
	})
	w.eventually("it is given back", func() error {
		if n := len(w.live()); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	w.rentedAtMost(2)
}
