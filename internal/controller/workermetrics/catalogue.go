package workermetrics

import (
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// Prefixes of what is re-exposed, and of what it is on the worker.
const (
	VLLMPrefix = "gpuscale_worker_vllm_"
	GPUPrefix  = "gpuscale_worker_gpu_"

	vllmSource = "vllm:"
)

// Family is one metric family that is re-exposed.
type Family struct {
	// Name as it is exposed, and Type: "gauge", "counter" or "histogram".
	Name, Type, Help string
	// Labels beside those that say whose the series is.
	Labels []string
	// Core is true for what is re-exposed by default.
	Core bool
	// Sources are the worker's names for it, the newest first: where two are present, the newer counts.
	Sources []string
}

// vllm is a family of vLLM's; older are names that earlier versions had.
func vllm(core bool, kind, name, help string, labels []string, older ...string) Family {
	f := Family{Name: VLLMPrefix + name, Type: kind, Help: help, Core: core, Labels: append([]string{"engine"}, labels...)}
	for _, source := range append([]string{name}, older...) {
		f.Sources = append(f.Sources, vllmSource+source)
	}
	return f
}

const (
	gauge     = "gauge"
	counter   = "counter"
	histogram = "histogram"
	core      = true
	more      = false
)

// Catalogue has every family that is known, in the order of names. The source for vLLM's is its vllm/v1/metrics/loggers.py;
// with "all", families that a later version adds are passed on too, under their own name and type.
func Catalogue() []Family {
	out := append(vllmState(), vllmCounters()...)
	out = append(out, vllmHistograms()...)
	for _, m := range agentapi.GPUMetrics() {
		kind := gauge
		if m.Counter {
			kind = counter
		}
		out = append(out, Family{Name: GPUPrefix + m.Name, Type: kind, Help: m.Help, Core: m.Core,
			Labels: append([]string{"gpu", "uuid"}, m.Labels...), Sources: []string{agentapi.GPUMetricPrefix + m.Name}})
	}
	slices.SortFunc(out, func(a, b Family) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func vllmState() []Family {
	return []Family{
		vllm(core, gauge, "num_requests_running", "Requests in the batch.", nil),
		vllm(core, gauge, "num_requests_waiting", "Requests queued in the engine.", nil),
		vllm(more, gauge, "num_requests_waiting_by_reason", "Requests queued in the engine, by reason.", []string{"reason"}),
		vllm(core, gauge, "kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", nil, "gpu_cache_usage_perc"),
		vllm(more, gauge, "engine_sleep_state", "1 for the state that the engine is in.", []string{"sleep_state"}),
		vllm(more, gauge, "lora_requests_info", "Time of the latest change; its labels say which adapters run and wait.",
			[]string{"max_lora", "waiting_lora_adapters", "running_lora_adapters"}),
		vllm(more, gauge, "cache_config_info", "1, with the configuration of the KV cache in labels such as block_size and num_gpu_blocks.", nil),
	}
}

func vllmCounters() []Family {
	return []Family{
		vllm(core, counter, "prompt_tokens_total", "Prompt tokens processed.", nil),
		vllm(core, counter, "generation_tokens_total", "Tokens generated.", nil),
		vllm(more, counter, "prompt_tokens_by_source_total", "Prompt tokens, by where they came from.", []string{"source"}),
		vllm(more, counter, "prompt_tokens_cached_total", "Prompt tokens that a cache had.", nil),
		vllm(core, counter, "prefix_cache_queries_total", "Tokens looked up in the prefix cache.", nil, "gpu_prefix_cache_queries_total"),
		vllm(core, counter, "prefix_cache_hits_total", "Tokens found in the prefix cache.", nil, "gpu_prefix_cache_hits_total"),
		vllm(more, counter, "external_prefix_cache_queries_total", "Tokens looked up in a cache outside the engine.", nil),
		vllm(more, counter, "external_prefix_cache_hits_total", "Tokens found in a cache outside the engine.", nil),
		vllm(more, counter, "mm_cache_queries_total", "Items looked up in the multimodal cache.", nil),
		vllm(more, counter, "mm_cache_hits_total", "Items found in the multimodal cache.", nil),
		vllm(core, counter, "num_preemptions_total", "Requests put back for want of KV cache.", nil),
		vllm(core, counter, "request_success_total", "Requests ended, aborted ones too.", []string{"finished_reason"}),
		vllm(core, counter, "corrupted_requests_total", "Requests with NaN in their logits; only where the engine counts them.", nil),
		vllm(more, counter, "spec_decode_num_drafts_total", "Drafts of speculative decoding.", nil),
		vllm(more, counter, "spec_decode_num_draft_tokens_total", "Tokens drafted.", nil),
		vllm(more, counter, "spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.", nil),
		vllm(more, counter, "spec_decode_num_accepted_tokens_per_pos_total", "Drafted tokens accepted, by position.", []string{"position"}),
	}
}

func vllmHistograms() []Family {
	h := func(core bool, name, help string, older ...string) Family {
		return vllm(core, histogram, name, help, nil, older...)
	}
	return []Family{
		h(core, "time_to_first_token_seconds", "From a request's arrival to its first token, queue included."),
		h(core, "inter_token_latency_seconds", "Between two tokens of a request.", "time_per_output_token_seconds"),
		h(more, "request_time_per_output_token_seconds", "Mean time per token, by request."),
		h(core, "e2e_request_latency_seconds", "From a request's arrival to its end."),
		h(core, "request_queue_time_seconds", "Time that a request waited in the engine."),
		h(more, "request_prefill_time_seconds", "Time in prefill."),
		h(more, "request_decode_time_seconds", "Time in decode."),
		h(more, "request_inference_time_seconds", "Time in the batch."),
		h(core, "request_prompt_tokens", "Prompt tokens of a request."),
		h(core, "request_generation_tokens", "Tokens generated for a request."),
		h(more, "request_max_num_generation_tokens", "Tokens that a request may generate."),
		h(more, "request_params_n", "Completions asked for at once."),
		h(more, "request_params_max_tokens", "max_tokens of a request."),
		h(more, "request_prefill_kv_computed_tokens", "Prompt tokens computed, without what a cache had."),
		h(more, "iteration_tokens_total", "Tokens per step of the engine. A histogram, for all its name."),
		h(more, "kv_block_lifetime_seconds", "Life of a block of KV cache."),
		h(more, "kv_block_idle_before_evict_seconds", "Time that a block was idle before it was evicted."),
		h(more, "kv_block_reuse_gap_seconds", "Time between two uses of a block."),
	}
}

// index finds families by the worker's names.
type index struct {
	all      bool
	known    []Family
	bySource map[string]source
}

// source is what a worker's name stands for: the family, and how far down its list of names.
type source struct {
	family *Family
	rank   int
}

func newIndex(all bool) *index {
	x := &index{all: all, bySource: map[string]source{}}
	for _, f := range Catalogue() {
		if all || f.Core {
			x.known = append(x.known, f)
		}
	}
	for i := range x.known {
		for rank, name := range x.known[i].Sources {
			x.bySource[name] = source{&x.known[i], rank}
		}
	}
	return x
}

// suffixes are those of a histogram's series.
var suffixes = []string{"_bucket", "_count", "_sum"}

// wants reports whether the line of a series or comment with this name is kept.
func (x *index) wants(name string) bool {
	if _, ok := x.bySource[name]; ok {
		return true
	}
	for _, suffix := range suffixes {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			if s, ok := x.bySource[base]; ok && s.family.Type == histogram {
				return true
			}
		}
	}
	return x.all && strings.HasPrefix(name, vllmSource)
}

// find is the family of a worker's family, false for one that is not passed on. Of families that no one knows, those are
// that cannot be mistaken for another's series.
func (x *index) find(f *dto.MetricFamily) (source, bool) {
	kind, plain := kindOf(f)
	if s, ok := x.bySource[f.GetName()]; ok {
		return s, s.family.Type == kind || plain && s.family.Type != histogram
	}
	name, ok := strings.CutPrefix(f.GetName(), vllmSource)
	if !x.all || !ok || kind == "" || len(name) > maxName || strings.ContainsAny(name, ":") || strings.HasSuffix(name, "_created") {
		return source{}, false
	}
	for _, suffix := range suffixes {
		if strings.HasSuffix(name, suffix) {
			return source{}, false
		}
	}
	return source{family: &Family{Name: VLLMPrefix + name, Type: kind, Help: "As vLLM has it; not known to this version."}}, true
}

// kindOf is the type of a family, empty for one that is not passed on. Old engines have gauges that became counters, so
// plain numbers are taken for either.
func kindOf(f *dto.MetricFamily) (kind string, plain bool) {
	switch f.GetType() {
	case dto.MetricType_GAUGE, dto.MetricType_UNTYPED:
		return gauge, true
	case dto.MetricType_COUNTER:
		return counter, true
	case dto.MetricType_HISTOGRAM:
		return histogram, false
	default:
		return "", false
	}
}
