package sweep

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/provider"
)

// belonging is what an instance is to the claims.
type belonging int

const (
	// alone: no claim accounts for it.
	alone belonging = iota
	// belongs: it is the one that a claim has or will adopt.
	belongs
	// second: its claim keeps another one.
	second
	// undecided: one of several for a purchase that may still be under way; its claim decides which is kept.
	undecided
)

// claimIndex finds claims by tag and by recorded instance.
type claimIndex struct {
	byTag map[string]*v1alpha1.GPUNodeClaim
	byID  map[key]*v1alpha1.GPUNodeClaim
	uids  map[types.UID]bool
}

// index knows the tags of all of a claim's attempts: an earlier one's instance, come late, is still that claim's.
func index(claims []v1alpha1.GPUNodeClaim, token func(types.UID, int32) string) claimIndex {
	x := claimIndex{byTag: map[string]*v1alpha1.GPUNodeClaim{}, byID: map[key]*v1alpha1.GPUNodeClaim{}, uids: map[types.UID]bool{}}
	for i := range claims {
		c := &claims[i]
		x.uids[c.UID] = true
		// A claim that says that it has no instance accounts for none: what carries its tag all the same came too late.
		if !reserve.MayHoldInstance(c) {
			continue
		}
		for n := int32(1); n <= c.Status.Attempts; n++ {
			x.byTag[token(c.UID, n)] = c
		}
		x.byTag[c.Status.Attempt.Token] = c
		if c.Status.InstanceID != "" {
			x.byID[key{provider.Name(c.Status.Provider), c.Status.InstanceID}] = c
		}
	}
	return x
}

// keeper is which instance a claim keeps.
type keeper struct {
	id string
	// open: the purchase may still be under way, and its outcome decides.
	open bool
}

// kept is, for every claim, the instance that it keeps: the recorded one, else the oldest with its present token.
func (d *decision) kept() map[types.UID]keeper {
	out := map[types.UID]keeper{}
	shown := map[types.UID][]listed{}
	for _, k := range d.keys() {
		in := d.listed[k]
		c := d.claims.byTag[in.Tag]
		switch {
		case c == nil:
		case c.Status.InstanceID != "":
			out[c.UID] = keeper{id: c.Status.InstanceID}
		case in.Tag == c.Status.Attempt.Token:
			shown[c.UID] = append(shown[c.UID], in)
		}
	}
	for uid, all := range shown {
		slices.SortStableFunc(all, func(a, b listed) int { return offers.OldestFirst(a.Instance, b.Instance) })
		c := d.claims.byTag[all[0].Tag]
		dead := c.Status.Attempt.WrittenAt.Add(all[0].list.CreateTimeout + all[0].list.Lag)
		out[uid] = keeper{id: all[0].ID, open: all[0].list.Began.Before(dead)}
	}
	return out
}

// owner is the claim that an instance is for, and what it is to it.
func (x claimIndex) owner(in listed, kept map[types.UID]keeper) (*v1alpha1.GPUNodeClaim, belonging) {
	if c := x.byID[key{in.list.Provider, in.ID}]; c != nil {
		return c, belongs
	}
	c := x.byTag[in.Tag]
	if c == nil {
		return nil, alone
	}
	k, ok := kept[c.UID]
	current := in.Tag == c.Status.Attempt.Token
	switch {
	case current && (!ok || k.id == in.ID):
		return c, belongs
	case current && k.open:
		return c, undecided
	}
	return c, second
}
