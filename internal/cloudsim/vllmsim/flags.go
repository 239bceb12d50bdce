package vllmsim

import "strings"

// arity is how many words follow a flag.
type arity int

const (
	takesNone arity = iota + 1 // also exists as --no-NAME
	takesOne
	takesMany
	takesMaybe // one word if it does not look like a flag
)

// flagAliases are vLLM's short and second spellings.
var flagAliases = map[string]string{
	"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
	"dcp": "decode-context-parallel-size", "ep": "enable-expert-parallel", "q": "quantization",
	"O": "optimization-level", "cc": "compilation-config", "sc": "speculative-config", "asc": "api-server-count",
	"n": "nnodes", "r": "node-rank", "dpn": "data-parallel-rank", "dpl": "data-parallel-size-local",
	"dpa": "data-parallel-address", "dpp": "data-parallel-rpc-port", "dpb": "data-parallel-backend",
	"dph": "data-parallel-hybrid-lb", "dpe": "data-parallel-external-lb", "ac": "attention-config",
	"kv-cache-memory": "kv-cache-memory-bytes",
}

// knownFlags are the flags of `vllm serve` from v0.10 on, by what follows
// them. A flag that no release has is refused, as argparse would; dotted forms
// of JSON flags (--hf-overrides.x 1) count as their first part.
var knownFlags = func() map[string]arity {
	flags := map[string]arity{}
	for kind, names := range map[arity]string{takesNone: flagsWithNone, takesOne: flagsWithOne,
		takesMany: flagsWithMany, takesMaybe: flagsWithMaybe} {
		for _, name := range strings.Fields(names) {
			flags[name] = kind
		}
	}
	return flags
}()

const flagsWithNone = `
aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling calculate-kv-scales
cudagraph-metrics cpu-offload-params-pinned data-parallel-external-lb data-parallel-hybrid-lb
disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
disable-frontend-multiprocessing disable-hybrid-kv-cache-manager disable-log-requests disable-log-stats
disable-mm-preprocessor-cache disable-nccl-for-dp-synchronization disable-sliding-window
disable-uvicorn-access-log enable-auto-tool-choice enable-chunked-prefill enable-cumem-allocator enable-dbo
enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel enable-flashinfer-autotune
enable-force-include-usage enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
enable-log-requests enable-logging-iteration-details enable-lora enable-lora-bias enable-mfu-metrics
enable-mm-embeds enable-multimodal-encoder-data-parallel enable-prefix-caching
enable-prompt-adapter enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
enable-return-routed-experts enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
enable-tokenizer-info-endpoint enable-tower-connector-lora enable-tracing
exclude-tools-when-tool-choice-none enforce-eager expand-tools-even-if-tool-choice-none fail-on-environ-validation
fully-sharded-loras grpc headless interleave-mm-strings kv-cache-metrics
kv-sharing-fast-prefill language-model-only log-error-stack
multi-step-stream-outputs numa-bind ray-workers-use-nsight return-tokens-as-token-ids
scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init specialize-active-lora tokens-only
trust-remote-code trust-request-chat-template use-tqdm-on-load use-v2-block-manager`

const flagsWithOne = `
disable-access-log-for-endpoints additional-config allowed-local-media-path api-server-count attention-backend
attention-config all2all-backend block-size chat-template chat-template-content-format code-revision
collect-detailed-traces compilation-config config config-format convert cp-kv-cache-interleave-size
cpu-distributed-timeout-seconds cpu-offload-gb data-parallel-address
data-parallel-backend data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
dcp-kv-cache-interleave-size decode-context-parallel-size default-chat-template-kwargs device
distributed-executor-backend distributed-timeout-seconds download-dir dtype ec-transfer-config
eplb-config expert-placement-strategy generation-config
gdn-prefill-backend gpu-memory-utilization guided-decoding-backend h11-max-header-count
h11-max-incomplete-event-size hf-config-path hf-overrides host io-processor-plugin
ir-op-priority kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample
kv-events-config kv-offloading-backend kv-offloading-size kv-transfer-config linear-backend load-format
log-config-file logits-processor-pattern logprobs-mode long-prefill-token-threshold lora-dtype
lora-extra-vocab-size mamba-backend mamba-block-size mamba-cache-dtype
mamba-cache-mode mamba-ssm-cache-dtype master-addr master-port max-cpu-loras max-log-len max-logprobs max-lora-rank
max-loras max-long-partial-prefills max-model-len max-num-batched-tokens max-num-partial-prefills
max-num-seqs max-parallel-loading-workers max-prompt-adapter-token max-prompt-adapters max-seq-len-to-capture
mm-encoder-attn-backend mm-encoder-tp-mode mm-processor-cache-gb mm-processor-cache-type
mm-processor-kwargs mm-shm-cache-max-object-size-mb model model-impl model-loader-extra-config moe-backend
multiprocess-executor-timeout nnodes node-rank num-gpu-blocks-override num-lookahead-slots
num-scheduler-steps offload-backend offload-group-size offload-num-in-group
offload-prefetch-step optimization-level otlp-traces-endpoint override-attention-dtype
override-generation-config override-neuron-config override-pooler-config performance-mode
pipeline-parallel-size pooler-config port prefill-context-parallel-size prefix-caching-hash-algo
preemption-mode profiler-config pt-load-map-location quantization quantization-config
reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers response-role revision
root-path rope-scaling rope-theta runner safetensors-load-strategy scheduler-cls scheduler-delay-factor
scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout speculative-config ssl-ca-certs
ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval structured-outputs-config swap-space
task tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser
tool-parser-plugin tool-server ubatch-size uds uvicorn-log-level video-pruning-rate
weight-transfer-config worker-cls worker-extension-cls`

const flagsWithMany = `
allowed-headers allowed-media-domains allowed-methods allowed-origins api-key cudagraph-capture-sizes
cpu-offload-params ignore-patterns logits-processors lora-modules
lora-target-modules middleware offload-params prompt-adapters served-model-name`

const flagsWithMaybe = `hf-token limit-mm-per-prompt`
