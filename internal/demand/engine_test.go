package demand

import (
	"strings"
	"testing"
)

func TestModelReading(t *testing.T) {
	for name, c := range map[string]struct {
		pod               podWrapper
		key, source, args string
		gpus              int
		problem           string
	}{
		"vllm serve": {pod: makePod("a").command("vllm", "serve", "Qwen/Q", "--max-model-len", "4096"),
			key: "Qwen/Q", source: "Qwen/Q", args: "--max-model-len 4096", gpus: 1},
		"served name": {pod: makePod("a").command("vllm").args("serve", "Qwen/Q", "--served-model-name", "q"),
			key: "q", source: "Qwen/Q", gpus: 1},
		"several served names": {pod: makePod("a").command("vllm", "serve", "Qwen/Q", "--served-model-name", "q", "q2", "--enforce-eager"),
			key: "q", source: "Qwen/Q", args: "--enforce-eager", gpus: 1},
		"image entrypoint": {pod: makePod("a").args("--model", "Qwen/Q", "--port=80", "--dtype=half"),
			key: "Qwen/Q", source: "Qwen/Q", args: "--dtype=half", gpus: 1},
		"image entrypoint that serves": {pod: makePod("a").args("Qwen/Q", "--dtype", "half"),
			key: "Qwen/Q", source: "Qwen/Q", args: "--dtype half", gpus: 1},
		"module": {pod: makePod("a").command("python3", "-m", "vllm.entrypoints.openai.api_server").args("--model=Qwen/Q"),
			key: "Qwen/Q", source: "Qwen/Q", gpus: 1},
		"shell": {pod: makePod("a").command("sh", "-c", "exec vllm serve Qwen/Q --host 0.0.0.0 --max-num-seqs '8' >/dev/null 2>&1"),
			key: "Qwen/Q", source: "Qwen/Q", args: "--max-num-seqs 8", gpus: 1},
		"shell script": {pod: makePod("a").command("/bin/bash", "-ec").args(
			"# start\npip install x && \\\n  vllm serve \"$MODEL\" --served-model-name ${NAME:-q} \\\n --enforce-eager # last\necho done").env("MODEL", "Qwen/Q"),
			key: "q", source: "Qwen/Q", args: "--enforce-eager", gpus: 1},
		"shell under an init": {pod: makePod("a").command("tini", "--", "bash", "-lc", "vllm serve Qwen/Q"),
			key: "Qwen/Q", source: "Qwen/Q", gpus: 1},
		"a download before the server": {pod: makePod("a").command("sh", "-c", "fetch --model other; vllm serve Qwen/Q"),
			key: "Qwen/Q", source: "Qwen/Q", gpus: 1},
		"kubelet variables": {pod: makePod("a").command("vllm", "serve", "$(MODEL)").env("MODEL", "Qwen/Q"),
			key: "Qwen/Q", source: "Qwen/Q", gpus: 1},
		"ours are left out": {pod: makePod("a").command("vllm", "serve", "Q", "--host", "h", "--port", "1", "--api-key", "k1", "k2",
			"--gpu_memory_utilization", "0.5", "--disable-log-stats", "--uds", "/x", "--trust-remote-code", "--rope-scaling", `{"a":1}`),
			key: "Q", source: "Q", args: `--trust-remote-code --rope-scaling {"a":1}`, gpus: 1},
		"tensor parallel folds": {pod: makePod("a").noGPU().note("gpu-vram", "80").command("vllm", "serve", "Q", "-tp", "2"),
			key: "Q", source: "Q", gpus: 2},
		"GPU limit beats tensor parallel": {pod: makePod("a").gpus("4").command("vllm", "serve", "Q", "--tensor-parallel-size=2"),
			key: "Q", source: "Q", args: "--tensor-parallel-size 2", gpus: 4},
		"pipeline parallel multiplies": {pod: makePod("a").noGPU().note("gpu-vram", "80").command("vllm", "serve", "Q", "-pp", "2"),
			key: "Q", source: "Q", args: "-pp 2 --tensor-parallel-size 1", gpus: 2},
		"annotations win": {pod: makePod("a").note("model", "Meta/L").note("served-name", "l").command("vllm", "serve", "Q", "--seed", "1"),
			key: "l", source: "Meta/L", args: "--seed 1", gpus: 1},
		"annotation alone": {pod: makePod("a").note("model", "Meta/L").command("python", "app.py"),
			key: "Meta/L", source: "Meta/L", gpus: 1},
		"no model":         {pod: makePod("a").note("gpu-vram", "24").command("python", "app.py"), problem: "NoModel: container main does not say which model it serves; start it with \"vllm serve MODEL\""},
		"serve of nothing": {pod: makePod("a").note("gpu-vram", "24").command("vllm", "serve"), problem: "NoModel: container main does not say"},
		"variable from a Secret": {pod: makePod("a").note("gpu-vram", "24").command("vllm", "serve", "$(MODEL)").secretEnv("MODEL"),
			problem: `"$(MODEL)" depends on $(MODEL), whose value is not in the pod's own env`},
		"shell variable that is not set": {pod: makePod("a").note("gpu-vram", "24").command("sh", "-c", "vllm serve Q --seed $SEED"),
			problem: `depends on $SEED`},
		"bad served name": {pod: makePod("a").note("gpu-vram", "24").command("vllm", "serve", "Q", "--served-model-name", "a b"),
			problem: `NoModel: container main: --served-model-name "a b" must be the model name that requests use`},
		"name without a pool": {pod: makePod("a").note("served-name", "l").command("python", "app.py"),
			problem: `NoModel: no pool lists a model named "l"`},
	} {
		res := Workloads(Input{Pods: unwrap(c.pod.note("priority", "0"))})
		if c.problem != "" {
			if len(res.Problems) != 1 || !strings.Contains(res.Problems[0].Reason+": "+res.Problems[0].Message, c.problem) || len(res.Workloads) != 0 {
				t.Errorf("%s: problems %+v, want %s", name, res.Problems, c.problem)
			}
			continue
		}
		if len(res.Workloads) != 1 || len(res.Problems) != 0 {
			t.Errorf("%s: %+v", name, res)
			continue
		}
		w := res.Workloads[0]
		if w.Key != c.key || w.Source != c.source || strings.Join(w.Args, " ") != c.args || w.GPUCount != c.gpus || w.Replicas != 1 {
			t.Errorf("%s: key %q source %q args %q GPUs %d replicas %d; want %q %q %q %d", name, w.Key, w.Source, w.Args, w.GPUCount, w.Replicas,
				c.key, c.source, c.args, c.gpus)
		}
	}
}

func TestContainerThatAsksForGPUsIsRead(t *testing.T) {
	pod := makePod("a").note("priority", "1").command("vllm", "serve", "Q")
	side := pod.Spec.Containers[0]
	side.Name, side.Resources.Limits, side.Command = "side", nil, []string{"proxy", "--model", "other"}
	pod.Spec.Containers = append(pod.Spec.Containers[:0:0], side, pod.Spec.Containers[0])
	res := Workloads(Input{Pods: unwrap(pod)})
	if len(res.Workloads) != 1 || res.Workloads[0].Source != "Q" {
		t.Errorf("%+v", res)
	}
}

func TestEngineArgs(t *testing.T) {
	for _, c := range []struct {
		in   string
		gpus int
		want string
	}{
		{"--host 0.0.0.0 --max-model-len 10", 1, "--max-model-len 10"},
		{"--tensor-parallel-size 2 --seed 1", 2, "--seed 1"},
		{"--tensor-parallel-size 2", 0, ""},
		{"-tp 2", 4, "--tensor-parallel-size 2"},
	} {
		if got := strings.Join(EngineArgs(strings.Fields(c.in), c.gpus), " "); got != c.want {
			t.Errorf("%s on %d: %q, want %q", c.in, c.gpus, got, c.want)
		}
	}
}
