package vllmsim

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
)

const (
	reasonStop = iota
	reasonLength
	reasonAbort
	reasonError
	reasonCount
)

var reasonNames = [reasonCount]string{"stop", "length", "abort", "error"}

func reasonIndex(name string) int {
	for i, candidate := range reasonNames {
		if candidate == name {
			return i
		}
	}
	return reasonError
}

var (
	ttftBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
		80, 160, 640, 2560}
	interTokenBuckets = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
		1920, 7680}
	countBuckets     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
	iterationBuckets = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	paramNBuckets    = []float64{1, 2, 5, 10, 20}
)

// histogram keeps its counts only once something was observed, so that an idle
// engine costs nothing.
type histogram struct {
	counts []uint64
	sum    float64
	total  uint64
}

func (h *histogram) observe(buckets []float64, value float64) {
	if h.counts == nil {
		h.counts = make([]uint64, len(buckets))
	}
	if i := sort.SearchFloat64s(buckets, value); i < len(buckets) {
		h.counts[i]++
	}
	h.sum += value
	h.total++
}

// meter is everything an engine counts, guarded by the engine's mutex.
type meter struct {
	promptTokens, generationTokens                     float64
	finished                                           [reasonCount]float64
	ttft, interToken, perToken                         histogram
	e2e, queued, prefill, decode, inference            histogram
	promptLen, generationLen, maxGeneration, iteration histogram
	paramN, paramMaxTokens                             histogram
}

// reading is a copy of one engine's state for rendering.
type reading struct {
	labels           string
	running, waiting int
	kvUsage          float64
	meter            meter
}

func (e *engine) read(labels string) reading {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := reading{labels: labels, running: e.running, waiting: len(e.queue), meter: e.meter}
	r.kvUsage = math.Min(1, float64(e.inUse)/float64(e.kvTokens))
	for _, h := range histograms(&r.meter) {
		h.hist.counts = append([]uint64(nil), h.hist.counts...)
	}
	return r
}

// family is a histogram of the meter with the name it is exposed under.
type family struct {
	name, help string
	buckets    []float64
	hist       *histogram
}

func histograms(m *meter) []family {
	return []family{
		{"time_to_first_token_seconds", "Histogram of time to first token in seconds.", ttftBuckets, &m.ttft},
		{interTokenName, "Histogram of inter-token latency in seconds.", interTokenBuckets, &m.interToken},
		{"request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", interTokenBuckets, &m.perToken},
		{"e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", requestBuckets, &m.e2e},
		{"request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requestBuckets, &m.queued},
		{"request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", requestBuckets, &m.prefill},
		{"request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", requestBuckets, &m.decode},
		{"request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", requestBuckets, &m.inference},
		{"request_prompt_tokens", "Number of prefill tokens processed.", countBuckets, &m.promptLen},
		{"request_generation_tokens", "Number of generation tokens processed.", countBuckets, &m.generationLen},
		{"request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", countBuckets, &m.maxGeneration},
		{"request_params_n", "Histogram of the n request parameter.", paramNBuckets, &m.paramN},
		{"request_params_max_tokens", "Histogram of the max_tokens request parameter.", countBuckets, &m.paramMaxTokens},
		{"iteration_tokens_total", "Histogram of number of tokens per engine_step.", iterationBuckets, &m.iteration},
	}
}

const (
	interTokenName    = "inter_token_latency_seconds"
	interTokenNameOld = "time_per_output_token_seconds" //nolint:gosec // A metric of tokens, none of which opens anything.
)

// exposition writes the text format.
type exposition struct {
	strings.Builder
	readings []reading
}

func (x *exposition) head(name, kind, help string) {
	fmt.Fprintf(&x.Builder, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (x *exposition) sample(name, labels string, value float64) {
	fmt.Fprintf(&x.Builder, "%s{%s} %s\n", name, labels, number(value))
}

func (x *exposition) perEngine(name, kind, help string, value func(reading) float64) {
	x.head("vllm:"+name, kind, help)
	for _, r := range x.readings {
		x.sample("vllm:"+name, r.labels, value(r))
	}
}

func (x *exposition) histogram(f family, labels string) {
	var seen uint64
	for i, bound := range f.buckets {
		if f.hist.counts != nil {
			seen += f.hist.counts[i]
		}
		x.sample("vllm:"+f.name+"_bucket", labels+`,le="`+number(bound)+`"`, float64(seen))
	}
	x.sample("vllm:"+f.name+"_bucket", labels+`,le="+Inf"`, float64(f.hist.total))
	x.sample("vllm:"+f.name+"_count", labels, float64(f.hist.total))
	x.sample("vllm:"+f.name+"_sum", labels, f.hist.sum)
}

// number writes a float as the Python client does: whole numbers keep ".0".
func number(value float64) string {
	text := strconv.FormatFloat(value, 'g', -1, 64)
	if !strings.ContainsAny(text, ".eI") {
		text += ".0"
	}
	return text
}

func quoteLabel(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// renderMetrics is the body of GET /metrics.
func (s *Server) renderMetrics() string {
	x := &exposition{}
	for i, e := range s.engines {
		x.readings = append(x.readings, e.read(fmt.Sprintf(`engine="%d",model_name=%s`, i, quoteLabel(s.cfg.ServedNames[0]))))
	}
	old := s.oddity(FailOldMetrics)
	x.process(s)
	x.gauges(s, old)
	x.counters(old)
	for i, f := range histograms(&meter{}) {
		if old && f.name == interTokenName {
			f.name = interTokenNameOld
		}
		x.head("vllm:"+f.name, "histogram", f.help)
		for r := range x.readings {
			f.hist = histograms(&x.readings[r].meter)[i].hist
			x.histogram(f, x.readings[r].labels)
		}
	}
	return x.String()
}

func (x *exposition) process(s *Server) {
	x.head("python_info", "gauge", "Python platform information")
	x.sample("python_info", `implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"`, 1)
	x.head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	fmt.Fprintf(&x.Builder, "process_start_time_seconds %s\n", number(float64(s.started.UnixMilli())/1000))
	x.head("http_requests_total", "counter", "Total number of requests by method, status and handler.")
	for _, c := range s.httpCounts() {
		x.sample("http_requests_total", c.labels, c.count)
	}
}

func (x *exposition) gauges(s *Server, old bool) {
	x.perEngine("num_requests_running", "gauge", "Number of requests in model execution batches.",
		func(r reading) float64 { return float64(r.running) })
	x.perEngine("num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
		func(r reading) float64 { return float64(r.waiting) })
	usage := func(r reading) float64 { return r.kvUsage }
	zero := func(reading) float64 { return 0 }
	if old {
		x.perEngine("num_requests_swapped", "gauge", "Number of requests swapped to CPU.", zero)
		x.perEngine("cpu_cache_usage_perc", "gauge", "CPU KV-cache usage. 1 means 100 percent usage.", zero)
		x.perEngine("gpu_cache_usage_perc", "gauge", "GPU KV-cache usage. 1 means 100 percent usage.", usage)
		return
	}
	x.perEngine("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", usage)
	x.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of requests waiting to be processed, by reason.")
	x.each(func(r reading) {
		x.sample("vllm:num_requests_waiting_by_reason", r.labels+`,reason="capacity"`, float64(r.waiting))
		x.sample("vllm:num_requests_waiting_by_reason", r.labels+`,reason="deferred"`, 0)
	})
	x.head("vllm:engine_sleep_state", "gauge", "Engine sleep state.")
	x.each(func(r reading) {
		x.sample("vllm:engine_sleep_state", r.labels+`,sleep_state="awake"`, 1)
		x.sample("vllm:engine_sleep_state", r.labels+`,sleep_state="weights_offloaded"`, 0)
		x.sample("vllm:engine_sleep_state", r.labels+`,sleep_state="discard_all"`, 0)
	})
	x.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	x.each(func(r reading) {
		x.sample("vllm:cache_config_info", fmt.Sprintf(`%s,block_size="%d",cache_dtype="auto",gpu_memory_utilization="%g",num_gpu_blocks="%d"`,
			r.labels, blockSize, s.cfg.GPUMemoryUtilization, s.cfg.KVBlocks), 1)
	})
}

// each calls write for every engine.
func (x *exposition) each(write func(reading)) {
	for _, r := range x.readings {
		write(r)
	}
}

func (x *exposition) counters(old bool) {
	prompt := func(r reading) float64 { return r.meter.promptTokens }
	zero := func(reading) float64 { return 0 }
	x.perEngine("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", zero)
	x.perEngine("prompt_tokens_total", "counter", "Number of prefill tokens processed.", prompt)
	x.perEngine("generation_tokens_total", "counter", "Number of generation tokens processed.",
		func(r reading) float64 { return r.meter.generationTokens })
	prefix := ""
	if old {
		prefix = "gpu_"
	}
	x.perEngine(prefix+"prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", prompt)
	x.perEngine(prefix+"prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", zero)
	x.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	x.each(func(r reading) {
		for i, name := range reasonNames {
			x.sample("vllm:request_success_total", r.labels+`,finished_reason="`+name+`"`, r.meter.finished[i])
		}
	})
}
