package v1alpha1

// Annotations on pods.
const (
	// AnnotationPrefix starts every annotation that makes a pod ours.
	AnnotationPrefix     = "gpuscale.io/"
	AnnotationModel      = "gpuscale.io/model"
	AnnotationServedName = "gpuscale.io/served-name"
	AnnotationGPUVRAM    = "gpuscale.io/gpu-vram"
	AnnotationGPUType    = "gpuscale.io/gpu-type"
	AnnotationMaxPrice   = "gpuscale.io/max-price"
	AnnotationProvider   = "gpuscale.io/provider"
	AnnotationPriority   = "gpuscale.io/priority"
	AnnotationPool       = "gpuscale.io/pool"
)

// Annotations, labels, finalizers and gates of our own.
const (
	// AnnotationDrain on a claim asks for its end; the value is the reason.
	AnnotationDrain = "gpuscale.io/drain"
	// AnnotationConfirmSweep on the installation's Secret gpuscale-ca lets a halted sweep go on; the value is the code that
	// the halt's message gives, and good for that halt only.
	AnnotationConfirmSweep = "gpuscale.io/confirm-sweep"
	// Finalizer keeps a claim until its instance is confirmed gone, and a pool until its last claim is.
	Finalizer = "gpuscale.io/instance"
	// LabelPool is on every claim.
	LabelPool = "gpuscale.io/pool"
	// SchedulingGateCapacity hides a pod from the scheduler while it is demand.
	SchedulingGateCapacity = "gpuscale.io/capacity"
)

// Conditions of a claim. Each is True when it says so, False with a reason otherwise.
const (
	ConditionInstanceCreated   = "InstanceCreated"
	ConditionInstanceRunning   = "InstanceRunning"
	ConditionAgentConnected    = "AgentConnected"
	ConditionModelLoaded       = "ModelLoaded"
	ConditionEndpointPublished = "EndpointPublished"
	ConditionReady             = "Ready"
	ConditionIdle              = "Idle"
	ConditionInterrupted       = "Interrupted"
	ConditionDrained           = "Drained"
	ConditionInstanceGone      = "InstanceGone"
)

// Conditions of a pool, beside Ready.
const (
	ConditionLimitsReached    = "LimitsReached"
	ConditionCredentialsValid = "CredentialsValid"
	ConditionOffersAvailable  = "OffersAvailable"
)

// PodConditionServed is the condition of an annotated pod.
const PodConditionServed = "gpuscale.io/Served"

// Reasons of PodConditionServed.
const (
	PodReasonPlanned           = "Planned"
	PodReasonCreating          = "Creating"
	PodReasonBooting           = "Booting"
	PodReasonServed            = "Served"
	PodReasonLost              = "Lost"
	PodReasonNoModel           = "NoModel"
	PodReasonModelConflict     = "ModelConflict"
	PodReasonNoOffers          = "NoOffers"
	PodReasonCeilingReached    = "CeilingReached"
	PodReasonResting           = "Resting"
	PodReasonInvalidAnnotation = "InvalidAnnotation"
	PodReasonNoPool            = "NoPool"
)
