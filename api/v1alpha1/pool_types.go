package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/pkg/money"
)

// GPUNodePool is permission to buy GPU instances, with ceilings.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gnp;gpupool,categories=gpuscale
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.scaling.maxNodes`
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpus`
// +kubebuilder:printcolumn:name="$/h",type=number,JSONPath=`.status.dollarsPerHour`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUNodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GPUNodePoolSpec   `json:"spec"`
	Status GPUNodePoolStatus `json:"status,omitempty"`
}

// GPUNodePoolList is a list of pools.
//
// +kubebuilder:object:root=true
type GPUNodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUNodePool `json:"items"`
}

// That names in a list are unique is the list type's to say: a rule that compared every entry with every other cost the API
// server tens of milliseconds for 64 models, at each write of a pool's status, of which each claim takes several.

// GPUNodePoolSpec says what may be bought, where, and how much of it.
type GPUNodePoolSpec struct {
	// Providers are the places to buy from. One provider may be listed twice with different capacity types: spot with
	// on-demand as the fallback.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=14
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(o, o.name == p.name && o.capacityType == p.capacityType))",message="providers: the same name and capacityType are listed twice; merge the two entries"
	Providers []ProviderSpec `json:"providers"`

	// Requirements are what every offer must satisfy.
	// +optional
	Requirements Requirements `json:"requirements,omitempty"`

	// Scaling bounds the number of nodes and the times around them.
	// +kubebuilder:default={}
	// +optional
	Scaling Scaling `json:"scaling,omitempty"`

	// Bootstrap says what an instance runs.
	// +kubebuilder:default={}
	// +optional
	Bootstrap Bootstrap `json:"bootstrap,omitempty"`

	// Models that this pool serves without a pod.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Models []PoolModel `json:"models,omitempty"`

	// Limits are hard ceilings over all instances of the pool.
	Limits Limits `json:"limits"`

	// Namespaces whose pods may spend this pool's money; empty means all.
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
}

// ProviderSpec is one place to buy from.
//
// +kubebuilder:validation:XValidation:rule="has(self.maxPrice) && self.maxPrice > 0.0",message="maxPrice is required and must be above 0: the most that one instance may cost, in $/h, for example 0.50"
type ProviderSpec struct {
	// Name of the provider.
	// +kubebuilder:validation:XValidation:rule="self in ['vast.ai','runpod','tensordock','verda','aws','gcp','azure']",message="unknown provider; use one of vast.ai, runpod, tensordock, verda, aws, gcp, azure"
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`

	// NodeType is how instances take part; only standalone machines outside the cluster exist.
	// +kubebuilder:validation:Enum=standalone
	// +kubebuilder:default=standalone
	// +optional
	NodeType string `json:"nodeType,omitempty"`

	// CapacityType is spot or on-demand.
	// +kubebuilder:validation:Enum=spot;on-demand
	// +kubebuilder:default=spot
	// +optional
	CapacityType string `json:"capacityType,omitempty"`

	// MaxPrice is the most that one instance may cost, all-in, in $/h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self < 0.0 || (double(int(self * 1000000.0 + 0.5)) - self * 1000000.0 < 0.001 && self * 1000000.0 - double(int(self * 1000000.0 + 0.5)) < 0.001)",message="at most six decimals: the smallest step is 0.000001"
	MaxPrice money.Dollars `json:"maxPrice,omitempty"`

	// APIKeySecret holds the credentials. Its keys are the environment names of the provider, or api-key. Without it
	// the controller's own environment is used.
	// +optional
	APIKeySecret *SecretReference `json:"apiKeySecret,omitempty"`

	// Regions to buy in, as the provider spells them; empty means all.
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	Regions []string `json:"regions,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
}

// Requirements filter offers.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minVRAM) || !has(self.maxVRAM) || !has(self.gpuCount) || self.maxVRAM == 0 || self.gpuCount == 0 || self.minVRAM <= self.maxVRAM * self.gpuCount",message="minVRAM (the instance's total) is above maxVRAM (per GPU) times gpuCount, so no offer can satisfy both; lower minVRAM, or raise maxVRAM or gpuCount"
type Requirements struct {
	// GPUTypes are GPU names, matched exactly or up to a '-' ("A100" is every A100). Empty means any known GPU.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	GPUTypes []string `json:"gpuTypes,omitempty"`
	// MinVRAM is the least nominal VRAM of the whole instance, in GB.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinVRAM int32 `json:"minVRAM,omitempty"`
	// MaxVRAM is the most nominal VRAM of one GPU, in GB; 0 means no limit.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxVRAM int32 `json:"maxVRAM,omitempty"`
	// GPUCount is the exact number of GPUs of an instance; 0 means as many as the workload needs.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	// +optional
	GPUCount int32 `json:"gpuCount,omitempty"`
	// MinDisk is the disk to rent, in GB. It is part of the price.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:default=50
	// +optional
	MinDisk int32 `json:"minDisk,omitempty"`
	// MinRAM is the least RAM of the instance, in GB.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinRAM int32 `json:"minRAM,omitempty"`
	// MinReliability is the least reliability score, from 0 to 1, as a decimal string.
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0([.][0-9]{1,4})?|1([.]0{1,4})?)$')",message="must be a score from 0 to 1 with at most four decimals, in quotes, for example \"0.98\""
	// +kubebuilder:validation:MaxLength=32
	// +optional
	MinReliability string `json:"minReliability,omitempty"`
	// MinCUDA is the least CUDA version that the driver must serve, like "12.8".
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]{1,2}[.][0-9]{1,2}$')",message="must be a CUDA version of two numbers, in quotes, for example \"12.8\""
	// +kubebuilder:validation:MaxLength=32
	// +optional
	MinCUDA string `json:"minCUDA,omitempty"`
}

// Scaling bounds nodes and times.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minNodes) || !has(self.maxNodes) || self.minNodes <= self.maxNodes",message="minNodes is above maxNodes; lower minNodes or raise maxNodes"
type Scaling struct {
	// MinNodes are kept even without demand.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=0
	// +optional
	MinNodes int32 `json:"minNodes"`
	// MaxNodes is a hard ceiling.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=10
	// +optional
	MaxNodes int32 `json:"maxNodes"`
	// BatchWindow is how long to wait for more pending pods after the first one.
	// +kubebuilder:default="10s"
	// +optional
	BatchWindow *Duration `json:"batchWindow,omitempty"`
	// CooldownPeriod is how long a node stays after its last use.
	// +kubebuilder:default="5m"
	// +optional
	CooldownPeriod *Duration `json:"cooldownPeriod,omitempty"`
	// InterruptionPollInterval is how often to ask providers for reclaimed instances. Providers may set a longer one.
	// +kubebuilder:default="15s"
	// +optional
	InterruptionPollInterval *Duration `json:"interruptionPollInterval,omitempty"`
	// BootstrapTimeout is how long an instance may take from creation to Ready.
	// +kubebuilder:default="20m"
	// +optional
	BootstrapTimeout *Duration `json:"bootstrapTimeout,omitempty"`
	// DrainTimeout is how long running requests may take when a node ends.
	// +kubebuilder:default="5m"
	// +optional
	DrainTimeout *Duration `json:"drainTimeout,omitempty"`
	// Consolidation moves models onto fewer or cheaper nodes.
	// +optional
	Consolidation *Consolidation `json:"consolidation,omitempty"`
	// ExpireAfter replaces nodes older than this.
	// +optional
	ExpireAfter *Duration `json:"expireAfter,omitempty"`
}

// Consolidation says when moving models is worth it.
type Consolidation struct {
	// +kubebuilder:validation:Enum=WhenEmpty;WhenUnderutilized
	// +kubebuilder:default=WhenEmpty
	// +optional
	Policy string `json:"policy,omitempty"`
	// MinSaving is the least saving that justifies a move, in $/h.
	// +kubebuilder:validation:XValidation:rule="self >= 0.0",message="must not be negative: the least saving that justifies a move, in $/h, for example 0.10"
	// +optional
	// +kubebuilder:validation:XValidation:rule="self < 0.0 || (double(int(self * 1000000.0 + 0.5)) - self * 1000000.0 < 0.001 && self * 1000000.0 - double(int(self * 1000000.0 + 0.5)) < 0.001)",message="at most six decimals: the smallest step is 0.000001"
	MinSaving *money.Dollars `json:"minSaving,omitempty"`
}

// Bootstrap says what an instance runs.
//
// +kubebuilder:validation:XValidation:rule="has(self.agentURL) == has(self.agentSHA256)",message="agentURL and agentSHA256 belong together, since a binary is run only when its hash is known; set both or neither"
// +kubebuilder:validation:XValidation:rule="!has(self.agentSHA256ARM64) || has(self.agentURL) && self.agentURL.contains('{arch}')",message="agentSHA256ARM64 needs an agentURL with {arch} in it, which stands for amd64 or arm64"
type Bootstrap struct {
	// Image is the container image with vLLM in it.
	// +kubebuilder:default="vllm/vllm-openai:latest"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// Args are added to every engine's arguments.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Args []string `json:"args,omitempty"`
	// Env is set for every engine. Use hfTokenSecret for the Hugging Face token.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`
	// HFTokenSecret holds the Hugging Face token under the key HF_TOKEN.
	// +optional
	HFTokenSecret *SecretReference `json:"hfTokenSecret,omitempty"`
	// ModelCacheURL is a mirror to load weights from.
	// +optional
	ModelCacheURL string `json:"modelCacheURL,omitempty"`
	// AgentURL is where instances fetch the agent; AgentSHA256 pins it. {arch} in it stands for the machine's processor,
	// amd64 or arm64.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[a-zA-Z0-9.:-]+/[a-zA-Z0-9._~:/?#@!&()*+,;=%{}-]*$')",message="agentURL must be an http:// or https:// address with a path and without a user, a password, quotes, dollar signs or spaces"
	// +optional
	AgentURL string `json:"agentURL,omitempty"`
	// AgentSHA256 is the SHA-256 of the file at AgentURL, of the one for amd64 where that holds {arch}.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="must be the SHA-256 of the file at agentURL: 64 digits from 0 to 9 and a to f, as sha256sum prints them"
	// +kubebuilder:validation:MaxLength=256
	// +optional
	AgentSHA256 string `json:"agentSHA256,omitempty"`
	// AgentSHA256ARM64 is that of the one for arm64. Without, machines with that processor cannot boot.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="must be the SHA-256 of the file at agentURL: 64 digits from 0 to 9 and a to f, as sha256sum prints them"
	// +kubebuilder:validation:MaxLength=256
	// +optional
	AgentSHA256ARM64 string `json:"agentSHA256ARM64,omitempty"`
}

// EnvVar is one environment variable of the engines.
type EnvVar struct {
	// Name of the variable.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",message="must be a variable's name: letters, digits and _, not beginning with a digit, for example VLLM_LOGGING_LEVEL"
	// +kubebuilder:validation:MaxLength=256
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// PoolModel is a model that a pool serves without a pod.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas is above maxReplicas; lower minReplicas or raise maxReplicas"
type PoolModel struct {
	// Name that requests use.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Source is what the engine loads; the name where empty.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Source string `json:"source,omitempty"`
	// VRAM that one replica needs, in GB over all its GPUs. 0 means whole GPUs.
	// +kubebuilder:validation:Minimum=0
	// +optional
	VRAM int32 `json:"vram,omitempty"`
	// GPUCount is the number of GPUs of one replica.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	// +optional
	GPUCount int32 `json:"gpuCount,omitempty"`
	// Args are added to the engine's arguments.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Args []string `json:"args,omitempty"`
	// AlwaysActive keeps at least one replica for ever.
	// +optional
	AlwaysActive bool `json:"alwaysActive,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReplicas int32 `json:"minReplicas,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// TargetConcurrency is how many requests one replica should have in flight.
	// +kubebuilder:validation:Minimum=1
	// +optional
	TargetConcurrency *int32 `json:"targetConcurrency,omitempty"`
}

// Limits are hard ceilings.
type Limits struct {
	// MaxGPUs over all instances of the pool.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxGPUs *int32 `json:"maxGPUs,omitempty"`
	// MaxCostPerHour over all instances of the pool, in $/h.
	// +kubebuilder:validation:XValidation:rule="self >= 0.0",message="must not be negative: the most that all instances of the pool may cost together, in $/h, for example 3.00"
	// +kubebuilder:validation:XValidation:rule="self < 0.0 || (double(int(self * 1000000.0 + 0.5)) - self * 1000000.0 < 0.001 && self * 1000000.0 - double(int(self * 1000000.0 + 0.5)) < 0.001)",message="at most six decimals: the smallest step is 0.000001"
	MaxCostPerHour money.Dollars `json:"maxCostPerHour"`
}

// GPUNodePoolStatus is what the pool has promised and what it has.
type GPUNodePoolStatus struct {
	// Reservations are the only account of what the pool has promised. The list is written as one: tracking who owns which
	// entry would double its size and cost the API server more than all else about a pool with a thousand claims.
	// +listType=atomic
	// +optional
	Reservations []Reservation `json:"reservations,omitempty"`
	// Nodes counts reservations; ReadyNodes the claims that serve.
	// +optional
	Nodes int32 `json:"nodes"`
	// +optional
	ReadyNodes int32 `json:"readyNodes"`
	// +optional
	GPUs int32 `json:"gpus"`
	// DollarsPerHour is the sum of the reservations.
	// +optional
	DollarsPerHour money.Dollars `json:"dollarsPerHour"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reservation is dollars and GPUs promised to a claim, from before the claim exists until its instance is gone.
type Reservation struct {
	Claim          string        `json:"claim"`
	DollarsPerHour money.Dollars `json:"dollarsPerHour"`
	GPUs           int32         `json:"gpus"`
	// +listType=atomic
	// +optional
	Workloads []string    `json:"workloads,omitempty"`
	Since     metav1.Time `json:"since"`
}
