package bootstrap_test

import (
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/pkg/provider"
)

// TestLeasedSpeaksTheAgentsLanguage: what drivers declare is what agents know.
func TestLeasedSpeaksTheAgentsLanguage(t *testing.T) {
	for by, want := range map[provider.SelfEndBy]string{provider.SelfEndByVastKey: agentapi.SelfEndVastAI,
		provider.SelfEndByRunPodKey: agentapi.SelfEndRunPod, provider.SelfEndByPowerOff: agentapi.SelfEndPowerOff} {
		got := bootstrap.Leased(agentapi.Boot{}, time.Hour, provider.Capabilities{SelfEnd: provider.SelfEndFull, SelfEndBy: by}, "")
		if got.LeaseSeconds != 3600 || got.SelfEnd == nil || got.SelfEnd.By != want {
			t.Errorf("%s: %+v", by, got)
		}
	}
	for notices, want := range map[provider.Notices]string{provider.NoticesNone: "", provider.NoticesAWS: agentapi.NoticesAWS,
		provider.NoticesGCP: agentapi.NoticesGCP, provider.NoticesAzure: agentapi.NoticesAzure} {
		got := bootstrap.Leased(agentapi.Boot{}, 1500*time.Millisecond, provider.Capabilities{Notices: notices, SelfEnd: provider.SelfEndNone}, "http://x")
		if got.Notices != want || got.SelfEnd != nil || got.LeaseSeconds != 2 {
			t.Errorf("%q: %+v", notices, got)
		}
	}
}
