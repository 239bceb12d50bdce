package vllmsim

import (
	"fmt"
	"strings"
	"time"
)

// line is a log line and the time after the start at which it is written.
type line struct {
	at   time.Duration
	text string
}

// script collects log lines with times as shares of the load time.
type script struct {
	server *Server
	lines  []line
}

func (b *script) raw(share float64, text string) {
	at := time.Duration(share * float64(b.server.cfg.LoadTime))
	b.lines = append(b.lines, line{at: at, text: text})
}

func (b *script) api(share float64, source, format string, args ...any) {
	b.info(share, "APIServer", source, format, args...)
}

func (b *script) engine(share float64, source, format string, args ...any) {
	b.info(share, "EngineCore_DP0", source, format, args...)
}

func (b *script) info(share float64, process, source, format string, args ...any) {
	at := b.server.started.Add(time.Duration(share * float64(b.server.cfg.LoadTime)))
	b.raw(share, fmt.Sprintf("(%s pid=1) INFO %s [%s] ", process, at.Format("01-02 15:04:05"), source)+
		fmt.Sprintf(format, args...))
}

// bootLines is the whole boot log, cut at the load failure with its traceback.
func (s *Server) bootLines() []line {
	b := &script{server: s}
	b.imports()
	b.download()
	b.weights()
	if !s.cfg.EnforceEager {
		b.compile()
	}
	b.profile()
	b.serving()
	if s.loadFailure == "" {
		return b.lines
	}
	end := time.Duration(failAt[s.loadFailure] * float64(s.cfg.LoadTime))
	kept := b.lines[:0]
	for _, l := range b.lines {
		if l.at < end {
			kept = append(kept, l)
		}
	}
	for _, text := range s.traceback() {
		kept = append(kept, line{at: end, text: text})
	}
	return kept
}

func (b *script) imports() {
	cfg := b.server.cfg
	b.raw(0, "INFO "+b.server.started.Format("01-02 15:04:05")+
		" [__init__.py:241] Automatically detected platform cuda.")
	b.api(0.02, "api_server.py:1896", "vLLM API server version %s", cfg.Version)
	b.api(0.02, "utils.py:233", "non-default args: {'model_tag': '%s', 'model': '%s', 'served_model_name': ['%s']}",
		cfg.Model, cfg.Model, strings.Join(cfg.ServedNames, "', '"))
	b.api(0.13, "model.py:547", "Resolved architecture: SimForCausalLM")
	b.api(0.13, "model.py:1510", "Using max model len %d", cfg.MaxModelLen)
	b.engine(0.14, "core.py:77", "Initializing a V1 LLM engine (v%s) with config: model='%s', tensor_parallel_size=%d, enforce_eager=%t",
		cfg.Version, cfg.Model, cfg.TensorParallel, cfg.EnforceEager)
}

// shards is how many safetensors files the weights come in.
const shards = 4

func (b *script) download() {
	cfg := b.server.cfg
	b.engine(0.15, "gpu_model_runner.py:2338", "Starting to load model %s...", cfg.Model)
	b.engine(0.15, "weight_utils.py:392", "Using model weights format ['*.safetensors']")
	each := cfg.WeightsGiB / shards
	seconds := 0.35 * cfg.LoadTime.Seconds() / shards
	for shard := range shards {
		for _, part := range []float64{0.25, 0.5, 0.75, 1} {
			share := 0.15 + 0.34*(float64(shard)+part)/shards
			b.raw(share, fmt.Sprintf("model-%05d-of-%05d.safetensors: %3.0f%%|%s| %.2fG/%.2fG [%s<%s, %.0fMB/s]",
				shard+1, shards, part*100, bar(part), each*part, each,
				stamp(seconds*part), stamp(seconds*(1-part)), each*1000/max(seconds, 0.001)))
		}
	}
	b.engine(0.495, "weight_utils.py:413", "Time spent downloading weights for %s: %.6f seconds",
		cfg.Model, 0.35*cfg.LoadTime.Seconds())
}

func (b *script) weights() {
	cfg := b.server.cfg
	seconds := 0.18 * cfg.LoadTime.Seconds()
	for shard := range shards + 1 {
		part := float64(shard) / shards
		b.raw(0.5+0.18*part, fmt.Sprintf(
			"Loading safetensors checkpoint shards: %3.0f%% Completed | %d/%d [%s<%s, %.2fit/s]",
			part*100, shard, shards, stamp(seconds*part), stamp(seconds*(1-part)), shards/max(seconds, 0.001)))
	}
	b.engine(0.68, "default_loader.py:268", "Loading weights took %.2f seconds", seconds)
	b.engine(0.69, "gpu_model_runner.py:2392", "Model loading took %.4f GiB and %.6f seconds",
		cfg.WeightsGiB/float64(cfg.TensorParallel), seconds)
}

func (b *script) compile() {
	seconds := 0.14 * b.server.cfg.LoadTime.Seconds()
	b.engine(0.7, "backends.py:539", "Using cache directory: /root/.cache/vllm/torch_compile_cache/51m/rank_0_0/backbone for vLLM's torch.compile")
	b.engine(0.74, "backends.py:550", "Dynamo bytecode transform time: %.2f s", seconds*0.3)
	b.engine(0.84, "monitor.py:34", "torch.compile takes %.2f s in total", seconds)
}

func (b *script) profile() {
	cfg := b.server.cfg
	tokens := cfg.KVBlocks * blockSize
	b.engine(0.88, "gpu_worker.py:298", "Available KV cache memory: %.2f GiB", float64(tokens)*28/(1<<20))
	b.engine(0.91, "kv_cache_utils.py:864", "GPU KV cache size: %s tokens", commas(tokens))
	b.engine(0.91, "kv_cache_utils.py:868", "Maximum concurrency for %s tokens per request: %.2fx",
		commas(cfg.MaxModelLen), float64(tokens)/float64(cfg.MaxModelLen))
	if !cfg.EnforceEager {
		b.raw(0.95, "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|"+bar(1)+"| 67/67")
		b.engine(0.96, "gpu_model_runner.py:3118", "Graph capturing finished in %.0f secs, took 0.54 GiB",
			0.1*cfg.LoadTime.Seconds())
	}
	b.engine(0.97, "core.py:218", "init engine (profile, create kv cache, warmup model) took %.2f seconds",
		0.3*cfg.LoadTime.Seconds())
}

func (b *script) serving() {
	task := "generate"
	if b.server.cfg.Pooling {
		task = "embed"
	}
	b.api(0.98, "api_server.py:1692", "Supported tasks: ['%s']", task)
	b.raw(1, "INFO:     Started server process [1]")
	b.raw(1, "INFO:     Waiting for application startup.")
}

func bar(part float64) string {
	full := int(part * 10)
	return strings.Repeat("█", full) + strings.Repeat(" ", 10-full)
}

func stamp(seconds float64) string {
	return fmt.Sprintf("%02d:%02d", int(seconds)/60, int(seconds)%60)
}

// commas writes thousands as Python's "{:,}" does.
func commas(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", commas(n/1000), n%1000)
}
