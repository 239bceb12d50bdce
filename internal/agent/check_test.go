package agent_test

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

// sound is a machine on which everything is as it should be; the programs are those of TestMain.
func sound(t *testing.T) agent.CheckConfig {
	env := map[string]string{"HOME": t.TempDir()}
	return agent.CheckConfig{Listen: "127.0.0.1:0", Getenv: func(name string) string { return env[name] }, Patience: 2 * time.Second,
		Metadata: "http://127.0.0.1:1",
		Probe: func(context.Context) (agent.Inventory, error) {
			return agent.Inventory{Driver: "570.86.15", CUDA: "12.8", GPUs: []agentapi.GPU{{Name: "NVIDIA L4", MemoryMB: 23034}}}, nil
		}}
}

func environment(c *agent.CheckConfig, pairs ...string) {
	before := c.Getenv
	c.Getenv = func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return before(name)
	}
}

func TestCheckSays(t *testing.T) {
	azure := httptest.NewServer(&azureMetadata{})
	t.Cleanup(azure.Close)
	taken := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = taken.Close() })
	boot := func(c *agent.CheckConfig) *agentapi.Boot {
		c.Boot = &agentapi.Boot{ClaimName: "tiny-0", Installation: "5f2c91ab", LeaseSeconds: 3600}
		return c.Boot
	}
	for name, tt := range map[string]struct {
		change  func(*agent.CheckConfig)
		finding string
		verdict agent.Verdict
		says    string
	}{
		"GPUs":                {func(*agent.CheckConfig) {}, "GPUs", agent.OK, "1 × NVIDIA L4, 23034 MB each"},
		"driver":              {func(*agent.CheckConfig) {}, "driver", agent.OK, "570.86.15, for CUDA up to 12.8"},
		"engine":              {func(*agent.CheckConfig) {}, "engine", agent.OK, "/vllm"},
		"disk":                {func(*agent.CheckConfig) {}, "disk", agent.OK, "GB free for weights in"},
		"no boot data":        {func(*agent.CheckConfig) {}, "boot data", agent.Note, "none"},
		"no metadata service": {func(*agent.CheckConfig) {}, "metadata", agent.Note, "none of"},
		"no driver": {func(c *agent.CheckConfig) {
			c.Probe = func(context.Context) (agent.Inventory, error) { return agent.Inventory{}, agent.ErrNoDriver }
		}, "GPUs", agent.Bad, "no working NVIDIA driver"},
		"driver without a GPU": {func(c *agent.CheckConfig) {
			c.Probe = func(context.Context) (agent.Inventory, error) { return agent.Inventory{Driver: "570.86.15"}, nil }
		}, "GPUs", agent.Bad, "shows no GPU"},
		"driver that hangs": {func(c *agent.CheckConfig) {
			c.Patience = 100 * time.Millisecond
			c.Probe = func(ctx context.Context) (agent.Inventory, error) {
				<-ctx.Done()
				return agent.Inventory{}, errors.New("signal: killed")
			}
		}, "GPUs", agent.Bad, "does not answer"},
		"other GPUs than bought": {func(c *agent.CheckConfig) {
			boot(c).GPUs = agentapi.GPUExpectation{Name: "L4", Count: 2, VRAMGB: 24}
		}, "GPUs", agent.Bad, "bought 2 GPUs, 1 are there"},
		"no engine":     {func(c *agent.CheckConfig) { c.Command = []string{"sglang-server"} }, "engine", agent.Bad, "sglang-server is not in the PATH"},
		"port in use":   {func(c *agent.CheckConfig) { c.Listen = taken.Addr().String() }, "port", agent.Bad, "is in use"},
		"bad boot data": {func(c *agent.CheckConfig) { c.BootError = errors.New("not base64") }, "boot data", agent.Bad, "not base64"},
		"port from outside": {func(c *agent.CheckConfig) {
			c.Listen = "127.0.0.77:9443" // Outside the range that the system gives away.
			environment(c, "VAST_TCP_PORT_9443", "41877", "PUBLIC_IPADDR", "203.0.113.9")
		}, "port", agent.OK, "203.0.113.9:41877"},
		"metadata":             {func(c *agent.CheckConfig) { c.Metadata = azure.URL }, "metadata", agent.OK, "Azure's"},
		"metadata unannounced": {func(c *agent.CheckConfig) { c.Metadata = azure.URL; boot(c) }, "metadata", agent.Note, "name none or another"},
		"metadata missing":     {func(c *agent.CheckConfig) { boot(c).Notices = agentapi.NoticesAWS }, "metadata", agent.Note, "does not answer"},
		"no self-end":          {func(*agent.CheckConfig) {}, "self-end", agent.Note, "no way"},
		"self-end by key":      {func(c *agent.CheckConfig) { environment(c, "CONTAINER_ID", "7", "CONTAINER_API_KEY", "k") }, "self-end", agent.OK, "by vast.ai"},
		"self-end without id":  {func(c *agent.CheckConfig) { environment(c, "CONTAINER_API_KEY", "k") }, "self-end", agent.Note, "has not set CONTAINER_ID"},
		"self-end with lease": {func(c *agent.CheckConfig) {
			boot(c).SelfEnd = &agentapi.SelfEnd{By: agentapi.SelfEndRunPod}
			environment(c, "RUNPOD_POD_ID", "7", "RUNPOD_API_KEY", "k")
		}, "self-end", agent.OK, "after 1h0m0s without a call"},
		"no lease": {func(c *agent.CheckConfig) { boot(c).LeaseSeconds = 0 }, "self-end", agent.Note, "no lease"},
	} {
		t.Run(name, func(t *testing.T) {
			c := sound(t)
			tt.change(&c)
			began := time.Now()
			r := agent.Check(t.Context(), c)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			anyBad, found := false, false
			for _, f := range r.Findings {
				anyBad = anyBad || f.Verdict == agent.Bad
				if f.Verdict == agent.Bad && f.Advice == "" {
					t.Errorf("%s is bad and nothing is advised", f.Name)
				}
				if f.Name != tt.finding {
					continue
				}
				found = true
				if f.Verdict != tt.verdict || !strings.Contains(f.Detail, tt.says) {
					t.Errorf("%+v, want %s %q", f, tt.verdict, tt.says)
				}
			}
			if !found || r.Serves == anyBad || anyBad != (tt.verdict == agent.Bad) {
				t.Errorf("found %t, serves %t: %+v", found, r.Serves, r.Findings)
			}
		})
	}
}
