package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/bench"
)

// benchProfiles names a folder for profiles of the gateway's process.
const benchProfiles = "GPUSCALE_BENCH_PROFILES"

// profiled runs a main that need not return, and keeps profiles of its first part.
func profiled(main func()) {
	if name := os.Getenv(profileEnv); name != "" {
		file, err := os.Create(name + ".cpu")
		if err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			panic(err)
		}
		time.AfterFunc(profileFor, func() {
			pprof.StopCPUProfile()
			if file, err = os.Create(name + ".allocs"); err == nil {
				err = errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
			}
			if err != nil {
				panic(err)
			}
		})
	}
	main()
}

// profileFor is less than all rounds take.
const profileFor = 40 * time.Second

// loadSize is how much of everything is measured.
type loadSize struct {
	rate    int // requests a second
	round   time.Duration
	rounds  int
	streams int
}

// TestGatewayFigures measures what the gateway adds to a request and takes for it, beside a direct call and nginx in front
// of the same backend. The three take turns, so that what else the machine does falls on all of them; a turn is short
// enough for connections to be kept over those of the others.
func TestGatewayFigures(t *testing.T) {
	size := loadSize{rate: 100, round: 500 * time.Millisecond, rounds: 1, streams: 50}
	nginx, err := exec.LookPath("nginx")
	if bench.Recording() {
		size = loadSize{rate: 1000, round: time.Second, rounds: 20, streams: 1000}
		if err != nil {
			t.Fatal(err)
		}
	}
	w := newLoadWorld(t)
	direct := &way{name: "direct", url: "https://" + w.backend}
	gateway := &way{name: "gateway"}
	var pid int
	gateway.url, pid = w.gateway(os.Getenv(benchProfiles))
	gateway.pids = []int{pid}
	ways := []*way{direct, gateway}
	if err == nil {
		compared := &way{name: "nginx"}
		compared.url, compared.pids = w.nginx(nginx)
		ways = append(ways, compared)
	}
	for i := range size.rounds + 1 { // The first is for connections to be made and code to be warm.
		for _, way := range ways {
			way.round(w, size.rate, size.round, i > 0)
		}
	}
	for _, way := range ways {
		slices.Sort(way.took)
		t.Logf("%-8s p50 %s, p99 %s, CPU of a request %s, of %d", way.name, way.percentile(50), way.percentile(99), way.cost(), len(way.took))
	}
	recordWays(t, ways)
	w.streams(gateway.url, size.streams)
	time.Sleep(4 * streamEvery)
	bench.Record(t, "gateway.streams.memory", statusMB(t, pid, "VmHWM"))
}

func recordWays(t *testing.T, ways []*way) {
	t.Helper()
	direct, gateway := ways[0], ways[1]
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	bench.Record(t, "gateway.direct.p50", micros(direct.percentile(50)))
	bench.Record(t, "gateway.direct.p99", micros(direct.percentile(99)))
	for _, through := range ways[1:] {
		name := "gateway."
		if through != gateway {
			name += through.name + "."
		}
		bench.Record(t, name+"added.p50", micros(through.percentile(50)-direct.percentile(50)))
		bench.Record(t, name+"added.p99", micros(through.percentile(99)-direct.percentile(99)))
		bench.Record(t, name+"cpu", micros(through.cost()))
		if through != gateway && through.cost() > 0 {
			bench.Record(t, "gateway.cpu.nginx", float64(gateway.cost())/float64(through.cost()))
		}
	}
}

// way is one way to the backend.
type way struct {
	name, url string
	pids      []int
	took      []time.Duration
	used      time.Duration
}

func (y *way) round(w *loadWorld, rate int, d time.Duration, counts bool) {
	before := cpuOf(w.t, y.pids)
	took := w.load(y.url, rate, d)
	if counts {
		y.took = append(y.took, took...)
		y.used += cpuOf(w.t, y.pids) - before
	}
}

func (y *way) percentile(p int) time.Duration { return y.took[min(len(y.took)-1, len(y.took)*p/100)] }

func (y *way) cost() time.Duration { return y.used / time.Duration(len(y.took)) }

// cpuOf is what processes have used.
func cpuOf(t testing.TB, pids []int) time.Duration {
	t.Helper()
	const tick = 10 * time.Millisecond // The kernel's, towards programs.
	var sum time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// statusMB is a size of a process.
func statusMB(t testing.TB, pid int, name string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb * 1024 / 1e6
		}
	}
	t.Fatalf("no %s", name)
	return 0
}
