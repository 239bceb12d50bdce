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
	// MaxPrice is the most that the instance may cost all-in; nil means the pool's own ceilings only.
	MaxPrice *money.Dollars
	// Provider and CapacityType restrict where; empty means the pool's.
	Provider     provider.Name
	CapacityType provider.CapacityType
	// Pool restricts which pool pays; empty means any that admits it.
	Pool string
	// Namespaces that ask; every one must be allowed by the pool that pays. Empty for demand that has none.
	Namespaces []string
	// Priority orders workloads when ceilings bind; higher first.
	Priority int

	// Replicas wanted: the maximum of pods, the gateway's wish and the pools' minimum.
	Replicas int
	// AlwaysActive: never without a worker by our choice.
	AlwaysActive bool
	// Pods that ask, oldest first.
	Pods []PodRef
	// Since is when the oldest unmet demand appeared: it opens the batch window.
	Since time.Time
	// Form is a hash of Source, Args, GPU needs and pool form: a workload that rests is forgiven when it changes.
	Form string
}

// PodRef names a pod that asks.
type PodRef struct {
	types.NamespacedName
	UID     types.UID
	Created time.Time
}

// Problem is a pod that asks and cannot be understood, or may not ask: nothing is bought for it.
type Problem struct {
	Pod PodRef
	// Reason is one of the pod condition reasons (NoModel, ModelConflict, InvalidAnnotation).
	Reason string
	// Message says what is wrong, where, and what would be right.
	Message string
}
