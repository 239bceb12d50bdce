package agent_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// envEngine makes this test's own program an engine of the kind that it names: servers that vllm-sim is too well behaved
// to stand for. Its one argument is where to listen.
const envEngine = "AGENT_TEST_ENGINE"

// engineMain is the whole life of such an engine.
func engineMain(kind, address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening on", address)
	if kind == "garbage" {
		spew(listener)
	}
	if kind == "floods" {
		for range 1000 {
			fmt.Println(strings.Repeat("a line without end ", 64<<10/19))
		}
		for range 10000 {
			fmt.Println("and many lines with one, each of which is kept for a while")
		}
	}
	e := &otherEngine{kind: kind}
	if kind == "forks" {
		e.fork()
	}
	fmt.Println(http.Serve(listener, e))
	os.Exit(1)
}

// spew answers each connection with what is no HTTP.
func spew(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		_, _ = c.Write([]byte(strings.Repeat("\x00\xff garbage\r\n", 1000)))
		_ = c.Close()
	}
}

type otherEngine struct {
	kind string
	// asked counts completions; the first is the agent's own.
	asked  atomic.Int64
	tokens atomic.Int64
}

// fork leaves a child in a session of its own, with all output closed.
func (e *otherEngine) fork() {
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// ServeHTTP knows completions and, but for the kind "foreign", health and models.
func (e *otherEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case e.kind != "foreign" && r.URL.Path == "/health":
	case e.kind != "foreign" && r.URL.Path == "/v1/models":
		_, _ = io.WriteString(w, `{"data":[{"id":"odd"}]}`)
	case r.URL.Path == "/metrics" && e.kind == "busy":
		fmt.Fprintf(w, "vllm:generation_tokens_total{model_name=\"odd\",engine=\"0\"} %d\n", e.tokens.Add(1))
	case r.URL.Path == "/v1/chat/completions":
		e.complete(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (e *otherEngine) complete(w http.ResponseWriter, r *http.Request) {
	first := e.asked.Add(1) == 1
	var body struct {
		Model, Script, End string
		Messages           []any
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil || len(body.Messages) == 0 {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	if body.Script != "" {
		e.script(w, r, body.Script, body.End)
		return
	}
	if !first {
		e.misbehave(w, r)
	}
	_, _ = fmt.Fprintf(w, `{"model":%q,"choices":[{"message":{"content":"hello"}}],"args":%q}`, body.Model, fmt.Sprint(os.Args[1:]))
}

// misbehave is what the kind does with any completion but the first.
func (e *otherEngine) misbehave(w http.ResponseWriter, r *http.Request) {
	switch e.kind {
	case "garbage-later":
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			os.Exit(1)
		}
		_, _ = c.Write([]byte("\x16\x03garbage\r\n\r\n"))
		_ = c.Close()
		panic(http.ErrAbortHandler)
	case "hang", "busy":
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case "endless":
		for {
			if _, err := w.Write([]byte("data: " + strings.Repeat("x", 32<<10) + "\n\n")); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	case "headers":
		w.Header().Set("X-Long", strings.Repeat("x", 2<<20))
	}
}

// script sends exactly these bytes as a stream, and then ends cleanly, breaks off, hangs or dies.
func (e *otherEngine) script(w http.ResponseWriter, r *http.Request, text, end string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
	switch end {
	case "break":
		panic(http.ErrAbortHandler)
	case "hang":
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case "die":
		time.Sleep(20 * time.Millisecond) // The bytes leave first.
		os.Exit(3)
	}
}
