package agent_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

func TestADownloadIsFollowedOnTheDisk(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer hf_verysecret" {
			_, _ = io.WriteString(w, `{"siblings":[{"rfilename":"model.safetensors","size":3113851289}]}`)
		}
	}))
	t.Cleanup(hub.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	k := newWorld(t).start(func(c *agent.Config) { c.Settings.DownloadPoll = 20 * time.Millisecond })
	k.putWith(1, map[string]string{"HF_HOME": t.TempDir(), "HF_ENDPOINT": hub.URL, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_verysecret",
		"VLLM_SIM_LOAD_TIME": "3s"}, model("qwen"))
	got := find(k.until("halfway", func(s agentapi.Status) bool {
		d := find(s, "qwen").Download
		return d != nil && d.TotalBytes == 3113851289 && d.BytesPerSecond > 0 && d.Bytes > 0 && d.Bytes < d.TotalBytes
	}), "qwen")
	if got.State != agentapi.StateDownloading || !strings.Contains(got.Message, " of 3.1 GB (") || !strings.Contains(got.Message, " MB/s") {
		t.Errorf("%+v", got)
	}
	got = k.untilState("qwen", agentapi.StateReady)
	if got.Download == nil || got.Download.Bytes != got.Download.TotalBytes {
		t.Errorf("at the end: %+v", got.Download)
	}
}

func TestADownloadThatStallsIsGivenUp(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) {
		c.Settings.DownloadPoll, c.Settings.DownloadStall = 20*time.Millisecond, 300*time.Millisecond
	})
	m := model("hangs")
	m.Source = "sim/hang"
	k.putWith(1, map[string]string{"HF_HOME": t.TempDir(), "VLLM_SIM_LOAD_TIME": "1s"}, m)
	got := k.untilState("hangs", agentapi.StateFailed)
	if f := got.Failure; f.Exit != agentapi.ExitTimeout || f.Step != agentapi.StepDownloading ||
		!strings.HasPrefix(f.Message, "no byte of the weights came for 300ms, at 1.") {
		t.Errorf("%+v", f)
	}
}

func TestAFirstCompletionThatDoesNotComeIsGivenUp(t *testing.T) {
	k := newWorld(t).start(func(c *agent.Config) { c.Settings.WarmTimeout = 200 * time.Millisecond })
	k.putWith(1, map[string]string{"VLLM_SIM_LOAD_TIME": "10ms", "VLLM_SIM_TTFT": "1m"}, model("slow"))
	got := k.untilState("slow", agentapi.StateFailed)
	if f := got.Failure; f.Exit != agentapi.ExitTimeout || f.Step != agentapi.StepWarmed || !strings.Contains(f.Message, "within 200ms") {
		t.Errorf("%+v", f)
	}
}

// putWith is put with another environment.
func (k *worker) putWith(generation int64, env map[string]string, models ...agentapi.DesiredModel) {
	k.t.Helper()
	if err := k.controller.PutModels(k.t.Context(), k.endpoint, claimUID,
		agentapi.DesiredModels{Generation: generation, Models: models, Env: env}); err != nil {
		k.t.Fatal(err)
	}
}
