package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/agent"
)

// TestCheckIsReadable compares what a user reads, on a machine that could serve and on one that could not.
func TestCheckIsReadable(t *testing.T) {
	bin, home := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	env := map[string]string{"HOME": home, "GPUSCALE_LISTEN": "127.0.0.1:0", "GPUSCALE_METADATA_URL": "http://127.0.0.1:1",
		"CONTAINER_ID": "31000001", "CONTAINER_API_KEY": "secret-of-the-instance"}
	see := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"check"}, args...), func(name string) string { return env[name] }, &out, &errs)
		if errs.Len() > 0 {
			t.Errorf("on standard error: %s", errs.String())
		}
		if strings.Contains(out.String(), "secret-of-the-instance") {
			t.Errorf("it tells the key: %s", out.String())
		}
		return code, out.String()
	}
	code, text := see()
	want := `bad   GPUs       no working NVIDIA driver: nvidia-smi is not there
                 > install the driver; in a container, start it with the host's GPUs (docker run --gpus all)
bad   engine     vllm is not in the PATH
                 > use an image with vLLM, such as vllm/vllm-openai, or name another server in GPUSCALE_ENGINE_COMMAND
`
	if code != exitFailure || !strings.Contains(text, want) || !strings.HasSuffix(text, "\nThis machine could not serve: see GPUs, engine.\n") {
		t.Errorf("exit %d:\n%s", code, text)
	}

	smi := `<nvidia_smi_log><driver_version>570.86.15</driver_version><cuda_version>12.8</cuda_version><gpu><product_name>NVIDIA L4</product_name>` +
		`<uuid>GPU-1</uuid><fb_memory_usage><total>23034 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>`
	for name, script := range map[string]string{"nvidia-smi": "#!/bin/sh\necho '" + smi + "'\n", "vllm": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	code, text = see()
	for _, line := range []string{"ok    GPUs       1 × NVIDIA L4, 23034 MB each\n", "ok    driver     570.86.15, for CUDA up to 12.8\n",
		"ok    engine     " + bin + "/vllm\n", "ok    self-end   the machine can end its own rental (by vast.ai)\n", "\nThis machine could serve.\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q", line)
		}
	}
	if code != exitOK {
		t.Errorf("exit %d:\n%s", code, text)
	}
	code, text = see("-o", "json")
	var report agent.Report
	if err := json.Unmarshal([]byte(text), &report); err != nil || code != exitOK || !report.Serves || len(report.Findings) != 8 {
		t.Errorf("exit %d, %v:\n%s", code, err, text)
	}
}

func TestCheckRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, args := range [][]string{{"check", "-o", "yaml"}, {"check", "please"}, {"check", "-x"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, func(string) string { return "" }, &out, &errs); code != exitUsage || !strings.HasPrefix(errs.String(), "usage: ") {
			t.Errorf("%v: exit %d, %q", args, code, errs.String())
		}
	}
}

func TestHelpIsNoMistake(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"check", "-h"}, {"check", "--help"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, func(string) string { return "" }, &out, &errs); code != exitOK || errs.Len() > 0 ||
			!strings.Contains(out.String(), "usage: gpuscale-agent check [-o text|json]") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
}
