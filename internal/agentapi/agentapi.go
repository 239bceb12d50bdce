// Package agentapi is the language between a worker's agent and its callers, the controller and the gateway: boot data,
// the JSON of each route, and the header that marks a refusal. It imports nothing, so that the agent stays small.
package agentapi

import "time"

// Routes of the agent's one HTTPS port. /v1/… is passed to the engine of the model that the request names.
const (
	PathStatus  = "/status"
	PathModels  = "/models"
	PathDrain   = "/drain"
	PathMetrics = "/metrics"
	PathLogs    = "/logs"
	PathHealthz = "/healthz"
	PathOpenAI  = "/v1/"
)

// Roles of a caller, as its client certificate's URI spells them: gpuscale://<installation>/<role>.
const (
	RoleController = "controller"
	RoleGateway    = "gateway"
)

// HeaderRefused marks an answer of the agent's own, as opposed to one of an engine: the request was not started and can be
// sent elsewhere. Its value is one of the Refused constants. The status is 429 with Retry-After for RefusedFull, else 503.
const HeaderRefused = "Gpuscale-Refused"

// Why the agent refused a request. RefusedFull: as many requests are in flight as the engine may have, and the agent
// queues none.
const (
	RefusedDraining = "draining"
	RefusedNotReady = "not-ready"
	RefusedNoModel  = "no-such-model"
	RefusedFull     = "full"
)

// EnvBoot is the environment variable with the base64 of the JSON of Boot, and EnvListen overrides where the agent
// listens ("host:port"), for hosts that forward a port to the container. EnvMetadata is the address of the metadata service
// where it is not the clouds' own ("http://host:port"), for machines that reach it through something else.
const (
	EnvBoot     = "GPUSCALE_BOOT"
	EnvListen   = "GPUSCALE_LISTEN"
	EnvMetadata = "GPUSCALE_METADATA_URL"
)

// Settings of the agent's, in its environment or in DesiredModels.Env, which wins. No engine sees them.
const (
	// EnvEngineCommand is the engine's command: words between spaces, or a JSON list of words. Package agent says which
	// placeholders it may hold.
	EnvEngineCommand = "GPUSCALE_ENGINE_COMMAND"
	// EnvMaxInFlight is how many requests one engine may have at once.
	EnvMaxInFlight = "GPUSCALE_MAX_IN_FLIGHT"
	// EnvMaxBody bounds a request's body, in bytes.
	EnvMaxBody = "GPUSCALE_MAX_BODY_BYTES"
)

// MaxBootBytes bounds the encoded boot data.
const MaxBootBytes = 8 << 10

// DefaultPort is where the agent listens inside the instance.
const DefaultPort = 9443

// Boot is what an instance is told at creation: who it is and whom it trusts, and no user's secret.
type Boot struct {
	Version int `json:"v"`
	// Installation is the id of the gpuscale installation whose callers are accepted.
	Installation string `json:"installation"`
	ClaimUID     string `json:"claimUID"`
	ClaimName    string `json:"claim"`
	// CertPEM and KeyPEM are the worker's server certificate for WorkerName(ClaimUID).
	CertPEM string `json:"cert"`
	KeyPEM  string `json:"key"`
	// CAPEM is the installation's CA, for client certificates.
	CAPEM string `json:"ca"`
	Port  int    `json:"port"`
	// GPUs that were bought, to compare with what is there.
	GPUs GPUExpectation `json:"gpus"`
	// Image is the container image whose engines the agent starts with Docker. Empty: the agent is in the image itself.
	Image string `json:"image,omitempty"`
	// LeaseSeconds is how long the worker goes on without an authenticated call before it ends its own rental; 0 is for
	// ever.
	LeaseSeconds int `json:"lease,omitempty"`
	// SelfEnd is how it can do that, nil where its provider gives it no way.
	SelfEnd *SelfEnd `json:"selfEnd,omitempty"`
	// Notices is the metadata service that announces interruptions, one of the Notices constants; empty where there is none.
	Notices string `json:"notices,omitempty"`
}

// SelfEnd is how a worker ends its own rental.
type SelfEnd struct {
	// By is one of the SelfEnd constants; one that the agent does not know is no way.
	By string `json:"by"`
	// URL is the provider's API where By needs one; empty is the provider's own address.
	URL string `json:"url,omitempty"`
}

// GPUExpectation is what was paid for.
type GPUExpectation struct {
	// Name is the canonical name, VRAMGB nominal per GPU.
	Name   string `json:"name"`
	Count  int    `json:"count"`
	VRAMGB int    `json:"vramGB"`
}

// WorkerName is the one DNS name in a worker's certificate, which its callers verify.
func WorkerName(claimUID string) string { return claimUID + ".worker.gpuscale" }

// Status is the answer of GET /status.
type Status struct {
	Version  string    `json:"version"`
	ClaimUID string    `json:"claimUID"`
	Now      time.Time `json:"now"`
	// BootID changes when the agent restarts: the desired models must then be put again.
	BootID string `json:"bootID"`
	Steps  []Step `json:"steps"`
	// Failure is set when the agent can never serve (GPU mismatch, no driver, no Docker, no engine).
	Failure *Failure    `json:"failure,omitempty"`
	GPUs    []GPU       `json:"gpus"`
	Driver  string      `json:"driver,omitempty"`
	CUDA    string      `json:"cuda,omitempty"`
	Models  []ModelInfo `json:"models"`
	// DesiredGeneration is the Generation of the latest PUT /models, 0 before the first.
	DesiredGeneration int64 `json:"desiredGeneration"`
	// InFlight counts requests being served over all models; LastRequest is when one last ended or began, null if never.
	InFlight    int        `json:"inFlight"`
	LastRequest *time.Time `json:"lastRequest,omitempty"`
	Draining    bool       `json:"draining"`
	// Notice is the provider's word that the instance is about to be taken back.
	Notice *Notice `json:"notice,omitempty"`
	// Lease is how the worker stands with its lease; nil from an agent that knows of none.
	Lease *Lease `json:"lease,omitempty"`
}

// Step is a boot step that was reached.
type Step struct {
	Name    string    `json:"name"`
	At      time.Time `json:"at"`
	Message string    `json:"message,omitempty"`
}

// Names of boot steps, in order. The per-model steps carry the model in the message. RuntimeFound and ImagePulled are of
// machines that run engines in containers.
const (
	StepBooted       = "Booted"
	StepGPUsFound    = "GPUsFound"
	StepRuntimeFound = "RuntimeFound"
	StepImagePulled  = "ImagePulled"
	StepDownloading  = "Downloading"
	StepLoading      = "Loading"
	StepWarmed       = "Warmed"
	StepReady        = "Ready"
)

// Failure says which step failed and how.
type Failure struct {
	Step string `json:"step"`
	// Exit is one of the Exit constants.
	Exit    string `json:"exit"`
	Message string `json:"message"`
}

// How a step can fail: a closed list, which the culprit table maps to offer, workload, pool or provider.
const (
	ExitNoDriver        = "NoDriver"
	ExitGPUMismatch     = "GPUMismatch"
	ExitNoRuntime       = "NoRuntime"
	ExitNoEngine        = "NoEngine"
	ExitBadArgument     = "BadArgument"
	ExitOutOfMemory     = "OutOfMemory"
	ExitWeightsDenied   = "WeightsDenied"
	ExitWeightsNotFound = "WeightsNotFound"
	ExitCrashed         = "Crashed"
	ExitTimeout         = "Timeout"
	ExitWarmupFailed    = "WarmupFailed"
)

// GPU is one device as nvidia-smi names it.
type GPU struct {
	Name     string `json:"name"`
	MemoryMB int    `json:"memoryMB"`
	UUID     string `json:"uuid,omitempty"`
}

// ModelInfo is the state of one desired model.
type ModelInfo struct {
	Name string `json:"name"`
	// State is Pending, Downloading, Loading, Warming, Ready, Draining or Failed.
	State    string    `json:"state"`
	Since    time.Time `json:"since"`
	Message  string    `json:"message,omitempty"`
	Failure  *Failure  `json:"failure,omitempty"`
	Restarts int       `json:"restarts"`
	InFlight int       `json:"inFlight"`
	// LastRequest is when a request for it last began or ended.
	LastRequest *time.Time `json:"lastRequest,omitempty"`
	// Download is how far its weights have come, nil where none came over the network.
	Download *Download `json:"download,omitempty"`
	// LogTail has the engine's last lines when it failed.
	LogTail []string `json:"logTail,omitempty"`
}

// Download counts the bytes of a model's files. TotalBytes is what the weights come to, 0 where that is not known.
type Download struct {
	Bytes          int64 `json:"bytes"`
	TotalBytes     int64 `json:"totalBytes,omitempty"`
	BytesPerSecond int64 `json:"bytesPerSecond"`
}

// Model states.
const (
	StatePending     = "Pending"
	StateDownloading = "Downloading"
	StateLoading     = "Loading"
	StateWarming     = "Warming"
	StateReady       = "Ready"
	StateDraining    = "Draining"
	StateFailed      = "Failed"
)

// DesiredModels is the body of PUT /models: the whole desired set. Models not in it are drained and stopped. It is
// idempotent; an older Generation than the last one is refused with 409.
type DesiredModels struct {
	Generation int64          `json:"generation"`
	Models     []DesiredModel `json:"models"`
	// Env is added to every engine's environment. Secrets travel here and nowhere else.
	Env map[string]string `json:"env,omitempty"`
}

// DesiredModel is one model to serve.
type DesiredModel struct {
	Name   string   `json:"name"`
	Source string   `json:"source"`
	Args   []string `json:"args,omitempty"`
	// GPUs that the engine spans, and the share of each one's memory in thousandths.
	GPUs        int `json:"gpus"`
	GPUFraction int `json:"gpuFraction"`
	// LoadTimeoutSeconds bounds the time from start to Ready; 0 means the agent's own bounds, which let a download take as
	// long as bytes come.
	LoadTimeoutSeconds int `json:"loadTimeoutSeconds,omitempty"`
}

// DrainRequest is the body of POST /drain: from now on new work is refused with the marked 503. An empty Model means
// everything. Draining cannot be undone for the whole worker; a model comes back with PUT /models.
type DrainRequest struct {
	Model string `json:"model,omitempty"`
}
