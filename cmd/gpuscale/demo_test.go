package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/localkube"
)

// programs builds the commands as `make build` does and returns their folder.
func programs(t *testing.T) (root, bin string) {
	t.Helper()
	root, err := localkube.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin = t.TempDir()
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root, bin
}

// TestDemo is the whole of gpuscale from end to end: what `make demo` shows.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a local Kubernetes, left out by -short")
	}
	root, bin := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "gpuscale"), "demo")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	inOrder(t, string(out), "pod pending", "offers considered", "cheapest of", "reservation", "instance created", "in the market's books",
		"instance running", "model loaded", "claim Ready", "pod served", "/v1/chat/completions", "I am Qwen/Qwen2.5-1.5B-Instruct",
		"completion streamed", "by the instance's engine", "kubectl delete pod", "pod deleted", "idle", "cooldown over", "drained",
		"destroyed", "confirmed gone", "claim gone", "$0/h", "spent", "All of it was seen")
	for _, gone := range []string{bin, folderOf(t, out, `KUBECONFIG=(\S+)`)} {
		for _, p := range processesNaming(gone) {
			t.Errorf("still running: %s", p)
		}
	}
	for _, re := range []string{`KUBECONFIG=(\S+)`, `log +(\S+)`} {
		if dir := folderOf(t, out, re); exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("%s", out)
	}
}

func inOrder(t *testing.T, text string, wanted ...string) {
	t.Helper()
	rest := text
	for _, want := range wanted {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Errorf("%q is not said, or not in its place", want)
			continue
		}
		rest = after
	}
}

func folderOf(t *testing.T, out []byte, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if m == nil {
		t.Fatalf("nothing matches %s", pattern)
	}
	return filepath.Dir(string(m[1]))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// processesNaming are the command lines of this machine's processes in which a folder is named.
func processesNaming(dir string) []string {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var out []string
	for _, path := range lines {
		pid := filepath.Base(filepath.Dir(path))
		text, err := os.ReadFile(path)
		if err != nil || pid == strconv.Itoa(os.Getpid()) {
			continue // it has ended meanwhile, or is this test
		}
		exe, _ := os.Readlink("/proc/" + pid + "/exe") // nothing for other users' processes
		if bytes.Contains(text, []byte(dir)) || strings.HasPrefix(exe, dir) {
			out = append(out, pid+" "+strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return out
}
