package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// asking is an agent that reads notices of a kind at a server.
func asking(t *testing.T, kind, url string) *worker {
	return newWorld(t).start(func(c *agent.Config) { c.Boot.Notices, c.Metadata = kind, url })
}

func (k *worker) untilNotice(kind string) agentapi.Notice {
	k.t.Helper()
	return *k.until("notice "+kind, func(s agentapi.Status) bool { return s.Notice != nil && s.Notice.Kind == kind }).Notice
}

// gcpMetadata has Compute Engine's rules: the header, the ETag, and waiting for a change.
type gcpMetadata struct {
	mu      sync.Mutex
	values  map[string]string
	changed chan struct{}
	asked   int
	waited  bool
}

func (g *gcpMetadata) set(path, value string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.values[path] = value
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gcpMetadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, "Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		return
	}
	q := r.URL.Query()
	for {
		g.mu.Lock()
		g.asked++
		value, there := g.values[r.URL.Path]
		changed := g.changed
		waits := q.Get("wait_for_change") == "true" && q.Get("last_etag") == etagOf(value)
		g.waited = g.waited || waits
		g.mu.Unlock()
		if !there {
			http.NotFound(w, r)
			return
		}
		if !waits {
			w.Header().Set("Metadata-Flavor", "Google")
			w.Header().Set("Etag", etagOf(value))
			_, _ = w.Write([]byte(value))
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func etagOf(value string) string { return fmt.Sprintf("%x", value) }

func TestGCPAnnouncesByAHangingAnswer(t *testing.T) {
	const preempted, maintenance = "/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event"
	g := &gcpMetadata{values: map[string]string{preempted: "FALSE", maintenance: "NONE"}, changed: make(chan struct{})}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	k := asking(t, agentapi.NoticesGCP, server.URL)
	eventually(t, "waits for a change", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.waited
	})
	if n := k.status().Notice; n != nil {
		t.Errorf("notice %+v before there is one", n)
	}
	g.set(maintenance, "MIGRATE_ON_HOST_MAINTENANCE")
	g.set(maintenance, "TERMINATE_ON_HOST_MAINTENANCE")
	k.untilNotice(agentapi.NoticeMaintenance)
	g.set(maintenance, "NONE")
	k.until("withdrawn", func(s agentapi.Status) bool { return s.Notice == nil })
	g.set(preempted, "TRUE")
	if n := k.untilNotice(agentapi.NoticeInterrupted); n.At != nil || !n.Goes() {
		t.Errorf("notice %+v: Compute Engine gives no time", n)
	}
	k.stop() // so that no question hangs when the server closes
	k.agent.Kill()
}

// azureMetadata has the Scheduled Events document.
type azureMetadata struct {
	mu     sync.Mutex
	events string
}

func (a *azureMetadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.Header.Get("Metadata") != "true":
		http.Error(w, `{"error":"Bad request. Required metadata header not specified"}`, http.StatusBadRequest)
	case r.URL.Path == "/metadata/instance/compute/name" && r.URL.Query().Get("format") == "text":
		_, _ = w.Write([]byte("gs-5f2c91ab-0011223344556677"))
	case r.URL.Path == "/metadata/scheduledevents" && r.URL.Query().Get("api-version") == "2020-07-01":
		_, _ = fmt.Fprintf(w, `{"DocumentIncarnation":2,"Events":[%s]}`, a.events)
	default:
		http.NotFound(w, r)
	}
}

func azureEvent(kind, status, notBefore, vm string) string {
	text, _ := json.Marshal(map[string]any{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": kind,
		"ResourceType": "VirtualMachine", "Resources": []string{vm}, "EventStatus": status, "NotBefore": notBefore,
		"EventSource": "Platform", "DurationInSeconds": -1})
	return string(text)
}

func TestAzureAnnouncesByScheduledEvents(t *testing.T) {
	const me, at = "gs-5f2c91ab-0011223344556677", "Mon, 19 Sep 2027 18:29:47 GMT"
	for name, tt := range map[string]struct {
		events []string
		kind   string // empty: none
		at     bool
	}{
		"nothing":                 {nil, "", false},
		"preempted":               {[]string{azureEvent("Preempt", "Scheduled", at, me)}, agentapi.NoticeInterrupted, true},
		"preempted now":           {[]string{azureEvent("Preempt", "Started", "", me)}, agentapi.NoticeInterrupted, false},
		"terminated":              {[]string{azureEvent("Terminate", "Scheduled", at, strings.ToUpper(me))}, agentapi.NoticeInterrupted, true},
		"redeployed":              {[]string{azureEvent("Redeploy", "Scheduled", at, me)}, agentapi.NoticeMaintenance, true},
		"frozen for seconds":      {[]string{azureEvent("Freeze", "Scheduled", at, me)}, "", false},
		"another machine":         {[]string{azureEvent("Preempt", "Scheduled", at, "gs-other")}, "", false},
		"a word of next year":     {[]string{azureEvent("Teleport", "Scheduled", at, me)}, "", false},
		"a reboot and then worse": {[]string{azureEvent("Reboot", "Scheduled", at, me), azureEvent("Preempt", "Started", "", me)}, agentapi.NoticeInterrupted, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &azureMetadata{events: strings.Join(tt.events, ",")}
			server := httptest.NewServer(a)
			t.Cleanup(server.Close)
			k := asking(t, agentapi.NoticesAzure, server.URL)
			if tt.kind == "" {
				// A second event follows: by the time it is seen the first has been read.
				a.mu.Lock()
				a.events = strings.Join(append(tt.events, azureEvent("Reboot", "Scheduled", "", me)), ",")
				a.mu.Unlock()
				k.untilNotice(agentapi.NoticeMaintenance)
				return
			}
			n := k.untilNotice(tt.kind)
			if (n.At != nil) != tt.at || n.At != nil && !n.At.Equal(time.Date(2027, 9, 19, 18, 29, 47, 0, time.UTC)) {
				t.Errorf("at %v", n.At)
			}
		})
	}
}

// TestAWSTokensThatRanOutAreReplaced: a machine outlives a token, and the notice comes all the same.
func TestAWSTokensThatRanOutAreReplaced(t *testing.T) {
	var mu sync.Mutex
	tokens, refused, announced := 0, 0, false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
			tokens++
			_, _ = fmt.Fprint(w, tokens)
		case r.Header.Get("X-aws-ec2-metadata-token") != fmt.Sprint(tokens):
			refused++
			w.WriteHeader(http.StatusUnauthorized)
		case announced && r.URL.Path == "/latest/meta-data/spot/instance-action":
			_, _ = fmt.Fprint(w, `{"action":"terminate","time":"2027-09-19T18:29:47Z"}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	k := newWorld(t).start(func(c *agent.Config) {
		c.Boot.Notices, c.Metadata, c.Settings.NoticePoll = agentapi.NoticesAWS, server.URL, 10*time.Millisecond
	})
	eventually(t, "has a token", func() bool { mu.Lock(); defer mu.Unlock(); return tokens > 0 })
	mu.Lock()
	tokens, announced = tokens+1, true // The one that it has is good no more.
	mu.Unlock()
	k.untilNotice(agentapi.NoticeInterrupted)
	mu.Lock()
	defer mu.Unlock()
	if refused != 1 || tokens != 3 {
		t.Errorf("%d calls were refused, and %d tokens made", refused, tokens)
	}
}

// TestAMetadataServiceThatIsNotThere is asked less and less, and what answers in its place is not believed.
func TestAMetadataServiceThatIsNotThere(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		_, _ = w.Write([]byte("TRUE"))
	}))
	t.Cleanup(other.Close)
	for _, kind := range []string{agentapi.NoticesAWS, agentapi.NoticesGCP, agentapi.NoticesAzure, "unknown", ""} {
		t.Run(kind, func(t *testing.T) {
			clock := newSteppedClock()
			k := newWorld(t).start(func(c *agent.Config) { c.Boot.Notices, c.Metadata, c.Clock = kind, other.URL, clock })
			mu.Lock()
			clear(asked)
			mu.Unlock()
			for range 50 {
				clock.step(time.Minute)
				if n := k.status().Notice; n != nil {
					t.Fatalf("notice %+v from a service that is none", n)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for path, n := range asked {
				if n > 20 {
					t.Errorf("%s asked %d times in 50 minutes", path, n)
				}
			}
			if known := kind == agentapi.NoticesAWS || kind == agentapi.NoticesGCP || kind == agentapi.NoticesAzure; known != (len(asked) > 0) {
				t.Errorf("asked %v", asked)
			}
		})
	}
}

// steppedClock moves only when it is told to.
type steppedClock struct {
	mu    sync.Mutex
	now   time.Time
	moved chan struct{}
}

func newSteppedClock() *steppedClock {
	return &steppedClock{now: time.Now(), moved: make(chan struct{})}
}

func (c *steppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *steppedClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	close(c.moved)
	c.moved = make(chan struct{})
}

func (c *steppedClock) Wait(ctx context.Context, d time.Duration) error {
	for end := c.Now().Add(d); ; {
		c.mu.Lock()
		over, moved := !c.now.Before(end), c.moved
		c.mu.Unlock()
		if over {
			return ctx.Err()
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// metadataMock is AWS's own mock of EC2's instance metadata.
const metadataMock = "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock@v1.13.0"

// TestAWSAnnouncesTwoMinutesAhead, as AWS's own mock does: version 2 only, a recommendation to rebalance first.
func TestAWSAnnouncesTwoMinutesAhead(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program of another module")
	}
	dir := t.TempDir()
	install := exec.Command("go", "install", metadataMock)
	install.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install %s: %v\n%s", metadataMock, err, out)
	}
	for _, action := range []string{"terminate", "stop"} {
		t.Run(action, func(t *testing.T) {
			listener := must(net.Listen("tcp", "127.0.0.1:0"))
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			_ = listener.Close()
			mock := exec.Command(filepath.Join(dir, "ec2-metadata-mock"), "spot", "--action", action, "--imdsv2", "--mock-delay-sec", "4",
				"--hostname", "127.0.0.1", "--port", port)
			mock.Env = append(os.Environ(), "HOME="+dir)
			if err := mock.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = mock.Process.Kill(); _ = mock.Wait() })
			eventually(t, "the mock listens", func() bool {
				c, err := net.Dial("tcp", "127.0.0.1:"+port)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			k := newWorld(t).start(func(c *agent.Config) {
				c.Boot.Notices, c.Metadata = agentapi.NoticesAWS, "http://127.0.0.1:"+port
				c.Settings.NoticePoll = 200 * time.Millisecond
			})
			if n := k.untilNotice(agentapi.NoticeRebalance); n.Goes() || n.At != nil {
				t.Errorf("notice %+v of a hint", n)
			}
			n := k.untilNotice(agentapi.NoticeInterrupted)
			if n.At == nil || time.Until(*n.At) < 100*time.Second || time.Until(*n.At) > 121*time.Second {
				t.Errorf("at %v", n.At)
			}
			if !n.Goes() || !strings.Contains(n.Message, action) {
				t.Errorf("notice %+v", n)
			}
		})
	}
}
