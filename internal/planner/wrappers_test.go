package planner

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

var now = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

func dollars(s string) money.Dollars { return money.MustParse(s) }

// poolWrapper builds a pool: without changes it buys any GPU on vast.ai, spot, up to $0.50, 6 nodes and $3.00.
type poolWrapper struct{ *v1alpha1.GPUNodePool }

func makePool(name string) poolWrapper {
	return poolWrapper{&v1alpha1.GPUNodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"},
		Spec: v1alpha1.GPUNodePoolSpec{
			Providers: []v1alpha1.ProviderSpec{{Name: "vast.ai", CapacityType: "spot", MaxPrice: dollars("0.50")}},
			Scaling:   v1alpha1.Scaling{MaxNodes: 6},
			Limits:    v1alpha1.Limits{MaxCostPerHour: dollars("3.00")},
		},
	}}
}

func (p poolWrapper) entry(name, capacity, maxPrice string) poolWrapper {
	p.Spec.Providers = append(p.Spec.Providers, v1alpha1.ProviderSpec{Name: name, CapacityType: capacity, MaxPrice: dollars(maxPrice)})
	return p
}

func (p poolWrapper) maxNodes(n int32) poolWrapper { p.Spec.Scaling.MaxNodes = n; return p }
func (p poolWrapper) maxGPUs(n int32) poolWrapper  { p.Spec.Limits.MaxGPUs = &n; return p }
func (p poolWrapper) maxCost(d string) poolWrapper {
	p.Spec.Limits.MaxCostPerHour = dollars(d)
	return p
}
func (p poolWrapper) types(names ...string) poolWrapper {
	p.Spec.Requirements.GPUTypes = names
	return p
}
func (p poolWrapper) gpuCount(n int32) poolWrapper { p.Spec.Requirements.GPUCount = n; return p }
func (p poolWrapper) minVRAM(n int32) poolWrapper  { p.Spec.Requirements.MinVRAM = n; return p }
func (p poolWrapper) namespaces(ns ...string) poolWrapper {
	p.Spec.Namespaces = ns
	return p
}
func (p poolWrapper) args(a ...string) poolWrapper { p.Spec.Bootstrap.Args = a; return p }

func (p poolWrapper) reserved(claim, price string, gpus int32, workloads ...string) poolWrapper {
	p.Status.Reservations = append(p.Status.Reservations, v1alpha1.Reservation{Claim: claim, DollarsPerHour: dollars(price),
		GPUs: gpus, Workloads: workloads, Since: metav1.NewTime(now)})
	return p
}

// but applies a change in place, for what has no method.
func (p poolWrapper) but(f func(*v1alpha1.GPUNodePool)) poolWrapper { f(p.GPUNodePool); return p }

// claimWrapper builds a claim that has been Ready since now.
type claimWrapper struct{ *v1alpha1.GPUNodeClaim }

func makeClaim(name, pool string, workloads ...string) claimWrapper {
	c := claimWrapper{&v1alpha1.GPUNodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       v1alpha1.GPUNodeClaimSpec{Pool: pool, MaxPrice: dollars("0.45"), Requirements: v1alpha1.Requirements{GPUCount: 1}},
		Status: v1alpha1.GPUNodeClaimStatus{Phase: v1alpha1.PhaseReady, Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}},
	}}
	for _, w := range workloads {
		c.Spec.Placements = append(c.Spec.Placements, v1alpha1.Placement{Workload: w, GPUs: 1, GPUFraction: 1000})
	}
	return c
}

func (c claimWrapper) phase(p v1alpha1.Phase) claimWrapper { c.Status.Phase = p; return c }

// but applies a change in place, for what has no method.
func (c claimWrapper) but(f func(*v1alpha1.GPUNodeClaim)) claimWrapper { f(c.GPUNodeClaim); return c }

// workloadWrapper builds a workload that wants one replica of one GPU for a pod of namespace team.
type workloadWrapper struct{ demand.Workload }

func makeWorkload(key string) workloadWrapper {
	return workloadWrapper{demand.Workload{Key: key, Source: "org/" + key, GPUCount: 1, Namespaces: []string{"team"}, Form: "f",
		MaxPrice: nil}}.pods(1)
}

func (w workloadWrapper) pods(n int) workloadWrapper {
	w.Pods = nil
	for i := range n {
		p := demand.PodRef{Created: now.Add(time.Duration(i-60) * time.Second)}
		p.Namespace, p.Name = "team", fmt.Sprintf("%s-%d", w.Key, i)
		w.Pods = append(w.Pods, p)
	}
	w.Replicas = n
	return w
}

func (w workloadWrapper) since(t time.Time) workloadWrapper {
	for i := range w.Pods {
		w.Pods[i].Created = t
	}
	return w
}

// traffic makes the demand the gateway's alone, for a model that pool p lists.
func (w workloadWrapper) traffic(n int) workloadWrapper {
	w.Pods, w.Namespaces, w.Replicas = nil, nil, n
	return w
}

func (w workloadWrapper) vram(total, gpus int) workloadWrapper {
	w.VRAMGB, w.GPUCount = total, gpus
	return w
}
func (w workloadWrapper) maxPrice(s string) workloadWrapper {
	d := dollars(s)
	w.MaxPrice = &d
	return w
}
func (w workloadWrapper) priority(n int) workloadWrapper       { w.Priority = n; return w }
func (w workloadWrapper) pool(name string) workloadWrapper     { w.Pool = name; return w }
func (w workloadWrapper) types(t ...string) workloadWrapper    { w.GPUTypes = t; return w }
func (w workloadWrapper) listedBy(p ...string) workloadWrapper { w.Pools = p; return w }
func (w workloadWrapper) engine(args ...string) workloadWrapper {
	w.Args = args
	return w
}
func (w workloadWrapper) at(p provider.Name, c provider.CapacityType) workloadWrapper {
	w.Provider, w.CapacityType = p, c
	return w
}

// makeOffer is an offer of vast.ai, spot, in Sweden, that has all that anybody could ask for.
func makeOffer(id string, name gpu.Name, count int, price string) provider.Offer {
	spec, ok := gpu.SpecOf(name)
	if !ok {
		panic(name)
	}
	ram := 256
	return provider.Offer{Provider: provider.VastAI, ID: id, CapacityType: provider.Spot, GPU: name, GPUCount: count,
		VRAMGB: spec.VRAMGB, RAMGB: &ram, DiskGB: 100, MaxDiskGB: 100, Region: "Sweden", CPUArch: "amd64", Price: dollars(price),
		RestKeys: []provider.RestKey{provider.RestKey("machine/" + id)}}
}

func onDemand(o provider.Offer) provider.Offer { o.CapacityType = provider.OnDemand; return o }

// kind makes it an offer of a kind of machine, of which there are many.
func kind(o provider.Offer) provider.Offer {
	o.RestKeys = []provider.RestKey{"zone/z/" + provider.RestKey(o.ID)}
	return o
}

// snapshotWrapper collects a snapshot.
type snapshotWrapper struct{ Snapshot }

func makeSnapshot(pools ...poolWrapper) snapshotWrapper {
	s := snapshotWrapper{Snapshot{Now: now, Rests: rest.View{}, Purchases: map[string][]time.Time{}}}
	for _, p := range pools {
		s.Pools = append(s.Pools, p.GPUNodePool)
	}
	return s
}

func (s snapshotWrapper) wants(ws ...workloadWrapper) snapshotWrapper {
	for _, w := range ws {
		s.Workloads = append(s.Workloads, w.Workload)
	}
	return s
}

func (s snapshotWrapper) has(claims ...claimWrapper) snapshotWrapper {
	for _, c := range claims {
		s.Claims = append(s.Claims, c.GPUNodeClaim)
	}
	return s
}

func (s snapshotWrapper) market(pool string, entry int, offers ...provider.Offer) snapshotWrapper {
	s.Markets = append(s.Markets, Market{Pool: pool, Entry: entry, Account: "acct", Offers: offers})
	return s
}

func (s snapshotWrapper) broken(pool string, entry int, why string) snapshotWrapper {
	s.Markets = append(s.Markets, Market{Pool: pool, Entry: entry, Account: "acct", Err: why})
	return s
}

func (s snapshotWrapper) rests(k rest.Key, d time.Duration, reason, message string) snapshotWrapper {
	s.Rests[k] = rest.Rest{Key: k, Until: now.Add(d), Reason: reason, Message: message}
	return s
}

func (s snapshotWrapper) bought(key string, ago ...time.Duration) snapshotWrapper {
	for _, d := range ago {
		s.Purchases[key] = append(s.Purchases[key], now.Add(-d))
	}
	return s
}
