package demo

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// World is everything that has been seen of one pod, its pool and its claim. It is not safe for concurrent use.
type World struct {
	Pool  *v1alpha1.GPUNodePool
	Pod   *corev1.Pod
	Claim *v1alpha1.GPUNodeClaim
	// Events by reason and the kind of what they are about; the first of each.
	Events map[EventKey]Sighting
	// Rented is the provider's latest list, at RentedAt.
	Rented   []Rented
	RentedAt time.Time
	Account  Account
	Answer   Answer
	// LedgerCost is the ledger's figure for what was bought.
	LedgerCost string

	first      map[string]Sighting
	trouble    string
	lastBefore *metav1.Time
}

// EventKey is what events are told apart by.
type EventKey struct{ Kind, Reason string }

// Rented is an instance as the provider lists it to its customer.
type Rented struct {
	ID     int64   `json:"id"`
	Label  string  `json:"label"`
	Status string  `json:"actual_status"`
	GPU    string  `json:"gpu_name"`
	GPUs   int     `json:"num_gpus"`
	Total  float64 `json:"dph_total"`
	Place  string  `json:"geolocation"`
}

// Account is the market's own books.
type Account struct {
	At     time.Time `json:"at"`
	Rented int       `json:"rented"`
	Spent  float64   `json:"spent"`
	Now    struct {
		Live             int     `json:"live"`
		PerHour          float64 `json:"perHour"`
		CommittedPerHour float64 `json:"committedPerHour"`
	} `json:"now"`
	Instances []struct {
		ID          string    `json:"id"`
		Label       string    `json:"label"`
		State       string    `json:"state"`
		CreatedAt   time.Time `json:"createdAt"`
		GoneAt      time.Time `json:"goneAt"`
		GPURate     float64   `json:"gpuRate"`
		StorageRate float64   `json:"storageRate"`
		Spent       float64   `json:"spent"`
	} `json:"instances"`
}

// Answer is a streamed chat completion.
type Answer struct {
	AskedAt, FirstAt, DoneAt time.Time
	// Chunks counts events with text in them.
	Chunks int
	Text   string
	Model  string
	Finish string
	// Whole: the stream ended with its end mark.
	Whole bool
	Err   string
}

// Names of what is remembered besides conditions ("condition/…"), steps ("step/…") and phases ("phase/…").
const (
	firstRented     = "provider/rented"
	firstRate       = "provider/rate"
	firstModel      = "gateway/model"
	firstPending    = "pod/pending"
	firstPodGone    = "pod/gone"
	firstServed     = "pod/served"
	firstReserved   = "pool/reserved"
	firstReleased   = "pool/released"
	firstClaimGone  = "claim/gone"
	firstEnding     = "claim/ending"
	firstIntent     = "claim/intent"
	firstRequest    = "claim/request"
	prefixCondition = "condition/"
	prefixStep      = "step/"
	prefixPhase     = "phase/"
)

// NewWorld is one in which nothing has been seen.
func NewWorld() *World {
	return &World{Events: map[EventKey]Sighting{}, first: map[string]Sighting{}}
}

// First is when something was first seen.
func (w *World) First(name string) (Sighting, bool) {
	s, ok := w.first[name]
	return s, ok
}

func (w *World) note(name string, s Sighting) {
	if _, known := w.first[name]; !known {
		w.first[name] = s
	}
}

func versionOf(o metav1.Object) uint64 {
	v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0 // not comparable, which the zero says
	}
	return v
}

// SawPod takes a state of the pod.
func (w *World) SawPod(p *corev1.Pod, gone bool, at time.Time) {
	w.Pod = p
	s := Sighting{At: at, Version: versionOf(p)}
	if gone {
		s.Text = fmt.Sprintf("pod %s is gone", p.Name)
		w.note(firstPodGone, s)
		return
	}
	for _, c := range p.Status.Conditions {
		s.Text = c.Message
		switch {
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			s.Text = fmt.Sprintf("pod %s: %s, %s", p.Name, c.Reason, c.Message)
			w.note(firstPending, s)
		case c.Type == v1alpha1.PodConditionServed && c.Status == corev1.ConditionTrue:
			w.note(firstServed, s)
		}
	}
}

// SawPool takes a state of the pool.
func (w *World) SawPool(p *v1alpha1.GPUNodePool, at time.Time) {
	w.Pool = p
	s := Sighting{At: at, Version: versionOf(p)}
	for _, r := range p.Status.Reservations {
		s.Text = fmt.Sprintf("pool %s promises $%s/h and %d GPU to claim %s", p.Name, r.DollarsPerHour, r.GPUs, r.Claim)
		w.note(firstReserved, s)
	}
	if _, reserved := w.first[firstReserved]; reserved && len(p.Status.Reservations) == 0 {
		s.Text = fmt.Sprintf("pool %s: %d nodes, $%s/h promised", p.Name, p.Status.Nodes, p.Status.DollarsPerHour)
		w.note(firstReleased, s)
	}
}

// SawClaim takes a state of a claim. The story is that of the first claim; others are left aside.
func (w *World) SawClaim(c *v1alpha1.GPUNodeClaim, gone bool, at time.Time) {
	if w.Claim != nil && w.Claim.UID != c.UID {
		return
	}
	w.Claim = c
	seen := Sighting{At: at, Version: versionOf(c)}
	with := func(text string) Sighting { return Sighting{At: seen.At, Version: seen.Version, Text: text} }
	for _, cond := range c.Status.Conditions {
		if cond.Status == metav1.ConditionTrue {
			w.note(prefixCondition+cond.Type, with(cond.Message))
		}
	}
	for _, step := range c.Status.Steps {
		w.note(prefixStep+step.Name, Sighting{At: step.At.Time, Version: seen.Version, Exact: true, Text: step.Message})
	}
	w.note(prefixPhase+string(c.Status.Phase), seen)
	if a := c.Status.Attempt; a != nil {
		w.note(firstIntent, Sighting{At: a.WrittenAt.Time, Version: seen.Version, Exact: true, Text: a.Token})
	}
	if !c.DeletionTimestamp.IsZero() {
		w.note(firstEnding, with(c.Annotations[v1alpha1.AnnotationDrain]))
	}
	if w.counted(c.Status.LastRequestAt) {
		w.note(firstRequest, with(""))
	}
	w.compareRates(at)
	if gone {
		w.note(firstClaimGone, with(fmt.Sprintf("claim %s is gone", c.Name)))
	}
}

// Asking says that a question is about to be asked, so that the agent's account of it is told from that of an earlier
// request.
func (w *World) Asking(at time.Time) {
	w.Answer.AskedAt = at
	if w.Claim != nil {
		w.lastBefore = w.Claim.Status.LastRequestAt
	}
}

// counted reports that the agent's last request is the one that was asked. Statuses keep whole seconds.
func (w *World) counted(last *metav1.Time) bool {
	asked := w.Answer.AskedAt
	return last != nil && !asked.IsZero() && !last.Time.Before(asked.Truncate(time.Second)) && !last.Equal(w.lastBefore)
}

// SawEvent takes an event.
func (w *World) SawEvent(e *eventsv1.Event, at time.Time) {
	if !e.EventTime.IsZero() {
		at = e.EventTime.Time // when it was recorded; it is delivered later
	}
	if e.Type == corev1.EventTypeWarning {
		w.trouble = fmt.Sprintf("%s %s: %s: %s", e.Regarding.Kind, e.Regarding.Name, e.Reason, e.Note)
	}
	key := EventKey{e.Regarding.Kind, e.Reason}
	if _, known := w.Events[key]; !known {
		w.Events[key] = Sighting{At: at, Version: versionOf(e), Text: e.Note}
	}
}

// SawRented takes the provider's list.
func (w *World) SawRented(list []Rented, at time.Time) {
	w.Rented, w.RentedAt = list, at
	if mine, ok := w.mine(); ok {
		w.note(firstRented, Sighting{At: at, Text: fmt.Sprintf("instance %d: %d×%s in %s", mine.ID, mine.GPUs, mine.GPU,
			cmp.Or(mine.Place, "an unnamed place"))})
	}
	w.compareRates(at)
}

// compareRates notes when the provider and the claim of an instance that serves say the same price, to a hundredth of a
// cent.
func (w *World) compareRates(at time.Time) {
	mine, ok := w.mine()
	if !ok || w.Claim.Status.DollarsPerHour == nil || w.Claim.Status.Phase != v1alpha1.PhaseReady {
		return
	}
	ours := float64(w.Claim.Status.DollarsPerHour.Micros()) / 1e6
	if math.Abs(ours-mine.Total) < 1e-4 {
		w.note(firstRate, Sighting{At: at, Text: fmt.Sprintf("$%.4f/h; the claim says $%s/h", mine.Total,
			w.Claim.Status.DollarsPerHour)})
	}
}

// SawModels takes what the gateway lists.
func (w *World) SawModels(names []string, at time.Time) {
	if slices.Contains(names, Model) {
		w.note(firstModel, Sighting{At: at, Text: "GET /v1/models lists " + Model})
	}
}

// mine is the instance of the claim in the provider's latest list.
func (w *World) mine() (Rented, bool) {
	if w.Claim == nil || w.Claim.Status.InstanceID == "" {
		return Rented{}, false
	}
	for _, r := range w.Rented {
		if strconv.FormatInt(r.ID, 10) == w.Claim.Status.InstanceID {
			return r, true
		}
	}
	return Rented{}, false
}
