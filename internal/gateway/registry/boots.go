package registry

import (
	"slices"
	"time"
)

// Boot is how long a worker took from being asked for until it served a model.
type Boot struct {
	ClaimUID, Model string
	Took            time.Duration
}

// keptBoots is how many of a model's boots count: offers and hosts change, and the latest say most.
const keptBoots = 20

// boots remembers them beyond their workers' lives: at zero, when somebody waits, no worker is left to look at.
type boots struct {
	took map[string][]time.Duration
	// in are those of the present picture, which come again with the next.
	in map[Boot]bool
}

func (b *boots) see(list []Boot) {
	before := b.in
	b.in = make(map[Boot]bool, len(list))
	for _, boot := range list {
		b.in[boot] = true
		if before[boot] {
			continue
		}
		if b.took == nil {
			b.took = map[string][]time.Duration{}
		}
		b.took[boot.Model] = append(b.took[boot.Model], boot.Took)
		if all := b.took[boot.Model]; len(all) > keptBoots {
			b.took[boot.Model] = all[len(all)-keptBoots:]
		}
	}
}

// expected is the median of the model's boots, else of all models', else zero.
func (b *boots) expected(model string) time.Duration {
	all := slices.Clone(b.took[model])
	if len(all) == 0 {
		for _, each := range b.took {
			all = append(all, each...)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
