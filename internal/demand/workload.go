// Package demand turns what asks for GPUs (pending pods, the gateway's wish, the models of pools) into workloads in one
// normal form. It is pure: objects in, workloads and problems out.
package demand

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// Workload is one model's demand in normal form: what one replica needs, and how many replicas are wanted.
type Workload struct {
	// Key is the served model name, unique in an installation.
	Key string
	// Source is what the engine loads; Args are the engine's arguments, ours left out.
	Source string
	Args   []string

	// GPUCount is the number of GPUs that one replica spans; 0 means as many as cover VRAMGB.
	GPUCount int
	// VRAMGB is what one replica needs over all its GPUs; 0 means whole GPUs, never shared.
	VRAMGB int
	// GPUTypes restricts the GPUs (entries as in a pool); empty means the pool's.
	GPUTypes []string
	// MaxPrice is the most that the instance may cost all-in, the lowest of the pods'; nil means the pool's own ceilings
	// only.
	MaxPrice *money.Dollars
	// Provider and CapacityType restrict where; empty means the pool's.
	Provider     provider.Name
	CapacityType provider.CapacityType
	// Pool restricts which pool pays; empty means any that admits it.
	Pool string
	// Namespaces that ask, sorted; every one must be allowed by the pool that pays. Empty for demand that has none.
	Namespaces []string
	// Priority orders workloads when ceilings bind, the highest of the pods'; higher first.
	Priority int

	// Replicas wanted: the maximum of pods, the gateway's wish and the pools' minimum. 0 is a model that is known and
	// not wanted now.
	Replicas int
	// Wish is the gateway's part of it, within the pools' maxReplicas.
	Wish int
	// AlwaysActive: never without a worker by our choice.
	AlwaysActive bool
	// MinReplicas is the most that a pool listing the model keeps without pods or traffic, AlwaysActive included.
	MinReplicas int
	// Pods that ask, oldest first.
	Pods []PodRef
	// Pools whose spec.models lists it (and did not lose a ModelConflict), by name.
	Pools []string
	// Since is when the oldest pod that asks was created; zero where no pod asks.
	Since time.Time
	// Form is a hash of Source, Args, needs and what the pools that may serve it run and require: a workload that rests
	// is forgiven when it changes.
	Form string
}

// UnmetSince is when demand beyond covered replicas first appeared: it opens the batch window. Zero where it is not a
// pod's, which no window applies to.
func (w Workload) UnmetSince(covered int) time.Time {
	if covered < 0 || covered >= len(w.Pods) {
		return time.Time{}
	}
	return w.Pods[covered].Created
}

// Urgent reports whether what is missing beyond covered replicas waits for no batch window: somebody waits for an answer
// of a model that has no worker, or no pod asks for it.
func (w Workload) Urgent(covered int) bool {
	return covered < w.Replicas && (covered == 0 && w.Wish > 0 || w.UnmetSince(covered).IsZero())
}

// PodRef names a pod that asks.
type PodRef struct {
	types.NamespacedName
	UID     types.UID
	Created time.Time
}

// Problem is a pod or a pool's model that asks and cannot be understood, or may not ask: nothing is bought for it.
type Problem struct {
	// Pod that asks; zero where the problem is a pool's.
	Pod PodRef
	// Pool whose spec.models entry is wrong or lost; empty where the problem is a pod's.
	Pool string
	// Reason is one of the pod condition reasons (NoModel, ModelConflict, InvalidAnnotation, NoPool).
	Reason string
	// Message says what is wrong, where, and what would be right.
	Message string
}

// Reasons of notes.
const (
	// NoteImageIgnored: the pod's image is not the one that gpuscale runs.
	NoteImageIgnored = "ImageIgnored"
	// NoteAliasesIgnored: the pod serves its model under several names; only the first is routed.
	NoteAliasesIgnored = "AliasesIgnored"
	// NoteSuperseded: the pod is of an older template than others of its owner and asks for nothing.
	NoteSuperseded = "TemplateSuperseded"
)

// Note is something that a pod's owner should know and that stops nothing: an event.
type Note struct {
	Pod     PodRef
	Reason  string
	Message string
}
