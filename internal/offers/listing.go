package offers

import (
	"cmp"
	"slices"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// Listing is one complete list of this installation's instances at an account. It is shared and must not be changed.
type Listing struct {
	// Began is when it was asked for: what it does not show was not there then, or younger than the provider's list lag.
	Began time.Time
	// Instances all carry the installation's tag, in the order of their IDs.
	Instances []provider.Instance
}

// Find returns the instance with that owner tag or ID; of several with one tag, the oldest.
//
// False means that this list does not show it. That alone is not proof that it is gone: see Observer.Find.
func (l Listing) Find(tagOrID string) (provider.Instance, bool) {
	if all := l.Tagged(tagOrID); len(all) > 0 {
		return all[0], true
	}
	i := slices.IndexFunc(l.Instances, func(in provider.Instance) bool { return in.ID == tagOrID })
	if i < 0 || tagOrID == "" {
		return provider.Instance{}, false
	}
	return l.Instances[i], true
}

// Tagged returns every instance with that owner tag, the oldest first. One that the provider gives no time for counts
// as the youngest, so that the one kept is known to be old.
func (l Listing) Tagged(tag string) []provider.Instance {
	var out []provider.Instance
	for _, in := range l.Instances {
		if tag != "" && in.Tag == tag {
			out = append(out, in)
		}
	}
	slices.SortStableFunc(out, OldestFirst)
	return out
}

// OldestFirst orders instances by age, for slices.SortFunc: everybody who keeps one of several keeps the same. One that
// the provider gives no time for counts as the youngest; of two of an age the shorter and then the lower ID is the older.
func OldestFirst(a, b provider.Instance) int {
	if a.CreatedAt.IsZero() != b.CreatedAt.IsZero() {
		if a.CreatedAt.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
}

// newListing keeps what f selects, in a fixed order.
func newListing(began time.Time, all []provider.Instance, f provider.InstanceFilter) Listing {
	l := Listing{Began: began}
	for _, in := range all {
		// Drivers filter too; this is what makes sure that nobody else's instance is ever acted on.
		if f.Selects(in.Tag) {
			l.Instances = append(l.Instances, in)
		}
	}
	slices.SortStableFunc(l.Instances, func(a, b provider.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return l
}

// Change is a difference between two lists in a row.
type Change struct {
	// Instance as the newer list has it; as the older one had it where Vanished.
	Instance provider.Instance
	// Vanished: the newer list does not show it any more.
	Vanished bool
}

// changes are the differences from old to l that somebody may have to act on: new and vanished instances, and changes
// of state, endpoint, rate, tag and end. The provider's words about a state are not: some count seconds in them.
func (l Listing) changes(old Listing) []Change {
	before := make(map[string]provider.Instance, len(old.Instances))
	for _, in := range old.Instances {
		before[in.ID] = in
	}
	var out []Change
	for _, in := range l.Instances {
		was, ok := before[in.ID]
		delete(before, in.ID)
		if !ok || differs(was, in) {
			out = append(out, Change{Instance: in})
		}
	}
	for _, in := range old.Instances {
		if _, ok := before[in.ID]; ok {
			out = append(out, Change{Instance: in, Vanished: true})
		}
	}
	return out
}

func differs(a, b provider.Instance) bool {
	return a.Tag != b.Tag || a.State != b.State || a.Interrupted != b.Interrupted ||
		a.Address != b.Address || a.Port != b.Port || !a.EndsAt.Equal(b.EndsAt) ||
		(a.Price == nil) != (b.Price == nil) || a.Price != nil && *a.Price != *b.Price
}
