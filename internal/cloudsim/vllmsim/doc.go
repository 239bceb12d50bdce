// Package vllmsim is a stand-in for vLLM: its command line, its boot log, its
// HTTP API with streaming and errors, its metric names and its ways to break,
// with invented answers and no GPU.
//
// It runs as a process (Main, used by cmd/vllm-sim) that an agent supervises
// as it would `vllm serve`, or in process (New and Server.Handler) for
// simulated workers of which there may be a thousand. An idle Server owns no
// goroutine and no timer: the phase it is in is worked out from its clock when
// somebody asks.
//
// # What is real and what is not
//
// The answer text is a function of model, prompt and seed. A token is a run of
// at most six characters of a word, so counts are near a real tokenizer's but
// never equal. Requests beyond --max-num-seqs wait without limit, as in vLLM.
// KV cache use follows the tokens of running requests; nothing is preempted
// and the prefix cache never hits.
//
// # Environment
//
// All of these are read by ConfigFromEnv; Config documents the meaning.
// Durations are Go durations ("1.5s") or plain seconds ("1.5").
//
//	VLLM_SIM_LOAD_TIME        start of the process until the port answers (1s)
//	VLLM_SIM_TTFT             time to first token (20ms)
//	VLLM_SIM_TOKENS_PER_SEC   decode speed of one request; 0 is unlimited (200)
//	VLLM_SIM_FAILURE          failures, comma separated, each NAME or
//	                          NAME-after-N (see Failure)
//	VLLM_SIM_FAIL_AT_TOKEN    tokens a stream sends before it breaks (3)
//	VLLM_SIM_CRASH_DELAY      death of the engine until the process exits (100ms)
//	VLLM_SIM_VERSION          version reported (0.33.0)
//	VLLM_SIM_KV_BLOCKS        KV cache blocks of 16 tokens (8192, or more if
//	                          --max-model-len needs more)
//	VLLM_SIM_EMBEDDING_SIZE   length of an embedding (384)
//	VLLM_SIM_WEIGHTS_GIB      size of the weights (2.9)
//	HF_HOME                   where they appear while they are downloaded, in a sparse file
//	VLLM_SIM_GPUS             GPUs of the machine; fewer than the parallel
//	                          sizes need fails the load; 0 is not checked (0)
//	VLLM_SIM_GPU_MEMORY_GIB   memory of one GPU; weights that do not fit in
//	                          it fail the load; 0 is not checked (0)
//
// Variables of vLLM itself that are honoured: VLLM_API_KEY,
// VLLM_HTTP_TIMEOUT_KEEP_ALIVE and HF_TOKEN (only by FailNeedsToken).
//
// # Model names
//
// A model whose name contains "sim/NAME" or "sim/NAME-after-N" has that
// failure without any variable, so that it can be tried from a manifest:
// "sim/oom", "acme/sim/gated", "sim/crash-after-3". A model whose name
// contains "embed", "bge-", "gte-" or "e5-" serves embeddings and no chat.
package vllmsim
