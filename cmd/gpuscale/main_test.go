package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// try runs a command line in this process.
func try(t *testing.T, env map[string]string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, func(k string) string { return env[k] }, &o, &e)
	return code, o.String(), e.String()
}

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"version":         {[]string{"version"}, exitOK, ""},
		"help":            {[]string{"--help"}, exitOK, ""},
		"unknown command": {[]string{"dmeo"}, exitUsage, "unknown command"},
		"unknown flag":    {[]string{"up", "--prot", "1"}, exitUsage, "unknown flag: --prot"},
		"no number":       {[]string{"up", "--port", "x"}, exitUsage, "invalid argument"},
		"no port":         {[]string{"demo", "--port", "65536"}, exitUsage, "is no port"},
		"too much":        {[]string{"demo", "now"}, exitUsage, `unknown command "now"`},
		"no examples":     {[]string{"demo", "--examples", "/nowhere"}, exitFailure, "no example files in /nowhere"},
		"no kubeconfig":   {[]string{"controller", "--kubeconfig", "/nowhere"}, exitFailure, "/nowhere"},
		"short lease":     {[]string{"controller", "--worker-lease", "5s"}, exitFailure, "--worker-lease 5s is too short"},
		"no keys": {[]string{"gateway", "--backend", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--metrics-addr", "0",
			"--keys-file", "/nowhere"}, exitFailure, "/nowhere"},
		"hold limit":   {[]string{"gateway", "--hold-limit=-1s"}, exitUsage, "--hold-limit"},
		"bad backend":  {[]string{"gateway", "--backend", "m=127.0.0.1:1"}, exitUsage, "model=http://host:port"},
		"no cluster":   {[]string{"gateway", "--claims", "--backend", "http://127.0.0.1:1"}, exitFailure, "no cluster"},
		"gateway port": {[]string{"gateway", "--backend", "http://127.0.0.1:1", "--listen", "nonsense"}, exitFailure, "--listen"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errOut := try(t, map[string]string{"HOME": t.TempDir()}, c.args...)
			if code != c.code || !strings.Contains(errOut, c.says) {
				t.Errorf("exit status %d, %q", code, errOut)
			}
		})
	}
}

func TestPortInUseIsOneLine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	bin := t.TempDir()
	for _, name := range []string{"gpuscale-agent", "vllm-sim"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"up"}, {"demo", "--examples", "../../examples"}} {
		code, out, errOut := try(t, nil, append(args, "--port", port, "--bin-dir", bin)...)
		want := "gpuscale: port " + port + " on 127.0.0.1 is in use; choose another for the gateway with --port, or --port 0 for any\n"
		if code != exitFailure || out != "" || errOut != want {
			t.Errorf("%v: exit status %d, output %q, error %q", args, code, out, errOut)
		}
	}
}

func TestLedgerURL(t *testing.T) {
	home := t.TempDir()
	for name, c := range map[string]struct {
		asked string
		env   map[string]string
		want  string
	}{
		"asked":       {"sqlite:///a.db", map[string]string{"POSTGRES_URL": "postgres://x"}, "sqlite:///a.db"},
		"environment": {"", map[string]string{"POSTGRES_URL": "postgres://x", "HOME": home}, "postgres://x"},
		"home":        {"", map[string]string{"HOME": home}, "sqlite://" + home + "/.local/share/gpuscale/ledger.db"},
		"data home":   {"", map[string]string{"HOME": "/nowhere", "XDG_DATA_HOME": home}, "sqlite://" + home + "/gpuscale/ledger.db"},
		"nowhere":     {"", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ledgerURL(&console{getenv: func(k string) string { return c.env[k] }}, c.asked)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
