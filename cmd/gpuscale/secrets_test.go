package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoErrorRepeatsAPassword gives the controller ledgers that cannot be opened, each in its own way.
func TestNoErrorRepeatsAPassword(t *testing.T) {
	const secret = "pw-marked-41d7"
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n" +
		"contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {token: " + secret + "}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{
		"postgres://user:" + secret + "@127.0.0.1:1/db?connect_timeout=1",
		"postgresql://user:" + secret + "@nowhere.invalid/db",
		"postgres://user:" + secret + "@[::1/db",
		"postgres://user:" + secret + "@127.0.0.1:port/db",
		"postgres://127.0.0.1:1/db?password=" + secret + "&sslmode=perhaps",
		"postgres:// user:" + secret + "%zz@127.0.0.1:1/db",
		"mysql://user:" + secret + "@127.0.0.1:1/db",
		"user=x password=" + secret,
		"sqlite://" + secret + "?mode=x",
	} {
		for _, env := range []map[string]string{nil, {"POSTGRES_URL": address}} {
			args := []string{"controller", "--kubeconfig", kubeconfig, "--metrics-addr", "0", "--worker-metrics-addr", "0", "--health-addr", "0"}
			if env == nil {
				args = append(args, "--ledger", address)
			}
			log := captureLog(t)
			code, out, errOut := try(t, env, args...)
			if code == exitOK || errOut == "" {
				t.Errorf("%s: exit status %d and %q", address, code, errOut)
			}
			if all := out + errOut + log(); strings.Contains(all, secret) {
				t.Errorf("%s: the password is repeated: %s", address, all)
			}
		}
	}
}

// captureLog sends what is logged from here on to a file; the function it returns ends that and reads it.
func captureLog(t *testing.T) func() string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = f
	return func() string {
		os.Stderr = before
		data, err := os.ReadFile(f.Name())
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}
