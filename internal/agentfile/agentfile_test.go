package agentfile_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/internal/agentfile"
	"github.com/munhq/gpuscale/internal/bootstrap"
)

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func TestAnAgentIsToldFromWhatIsNone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/agent-amd64", "/agent-arm64":
			_, _ = io.WriteString(w, r.URL.Path)
		case "/moved":
			http.Redirect(w, r, "/agent-amd64", http.StatusFound)
		case "/huge":
			_, _ = w.Write(make([]byte, 65<<20))
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		case "/busy":
			w.WriteHeader(http.StatusBadGateway)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	amd, arm := sum("/agent-amd64"), sum("/agent-arm64")
	for _, c := range []struct {
		path, sum, arm string
		// wrong is what a certain refusal says, unclear that nothing is known.
		wrong   string
		unclear bool
	}{
		{"/agent-amd64", amd, "", "", false},
		{"/agent-amd64", strings.ToUpper(amd), "", "", false},
		{"/agent-{arch}", amd, arm, "", false},
		{"/agent-{arch}", amd, "", "", false},
		{"/moved", amd, "", "", false},
		{"/agent-{arch}", amd, amd, "has SHA-256 " + arm, false},
		{"/agent-arm64", amd, "", "has SHA-256", false},
		{"/none", amd, "", "404", false},
		{"/huge", amd, "", "over 64 MiB", false},
		{"/cut", sum("half"), "", "", true},
		{"/busy", amd, "", "", true},
	} {
		checker := agentfile.New(nil, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
		err := checker.Check(t.Context(), bootstrap.Agent{URL: server.URL + c.path, SHA256: c.sum, SHA256ARM64: c.arm})
		wrong := &agentfile.WrongError{}
		switch {
		case c.wrong != "":
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want certainty and %q", c.path, err, c.wrong)
			}
		case (err != nil) != c.unclear || errors.As(err, &wrong):
			t.Errorf("%s: %v", c.path, err)
		}
	}
	server.Close()
	checker := agentfile.New(nil, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	wrong := &agentfile.WrongError{}
	if err := checker.Check(t.Context(), bootstrap.Agent{URL: server.URL, SHA256: amd}); err == nil || errors.As(err, &wrong) {
		t.Errorf("a server that is away: %v", err)
	}
}

// TestAServerThatHangsHoldsUpNobodyElse, and what signs a URL is not said.
func TestAServerThatHangsHoldsUpNobodyElse(t *testing.T) {
	asked, free := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hangs":
			close(asked)
			<-free
		case "/good":
			_, _ = io.WriteString(w, "agent")
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	checker := agentfile.New(nil, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	check := func(path string) error {
		return checker.Check(context.Background(), bootstrap.Agent{URL: server.URL + path, SHA256: sum("agent")})
	}
	hung := make(chan error)
	go func() { hung <- check("/hangs?signature=verysecret") }()
	<-asked
	if err := check("/good"); err != nil {
		t.Error(err)
	}
	if err := check("/none?signature=verysecret"); err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("a missing agent: %v", err)
	}
	close(free)
	if err := <-hung; err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("another file: %v", err)
	}
	server.Close()
	if err := check("/gone?signature=verysecret"); err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("a server that is away: %v", err)
	}
}

func TestOutcomesAreKept(t *testing.T) {
	var asked, broken atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if broken.Load() > 0 {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "agent")
	}))
	defer server.Close()
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	checker := agentfile.New(nil, clock)
	agent := bootstrap.Agent{URL: server.URL, SHA256: sum("agent")}
	step := func(d time.Duration, good bool, requests int64) {
		t.Helper()
		clock.SetTime(clock.Now().Add(d))
		if err := checker.Check(t.Context(), agent); (err == nil) != good || asked.Load() != requests {
			t.Errorf("%v after %d requests, want %d", err, asked.Load(), requests)
		}
	}
	step(0, true, 1)
	step(59*time.Minute, true, 1)
	broken.Store(1)
	step(2*time.Minute, false, 2)
	step(30*time.Second, false, 2)
	broken.Store(0)
	step(31*time.Second, true, 3)

	// A caller that gives up leaves nothing behind.
	clock.SetTime(clock.Now().Add(2 * time.Hour))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := checker.Check(gone, agent); err == nil {
		t.Error("a cancelled check succeeded")
	}
	step(0, true, 4)
}
