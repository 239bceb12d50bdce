package workermetrics_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bench"
	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/body/virtual"
	"github.com/munhq/gpuscale/internal/controller/workermetrics"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// roleVariable makes this test's program the workers of TestWorkerMetricsFigures, which so burn their own time.
const roleVariable = "GPUSCALE_TEST_WORKERS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(roleVariable)); err == nil {
		serveWorkers(n)
		return
	}
	os.Exit(m.Run())
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// fleet is what the workers' process tells: how to reach and believe them.
type fleet struct {
	CA, Cert, Key string
	Endpoints     []string
}

func uid(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

func bootFor(ca *pki.CA, i int) agentapi.Boot {
	pair := must(ca.Worker(uid(i), time.Hour, time.Now()))
	return agentapi.Boot{Version: 1, Installation: ca.Installation(), ClaimUID: uid(i), CertPEM: string(pair.CertPEM),
		KeyPEM: string(pair.KeyPEM), CAPEM: string(ca.PEM()), GPUs: agentapi.GPUExpectation{Name: "RTX4090", Count: 1, VRAMGB: 24}}
}

// serveWorkers serves n workers until its input ends, and reads what is re-exposed at the URL that its input begins with.
func serveWorkers(n int) {
	ca := must(pki.NewCA("5f2c91ab", time.Now()))
	pair := must(ca.Client(agentapi.RoleController, time.Hour, time.Now()))
	text := answerOf(ca, pair)
	out := fleet{CA: string(ca.PEM()), Cert: string(pair.CertPEM), Key: string(pair.KeyPEM)}
	for i := range n {
		listener := must(net.Listen("tcp", "127.0.0.1:0"))
		server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), TLSConfig: must(pki.ServerTLS(bootFor(ca, i))),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })}
		go func() { _ = server.ServeTLS(listener, "", "") }()
		out.Endpoints = append(out.Endpoints, listener.Addr().String())
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	if lines.Scan() {
		go readAsPrometheus(lines.Text())
	}
	for lines.Scan() {
	}
}

// readAsPrometheus reads the re-exposed metrics as often as they are new.
func readAsPrometheus(url string) {
	for tick := time.Tick(workermetrics.DefaultInterval); ; <-tick {
		request := must(http.NewRequest(http.MethodGet, url+"/metrics", nil))
		request.Header.Set("Accept-Encoding", "gzip")
		if response, err := http.DefaultClient.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
	}
}

// answerOf is what a real agent answers, with an engine that has served and a GPU.
func answerOf(ca *pki.CA, pair pki.Pair) []byte {
	ctx := context.Background()
	factory := virtual.New(virtual.Options{Env: map[string]string{"VLLM_SIM_LOAD_TIME": "10ms", "VLLM_SIM_TTFT": "1ms"}})
	b := must(factory.Start(ctx, body.Spec{InstanceID: "one", Port: 9443, GPU: body.GPU{Name: "NVIDIA GeForce RTX 4090", MemoryMB: 24564, Count: 1, Driver: "570.86.15", CUDA: "12.8"},
		Env: map[string]string{agentapi.EnvBoot: base64.StdEncoding.EncodeToString(must(json.Marshal(bootFor(ca, 0))))}}))
	defer func() { b.Kill(); <-b.Done() }()
	host, port := b.Address()
	endpoint := net.JoinHostPort(host, strconv.Itoa(port))
	client := must(workerclient.New(pair, ca.PEM()))
	defer client.Close()
	if err := client.PutModels(ctx, endpoint, uid(0), agentapi.DesiredModels{Generation: 1,
		Models: []agentapi.DesiredModel{{Name: "qwen", Source: "acme/qwen", GPUs: 1, GPUFraction: 1000}}}); err != nil {
		panic(err)
	}
	for range 3000 {
		text := string(must(io.ReadAll(must(client.Metrics(ctx, endpoint, uid(0), 4<<20)))))
		if strings.Contains(text, `vllm:num_requests_running{model="qwen"`) && strings.Contains(text, "gpuscale_agent_gpu_") {
			return []byte(text)
		}
		time.Sleep(10 * time.Millisecond)
	}
	panic("the engine never had metrics")
}

// startFleet starts the workers' process. read makes it read url as Prometheus would.
func startFleet(b testing.TB, n int) (f fleet, client *workerclient.Client, read func(url string)) {
	b.Helper()
	cmd := exec.Command(must(os.Executable()))
	cmd.Env = append(os.Environ(), roleVariable+"="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	input, output := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("the workers' process: %v", err)
		}
	})
	if err := json.NewDecoder(output).Decode(&f); err != nil {
		b.Fatal(err)
	}
	client = must(workerclient.New(pki.Pair{CertPEM: []byte(f.Cert), KeyPEM: []byte(f.Key)}, []byte(f.CA)))
	b.Cleanup(client.Close)
	return f, client, func(url string) { _ = must(io.WriteString(input, url+"\n")) }
}

// tally counts what is written to it, and keeps nothing: it is part of the process that is measured.
type tally struct {
	header http.Header
	bytes  int
	up     int
	line   []byte
}

func (t *tally) Header() http.Header { return t.header }
func (t *tally) WriteHeader(int)     {}
func (t *tally) Write(p []byte) (int, error) {
	t.bytes += len(p)
	for line := range bytes.Lines(p) {
		t.line = append(t.line, line...)
		if line[len(line)-1] != '\n' {
			break
		}
		if bytes.HasPrefix(t.line, []byte("gpuscale_worker_up{")) && bytes.HasSuffix(t.line, []byte(" 1\n")) {
			t.up++
		}
		t.line = t.line[:0]
	}
	return len(p), nil
}

// up is how many workers the exposition has as up, and its length.
func up(handler http.Handler) (n, length int) {
	t := &tally{header: http.Header{}}
	handler.ServeHTTP(t, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return t.up, t.bytes
}

// TestWorkerMetricsFigures measures this process alone, over two intervals after all workers were reached: scraping over
// mutual TLS, keeping, and writing it all out for a reader that compresses.
func TestWorkerMetricsFigures(t *testing.T) {
	workers, settings := 20, workermetrics.Settings{Interval: time.Second}
	if bench.Recording() {
		workers, settings = 1000, workermetrics.Settings{}
	}
	f, client, read := startFleet(t, workers)
	s := workermetrics.New(settings, client, clock.RealClock{}, logr.Discard())
	for i, endpoint := range f.Endpoints {
		s.Set(workermetrics.Target{Claim: fmt.Sprintf("qwen-qwen2-5-1-5b-instruct-%06d-0", i), UID: uid(i), Endpoint: endpoint, Pool: "inference",
			Provider: "vast.ai", GPUType: "RTX4090", Models: []string{"qwen"}})
	}
	run(t, s)
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	read(server.URL)
	all := func() error {
		if n, _ := up(s.Handler()); n != workers {
			return fmt.Errorf("%d of %d workers are up", n, workers)
		}
		return nil
	}
	wait(t, 3*time.Minute, all)
	began, used := time.Now(), cpuTime(t)
	time.Sleep(2 * cmp.Or(settings.Interval, workermetrics.DefaultInterval))
	bench.Record(t, "workers.cpu", (cpuTime(t)-used).Seconds()/time.Since(began).Seconds())
	bench.Record(t, "workers.memory", peakRSS(t))
	_, length := up(s.Handler())
	bench.Record(t, "workers.exposed", float64(length)/1e6)
	wait(t, time.Minute, all)
}

// run runs a Scraper until the test ends.
func run(t *testing.T, s *workermetrics.Scraper) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func wait(b testing.TB, most time.Duration, holds func() error) {
	b.Helper()
	err := errors.New("not asked yet")
	for deadline := time.Now().Add(most); err != nil; time.Sleep(200 * time.Millisecond) {
		if err = holds(); err != nil && time.Now().After(deadline) {
			b.Fatal(err)
		}
	}
}

func cpuTime(b testing.TB) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// peakRSS is the most memory that this process ever had, in MB.
func peakRSS(b testing.TB) float64 {
	b.Helper()
	status := must(os.ReadFile("/proc/self/status"))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb := must(strconv.ParseFloat(strings.Fields(rest)[0], 64))
			return kb * 1024 / 1e6
		}
	}
	b.Fatal("no VmHWM")
	return 0
}
