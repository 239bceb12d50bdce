package vllmsim

import "fmt"

const crashReason = "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"

// traceback is what vLLM writes for the load failure of s. Nil for none and for
// FailHang.
func (s *Server) traceback() []string {
	model := s.cfg.Model
	reason := s.loadReason()
	switch s.loadFailure {
	case FailOOM:
		return engineTraceback("vllm/v1/worker/gpu_model_runner.py", "load_model", reason)
	case FailKVCache:
		return engineTraceback("vllm/v1/core/kv_cache_utils.py", "check_enough_kv_cache_memory", reason)
	case FailDiskFull:
		return engineTraceback("huggingface_hub/file_download.py", "http_get", reason)
	case FailGPUs:
		return apiTraceback("vllm/config/parallel.py", "__post_init__", reason)
	case FailLoadError:
		return apiTraceback("vllm/model_executor/models/registry.py", "_raise_for_unsupported", reason)
	case FailNotFound:
		return append(hubTraceback("404", "Not Found", model, "RepositoryNotFoundError"),
			apiTraceback("transformers/configuration_utils.py", "get_config_dict", reason)...)
	case FailGated:
		return append(hubTraceback("401", "Unauthorized", model, "GatedRepoError"),
			apiTraceback("transformers/configuration_utils.py", "get_config_dict", reason)...)
	}
	return nil
}

// loadReason is the line of the traceback that says what went wrong.
func (s *Server) loadReason() string {
	cfg := s.cfg
	total := orDefault(cfg.GPUMemoryGiB, 23.64)
	switch s.loadFailure {
	case FailOOM:
		return fmt.Sprintf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of %.2f GiB of which 1.12 GiB is free. Process 1 has %.2f GiB memory in use.",
			total, total-1.12)
	case FailKVCache:
		return fmt.Sprintf("ValueError: To serve at least one request with the models's max seq len (%d), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (4.80 GiB). Based on the available memory, the estimated maximum model length is %d. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
			cfg.MaxModelLen, max(blockSize, cfg.MaxModelLen*3/10/blockSize*blockSize))
	case FailGPUs:
		return fmt.Sprintf("ValueError: World size (%d) is larger than the number of available GPUs (%d) in this node. If this is intentional and you are using: - ray, set '--distributed-executor-backend ray'.",
			cfg.TensorParallel*cfg.PipelineParallel*cfg.DataParallel, cfg.GPUs)
	case FailLoadError:
		return "ValueError: Model architectures ['SimUnknownForCausalLM'] are not supported for now. Supported architectures: dict_keys(['LlamaForCausalLM', 'Qwen3ForCausalLM'])"
	case FailDiskFull:
		return "OSError: [Errno 28] No space left on device"
	case FailNotFound:
		return fmt.Sprintf("OSError: %s is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'", cfg.Model)
	case FailGated:
		return fmt.Sprintf("OSError: You are trying to access a gated repo. Make sure to have access to it at https://huggingface.co/%s. 401 Client Error. Access to model %s is restricted. You must have access to it and be authenticated to access it. Please log in.",
			cfg.Model, cfg.Model)
	}
	return ""
}

// hubTraceback is what huggingface_hub prints, before transformers wraps it.
func hubTraceback(status, phrase, model, class string) []string {
	url := "https://huggingface.co/" + model + "/resolve/main/config.json"
	hint := "If you are trying to access a private or gated repo, make sure you are authenticated. For more details, see https://huggingface.co/docs/huggingface_hub/authentication"
	if class == "GatedRepoError" {
		hint = "Access to model " + model + " is restricted. You must have access to it and be authenticated to access it. Please log in."
	}
	return []string{
		"Traceback (most recent call last):",
		`  File "/usr/local/lib/python3.12/dist-packages/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status`,
		"    response.raise_for_status()",
		fmt.Sprintf("requests.exceptions.HTTPError: %s Client Error: %s for url: %s", status, phrase, url),
		"",
		"The above exception was the direct cause of the following exception:",
		"",
		fmt.Sprintf("huggingface_hub.errors.%s: %s Client Error. (Request ID: Root=1-68e0-sim)", class, status),
		"",
		"Repository Not Found or not accessible for url: " + url + ".",
		hint,
		"",
	}
}

func apiTraceback(file, function, reason string) []string {
	return []string{
		"(APIServer pid=1) Traceback (most recent call last):",
		`(APIServer pid=1)   File "/usr/local/bin/vllm", line 10, in <module>`,
		"(APIServer pid=1)     sys.exit(main())",
		fmt.Sprintf(`(APIServer pid=1)   File "/usr/local/lib/python3.12/dist-packages/%s", line 512, in %s`, file, function),
		"(APIServer pid=1) " + reason,
	}
}

// engineTraceback is a failure of the engine process, which the API server
// then reports in its own words: the cause is not in the last lines.
func engineTraceback(file, function, reason string) []string {
	const prefix = "(EngineCore_DP0 pid=2) ERROR [core.py:708] "
	return []string{
		prefix + "EngineCore failed to start.",
		prefix + "Traceback (most recent call last):",
		prefix + fmt.Sprintf(`  File "/usr/local/lib/python3.12/dist-packages/%s", line 2366, in %s`, file, function),
		prefix + reason,
		"(EngineCore_DP0 pid=2) Process EngineCore_DP0:",
		"(APIServer pid=1) Traceback (most recent call last):",
		`(APIServer pid=1)   File "/usr/local/bin/vllm", line 10, in <module>`,
		"(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
	}
}

// crashLines is what vLLM writes when the engine dies while serving.
func (s *Server) crashLines() []string {
	const prefix = "(EngineCore_DP0 pid=2) ERROR [core.py:710] "
	return []string{
		prefix + "EngineCore encountered a fatal error.",
		prefix + "Traceback (most recent call last):",
		prefix + `  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 701, in run_engine_core`,
		prefix + crashReason,
		"(APIServer pid=1) ERROR [async_llm.py:480] AsyncLLM output_handler failed.",
		"(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
	}
}
