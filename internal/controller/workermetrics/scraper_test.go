package workermetrics

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// fakes answer scrapes by claim UID.
type fakes struct {
	mu      sync.Mutex
	answers map[string]string // none is an error
	asked   map[string]int
	hold    chan struct{} // closed lets scrapes go on, nil does not hold them
	most    int
	now     int
}

func (f *fakes) Metrics(ctx context.Context, _, uid string, _ int64) (io.ReadCloser, error) {
	f.mu.Lock()
	f.asked[uid]++
	f.now++
	f.most = max(f.most, f.now)
	answer, ok := f.answers[uid]
	hold := f.hold
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.now--; f.mu.Unlock() }()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if !ok {
		return nil, errors.New("unreachable")
	}
	return io.NopCloser(strings.NewReader(answer)), nil
}

func (f *fakes) answer(uid, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text == "" {
		delete(f.answers, uid)
	} else {
		f.answers[uid] = text
	}
}

func (f *fakes) times(uid string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[uid]
}

func running(model string, n int) string {
	return fmt.Sprintf("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model=%q} %d\n", model, n)
}

type rig struct {
	t       *testing.T
	clock   *testclock.FakeClock
	workers *fakes
	*Scraper
}

func newRig(t *testing.T, s Settings) *rig {
	t.Helper()
	r := &rig{t: t, clock: testclock.NewFakeClock(time.Unix(1_800_000_000, 0)), workers: &fakes{answers: map[string]string{}, asked: map[string]int{}}}
	r.Scraper = New(s, r.workers, r.clock, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// until lets time pass in steps of a second until something holds.
func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			r.t.Fatalf("never: %s\n%s", what, r.get())
		}
		r.clock.Step(time.Second)
		time.Sleep(time.Millisecond)
	}
}

func (r *rig) get() string {
	recorder := httptest.NewRecorder()
	r.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	strict(r.t, recorder.Body.String())
	return recorder.Body.String()
}

func (r *rig) says(parts ...string) func() bool {
	return func() bool {
		text := r.get()
		for _, part := range parts {
			want := !strings.HasPrefix(part, "!")
			if strings.Contains(text, strings.TrimPrefix(part, "!")) != want {
				return false
			}
		}
		return true
	}
}

func target(claim string) Target {
	return Target{Claim: claim, UID: claim + "-uid", Endpoint: "h:1", Pool: "p", Provider: "vast.ai", GPUType: "H200", Models: []string{"m"}}
}

func TestAWorkersLife(t *testing.T) {
	r := newRig(t, Settings{})
	r.Set(target("a"))
	r.Set(target("b"))
	if text := r.get(); strings.Contains(text, "claim=") {
		t.Errorf("before any scrape: %s", text)
	}
	r.workers.answer("a-uid", running("m", 1))
	r.until("both were scraped", r.says(`num_requests_running{claim="a",pool="p",provider="vast.ai",gpu_type="H200",model="m"} 1`,
		`gpuscale_worker_up{claim="a",pool="p",provider="vast.ai",gpu_type="H200"} 1`, `gpuscale_worker_up{claim="b",pool="p",provider="vast.ai",gpu_type="H200"} 0`,
		`!num_requests_running{claim="b"`))
	// A counter that was reset, or any value, is passed on as it is.
	r.workers.answer("a-uid", running("m", 0))
	r.until("the newer value", r.says(`model="m"} 0`))
	// One that stops answering is down at once, and shown until its last answer is three intervals old.
	r.workers.answer("a-uid", "")
	r.until("down", r.says(`gpuscale_worker_up{claim="a",pool="p",provider="vast.ai",gpu_type="H200"} 0`, `model="m"} 0`))
	r.until("stale", r.says(`gpuscale_worker_up{claim="a"`, `!num_requests_running{`))
	// One whose answer is no text is down too.
	r.workers.answer("b-uid", "vllm:num_requests_running{\n")
	r.workers.answer("a-uid", running("m", 5))
	r.until("back", r.says(`model="m"} 5`, `gpuscale_worker_up{claim="b",pool="p",provider="vast.ai",gpu_type="H200"} 0`))
	r.Remove("a")
	if text := r.get(); strings.Contains(text, `claim="a"`) {
		t.Errorf("after its end: %s", text)
	}
}

func TestWhatChangesOnAClaim(t *testing.T) {
	r := newRig(t, Settings{})
	r.workers.answer("a-uid", running("m", 1)+`vllm:num_requests_running{model="n"} 2`+"\n")
	both := target("a")
	both.Models = []string{"m", "n"}
	r.Set(both)
	r.until("both models", r.says(`model="m"} 1`, `model="n"} 2`))
	r.Set(target("a"))
	if text := r.get(); strings.Contains(text, `model="n"`) || !strings.Contains(text, `model="m"} 1`) {
		t.Errorf("n is placed no more: %s", text)
	}
	other := target("a")
	other.UID = "other"
	r.workers.answer("other", running("m", 7))
	r.Set(other)
	if text := r.get(); strings.Contains(text, "num_requests_running") {
		t.Errorf("another's readings: %s", text)
	}
	r.until("the other's", r.says(`model="m"} 7`))
}

// TestTheLoadIsSpread: with a thousand workers no second of the interval has much more than its share of scrapes.
func TestTheLoadIsSpread(t *testing.T) {
	s := New(Settings{Interval: 10 * time.Second}, nil, testclock.NewFakeClock(time.Unix(1_800_000_003, 0)), logr.Discard())
	var seconds [11]int
	for i := range 1000 {
		due := s.due(&worker{Target: target(fmt.Sprint(i))}, 0)
		if due <= 0 || due > 10*time.Second {
			t.Fatalf("due in %s", due)
		}
		seconds[due/time.Second]++
	}
	for second, n := range seconds[:10] {
		if n < 60 || n > 150 {
			t.Errorf("%d scrapes in second %d", n, second)
		}
	}
	w := &worker{Target: target("x")}
	for failures, want := range map[int]int{0: 0, 1: 1, 2: 3, 3: 7, 4: 7, 100: 7} {
		if got := s.due(w, failures) - s.due(w, 0); got != time.Duration(want)*10*time.Second {
			t.Errorf("after %d failures %s later", failures, got)
		}
	}
}

func TestScrapesAtOnceAreBounded(t *testing.T) {
	r := newRig(t, Settings{Concurrency: 3, Timeout: 10 * time.Second})
	r.workers.hold = make(chan struct{})
	for i := range 20 {
		x := target(fmt.Sprint(i))
		r.workers.answer(x.UID, running("m", i))
		r.Set(x)
	}
	r.until("three at once", func() bool { r.workers.mu.Lock(); defer r.workers.mu.Unlock(); return r.workers.now == 3 })
	close(r.workers.hold)
	r.until("all of them", func() bool { return strings.Count(r.get(), `model="m"}`) == 20 })
	if r.workers.most > 3 {
		t.Errorf("%d at once", r.workers.most)
	}
	if n := r.workers.times("1-uid"); n < 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestTheAnswerIsCompressedWhereAskedFor(t *testing.T) {
	r := newRig(t, Settings{})
	r.workers.answer("a-uid", running("m", 1))
	r.Set(target("a"))
	r.until("scraped", r.says(`model="m"} 1`))
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept-Encoding", "gzip")
	recorder := httptest.NewRecorder()
	r.Handler().ServeHTTP(recorder, request)
	zip, err := gzip.NewReader(recorder.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(zip); err != nil || !strings.Contains(string(text), `model="m"} 1`) {
		t.Errorf("%v %s", err, text)
	}
	recorder = httptest.NewRecorder()
	r.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/other", nil))
	if recorder.Code != http.StatusNotFound {
		t.Errorf("another path: %d", recorder.Code)
	}
}

func TestWhichClaimsAreWorkers(t *testing.T) {
	now := metav1.Now()
	good := func() *v1alpha1.GPUNodeClaim {
		c := &v1alpha1.GPUNodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID("u")}}
		c.Spec.Pool, c.Spec.Placements = "p", []v1alpha1.Placement{{Workload: "m"}}
		c.Status = v1alpha1.GPUNodeClaimStatus{Phase: v1alpha1.PhaseReady, Endpoint: "h:1", Provider: "vast.ai", GPU: "2×H100-SXM"}
		return c
	}
	got, ok := TargetOf(good())
	want := Target{Claim: "a", UID: "u", Endpoint: "h:1", Pool: "p", Provider: "vast.ai", GPUType: "H100-SXM", Models: []string{"m"}}
	if !ok || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, %v", got, ok)
	}
	for what, change := range map[string]func(*v1alpha1.GPUNodeClaim){
		"draining": func(c *v1alpha1.GPUNodeClaim) { c.Status.Phase = v1alpha1.PhaseDraining }, "no endpoint": func(c *v1alpha1.GPUNodeClaim) { c.Status.Endpoint = "" },
		"deleted": func(c *v1alpha1.GPUNodeClaim) { c.DeletionTimestamp = &now },
	} {
		c := good()
		if change(c); func() bool { _, ok := TargetOf(c); return ok }() {
			t.Errorf("%s is scraped", what)
		}
	}
}
