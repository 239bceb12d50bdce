package vllmsim

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// LoRA is an adapter served beside the base model.
type LoRA struct {
	Name string
	Path string
}

// Config describes one simulated engine. The zero value of a field means its
// default unless the field says otherwise; DefaultConfig returns them filled.
type Config struct {
	// Model is the repository or path given to `vllm serve`.
	Model string
	// ServedNames are the names accepted in requests; the first one is
	// reported and labels the metrics. Empty means Model.
	ServedNames []string
	// LoRAs are listed and accepted as models, with the first name as parent.
	LoRAs []LoRA

	// LoadTime is how long the engine takes from New until it serves. Zero
	// serves at once.
	LoadTime time.Duration
	// TTFT is the time to first token of a request that does not queue. Zero
	// is immediate.
	TTFT time.Duration
	// TokensPerSecond is the decode speed of one request. Zero is unlimited.
	TokensPerSecond float64

	// Faults are the failures to show, besides the one Model may name.
	Faults []Fault
	// FailAtToken is the number of tokens a stream sends before a stream
	// failure. Shorter answers fail after their last token.
	FailAtToken int
	// CrashDelay is the time between the death of the engine (requests answer
	// 500, /health 503) and the exit of its process.
	CrashDelay time.Duration

	// MaxModelLen bounds prompt and answer together, in tokens.
	MaxModelLen int
	// MaxNumSeqs is how many requests one engine runs at once.
	MaxNumSeqs int
	// TensorParallel, PipelineParallel and DataParallel are the parallel
	// sizes. DataParallel is the number of engine labels in metrics.
	TensorParallel, PipelineParallel, DataParallel int
	// GPUs of the machine; fewer than TensorParallel × PipelineParallel ×
	// DataParallel fails the load. Zero is not checked.
	GPUs int
	// GPUMemoryGiB × GPUMemoryUtilization must hold the weights of one rank.
	// A zero GPUMemoryGiB is not checked.
	GPUMemoryGiB, GPUMemoryUtilization float64
	// WeightsGiB is the size of all weights.
	WeightsGiB float64
	// KVBlocks of 16 tokens make the KV cache of one engine. Fewer than
	// MaxModelLen needs fail the load; the default is never too few.
	KVBlocks int
	// EmbeddingSize is the length of an embedding.
	EmbeddingSize int
	// Pooling serves embeddings instead of generation.
	Pooling bool
	// EnforceEager leaves compilation and graph capture out of the boot.
	EnforceEager bool
	// AutoToolChoice accepts requests with tools (and ignores the tools).
	AutoToolChoice bool
	// ForceUsage puts usage at the end of every stream.
	ForceUsage bool
	// TrackLoad makes /load count; without it vLLM always answers 0.
	TrackLoad bool

	// APIKeys, when there are any, are required under /v1.
	APIKeys []string
	// HubToken says that a token for the model hub was given.
	HubToken bool
	// Version is the vLLM version reported.
	Version string

	// Clock is the source of time; nil is RealClock.
	Clock Clock
	// Log receives access lines and the traceback of a crash, a line per
	// Write; nil drops them. It must be safe for concurrent use.
	Log io.Writer
}

const (
	defaultModel      = "Qwen/Qwen3-0.6B"
	defaultVersion    = "0.33.0"
	blockSize         = 16
	defaultMaxLen     = 32768
	defaultMaxSeqs    = 256
	defaultKVBlocks   = 8192
	defaultEmbedding  = 384
	defaultWeightsGiB = 2.9
)

// DefaultConfig returns the configuration that `vllm-sim serve model` has with
// an empty environment.
func DefaultConfig(model string) Config {
	return Config{
		Model:           model,
		LoadTime:        time.Second,
		TTFT:            20 * time.Millisecond,
		TokensPerSecond: 200,
		CrashDelay:      100 * time.Millisecond,
	}.withDefaults()
}

// withDefaults fills every field whose zero value has no meaning of its own.
func (c Config) withDefaults() Config {
	c.Model = orDefault(c.Model, defaultModel)
	if len(c.ServedNames) == 0 {
		c.ServedNames = []string{c.Model}
	}
	c.FailAtToken = orDefault(c.FailAtToken, 3)
	c.MaxModelLen = orDefault(c.MaxModelLen, defaultMaxLen)
	c.MaxNumSeqs = orDefault(c.MaxNumSeqs, defaultMaxSeqs)
	c.TensorParallel = orDefault(c.TensorParallel, 1)
	c.PipelineParallel = orDefault(c.PipelineParallel, 1)
	c.DataParallel = orDefault(c.DataParallel, 1)
	c.GPUMemoryUtilization = orDefault(c.GPUMemoryUtilization, 0.9)
	c.WeightsGiB = orDefault(c.WeightsGiB, defaultWeightsGiB)
	c.KVBlocks = orDefault(c.KVBlocks, max(defaultKVBlocks, (c.MaxModelLen+blockSize-1)/blockSize))
	c.EmbeddingSize = orDefault(c.EmbeddingSize, defaultEmbedding)
	c.Version = orDefault(c.Version, defaultVersion)
	c.Pooling = c.Pooling || looksLikeEmbedding(c.Model)
	if c.Clock == nil {
		c.Clock = RealClock()
	}
	return c
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

func looksLikeEmbedding(model string) bool {
	model = strings.ToLower(model)
	for _, part := range []string{"embed", "bge-", "gte-", "e5-"} {
		if strings.Contains(model, part) {
			return true
		}
	}
	return false
}

// ConfigFromEnv changes base by the VLLM_SIM_* variables listed in the package
// comment, and by VLLM_API_KEY and HF_TOKEN. An unreadable value is an error
// that names its variable.
func ConfigFromEnv(base Config, getenv func(string) string) (Config, error) {
	r := envReader{getenv: getenv}
	r.duration("VLLM_SIM_LOAD_TIME", &base.LoadTime)
	r.duration("VLLM_SIM_TTFT", &base.TTFT)
	r.duration("VLLM_SIM_CRASH_DELAY", &base.CrashDelay)
	r.number("VLLM_SIM_TOKENS_PER_SEC", &base.TokensPerSecond)
	r.number("VLLM_SIM_WEIGHTS_GIB", &base.WeightsGiB)
	r.number("VLLM_SIM_GPU_MEMORY_GIB", &base.GPUMemoryGiB)
	r.count("VLLM_SIM_FAIL_AT_TOKEN", &base.FailAtToken)
	r.count("VLLM_SIM_KV_BLOCKS", &base.KVBlocks)
	r.count("VLLM_SIM_EMBEDDING_SIZE", &base.EmbeddingSize)
	r.count("VLLM_SIM_GPUS", &base.GPUs)
	r.read("VLLM_SIM_FAILURE", func(text string) error {
		faults, err := ParseFaults(text)
		base.Faults = append(base.Faults, faults...)
		return err
	})
	r.read("VLLM_SIM_VERSION", func(text string) error { base.Version = text; return nil })
	r.read("VLLM_API_KEY", func(text string) error {
		if len(base.APIKeys) == 0 { // the flag wins over the variable, as in vLLM
			base.APIKeys = []string{text}
		}
		return nil
	})
	base.HubToken = base.HubToken || getenv("HF_TOKEN") != ""
	return base, errors.Join(r.errs...)
}

type envReader struct {
	getenv func(string) string
	errs   []error
}

func (r *envReader) read(name string, set func(string) error) {
	text := r.getenv(name)
	if text == "" {
		return
	}
	if err := set(text); err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", name, err))
	}
}

func (r *envReader) duration(name string, into *time.Duration) {
	r.read(name, func(text string) error {
		if seconds, err := strconv.ParseFloat(text, 64); err == nil {
			*into = time.Duration(seconds * float64(time.Second))
			return nil
		}
		d, err := time.ParseDuration(text)
		*into = d
		return err
	})
}

func (r *envReader) number(name string, into *float64) {
	r.read(name, func(text string) error {
		value, err := strconv.ParseFloat(text, 64)
		*into = value
		return err
	})
}

func (r *envReader) count(name string, into *int) {
	r.read(name, func(text string) error {
		value, err := strconv.Atoi(text)
		*into = value
		return err
	})
}
