package bootstrap_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/bootstrap"
)

// agent is the program that is fetched: it shows that it ran, with the environment of the container.
const agent = "#!/bin/sh\necho agent ran with $GPUSCALE_BOOT as $$\n"

var fetchers = []string{"curl", "wget", "python3"}

// pathWith makes a PATH that holds the named programs and no others.
func pathWith(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%s is not here; make test gets it: %v", name, err)
		}
		if name == "python3" {
			// What is found may be a wrapper that needs more of PATH than itself.
			out, err := exec.Command(real, "-c", "import sys;print(sys.executable)").Output()
			if err != nil {
				t.Fatalf("python3 does not work here: %v", err)
			}
			real = strings.TrimSpace(string(out))
		}
		// A wrapper and not a link: python finds its library by the path it was called by.
		script := "#!/bin/sh\nexec " + real + " \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// boot runs the container's command as a provider would and returns its output and exit code.
func boot(t *testing.T, url, sum, path string, env ...string) (string, string, int) {
	t.Helper()
	p := params()
	p.Agent = bootstrap.Agent{URL: url, SHA256: sum}
	return run(t, p, path, env...)
}

// run is boot of any parameters.
func run(t *testing.T, p bootstrap.Params, path string, env ...string) (string, string, int) {
	t.Helper()
	container := must(bootstrap.Container(p))
	command := exec.CommandContext(t.Context(), container.Command[0], container.Command[1:]...)
	command.Env = append([]string{"PATH=" + path, "TMPDIR=" + t.TempDir(), "GPUSCALE_BOOT=me"}, env...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), command.ProcessState.ExitCode()
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/agent"
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

var coreutils = []string{"sha256sum", "mktemp", "mkdir", "chmod", "rm", "sleep"}

func TestScriptIsPortableShell(t *testing.T) {
	for _, checker := range [][]string{{"sh", "-n"}, {"dash", "-n"}, {"bash", "-n"}, {"busybox", "sh", "-n"}, {"shellcheck", "-s", "sh"}} {
		if _, err := exec.LookPath(checker[0]); err != nil && checker[0] != "shellcheck" {
			continue // Not every system has each shell.
		}
		out, err := exec.Command(checker[0], append(checker[1:], "fetch.sh")...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(checker, " "), err, out)
		}
	}
}

func TestEachFetcherAloneBringsTheAgent(t *testing.T) {
	for _, fetcher := range fetchers {
		t.Run(fetcher, func(t *testing.T) {
			t.Parallel()
			path := pathWith(t, append([]string{fetcher}, coreutils...)...)
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(agent)) })
			stdout, stderr, code := boot(t, url, sumOf(agent), path)
			if code != 0 || !strings.HasPrefix(stdout, "agent ran with me as ") || stderr != "" {
				t.Errorf("exit %d, %q, %q", code, stdout, stderr)
			}
		})
	}
}

func TestAnotherFileIsNeverRun(t *testing.T) {
	for _, fetcher := range fetchers {
		t.Run(fetcher, func(t *testing.T) {
			t.Parallel()
			path := pathWith(t, append([]string{fetcher}, coreutils...)...)
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(agent + "\n")) })
			stdout, stderr, code := boot(t, url, sumOf(agent), path)
			if code != bootstrap.ExitWrongHash || stdout != "" || strings.Count(stderr, "\n") != 1 ||
				!strings.Contains(stderr, sumOf(agent)) {
				t.Errorf("exit %d, %q, %q", code, stdout, stderr)
			}
		})
	}
}

func TestAFileThatIsNotThereIsAskedForAgain(t *testing.T) {
	for _, fetcher := range fetchers {
		t.Run(fetcher, func(t *testing.T) {
			t.Parallel()
			path := pathWith(t, append([]string{fetcher}, coreutils...)...)
			// A sleep that takes no time.
			if err := os.WriteFile(filepath.Join(path, "sleep"), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			asked := make(chan struct{}, 100)
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				http.Error(w, agent, http.StatusNotFound)
			})
			stdout, stderr, code := boot(t, url, sumOf(agent), path, "GPUSCALE_FETCH_TRIES=3")
			if code != bootstrap.ExitNotFetched || stdout != "" || !strings.Contains(stderr, "in 3 attempts") || len(asked) != 3 {
				t.Errorf("exit %d after %d requests, %q, %q", code, len(asked), stdout, stderr)
			}
		})
	}
}

func TestEachProcessorGetsItsAgent(t *testing.T) {
	served := map[string]string{"/agent-amd64": agent, "/agent-arm64": agent + "# arm64\n"}
	url := strings.TrimSuffix(serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, served[r.URL.Path])
	}), "agent") + "agent-{arch}"
	both := bootstrap.Agent{URL: url, SHA256: sumOf(served["/agent-amd64"]), SHA256ARM64: sumOf(served["/agent-arm64"])}
	amd := both
	amd.SHA256ARM64 = ""
	for _, c := range []struct {
		machine string
		agent   bootstrap.Agent
		code    int
	}{
		{"x86_64", both, 0}, {"aarch64", both, 0}, {"arm64", both, 0}, {"x86_64", amd, 0},
		{"aarch64", amd, bootstrap.ExitNoArch}, {"riscv64", both, bootstrap.ExitNoArch},
	} {
		path := pathWith(t, append([]string{"curl"}, coreutils...)...)
		if err := os.WriteFile(filepath.Join(path, "uname"), []byte("#!/bin/sh\necho "+c.machine+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		p := params()
		p.Agent = c.agent
		stdout, stderr, code := run(t, p, path)
		if code != c.code || (code == 0) != strings.HasPrefix(stdout, "agent ran") || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%s: exit %d, %q, %q", c.machine, code, stdout, stderr)
		}
	}
}

func TestALateServerIsWaitedFor(t *testing.T) {
	path := pathWith(t, append([]string{"curl"}, coreutils...)...)
	if err := os.WriteFile(filepath.Join(path, "sleep"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	failures := 2
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if failures--; failures >= 0 {
			http.Error(w, "not yet", http.StatusBadGateway)
			return
		}
		_, _ = w.Write([]byte(agent))
	})
	if stdout, stderr, code := boot(t, url, sumOf(agent), path); code != 0 || !strings.HasPrefix(stdout, "agent ran") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestAnImageWithoutToolsSaysSo(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(agent)) })
	for name, programs := range map[string][]string{
		"no fetcher": coreutils,
		"no sum":     {"curl", "mktemp", "mkdir", "chmod", "rm"},
	} {
		_, stderr, code := boot(t, url, sumOf(agent), pathWith(t, programs...))
		if code != bootstrap.ExitNoFetcher || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", name, code, stderr)
		}
	}
	path := pathWith(t, "curl", "sha256sum", "mkdir", "chmod")
	_, stderr, code := boot(t, url, sumOf(agent), path, "TMPDIR=/proc/none")
	if code != bootstrap.ExitNoFolder || strings.Count(stderr, "\n") != 1 {
		t.Errorf("no folder: exit %d, %q", code, stderr)
	}
	// Python alone fetches and checks.
	stdout, stderr, code := boot(t, url, sumOf(agent), pathWith(t, "python3", "mktemp", "chmod"))
	if code != 0 || !strings.HasPrefix(stdout, "agent ran") {
		t.Errorf("python alone: exit %d, %q, %q", code, stdout, stderr)
	}
}
