// Package scale_test measures the controllers with many claims: how soon they buy, what they need of memory, and how
// often they call the API server.
//
// They run in a process of their own, this test binary started again with a setting in its environment, with
// production's timing. Kubernetes is real; the market and the virtual instances are in the test's process.
package scale_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof" // for whoever asks where time or memory goes
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/provider"
)

const (
	childEnv   = "GPUSCALE_SCALE_CHILD"
	simKey     = "sim-key-0123456789"
	system     = "gpuscale-system"
	secretName = "gpuscale-provider-credentials"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	if settings := os.Getenv(childEnv); settings != "" {
		if err := child(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	localkubetest.Main(m)
}

// orders are what the controllers' process is told.
type orders struct{ Kubeconfig, Market, Ledger, Stats string }

// stats are what that process says of itself.
type stats struct {
	// Resident and Peak are VmRSS and VmHWM in bytes.
	Resident, Peak int64
	// CPU is the time used by user and system together.
	CPU time.Duration
	// Calls to the API server so far, by verb and resource.
	Calls map[string]int
}

// child runs the controllers until the parent lets go of its standard input.
func child(settings string) error {
	var o orders
	if err := json.Unmarshal([]byte(settings), &o); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	operator.SpareMemory(os.Getenv)
	counts := &counter{calls: map[string]int{}}
	cfg.Wrap(counts.wrap)
	l, err := net.Listen("unix", o.Stats)
	if err != nil {
		return err
	}
	http.HandleFunc("/stats", counts.serve)
	http.HandleFunc("/settle", func(http.ResponseWriter, *http.Request) { debug.FreeOSMemory() })
	go func() { _ = http.Serve(l, nil) }()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log := errorsOnly()
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return operator.Run(context.Background(), operator.Config{
		Rest: cfg, Namespace: system, LedgerURL: "sqlite://" + o.Ledger, Getenv: func(string) string { return "" },
		BaseURLs: map[provider.Name]string{provider.VastAI: o.Market},
		// The vendor lets an account create one instance in 4.5 s; what is measured is ours.
		PaceFactor:  -1,
		Wrap:        func(p provider.Provider) provider.Provider { return shortLag{p} },
		Agent:       bootstrap.Agent{URL: "http://127.0.0.1:1/gpuscale-agent", SHA256: strings.Repeat("0", 64)},
		MetricsAddr: "0", HealthAddr: "0", Log: log,
	})
}

// errorsOnly writes to the standard error what went wrong.
func errorsOnly() logr.Logger {
	return funcr.New(func(prefix, args string) {
		if strings.Contains(args, `"error"=`) {
			fmt.Fprintln(os.Stderr, prefix, args)
		}
	}, funcr.Options{})
}

// shortLag shortens the wait until an ended rental is taken as gone; nothing that is measured depends on it.
type shortLag struct{ provider.Provider }

func (s shortLag) Capabilities() provider.Capabilities {
	c := s.Provider.Capabilities()
	c.ListLag = time.Second
	return c
}

// counter counts requests to the API server.
type counter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counter) wrap(next http.RoundTripper) http.RoundTripper { return counting{c, next} }

type counting struct {
	*counter
	next http.RoundTripper
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.calls[r.Method+" "+askedFor(r.URL.Path)]++
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

// askedFor is what a request is about: gpunodeclaims/status.
func askedFor(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for parts[0] == "api" || parts[0] == "apis" {
		skip := 2
		if parts[0] == "apis" {
			skip = 3
		}
		if len(parts) <= skip {
			return "discovery"
		}
		parts = parts[skip:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}

func (c *counter) serve(w http.ResponseWriter, _ *http.Request) {
	s := stats{Resident: procStatus("VmRSS:"), Peak: procStatus("VmHWM:")}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err == nil {
		s.CPU = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Calls = c.calls
	_ = json.NewEncoder(w).Encode(s)
}

// procStatus is a size in /proc/self/status, in bytes; 0 where there is none.
func procStatus(name string) int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(data), name)
	kb, err := strconv.ParseInt(strings.Fields(after + " 0")[0], 10, 64)
	if err != nil {
		return 0
	}
	return kb << 10
}
