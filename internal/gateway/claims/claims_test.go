package claims_test

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/gateway/claims"
	"github.com/munhq/gpuscale/internal/gateway/registry"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/pkg/money"
)

func TestMain(m *testing.M) { localkubetest.Main(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// claim is one that serves m, changed.
func claim(name string, change func(*v1alpha1.GPUNodeClaim)) v1alpha1.GPUNodeClaim {
	c := v1alpha1.GPUNodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-1"},
		Spec: v1alpha1.GPUNodeClaimSpec{
			Pool:      "p",
			Providers: []v1alpha1.ProviderSpec{{Name: "vast.ai", MaxPrice: must(money.Parse("0.5"))}},
			MaxPrice:  must(money.Parse("0.5")),
			Placements: []v1alpha1.Placement{{Workload: "m", Source: "s", GPUs: 1, GPUFraction: 1000,
				Since: metav1.NewTime(time.Unix(1000, 0))}},
		},
		Status: v1alpha1.GPUNodeClaimStatus{
			Phase: v1alpha1.PhaseReady, Endpoint: "10.0.0.1:9443",
			Models: []v1alpha1.ModelStatus{{Name: "m", State: v1alpha1.ModelReady}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionEndpointPublished, Status: metav1.ConditionTrue,
				Reason: "Published", LastTransitionTime: metav1.NewTime(time.Unix(1000, 0))}},
		},
	}
	if change != nil {
		change(&c)
	}
	return c
}

func TestSnapshot(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	ready := registry.Worker{Claim: "c", ClaimUID: "uid-1", Endpoint: "10.0.0.1:9443", Models: map[string]registry.State{"m": registry.Ready}}
	with := func(models map[string]registry.State) []registry.Worker {
		w := ready
		w.Models = models
		return []registry.Worker{w}
	}
	known := func(stage string) []registry.Known { return []registry.Known{{Name: "m", Stage: stage}} }
	for name, c := range map[string]struct {
		change  func(*v1alpha1.GPUNodeClaim)
		workers []registry.Worker
		models  []registry.Known
	}{
		"serves": {nil, []registry.Worker{ready}, nil},
		"serves what is not wanted there": {func(c *v1alpha1.GPUNodeClaim) {
			c.CreationTimestamp, c.Status.Unwanted = now, []v1alpha1.UnwantedModel{{Workload: "m"}}
		}, []registry.Worker{{Claim: "c", ClaimUID: "uid-1", Endpoint: "10.0.0.1:9443", Models: ready.Models, Since: now.Time,
			Spare: map[string]bool{"m": true}}}, nil},
		"loads another": {func(c *v1alpha1.GPUNodeClaim) { c.Status.Models[0].State = "Loading" }, with(map[string]registry.State{"m": "Loading"}), nil},
		"agent has not said": {func(c *v1alpha1.GPUNodeClaim) { c.Status.Models = nil },
			with(map[string]registry.State{"m": "Pending"}), nil},
		"agent says more than it was given": {func(c *v1alpha1.GPUNodeClaim) {
			c.Status.Models = append(c.Status.Models, v1alpha1.ModelStatus{Name: "theirs", State: v1alpha1.ModelReady})
		}, []registry.Worker{ready}, nil},
		"not published": {func(c *v1alpha1.GPUNodeClaim) { c.Status.Conditions[0].Status = metav1.ConditionFalse }, nil, known("Ready on c")},
		"no endpoint":   {func(c *v1alpha1.GPUNodeClaim) { c.Status.Endpoint = "" }, nil, known("Ready on c")},
		"boots":         {func(c *v1alpha1.GPUNodeClaim) { c.Status.Phase = v1alpha1.PhaseBootstrapping }, nil, known("Bootstrapping on c")},
		"new":           {func(c *v1alpha1.GPUNodeClaim) { c.Status = v1alpha1.GPUNodeClaimStatus{} }, nil, known("Pending on c")},
		"loads": {func(c *v1alpha1.GPUNodeClaim) {
			c.Status.Phase, c.CreationTimestamp = v1alpha1.PhaseBootstrapping, now
			c.Status.Models[0].State = v1alpha1.ModelLoading
		}, nil, []registry.Known{{Name: "m", Stage: "Bootstrapping, model Loading, on c", Since: now.Time}}},
		"drains":        {func(c *v1alpha1.GPUNodeClaim) { c.Status.Phase = v1alpha1.PhaseDraining }, nil, known("the machine of c ends")},
		"gone":          {func(c *v1alpha1.GPUNodeClaim) { c.Status.Phase = v1alpha1.PhaseTerminated }, nil, known("the machine of c ends")},
		"being deleted": {func(c *v1alpha1.GPUNodeClaim) { c.DeletionTimestamp = &now }, nil, known("the machine of c ends")},
		"drains, unwanted": {func(c *v1alpha1.GPUNodeClaim) {
			c.Status.Phase = v1alpha1.PhaseDraining
			c.Status.DemandEndedAt = &metav1.MicroTime{Time: now.Time}
		}, nil, nil},
		"drains, wanted by others": {func(c *v1alpha1.GPUNodeClaim) {
			c.Status.Phase = v1alpha1.PhaseDraining
			c.Status.Unwanted = []v1alpha1.UnwantedModel{{Workload: "m"}}
		}, nil, nil},
	} {
		got := claims.Snapshot([]v1alpha1.GPUNodeClaim{claim("c", c.change)}, nil)
		if want := (registry.Snapshot{Workers: c.workers, Models: c.models}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, want)
		}
	}
	pools := []v1alpha1.GPUNodePool{
		{Spec: v1alpha1.GPUNodePoolSpec{Models: []v1alpha1.PoolModel{{Name: "cold"}, {Name: "m", TargetConcurrency: ptr.To[int32](9)}}}},
		{Spec: v1alpha1.GPUNodePoolSpec{Models: []v1alpha1.PoolModel{{Name: "m", TargetConcurrency: ptr.To[int32](5)}}}},
		{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Spec: v1alpha1.GPUNodePoolSpec{Models: []v1alpha1.PoolModel{{Name: "leaving"}}}},
	}
	boots := claim("c", func(c *v1alpha1.GPUNodeClaim) { c.Status.Phase = v1alpha1.PhaseProvisioning })
	got := claims.Snapshot([]v1alpha1.GPUNodeClaim{boots}, pools)
	slices.SortFunc(got.Models, func(a, b registry.Known) int { return strings.Compare(a.Name, b.Name) })
	if want := []registry.Known{{Name: "cold"}, {Name: "m", Stage: "Provisioning on c", Target: 9}}; !reflect.DeepEqual(got.Models, want) {
		t.Errorf("pools' models: got %v, want %v", got.Models, want)
	}
}

func TestOfSeveralClaimsTheEarliestIsWaitedFor(t *testing.T) {
	at := func(name string, created int64, phase v1alpha1.Phase) v1alpha1.GPUNodeClaim {
		return claim(name, func(c *v1alpha1.GPUNodeClaim) {
			c.CreationTimestamp, c.Status.Phase = metav1.NewTime(time.Unix(created, 0)), phase
		})
	}
	for _, list := range [][]v1alpha1.GPUNodeClaim{
		{at("late", 200, v1alpha1.PhasePending), at("early", 100, v1alpha1.PhaseProvisioning), at("old", 50, v1alpha1.PhaseDraining)},
		{at("old", 50, v1alpha1.PhaseDraining), at("early", 100, v1alpha1.PhaseProvisioning), at("late", 200, v1alpha1.PhasePending)},
	} {
		got := claims.Snapshot(list, nil).Models
		if want := []registry.Known{{Name: "m", Stage: "Provisioning on early", Since: time.Unix(100, 0)}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%+v", got)
		}
	}
}

func TestBootsAreOfWhatAClaimWasBoughtFor(t *testing.T) {
	c := claim("c", func(c *v1alpha1.GPUNodeClaim) {
		c.CreationTimestamp = metav1.NewTime(time.Unix(900, 0))
		c.Status.Steps = []v1alpha1.Step{{Name: "InstanceCreated", At: metav1.NewMicroTime(time.Unix(910, 0))},
			{Name: "Ready", At: metav1.NewMicroTime(time.Unix(1030, 0))}}
		c.Spec.Placements = append(c.Spec.Placements, v1alpha1.Placement{Workload: "moved", Since: metav1.NewTime(time.Unix(2000, 0))})
	})
	want := []registry.Boot{{ClaimUID: "uid-1", Model: "m", Took: 130 * time.Second}}
	if got := claims.Snapshot([]v1alpha1.GPUNodeClaim{c}, nil).Boots; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// line is the network to the API server, which a test can cut.
type line struct {
	mu      sync.Mutex
	cut     bool
	refused int
	conns   []net.Conn
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		l.refused++
		return nil, errors.New("the line is cut")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	l.conns = append(l.conns, conn)
	return conn, err
}

func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func (l *line) tries() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

func TestFollowsTheClusterAndKeepsTheLastKnown(t *testing.T) {
	cluster := localkubetest.Start(t, localkubetest.Private())
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := must(client.New(cluster.Config(), client.Options{Scheme: scheme}))
	network := &line{}
	config := cluster.Config()
	config.Dial = network.dial
	reg := start(t, must(claims.OpenCache(config)))

	eventually(t, "an empty cluster is a picture too", reg.Synced)
	pool := &v1alpha1.GPUNodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.GPUNodePoolSpec{
		Providers: claim("c", nil).Spec.Providers, Models: []v1alpha1.PoolModel{{Name: "cold"}},
		Limits: v1alpha1.Limits{MaxCostPerHour: must(money.Parse("1"))}}}
	if err := api.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	first := create(t, api, "first")
	eventually(t, "the models are known", func() bool { return len(reg.Models()) == 2 })
	eventually(t, "the worker serves", func() bool { return serves(reg, string(first.UID)) })

	network.set(true)
	second := create(t, api, "second")
	if err := api.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has tried to watch again", func() bool { return network.tries() > 4 })
	if !serves(reg, string(first.UID)) || serves(reg, string(second.UID)) || len(reg.Models()) != 2 {
		t.Errorf("with the API server away: %v", reg.Models())
	}
	network.set(false)
	eventually(t, "it has caught up", func() bool { return serves(reg, string(second.UID)) && !serves(reg, string(first.UID)) })
}

// start runs a source over c until the test ends, and checks that both end well.
func start(t *testing.T, c cache.Cache) *registry.Registry {
	t.Helper()
	reg := registry.New(clock.RealClock{}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := claims.New(c).Run(ctx, reg.Apply); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	return reg
}

func create(t *testing.T, api client.Client, name string) *v1alpha1.GPUNodeClaim {
	t.Helper()
	c := claim(name, nil)
	c.UID = ""
	status := c.Status
	if err := api.Create(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	c.Status = status
	if err := api.Status().Update(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func serves(reg *registry.Registry, uid string) bool {
	_, known := reg.Outstanding()[uid]
	return known
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}
