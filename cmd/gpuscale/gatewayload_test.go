package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// What this test binary is when it runs as another process, by roleEnv.
const (
	roleEnv     = "GPUSCALE_TEST_ROLE"
	roleCommand = "command"
	roleBackend = "backend"
	// roleController is the command with simulated clouds, by cloudsEnv.
	roleController = "controller"
	cloudsEnv      = "GPUSCALE_TEST_CLOUDS"
	// profileEnv is the beginning of the names of files for profiles of the command; empty: none.
	profileEnv = "GPUSCALE_TEST_PROFILE"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case roleCommand:
		profiled(main)
	case roleController:
		var clouds map[provider.Name]string
		if err := json.Unmarshal([]byte(os.Getenv(cloudsEnv)), &clouds); err != nil {
			panic(err)
		}
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(execute(ctx, &console{out: os.Stdout, errOut: os.Stderr, getenv: os.Getenv, clouds: clouds}, os.Args[1:]))
	case roleBackend:
		serveBackend(os.Args[1], os.Args[2])
	default:
		os.Exit(m.Run())
	}
}

const (
	loadModel = "acme/loaded"
	loadBody  = `{"model":"acme/loaded","messages":[{"role":"user","content":"Why is the sky blue?"}],"max_tokens":16}`
	loadReply = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"acme/loaded","choices":[{"index":0,"message":` +
		`{"role":"assistant","content":"Because of Rayleigh scattering."},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,` +
		`"completion_tokens":16,"total_tokens":26}}`
	loadStream = `{"model":"acme/loaded","messages":[{"role":"user","content":"Why is the sky blue?"}],"stream":true}`
	loadPath   = "/v1/chat/completions"
	// streamEvery is the time between two events of a stream.
	streamEvery = 500 * time.Millisecond
)

// serveBackend is an engine behind TLS that answers at once, and streams without end. It writes its certificate to certFile,
// and then its address to addressFile.
func serveBackend(certFile, addressFile string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"`+loadModel+`"}]}`)
	})
	mux.HandleFunc(loadPath, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, loadReply)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for tick := time.NewTicker(streamEvery); ; {
			if _, err := io.WriteString(w, `data: {"choices":[{"delta":{"content":"x"}}]}`+"\n\n"); err != nil {
				return
			}
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(addressFile+".new", []byte(server.Listener.Addr().String()), 0o600),
		os.Rename(addressFile+".new", addressFile)); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends, however it does
}

// loadWorld is a backend in a process of its own, and the ways to it.
type loadWorld struct {
	t       testing.TB
	dir     string
	cert    string
	backend string
	client  *http.Client
}

func newLoadWorld(t testing.TB) *loadWorld {
	t.Helper()
	w := &loadWorld{t: t, dir: t.TempDir()}
	w.cert = filepath.Join(w.dir, "backend.pem")
	file := filepath.Join(w.dir, "address")
	w.start(roleBackend, nil, w.cert, file)
	w.until("the backend answers", func() error {
		address, err := os.ReadFile(file)
		w.backend = string(address)
		return err
	})
	roots := x509.NewCertPool()
	pemText, err := os.ReadFile(w.cert)
	if err != nil || !roots.AppendCertsFromPEM(pemText) {
		t.Fatalf("the backend's certificate: %v", err)
	}
	w.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 500,
		DisableCompression: true}}
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

// start runs this binary as another process until the test ends, and returns its id.
func (w *loadWorld) start(role string, env []string, args ...string) int {
	w.t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), roleEnv+"="+role), env...)
	return w.process(role, cmd)
}

func (w *loadWorld) process(name string, cmd *exec.Cmd) int {
	w.t.Helper()
	said, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stderr = said
	hold, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = hold.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
		_ = cmd.Wait()                          // It ended by a signal.
		_ = said.Close()
		if w.t.Failed() {
			text, _ := os.ReadFile(said.Name())
			w.t.Logf("%s said:\n%s", name, text[max(0, len(text)-2000):])
		}
	})
	return cmd.Process.Pid
}

// gateway runs the command, with profiles in a folder if there is one, and returns its address and process.
func (w *loadWorld) gateway(profiles string) (url string, pid int) {
	w.t.Helper()
	profile := ""
	if profiles != "" {
		profile = filepath.Join(profiles, "gateway")
	}
	address := w.freeAddress()
	pid = w.start(roleCommand, []string{"SSL_CERT_FILE=" + w.cert, profileEnv + "=" + profile, "KUBECONFIG=/nonexistent",
		"GOMAXPROCS=1"}, "gateway",
		"--claims=false", "--listen", address, "--metrics-addr", "0", "--backend", loadModel+"=https://"+w.backend)
	url = "http://" + address
	w.until("the gateway answers", func() error { return w.ask(url) })
	return url, pid
}

const nginxConfig = `daemon off; worker_processes 1; pid %[1]s/nginx.pid; error_log stderr;
events { worker_connections 4096; }
http {
  access_log %[1]s/nginx.access;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  upstream backend { server %[2]s; keepalive 256; keepalive_timeout 4s; keepalive_requests 100000000; }
  server {
    listen %[3]s; keepalive_requests 100000000;
    location / {
      proxy_pass https://backend; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate %[4]s; proxy_ssl_name example.com; proxy_ssl_server_name on;
      proxy_ssl_protocols TLSv1.3;
    }
  }
}
`

// nginx proxies the same backend, over TLS too, which it keeps as long as the gateway does, and with its log of requests
// too. It returns its address and processes.
func (w *loadWorld) nginx(program string) (url string, pids []int) {
	w.t.Helper()
	address, file := w.freeAddress(), filepath.Join(w.dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, w.dir, w.backend, address, w.cert), 0o600); err != nil {
		w.t.Fatal(err)
	}
	// As root its workers would be somebody else, who may not enter the test's folder.
	main := w.process("nginx", exec.Command(program, "-c", file, "-p", w.dir, "-g", "user root;"))
	url = "http://" + address
	w.until("nginx answers", func() error { return w.ask(url) })
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", main, main))
	if err != nil {
		w.t.Fatal(err)
	}
	pids = []int{main}
	for text := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			w.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return url, pids
}

func (w *loadWorld) freeAddress() string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (w *loadWorld) until(what string, holds func() error) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %v", what, err)
		}
	}
}

// ask sends one request and reads its answer.
func (w *loadWorld) ask(base string) error {
	response, err := w.client.Post(base+loadPath, "application/json", strings.NewReader(loadBody))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && string(text) != loadReply {
		err = fmt.Errorf("%d: %s", response.StatusCode, text)
	}
	return err
}

// load sends rate requests a second for d, at their times however long others take, and returns how long each took.
func (w *loadWorld) load(base string, rate int, d time.Duration) []time.Duration {
	w.t.Helper()
	n := int(d.Seconds() * float64(rate))
	var (
		mu   sync.Mutex
		took = make([]time.Duration, 0, n)
		all  sync.WaitGroup
		due  = make(chan struct{}, n)
	)
	for range 64 {
		all.Go(func() {
			for range due {
				sent := time.Now()
				err := w.ask(base)
				answered := time.Since(sent)
				mu.Lock()
				took = append(took, answered)
				mu.Unlock()
				if err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	begun := time.Now()
	for i := range n {
		time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		due <- struct{}{}
	}
	close(due)
	all.Wait()
	slices.Sort(took)
	return took
}

// streams opens n streams that last until the test ends, and returns when each has had an event.
func (w *loadWorld) streams(base string, n int) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	w.t.Cleanup(func() { cancel(); all.Wait() })
	first := make(chan error, n)
	for range n {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+loadPath, strings.NewReader(loadStream))
			if err != nil {
				first <- err
				return
			}
			r.Header.Set("Content-Type", "application/json")
			response, err := w.client.Do(r)
			if err != nil {
				first <- err
				return
			}
			defer response.Body.Close()
			_, err = io.ReadFull(response.Body, make([]byte, 16))
			first <- err
			_, _ = io.Copy(io.Discard, response.Body) // It ends with ctx.
		})
	}
	for range n {
		if err := <-first; err != nil {
			w.t.Fatal(err)
		}
	}
}
