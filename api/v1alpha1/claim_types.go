package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/pkg/money"
)

// GPUNodeClaim is one rented instance moving through its life.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gnc;gpuclaim,categories=gpuscale
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.status.provider`
// +kubebuilder:printcolumn:name="GPU",type=string,JSONPath=`.status.gpu`
// +kubebuilder:printcolumn:name="$/h",type=number,JSONPath=`.status.dollarsPerHour`
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.spec.placements[*].workload`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUNodeClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GPUNodeClaimSpec `json:"spec"`
	// A claim is Pending before its controller has written anything.
	//
	// +kubebuilder:default={phase: Pending}
	Status GPUNodeClaimStatus `json:"status,omitempty"`
}

// GPUNodeClaimList is a list of claims.
//
// +kubebuilder:object:root=true
type GPUNodeClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUNodeClaim `json:"items"`
}

// GPUNodeClaimSpec is a bounded licence to rent one instance: what, from whom, for how much, and for which models.
// Everything but the placements is fixed at creation.
//
// +kubebuilder:validation:XValidation:rule="self.pool == oldSelf.pool && self.providers == oldSelf.providers && self.requirements == oldSelf.requirements && self.maxPrice == oldSelf.maxPrice && self.bootstrap == oldSelf.bootstrap",message="a claim's spec cannot be changed (only its placements, by the controller); delete the claim and let the pool make another"
type GPUNodeClaimSpec struct {
	// Pool whose money is spent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// Providers that may be bought from, as the pool had them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=14
	Providers []ProviderSpec `json:"providers"`
	// Requirements are the exact shape: gpuCount is set, gpuTypes are the names that may be bought.
	Requirements Requirements `json:"requirements"`
	// MaxPrice is the reservation: the most that the instance may cost, all-in, in $/h.
	// +kubebuilder:validation:XValidation:rule="self < 0.0 || (double(int(self * 1000000.0 + 0.5)) - self * 1000000.0 < 0.001 && self * 1000000.0 - double(int(self * 1000000.0 + 0.5)) < 0.001)",message="at most six decimals: the smallest step is 0.000001"
	MaxPrice money.Dollars `json:"maxPrice"`
	// Bootstrap as the pool had it.
	// +kubebuilder:default={}
	Bootstrap Bootstrap `json:"bootstrap"`
	// Placements are the models that this instance serves.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=workload
	// +optional
	Placements []Placement `json:"placements,omitempty"`
}

// Placement is one workload's replica on a claim.
type Placement struct {
	// Workload is the workload's key: the served model name.
	// +kubebuilder:validation:MaxLength=253
	Workload string `json:"workload"`
	// Source is what the engine loads.
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// Args are the engine's arguments.
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Args []string `json:"args,omitempty"`
	// Form is a hash of all that the workload asks: a workload that rests is forgiven when it changes.
	// +optional
	Form string `json:"form,omitempty"`
	// GPUs is the number of GPUs that the replica spans.
	// +kubebuilder:validation:Minimum=1
	GPUs int32 `json:"gpus"`
	// GPUFraction is the share of each of those GPUs' memory in thousandths; 1000 is a whole GPU.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	GPUFraction int32       `json:"gpuFraction"`
	Since       metav1.Time `json:"since"`
}

// Phase is where a claim is in its life. It only moves forward.
//
// +kubebuilder:validation:Enum=Pending;Provisioning;Bootstrapping;Ready;Draining;Terminated
type Phase string

// The phases, in order.
const (
	PhasePending       Phase = "Pending"
	PhaseProvisioning  Phase = "Provisioning"
	PhaseBootstrapping Phase = "Bootstrapping"
	PhaseReady         Phase = "Ready"
	PhaseDraining      Phase = "Draining"
	PhaseTerminated    Phase = "Terminated"
)

// GPUNodeClaimStatus is what is known of the instance.
type GPUNodeClaimStatus struct {
	// +kubebuilder:default=Pending
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Provider, CapacityType, Region and CredentialSecret are set with the first attempt and outlive the pool's entry.
	// +optional
	Provider string `json:"provider,omitempty"`
	// +optional
	CapacityType string `json:"capacityType,omitempty"`
	// +optional
	Region string `json:"region,omitempty"`
	// +optional
	CredentialSecret *SecretReference `json:"credentialSecret,omitempty"`
	// AccountID is the account that was bought with, in the provider's own numbering. Empty where it cannot be told; it is
	// added when an account that tells its number shows the instance.
	// +optional
	AccountID string `json:"accountID,omitempty"`

	// Attempt is the purchase being made or made.
	// +optional
	Attempt *Attempt `json:"attempt,omitempty"`
	// Attempts counts purchases tried, including those that bought nothing.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// InstanceID is the provider's name for the instance.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// GPU is what was bought, for people: "1×RTX4090".
	// +optional
	GPU string `json:"gpu,omitempty"`
	// GPUCount and VRAM (nominal GB per GPU) of the instance.
	// +optional
	GPUCount int32 `json:"gpuCount,omitempty"`
	// +optional
	VRAM int32 `json:"vram,omitempty"`
	// DollarsPerHour is the offer's price and, once the provider has said, the rate read back.
	// +optional
	DollarsPerHour *money.Dollars `json:"dollarsPerHour,omitempty"`
	// Rates are what the provider has said that it charges, each with when that was first seen. Until the first one the
	// offer's price counts.
	// +listType=atomic
	// +optional
	Rates []Rate `json:"rates,omitempty"`
	// RestKeys are the offer's stable scopes, rested when the instance proves bad.
	// +listType=atomic
	// +optional
	RestKeys []string `json:"restKeys,omitempty"`

	// Endpoint is "host:port" of the agent.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// Models as the agent reports them.
	// +listType=map
	// +listMapKey=name
	// +optional
	Models []ModelStatus `json:"models,omitempty"`
	// Steps are the milestones of this claim in the order they were reached.
	// +listType=map
	// +listMapKey=name
	// +optional
	Steps []Step `json:"steps,omitempty"`

	// Failure is why the claim ended, if it failed.
	// +optional
	Failure *Failure `json:"failure,omitempty"`

	// LastRequestAt is the agent's account of the latest request.
	// +optional
	LastRequestAt *metav1.Time `json:"lastRequestAt,omitempty"`
	// Lease is how long the worker goes on without a call from the controller or the gateway before it ends its own rental;
	// absent where it cannot or need not.
	// +optional
	Lease *Duration `json:"lease,omitempty"`
	// LastContactAt is when the controller last reached the worker, to an eighth of the lease.
	// +optional
	LastContactAt *metav1.MicroTime `json:"lastContactAt,omitempty"`
	// ReclaimAt is when the provider takes the instance back, where it has announced that.
	// +optional
	ReclaimAt *metav1.Time `json:"reclaimAt,omitempty"`
	// DemandEndedAt is when the last workload placed here lost its demand.
	// +optional
	DemandEndedAt *metav1.MicroTime `json:"demandEndedAt,omitempty"`
	// Unwanted are the placed models that nothing wants here any more. Each is taken off one cooldown later, if others keep
	// the instance.
	// +listType=map
	// +listMapKey=workload
	// +optional
	Unwanted []UnwantedModel `json:"unwanted,omitempty"`
	// DrainStartedAt is when the end began.
	// +optional
	DrainStartedAt *metav1.Time `json:"drainStartedAt,omitempty"`
	// FirstNotFoundAt is when the provider first said that the instance does not exist.
	// +optional
	FirstNotFoundAt *metav1.MicroTime `json:"firstNotFoundAt,omitempty"`

	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UnwantedModel is a placed model that nothing wants, and since when.
type UnwantedModel struct {
	Workload string           `json:"workload"`
	Since    metav1.MicroTime `json:"since"`
}

// Rate is what an instance costs from a time on.
type Rate struct {
	DollarsPerHour money.Dollars    `json:"dollarsPerHour"`
	From           metav1.MicroTime `json:"from"`
}

// Attempt is one purchase: written before the provider is asked, so that it can be looked up afterwards.
type Attempt struct {
	// Number counts from 1.
	Number int32 `json:"number"`
	// Token is the owner tag that the instance carries.
	Token string `json:"token"`
	// OfferID and Price are the offer's.
	OfferID string        `json:"offerID"`
	Price   money.Dollars `json:"price"`
	// WrittenAt is when the intent was recorded.
	WrittenAt metav1.MicroTime `json:"writtenAt"`
	// Outcome is Open until it is known whether the provider rented anything for the token.
	// +kubebuilder:validation:Enum=Open;Refused;Created
	// +kubebuilder:default=Open
	Outcome AttemptOutcome `json:"outcome"`
	// AbsentAt is when the token was first looked up and not found, late enough for the request to be dead.
	// +optional
	AbsentAt *metav1.MicroTime `json:"absentAt,omitempty"`
}

// AttemptOutcome is what became of a purchase.
type AttemptOutcome string

// An Open attempt may have bought; it is looked up by its token before anything is asked again. A Refused one certainly
// bought nothing; a Created one has an instance.
const (
	AttemptOpen    AttemptOutcome = "Open"
	AttemptRefused AttemptOutcome = "Refused"
	AttemptCreated AttemptOutcome = "Created"
)

// ModelState is the state of one model on a worker.
//
// +kubebuilder:validation:Enum=Pending;Downloading;Loading;Warming;Ready;Draining;Failed
type ModelState string

// The model states.
const (
	ModelPending     ModelState = "Pending"
	ModelDownloading ModelState = "Downloading"
	ModelLoading     ModelState = "Loading"
	ModelWarming     ModelState = "Warming"
	ModelReady       ModelState = "Ready"
	ModelDraining    ModelState = "Draining"
	ModelFailed      ModelState = "Failed"
)

// ModelStatus is one model on the claim's worker.
type ModelStatus struct {
	Name  string     `json:"name"`
	State ModelState `json:"state"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// Step is a milestone with its time.
type Step struct {
	Name string           `json:"name"`
	At   metav1.MicroTime `json:"at"`
	// +optional
	Message string `json:"message,omitempty"`
}

// Culprit is what a failure is blamed on, and so what rests.
//
// +kubebuilder:validation:Enum=offer;workload;pool;provider;none
type Culprit string

// The culprits.
const (
	CulpritOffer    Culprit = "offer"
	CulpritWorkload Culprit = "workload"
	CulpritPool     Culprit = "pool"
	CulpritProvider Culprit = "provider"
	CulpritNone     Culprit = "none"
)

// Failure is why a claim failed.
type Failure struct {
	// Step that failed and Reason from the closed list.
	Step   string `json:"step"`
	Reason string `json:"reason"`
	// Message has the engine's or the provider's own last words.
	Message string      `json:"message,omitempty"`
	Culprit Culprit     `json:"culprit"`
	At      metav1.Time `json:"at"`
}
