package sweep

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Policy bounds what one sweep may do.
type Policy struct {
	// MinAge is how old an instance without a claim must be, by the provider's time of creation or else by the first time
	// that it was listed here.
	MinAge time.Duration
	// MaxOrphans is the most instances without a claim whose end one sweep asks for.
	MaxOrphans int
	// Token is the owner tag of a claim's nth attempt.
	Token func(uid types.UID, attempt int32) string
}

// List is what one account showed.
type List struct {
	// Account is the credential's fingerprint, Identity whose account it opens, in the provider's own numbering; empty
	// where that cannot be told.
	Account  string
	Identity string
	Provider provider.Name
	// Began is when it was asked for, before the claims were read.
	Began time.Time
	// Lag and CreateTimeout are the provider's.
	Lag, CreateTimeout time.Duration
	// Instances all carry this installation's tag.
	Instances []provider.Instance
}

// Snapshot is all that one decision is made from.
type Snapshot struct {
	Now   time.Time
	Lists []List
	// Silent are the providers of which some account that is in use did not answer: what they do not show may be there.
	Silent []provider.Name
	// Claims, all of them, read past the cache after the lists began.
	Claims []v1alpha1.GPUNodeClaim
	Pools  []v1alpha1.GPUNodePool
	// Live is what the ledger holds to be billing, and LedgerErr why it does not say.
	Live      []ledger.Instance
	LedgerErr error
	// Known are the tags among the listed that the ledger has ever written; it is asked when there are no claims.
	Known map[string]bool
	// Confirmed is the code by which a person said that a halted sweep may go on.
	Confirmed string
}

// Verdict is what to do.
type Verdict struct {
	// Destroy are the rentals to end now: second instances of claims first, then instances without a claim.
	Destroy []Target
	// Halt is why no instance without a claim is destroyed though some may be due; nil when the sweep is free.
	Halt *Halt
	// Surplus are, by pool, the reservations for instances that no claim accounts for. Pools that have none are left out.
	Surplus map[string][]v1alpha1.Reservation
	// Close are ledger rows, as they are to be updated, of what is confirmed gone and has no claim to say so.
	Close []ledger.Instance
}

// Target is one rental to end.
type Target struct {
	Account  string
	Instance provider.Instance
	// Claim is the claim that keeps another instance; empty for an instance without a claim.
	Claim string
	// Again: its end was asked for before.
	Again bool
}

// Halt is an alert.
type Halt struct {
	Message string
	// Code confirms exactly this halt: another set of instances has another code.
	Code string
}

// History is what earlier sweeps saw. Its zero value is the start. A restart loses it, which only delays.
type History struct {
	sights map[key]sight
	// rows are the ledger's tokens without claim or instance, with the beginning of the lists that first showed that.
	rows map[string]time.Time
}

// key names an instance. The account is no part of it: a rotated credential lists the same instances.
type key struct {
	provider provider.Name
	id       string
}

// sight is one instance over time. Times are those at which lists began.
type sight struct {
	account string
	// identity is whose account it is in, as far as a list that showed it could tell.
	identity string
	instance provider.Instance
	first    time.Time
	// alone is since when every list showed it without a claim; zero while it has one.
	alone time.Time
	// absent is since when no list shows it; zero while one does.
	absent time.Time
	asked  bool
	// booked is the reservation in pool while it is an instance that no claim accounts for.
	pool   string
	booked v1alpha1.Reservation
}

// Decide makes a verdict and the history for the next one. It changes neither argument.
func Decide(h History, s Snapshot, p Policy) (Verdict, History) {
	d := decision{Snapshot: s, Policy: p, old: h, claims: index(s.Claims, p.Token),
		sights: maps.Clone(h.sights), rows: map[string]time.Time{}}
	if d.sights == nil {
		d.sights = map[key]sight{}
	}
	d.adoptBooked()
	d.look()
	d.judge()
	d.forget()
	d.closeRows()
	d.book()
	return d.verdict, History{sights: d.sights, rows: d.rows}
}

// decision is one Decide under way.
type decision struct {
	Snapshot
	Policy
	old    History
	claims claimIndex

	sights map[key]sight
	rows   map[string]time.Time
	// listed are the instances of this round.
	listed  map[key]listed
	verdict Verdict
}

// listed is an instance and the list that shows it.
type listed struct {
	provider.Instance
	list *List
}

// look enters this round's lists into the history.
func (d *decision) look() {
	d.listed = map[key]listed{}
	for i := range d.Lists {
		l := &d.Lists[i]
		for _, in := range l.Instances {
			k := key{l.Provider, in.ID}
			if _, twice := d.listed[k]; twice {
				continue
			}
			d.listed[k] = listed{in, l}
			s, ok := d.sights[k]
			if !ok {
				s.first = l.Began
			}
			s.account, s.instance, s.absent = l.Account, in, time.Time{}
			s.identity = cmp.Or(l.Identity, s.identity)
			d.sights[k] = s
		}
	}
}

// judge finds whom every listed instance belongs to, and what is to be destroyed.
func (d *decision) judge() {
	kept := d.kept()
	var orphans, surplus []Target
	for _, k := range d.keys() {
		in, s := d.listed[k], d.sights[k]
		c, rule := d.claims.owner(in, kept)
		s.pool, s.booked = "", v1alpha1.Reservation{}
		if rule == belongs {
			s.alone = time.Time{}
			d.sights[k] = s
			continue
		}
		s.pool, s.booked = d.reservation(k, in, c, s.first)
		target := Target{Account: in.list.Account, Instance: in.Instance, Again: s.asked}
		switch rule {
		case second:
			s.alone = time.Time{}
			target.Claim = c.Name
			surplus = append(surplus, target)
		case undecided:
			s.alone = time.Time{}
		case alone, belongs:
			if s.alone.IsZero() {
				s.alone = in.list.Began
			}
			if d.due(in, s) {
				orphans = append(orphans, target)
			}
		}
		d.sights[k] = s
	}
	d.verdict.Halt = d.halt()
	if d.verdict.Halt != nil {
		orphans = nil
	}
	d.verdict.Destroy = slices.Concat(surplus, d.bounded(orphans))
	for _, t := range d.verdict.Destroy {
		k := key{t.Instance.Provider, t.Instance.ID}
		s := d.sights[k]
		s.asked = true
		d.sights[k] = s
	}
}

// due: without a claim on two lists a list lag apart, and old enough for a claim's first writes to be long over.
func (d *decision) due(in listed, s sight) bool {
	born := in.CreatedAt
	if born.IsZero() {
		born = s.first
	}
	return !in.list.Began.Before(s.alone.Add(in.list.Lag)) && in.list.Began.After(s.alone) && d.Now.Sub(born) >= d.MinAge
}

// bounded takes the first MaxOrphans: those never asked for before those that were, so that one that cannot be ended
// does not keep the others alive, and the oldest first.
func (d *decision) bounded(orphans []Target) []Target {
	slices.SortStableFunc(orphans, func(a, b Target) int {
		if a.Again != b.Again {
			if b.Again {
				return -1
			}
			return 1
		}
		return a.Instance.CreatedAt.Compare(b.Instance.CreatedAt)
	})
	return orphans[:min(len(orphans), max(d.MaxOrphans, 0))]
}

// forget drops what is confirmed gone: absent from two lists, a list lag apart, of the account that it was in.
func (d *decision) forget() {
	for k, s := range d.sights {
		if _, ok := d.listed[k]; ok {
			continue
		}
		began, lag, ok := d.complete(k.provider, s.account, d.identityOf(k, s))
		switch {
		case !ok, s.account == "" && d.LedgerErr != nil: // nobody says that it is not there
		case s.absent.IsZero():
			s.absent = began
			d.sights[k] = s
		case began.After(s.absent) && !began.Before(s.absent.Add(lag)):
			delete(d.sights, k)
		}
	}
}

// identityOf is whose account an instance is in, by the lists or by the ledger; empty where neither could tell.
func (d *decision) identityOf(k key, s sight) string {
	if s.identity != "" {
		return s.identity
	}
	for _, r := range d.Live {
		if provider.Name(r.Provider) == k.provider && r.InstanceID == k.id {
			return r.Account
		}
	}
	return ""
}

// complete says whether this round's lists would show an instance of the account, and when the earliest of those lists
// began. Where the credential no longer answers, another one of the same account will do; where it is not known whose
// account it was, all of the provider's.
func (d *decision) complete(p provider.Name, account, identity string) (began time.Time, lag time.Duration, ok bool) {
	for _, l := range d.Lists {
		if l.Account == account {
			return l.Began, l.Lag, true
		}
		if l.Provider == p && (identity == "" || l.Identity == identity) && (!ok || l.Began.Before(began)) {
			began, lag, ok = l.Began, max(lag, l.Lag), true
		}
	}
	return began, lag, ok && !slices.Contains(d.Silent, p)
}

func (d *decision) keys() []key {
	return slices.SortedFunc(maps.Keys(d.listed), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.provider, b.provider), cmp.Compare(a.id, b.id))
	})
}
