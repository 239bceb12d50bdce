package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

func TestTheAgentsArgumentsCannotBeOverridden(t *testing.T) {
	tail := []string{"--served-model-name", "q", "--host", "127.0.0.1", "--port", PortWord}
	for name, c := range map[string]struct {
		args []string
		gpus int
		want []string
	}{
		"none":              {nil, 1, nil},
		"passed through":    {[]string{"--max-model-len", "-1", "-O3", "--enforce-eager"}, 1, []string{"--max-model-len", "-1", "-O3", "--enforce-eager"}},
		"ours with values":  {[]string{"--host", "0.0.0.0", "--port=80", "--api-key", "k", "--dtype", "auto"}, 1, []string{"--dtype", "auto"}},
		"ours, several":     {[]string{"--served-model-name", "a", "b", "--seed", "1"}, 1, []string{"--seed", "1"}},
		"ours, underscored": {[]string{"--gpu_memory_utilization", "0.99", "--api_key=k"}, 1, nil},
		"ours, a switch":    {[]string{"--disable-log-stats", "--seed", "1"}, 1, []string{"--seed", "1"}},
		"two GPUs":          {nil, 2, []string{"--tensor-parallel-size", "2"}},
		"the user's split":  {[]string{"--pipeline-parallel-size", "2"}, 2, []string{"--pipeline-parallel-size", "2"}},
		"the user's tp":     {[]string{"-tp=2"}, 2, []string{"-tp=2"}},
	} {
		m := agentapi.DesiredModel{Name: "q", Source: "acme/q", Args: c.args, GPUs: c.gpus}
		want := append(append([]string{"vllm", "serve", "acme/q"}, c.want...), tail...)
		if got, _ := commandFor(DefaultCommand(), m); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for fraction, want := range map[int]string{1000: "0.9000", 500: "0.4500", 333: "0.2997"} {
		got, _ := commandFor(nil, agentapi.DesiredModel{Name: "q", GPUFraction: fraction})
		if got[0] != "--gpu-memory-utilization" || got[1] != want {
			t.Errorf("fraction %d: %q", fraction, got)
		}
	}
}

func TestAnEnginesEnvironment(t *testing.T) {
	env := envFor(map[string]string{"HF_TOKEN": "t", "GPUSCALE_BOOT": "b", "VLLM_API_KEY": "k", "CUDA_VISIBLE_DEVICES": "9"}, []int{1, 3})
	if env["HF_TOKEN"] != "t" || env["GPUSCALE_BOOT"] != "" || env["VLLM_API_KEY"] != "" || env["CUDA_VISIBLE_DEVICES"] != "1,3" {
		t.Errorf("%v", env)
	}
	inherited := ProcessRunner{Environ: func() []string {
		return []string{"PATH=/bin", "GPUSCALE_BOOT=secret", "VLLM_PORT=tcp://10.0.0.1", "HF_TOKEN=old"}
	}}.environ(map[string]string{"HF_TOKEN": "new"})
	if !slices.Equal(inherited, []string{"HF_TOKEN=new", "PATH=/bin"}) {
		t.Errorf("%q", inherited)
	}
}

func TestConnectionsToAnEngineEndBeforeItEndsThem(t *testing.T) {
	// vLLM closes an idle connection after five seconds; a request that is sent then is lost, and is no one's to repeat.
	const vllm = 5 * time.Second
	if d := loopback("127.0.0.1:1").IdleConnTimeout; d <= 0 || d >= vllm {
		t.Errorf("idle connections are kept for %s", d)
	}
	if env := envFor(map[string]string{"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}, nil); env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] != "" {
		t.Errorf("%v", env)
	}
}

func TestBodiesInFlightAreBoundedTogether(t *testing.T) {
	a := &Agent{cfg: Config{Clock: RealClock()}, maxBody: 1000}
	ask := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		a.generate(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)))
		return w
	}
	if w := ask("{}"); w.Code != http.StatusBadRequest || a.held.Load() != 0 {
		t.Errorf("%d, and %d bytes are held", w.Code, a.held.Load())
	}
	a.held.Store(mostHeld - 1)
	w := ask("{}")
	if w.Code != http.StatusTooManyRequests || w.Header().Get(agentapi.HeaderRefused) != agentapi.RefusedFull || a.held.Load() != mostHeld-1 {
		t.Errorf("%d %v, and %d bytes are held", w.Code, w.Header(), a.held.Load())
	}
	a.held.Store(0)
	if n := a.hold(-1); n != 1000 {
		t.Errorf("%d bytes are held for a body of unknown length", n)
	}
}

func TestExitsAreClassified(t *testing.T) {
	for line, want := range map[string]string{
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.":                                         agentapi.ExitOutOfMemory,
		"ValueError: Free memory on device cuda:0 (10.1/23.6 GiB) on startup is less than desired GPU memory utilization": agentapi.ExitOutOfMemory,
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`":                   agentapi.ExitOutOfMemory,
		"vllm: error: unrecognized arguments: --frobnicate":                                                               agentapi.ExitBadArgument,
		"vllm serve: error: argument --max-model-len: invalid value":                                                      agentapi.ExitBadArgument,
		"api_server.py: error: argument --dtype: invalid choice":                                                          agentapi.ExitBadArgument,
		"huggingface_hub.errors.GatedRepoError: 401 Client Error.":                                                        agentapi.ExitWeightsDenied,
		"requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/":                     agentapi.ExitWeightsDenied,
		"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/":                  agentapi.ExitWeightsDenied,
		"huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.":                                               agentapi.ExitWeightsNotFound,
		"huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.":                                                 agentapi.ExitWeightsNotFound,
		"ModuleNotFoundError: No module named 'vllm'":                                                                     agentapi.ExitNoEngine,
		"/bin/sh: 1: vllm: not found":                                                                                     agentapi.ExitNoEngine,
		"OSError: [Errno 28] No space left on device":                                                                     agentapi.ExitCrashed,
		"": agentapi.ExitCrashed,
	} {
		lines := []string{"(APIServer pid=1) INFO 11-20 12:00:00 [api_server.py:1] hello", line,
			"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"}
		kind, message := classify(Exit{Code: 1}, lines)
		if kind != want || line != "" && !strings.Contains(message, plain(line)) {
			t.Errorf("%s: %s, %q, want %s", line, kind, message, want)
		}
	}
	if kind, _ := classify(Exit{Code: 127}, nil); kind != agentapi.ExitNoEngine {
		t.Errorf("127: %s", kind)
	}
	if kind, message := classify(Exit{Code: -1, Signal: "killed"}, nil); kind != agentapi.ExitCrashed || !strings.Contains(message, "killed") {
		t.Errorf("killed: %s %s", kind, message)
	}
	// A hint in a missing repository's text speaks of gated ones.
	kind, _ := classify(Exit{Code: 1}, []string{"huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error.",
		"If you are trying to access a private or gated repo, make sure you are authenticated."})
	if kind != agentapi.ExitWeightsNotFound {
		t.Errorf("hint: %s", kind)
	}
}

func TestTheRingIsBoundedAndBlanksSecrets(t *testing.T) {
	var seen []string
	r := newRing(func(line string) { seen = append(seen, line) })
	r.blank(map[string]string{"HF_TOKEN": "hf_1234567", "PIN_SECRET": "4711", "N": "1", "PATH": "/usr/bin/long", "KEY": "BEGIN\nline-of-key\nEND"})
	fmt.Fprint(r, "one\r")
	fmt.Fprint(r, "token hf_12")
	fmt.Fprint(r, "34567 pin 4711 n 1 /usr/bin/long line-of-key\n\n  \npartial")
	want := []string{"one", "token *** pin *** n 1 /usr/bin/long ***"}
	if got := r.since(0); !slices.Equal(got, want) || !slices.Equal(seen, want) {
		t.Errorf("%q, %q", got, seen)
	}
	r.blank(map[string]string{"HF_TOKEN": "hf_1234567890"})
	mark := r.mark()
	fmt.Fprint(r, "\nold hf_1234567 new hf_1234567890 pin 4711\n")
	if got := r.since(mark); !slices.Equal(got[1:], []string{"old *** new *** pin ***"}) {
		t.Errorf("%q", got)
	}
	fmt.Fprint(r, strings.Repeat("x", 3*maxLine)+"\n")
	for i := range 20000 {
		fmt.Fprintf(r, "line %d of many that fill the ring\n", i)
	}
	kept := r.since(0)
	size := 0
	for _, line := range kept {
		size += len(line) + 1
	}
	if size > ringBytes || size < ringBytes/2 || kept[len(kept)-1] != "line 19999 of many that fill the ring" {
		t.Errorf("%d bytes kept, last %q", size, kept[len(kept)-1])
	}
	if got := r.since(mark); len(got) != len(kept) {
		t.Errorf("since an old mark: %d lines, want %d", len(got), len(kept))
	}
}

func TestThePlacerNeverOvercommitsAndStartsOneAtATime(t *testing.T) {
	p := newPlacer(3)
	var used, starting [3]atomic.Int64
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			n, fraction := i%3+1, []int{1000, 500, 300}[i%3]
			s, err := p.take(t.Context(), n, fraction, func() {})
			if err != nil {
				t.Error(err)
				return
			}
			if len(s.gpus) != n {
				t.Errorf("%d GPUs, want %d", len(s.gpus), n)
			}
			for _, g := range s.gpus {
				if used[g].Add(int64(fraction)) > wholeGPU || starting[g].Add(1) > 1 {
					t.Error("too much on one GPU")
				}
			}
			for _, g := range s.gpus {
				starting[g].Add(-1)
			}
			s.up()
			for _, g := range s.gpus {
				used[g].Add(int64(-fraction))
			}
			s.release()
			s.release()
		})
	}
	all.Wait()
	for i, g := range p.gpus {
		if g.free != wholeGPU || g.starting {
			t.Errorf("GPU %d is left with %+v", i, g)
		}
	}
	for _, ask := range [][2]int{{4, 100}, {1, 1001}} {
		if _, err := p.take(t.Context(), ask[0], ask[1], func() {}); !errors.Is(err, errNeverFits) {
			t.Errorf("%v: %v", ask, err)
		}
	}
	whole := mustTake(t, p, 3, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := p.take(ctx, 1, 1, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	whole.release()
	// Small engines share a GPU so that whole ones stay whole.
	a := mustTake(t, p, 1, 300)
	a.up()
	if b := mustTake(t, p, 1, 300); b.gpus[0] != a.gpus[0] {
		t.Errorf("%v beside %v", b.gpus, a.gpus)
	}
	none := mustTake(t, newPlacer(0), 8, 1000)
	if none.gpus != nil {
		t.Errorf("GPUs of a machine without any: %v", none.gpus)
	}
}

func mustTake(t *testing.T, p *placer, n, fraction int) *share {
	t.Helper()
	s, err := p.take(t.Context(), n, fraction, func() { t.Fatal("had to wait") })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const smi = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Fri Nov 20 12:00:00 2026</timestamp>
	<driver_version>570.86.15</driver_version>
	<cuda_version>12.8</cuda_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:01:00.0">
		<product_name>%s</product_name>
		<mig_mode><current_mig>%s</current_mig><pending_mig>N/A</pending_mig></mig_mode>
		<uuid>GPU-1</uuid>
		<fb_memory_usage><total>%d MiB</total><reserved>400 MiB</reserved><used>1 MiB</used></fb_memory_usage>
		<bar1_memory_usage><total>256 MiB</total></bar1_memory_usage>
	</gpu>
</nvidia_smi_log>`

func TestWhatNvidiaSMISaysIsComparedWithWhatWasBought(t *testing.T) {
	for _, c := range []struct {
		name, mig string
		megabytes int
		bought    string
		vram      int
		ok        bool
	}{
		{"NVIDIA GeForce RTX 4090", "N/A", 24564, "RTX4090", 24, true},
		{"NVIDIA A100-SXM4-80GB", "Disabled", 81920, "A100-80GB-SXM", 80, true},
		{"NVIDIA A100-SXM4-40GB", "Disabled", 40960, "A100-40GB-SXM", 40, true},
		{"NVIDIA A100 80GB PCIe", "Disabled", 81920, "A100-80GB-PCIE", 80, true},
		{"NVIDIA A100-PCIE-40GB", "Disabled", 40960, "A100-40GB-PCIE", 40, true},
		{"NVIDIA H100 80GB HBM3", "Disabled", 81559, "H100-SXM", 80, true},
		{"NVIDIA H100 PCIe", "Disabled", 81559, "H100-PCIE", 80, true},
		{"NVIDIA H100 NVL", "Disabled", 95830, "H100-NVL", 94, true},
		{"NVIDIA H200", "Disabled", 143771, "H200", 141, true},
		{"NVIDIA L4", "N/A", 23034, "L4", 24, true},
		{"Tesla T4", "N/A", 15360, "T4", 16, true},
		{"NVIDIA A10G", "N/A", 23028, "A10G", 24, true},
		{"Tesla V100-SXM2-16GB", "N/A", 16384, "V100-16GB", 16, true},
		{"NVIDIA RTX A6000", "N/A", 49140, "RTXA6000", 48, true},
		{"NVIDIA RTX 6000 Ada Generation", "N/A", 49140, "RTX6000ADA", 48, true},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", "Disabled", 97887, "RTXPRO6000", 96, true},
		{"NVIDIA Something Newer", "N/A", 24564, "RTX4090", 24, true},
		{"NVIDIA GeForce RTX 3090", "N/A", 24576, "RTX4090", 24, false},
		{"NVIDIA A100 80GB PCIe", "Disabled", 81920, "A100-80GB-SXM", 80, false},
		{"NVIDIA Something Newer", "N/A", 12288, "RTX4090", 24, false},
		{"NVIDIA H100 80GB HBM3", "Enabled", 81559, "H100-SXM", 80, false},
	} {
		have, err := parseNvidiaSMI(fmt.Appendf(nil, smi, c.name, c.mig, c.megabytes))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if have.Driver != "570.86.15" || have.CUDA != "12.8" || have.GPUs[0].UUID != "GPU-1" || have.GPUs[0].MemoryMB != c.megabytes {
			t.Errorf("%s: read as %+v", c.name, have)
		}
		message := mismatch(agentapi.GPUExpectation{Name: c.bought, Count: 1, VRAMGB: c.vram}, have)
		if (message == "") != c.ok {
			t.Errorf("%s for %s: %q", c.name, c.bought, message)
		}
		if c.ok && !strings.Contains(c.name, "Newer") && string(canonical(c.name, c.megabytes)) != c.bought {
			t.Errorf("%s is %s", c.name, canonical(c.name, c.megabytes))
		}
	}
	for _, text := range []string{"", "not XML", "<nvidia_smi_log><gpu><product_name>x</product_name></gpu></nvidia_smi_log>"} {
		if _, err := parseNvidiaSMI([]byte(text)); !errors.Is(err, ErrNoDriver) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDecodeBootNeverPanics(t *testing.T) {
	for _, s := range []string{"", " ", "e30", "e30=", "bnVsbA==", "W10="} {
		_, _ = DecodeBoot(s)
	}
}
