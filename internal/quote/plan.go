package quote

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/manifest"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/search"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Plan is what the controller would decide now of a set of objects.
type Plan struct {
	planner.Plan
	Demand demand.Result
	// Idle are pods of the set that ask for nothing, each with why.
	Idle []string
	// Markets are what each entry of each pool has now.
	Markets []planner.Market
	// Lists account for what each entry that answered has, by what its pool asks, whatever a workload asks beyond that.
	Lists []PoolList
	// Failed are the entries that gave no offers.
	Failed []Failure
	// EnvFor are the Secrets that pools name and the set does not have: the environment's credentials stood in for them.
	EnvFor []string
}

// PoolList is a List for an entry of a pool.
type PoolList struct {
	Pool string
	List
}

// Plan takes pods as pending, asks every entry of every pool and has the planner decide.
func (d Desk) Plan(ctx context.Context, set *manifest.Set, o demand.Options) Plan {
	now := d.Clock.Now()
	pods, idle := pending(set.Pods, now, o)
	out := Plan{Idle: idle, Demand: demand.Workloads(demand.Input{Pods: pods, Pools: set.Pools, Options: o})}
	asked, secrets := withoutSecrets(set)
	out.EnvFor = secrets
	out.ask(ctx, d, asked)
	out.Plan = planner.Make(planner.Snapshot{Now: d.Clock.Now(), Pools: set.Pools, Claims: set.Claims,
		Workloads: out.Demand.Workloads, Markets: out.Markets})
	return out
}

func entryOf(pools []*v1alpha1.GPUNodePool, m planner.Market) v1alpha1.ProviderSpec {
	i := slices.IndexFunc(pools, func(p *v1alpha1.GPUNodePool) bool { return p.Name == m.Pool })
	return pools[i].Spec.Providers[m.Entry]
}

// ask asks every entry of the pools, and accounts for what each has or why it has nothing.
func (p *Plan) ask(ctx context.Context, d Desk, pools []*v1alpha1.GPUNodePool) {
	var kinds sync.Map // by the error's text, which is all that a market keeps of it
	s := search.Searcher{Accounts: d.Accounts, Patience: d.Timeout, Failed: func(_ *account.Account, err error) {
		kinds.Store(err.Error(), provider.KindOf(err))
	}}
	for _, pool := range pools {
		for _, e := range pool.Spec.Providers {
			d.tell(d.Asked, e.Name)
		}
	}
	s.Answered = func(m planner.Market) { d.tell(d.Answered, entryOf(pools, m).Name) }
	p.Markets = s.Markets(ctx, pools)
	for _, m := range p.Markets {
		e := entryOf(pools, m)
		if m.Err == "" {
			p.Lists = append(p.Lists, listOf(pools, m, d.Clock.Now()))
			continue
		}
		f := Failure{Provider: provider.Name(e.Name), What: e.CapacityType + " (pool " + m.Pool + ")", Kind: provider.Unknown,
			Message: strings.TrimPrefix(m.Err, e.Name+": ")}
		if kind, ok := kinds.Load(m.Err); ok {
			f.Kind, _ = kind.(provider.Kind)
		}
		if _, err := d.Accounts.For(ctx, account.RefOf(e)); err != nil {
			f = failureOf(f.Provider, f.What, err)
		}
		p.Failed = append(p.Failed, f)
	}
	sortFailures(p.Failed)
}

// listOf judges an entry's offers by what the API's rules have checked.
func listOf(pools []*v1alpha1.GPUNodePool, m planner.Market, now time.Time) PoolList {
	i := slices.IndexFunc(pools, func(p *v1alpha1.GPUNodePool) bool { return p.Name == m.Pool })
	e := pools[i].Spec.Providers[m.Entry]
	l := PoolList{Pool: m.Pool, List: List{Provider: provider.Name(e.Name), CapacityType: provider.CapacityType(e.CapacityType)}}
	if need, err := offers.NeedOf(e, pools[i].Spec.Requirements, m.Account); err == nil {
		_, l.Why = offers.Select(m.Offers, need, nil, now)
	}
	return l
}

// pending are copies of the pods as they would wait for a GPU in a cluster that has none: unschedulable, in the order in
// which they are given. Pods that ask for nothing are left out, and said why.
func pending(pods []*corev1.Pod, now time.Time, o demand.Options) (out []*corev1.Pod, idle []string) {
	var placed, silent []string
	for i, p := range pods {
		p = p.DeepCopy()
		name := p.Namespace + "/" + p.Name
		switch {
		case !demand.MayAsk(p, o):
			silent = append(silent, name)
			continue
		case p.Spec.NodeName != "":
			placed = append(placed, name)
			continue
		}
		if p.CreationTimestamp.IsZero() {
			p.CreationTimestamp.Time = now.Add(time.Duration(i-len(pods)) * time.Millisecond)
		}
		if p.UID == "" {
			p.UID = types.UID(fmt.Sprintf("pod-%d", i))
		}
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable})
		}
		out = append(out, p)
	}
	if len(silent) > 0 {
		idle = append(idle, fmt.Sprintf("without a gpuscale.io/ annotation a pod asks for nothing: %s", Names(silent)))
	}
	if len(placed) > 0 {
		idle = append(idle, fmt.Sprintf("a pod that is on a node asks for nothing: %s", Names(placed)))
	}
	return out, idle
}

// mostNames is how many names are written out.
const mostNames = 4

// Names lists a few names, and how many more there are.
func Names(all []string) string {
	if len(all) <= mostNames {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNames-1], ", "), len(all)-mostNames+1)
}

// withoutSecrets are the pools with every Secret that the set does not have replaced by the environment, and the names of
// those Secrets.
func withoutSecrets(set *manifest.Set) (pools []*v1alpha1.GPUNodePool, replaced []string) {
	have := SecretsOf(set)
	names := map[string]bool{}
	for _, p := range set.Pools {
		p = p.DeepCopy()
		for i := range p.Spec.Providers {
			e := &p.Spec.Providers[i]
			if s := e.APIKeySecret; s != nil {
				ref := account.SecretRef{Namespace: s.Namespace, Name: s.Name}
				if _, ok := have[ref]; !ok {
					names[ref.String()] = true
					e.APIKeySecret = nil
				}
			}
		}
		pools = append(pools, p)
	}
	return pools, slices.Sorted(maps.Keys(names))
}

// SecretsOf are a set's Secrets as an API server would give them.
func SecretsOf(set *manifest.Set) map[account.SecretRef]map[string][]byte {
	out := map[account.SecretRef]map[string][]byte{}
	for _, s := range set.Secrets {
		data := maps.Clone(s.Data)
		if data == nil {
			data = map[string][]byte{}
		}
		for k, v := range s.StringData {
			data[k] = []byte(v)
		}
		out[account.SecretRef{Namespace: s.Namespace, Name: s.Name}] = data
	}
	return out
}
