package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/money"
)

// TestEditsOfAPoolAreJoined gives back fifty reservations while the first of them is being written.
func TestEditsOfAPoolAreJoined(t *testing.T) {
	const claims = 50
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	for i := range claims {
		pool.Status.Reservations = append(pool.Status.Reservations, v1alpha1.Reservation{Claim: fmt.Sprint("c", i), DollarsPerHour: money.MustParse("0.10"), GPUs: 1})
	}
	var (
		mu      sync.Mutex
		updates int
		failing error
		hold    = make(chan struct{})
		first   = make(chan struct{})
		once    sync.Once
	)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).WithStatusSubresource(pool).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			once.Do(func() { close(first); <-hold })
			mu.Lock()
			updates++
			err := failing
			mu.Unlock()
			if err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}).Build()
	var e poolEditor
	release := func(name string) error {
		return e.edit(t.Context(), c, c, "p", func(p *v1alpha1.GPUNodePool) bool { return reserve.Release(p, name) })
	}
	var all sync.WaitGroup
	give := func(name string) {
		all.Go(func() {
			if err := release(name); err != nil {
				t.Error(err)
			}
		})
	}
	give("c0")
	<-first
	for i := 1; i < claims; i++ {
		give(fmt.Sprint("c", i))
	}
	for waits := 0; waits < claims-1; {
		e.mu.Lock()
		waits = len(e.waiting["p"])
		e.mu.Unlock()
	}
	close(hold)
	all.Wait()
	left := &v1alpha1.GPUNodePool{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), left); err != nil {
		t.Fatal(err)
	}
	if len(left.Status.Reservations) != 0 || updates != 2 {
		t.Errorf("%d reservations are left after %d updates", len(left.Status.Reservations), updates)
	}

	// Nothing to change is nothing to write; a pool that is gone has nothing; what fails is told.
	if err := release("c0"); err != nil || updates != 2 {
		t.Error(err, updates)
	}
	if err := e.edit(t.Context(), c, c, "gone", func(*v1alpha1.GPUNodePool) bool { return true }); err != nil {
		t.Error(err)
	}
	failing = errors.New("refused")
	if err := e.edit(t.Context(), c, c, "p", func(*v1alpha1.GPUNodePool) bool { return true }); !errors.Is(err, failing) {
		t.Error(err)
	}
}
