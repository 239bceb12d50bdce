package sweep

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/reserve"
	"github.com/munhq/gpuscale/pkg/provider"
)

// halt compares an empty list of claims with the ledger. Claims that are gone while their machines are not were deleted
// by something that does not know about machines: a restored cluster, a purged namespace, another cluster's address.
func (d *decision) halt() *Halt {
	if len(d.Claims) > 0 {
		return nil
	}
	var names, tokens []string
	note := func(token, name string) { names, tokens = append(names, name), append(tokens, token) }
	if d.LedgerErr == nil {
		for _, r := range d.Live {
			if d.believedLive(r) {
				note(r.Token, fmt.Sprintf("%s %s (claim %s)", r.Provider, orNone(r.InstanceID), r.Claim))
			}
		}
	}
	for _, k := range d.keys() {
		// The ledger is written before anything is bought: a tag that it never saw means that it is not the ledger of
		// this installation any more.
		if in := d.listed[k]; d.LedgerErr != nil || !d.Known[in.Tag] {
			note(in.Tag, fmt.Sprintf("%s %s (unknown to the ledger)", k.provider, k.id))
		}
	}
	if len(names) == 0 {
		return nil
	}
	h := &Halt{Code: code(tokens)}
	if d.Confirmed == h.Code {
		return nil
	}
	h.Message = fmt.Sprintf("there is no GPUNodeClaim at all, but %d instances may be running: %s", len(names), some(names))
	if d.LedgerErr != nil {
		h.Message += fmt.Sprintf("; the ledger cannot be read: %v", d.LedgerErr)
	}
	return h
}

// believedLive: a row that nobody has decided to end. One that is young is left to the claim that may just be ending,
// and nothing that young is destroyed anyway.
func (d *decision) believedLive(r ledger.Instance) bool {
	return d.Now.Sub(r.IntendedAt) >= d.MinAge && r.DestroyAskedAt == nil && (r.InstanceID != "" || d.shows(r))
}

func (d *decision) shows(r ledger.Instance) bool {
	if _, ok := d.listed[key{provider.Name(r.Provider), r.InstanceID}]; ok {
		return true
	}
	for _, in := range d.listed {
		if in.Tag == r.Token {
			return true
		}
	}
	return false
}

// closeRows ends the rows whose claim is gone and cannot: what we, or a person, have ended since, and purchases of which
// nothing came. A row of an instance that was never listed here stays: its account may be one that nothing leads to any
// more.
func (d *decision) closeRows() {
	if d.LedgerErr != nil {
		return
	}
	for _, r := range d.Live {
		if d.claims.uids[types.UID(r.ClaimUID)] || d.Now.Sub(r.IntendedAt) < d.MinAge || d.shows(r) || !d.mayClose(r) {
			continue
		}
		seenBy := d.sightOf(r)
		began, lag, ok := d.complete(provider.Name(r.Provider), seenBy.account, cmp.Or(r.Account, seenBy.identity))
		first, seen := d.old.rows[r.Token]
		switch {
		case !seen && ok:
			d.rows[r.Token] = began
		case seen && ok && began.After(first) && !began.Before(first.Add(lag)):
			d.verdict.Close = append(d.verdict.Close, ended(r, d.Now))
		case seen:
			d.rows[r.Token] = first
		}
	}
}

func (d *decision) mayClose(r ledger.Instance) bool {
	return r.InstanceID == "" || r.DestroyAskedAt != nil || d.sightOf(r).account != "" ||
		len(d.Claims) == 0 && d.Confirmed != "" && d.verdict.Halt == nil
}

// sightOf is what an earlier sweep saw of the row's instance; the zero value for nothing.
func (d *decision) sightOf(r ledger.Instance) sight {
	return d.old.sights[key{provider.Name(r.Provider), r.InstanceID}]
}

// reasonSwept is why a row ended that no claim closed.
const reasonSwept = "Swept"

func ended(r ledger.Instance, now time.Time) ledger.Instance {
	if r.InstanceID == "" {
		return ledger.Instance{Token: r.Token, Refused: true, EndReason: reasonSwept}
	}
	return ledger.Instance{Token: r.Token, GoneAt: &now, EndReason: reasonSwept}
}

// reservation is what an instance that no claim accounts for takes of whose ceilings: its claim's pool, or the one that
// the ledger remembers.
func (d *decision) reservation(k key, in listed, c *v1alpha1.GPUNodeClaim, since time.Time) (string, v1alpha1.Reservation) {
	res := v1alpha1.Reservation{Claim: reserve.SurplusName(string(k.provider), k.id), GPUs: int32(in.GPUCount),
		Since: metav1.NewTime(since.UTC().Truncate(time.Second))}
	pool := ""
	if c != nil {
		pool, res.DollarsPerHour = c.Spec.Pool, c.Spec.MaxPrice
		res.GPUs = max(res.GPUs, c.Spec.Requirements.GPUCount)
	}
	for _, r := range d.Live {
		if c == nil && r.Token == in.Tag {
			pool, res.DollarsPerHour = r.Pool, r.Price
			if r.Rate != nil {
				res.DollarsPerHour = *r.Rate
			}
		}
	}
	if in.Price != nil {
		res.DollarsPerHour = *in.Price
	}
	return pool, res
}

// adoptBooked takes over what an earlier controller booked, which must not be freed before it is known to be gone.
func (d *decision) adoptBooked() {
	for _, pool := range d.Pools {
		for _, r := range pool.Status.Reservations {
			p, id, ok := reserve.SurplusOf(r)
			if k := (key{provider.Name(p), id}); ok {
				s := d.sights[k]
				if s.first.IsZero() {
					s = sight{first: r.Since.Time, pool: pool.Name, booked: r}
				}
				d.sights[k] = s
			}
		}
	}
}

// book adds up the reservations that the pools' status should have.
func (d *decision) book() {
	d.verdict.Surplus = map[string][]v1alpha1.Reservation{}
	for _, s := range d.sights {
		if s.pool != "" {
			d.verdict.Surplus[s.pool] = append(d.verdict.Surplus[s.pool], s.booked)
		}
	}
}

// code is short, for a person to type, and long enough that no other set of instances has it.
func code(tokens []string) string {
	slices.Sort(tokens)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(tokens), "\n")))
	return hex.EncodeToString(sum[:6])
}

// some is as many as a person reads.
func some(names []string) string {
	const most = 10
	slices.Sort(names)
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

func orNone(id string) string {
	if id == "" {
		return "without a known id"
	}
	return id
}
