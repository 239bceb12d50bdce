package registry

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Together is a Source of all that several sources know. What the first of them know is applied at once, as Partial
// until each has spoken. Workers of different sources must differ in their UID.
func Together(sources ...Source) Source {
	if len(sources) == 1 {
		return sources[0]
	}
	return together(sources)
}

type together []Source

// Run runs all, and ends when one fails.
func (t together) Run(ctx context.Context, apply func(Snapshot)) error {
	var (
		mu    sync.Mutex
		parts = make([]*Snapshot, len(t))
	)
	g, ctx := errgroup.WithContext(ctx)
	for i, source := range t {
		g.Go(func() error {
			return source.Run(ctx, func(s Snapshot) {
				mu.Lock()
				defer mu.Unlock()
				parts[i] = &s
				apply(union(parts))
			})
		})
	}
	return g.Wait()
}

func union(parts []*Snapshot) Snapshot {
	var out Snapshot
	known := map[string]Known{}
	for _, p := range parts {
		if p == nil {
			out.Partial = true
			continue
		}
		out.Partial = out.Partial || p.Partial
		out.Workers = append(out.Workers, p.Workers...)
		for _, m := range p.Models {
			before := known[m.Name]
			m.Target = max(m.Target, before.Target)
			if m.Stage == "" {
				m.Stage, m.Since = before.Stage, before.Since
			}
			known[m.Name] = m
		}
		out.Boots = append(out.Boots, p.Boots...)
	}
	for _, m := range known {
		out.Models = append(out.Models, m)
	}
	return out
}
