package workerclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/workerclient"
)

func sparing(t *testing.T, w *world) *workerclient.Client {
	t.Helper()
	c := must(workerclient.New(must(w.ca.Client(agentapi.RoleController, time.Hour, time.Now())), w.ca.PEM(), workerclient.Sparing()))
	t.Cleanup(c.Close)
	return c
}

func TestAConnectionThatTheWorkerClosedIsReplaced(t *testing.T) {
	var bodies atomic.Int64
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if body := must(io.ReadAll(r.Body)); strings.Contains(string(body), `"generation":7`) {
			bodies.Add(1)
		}
		_ = json.NewEncoder(rw).Encode(agentapi.Status{})
	})
	c := sparing(t, w)
	must(c.Status(t.Context(), w.endpoint, claim))
	for range 3 {
		w.server.CloseClientConnections()
		if err := c.PutModels(t.Context(), w.endpoint, claim, agentapi.DesiredModels{Generation: 7}); err != nil {
			t.Fatal(err)
		}
	}
	if bodies.Load() != 3 || w.conns.Load() != 4 {
		t.Errorf("%d bodies over %d connections", bodies.Load(), w.conns.Load())
	}
	w.server.CloseClientConnections()
	_ = w.server.Listener.Close()
	var unreachable *workerclient.UnreachableError
	if _, err := c.Status(t.Context(), w.endpoint, claim); !errors.As(err, &unreachable) {
		t.Errorf("nobody there any more: %v", err)
	}
}

func TestACallThatIsGivenUpLeavesNoConnection(t *testing.T) {
	hold := make(chan struct{})
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case agentapi.PathMetrics: // The head, and half of the body.
			rw.Header().Set("Content-Length", "10")
			fmt.Fprint(rw, "half")
			_ = http.NewResponseController(rw).Flush()
			<-hold
		case agentapi.PathLogs:
			<-hold
		default:
			_ = json.NewEncoder(rw).Encode(agentapi.Status{InFlight: 1})
		}
	})
	defer close(hold)
	c := sparing(t, w)
	status := func() {
		t.Helper()
		if s := must(c.Status(t.Context(), w.endpoint, claim)); s.InFlight != 1 {
			t.Errorf("status %+v", s)
		}
	}
	status()
	for name, call := range map[string]func(context.Context) error{
		"before the answer": func(ctx context.Context) error {
			_, err := c.Logs(ctx, w.endpoint, claim, "m", 10)
			return err
		},
		"within it": func(ctx context.Context) error {
			body, err := c.Metrics(ctx, w.endpoint, claim, 10)
			if err != nil {
				return err
			}
			defer body.Close()
			text, err := io.ReadAll(body)
			if string(text) != "half" {
				t.Errorf("read %q", text)
			}
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		status()
	}
}

func TestAHeadWithoutEndIsNotReadToIt(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
		conn, out, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, err = out.WriteString("HTTP/1.1 200 OK\r\n")
		for err == nil {
			_, err = out.WriteString("X: " + strings.Repeat("x", 1000) + "\r\n")
		}
	})
	var unreachable *workerclient.UnreachableError
	if _, err := sparing(t, w).Status(t.Context(), w.endpoint, claim); !errors.As(err, &unreachable) {
		t.Errorf("%v", err)
	}
}

func TestAWorkerThatMovedIsAskedWhereItIs(t *testing.T) {
	here := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(rw).Encode(agentapi.Status{Version: "here"})
	})
	c := sparing(t, here)
	must(c.Status(t.Context(), here.endpoint, claim))
	there := worldOf(t, here.ca, func(rw http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(rw).Encode(agentapi.Status{Version: "there"})
	})
	if s := must(c.Status(t.Context(), there.endpoint, claim)); s.Version != "there" {
		t.Errorf("answered by %q", s.Version)
	}
}
