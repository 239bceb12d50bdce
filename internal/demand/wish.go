package demand

import (
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// How the gateways' wish follows their load. It leaves zero, and goes back to it, at once: somebody waits, or nobody is
// left, and the cooldown keeps the workers. Between, it follows what has lasted: an instance takes minutes to boot, and
// load at the edge between two numbers of replicas must buy nothing twice.
const (
	// RiseAfter is how long the load must have asked for more than the wish before the wish rises, to the least that was
	// asked for meanwhile.
	RiseAfter = 10 * time.Second
	// FallAfter is how long it must have asked for less before the wish falls, to the most that was asked for meanwhile.
	FallAfter = time.Minute
)

// mostWished bounds what traffic can ask for where no pool says maxReplicas; the pools' ceilings are far below.
const mostWished = 1000

// Target is what the pools that list a model say about how traffic scales it.
type Target struct {
	// Concurrency is how many requests one replica should have; 0 where no pool says: then traffic wants one replica,
	// however much of it there is.
	Concurrency int
	// Most bounds the wish; 0 is no bound but mostWished.
	Most int
}

// Targets are the models that pools list, which are those that traffic alone can ask for. Of several pools that list one
// the largest number counts, of requests to a replica as of replicas.
func Targets(pools []*v1alpha1.GPUNodePool) map[string]Target {
	out := map[string]Target{}
	for _, p := range livePools(pools) {
		for _, m := range p.Spec.Models {
			t := out[m.Name]
			if c := m.TargetConcurrency; c != nil {
				t.Concurrency = max(t.Concurrency, int(*c))
			}
			if n := m.MaxReplicas; n != nil {
				t.Most = max(t.Most, int(*n))
			}
			out[m.Name] = t
		}
	}
	return out
}

// Replicas are what so many requests, held and under way, ask for now.
func (t Target) Replicas(requests int) int {
	if requests <= 0 {
		return 0
	}
	n := 1
	if t.Concurrency > 0 {
		n = (requests-1)/t.Concurrency + 1
	}
	if t.Most > 0 {
		n = min(n, t.Most)
	}
	return min(n, mostWished)
}

// Wish is how many replicas of a model traffic asks for. The zero value asks for none.
type Wish struct {
	Replicas int
	// since is when the load began to ask for more, or for less, than Replicas without a break; zero while it does not.
	// nearest is what it asked for since then that is nearest to Replicas.
	since   time.Time
	nearest int
}

// Next is the wish once the load asks for so many replicas. Times must come from one clock and not go back.
func (w Wish) Next(asked int, now time.Time) Wish {
	switch {
	case asked == w.Replicas, asked <= 0:
		return Wish{Replicas: max(asked, 0)}
	case w.Replicas == 0:
		return Wish{Replicas: 1}.Next(asked, now)
	}
	up := asked > w.Replicas
	switch {
	case w.since.IsZero() || up != (w.nearest > w.Replicas):
		w.since, w.nearest = now, asked
	case up:
		w.nearest = min(w.nearest, asked)
	default:
		w.nearest = max(w.nearest, asked)
	}
	lasting := FallAfter
	if up {
		lasting = RiseAfter
	}
	if now.Sub(w.since) < lasting {
		return w
	}
	return Wish{Replicas: w.nearest}.Next(asked, now)
}
