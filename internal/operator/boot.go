package operator

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/pkg/provider"
)

// workerTTL is how long a worker's certificate is good for: longer than any instance is kept.
const workerTTL = 365 * 24 * time.Hour

// bootMaker renders boot data with a certificate for each claim.
type bootMaker struct {
	id    identity.Identity
	clock clock.PassiveClock
	// agent is where instances fetch the agent of pools that name none.
	agent AgentSource
}

// AgentSource is a binary by address and hash; empty where images are expected to have the agent in them.
type AgentSource struct{ URL, SHA256 string }

// stockImage is the engine's own image, which has no agent in it: an instance of it would be paid for and never answer.
const stockImage = "vllm/vllm-openai"

// Boot makes the claim's worker certificate and what its instance runs first.
func (b bootMaker) Boot(claim *v1alpha1.GPUNodeClaim, offer provider.Offer) (provider.Boot, error) {
	boot := claim.Spec.Bootstrap
	agent := AgentSource{boot.AgentURL, boot.AgentSHA256}
	if agent.URL == "" {
		agent = b.agent
	}
	if agent.URL == "" && strings.HasPrefix(boot.Image, stockImage+":") {
		return provider.Boot{}, fmt.Errorf("image %s has no gpuscale-agent in it and none is named to fetch: set the pool's "+
			"bootstrap.agentURL and agentSHA256, or the controller's --agent-url and --agent-sha256", boot.Image)
	}
	pair, err := b.id.CA.Worker(string(claim.UID), workerTTL, b.clock.Now())
	if err != nil {
		return provider.Boot{}, err
	}
	return bootstrap.Container(bootstrap.Params{
		Image:       boot.Image,
		AgentURL:    agent.URL,
		AgentSHA256: agent.SHA256,
		Boot: agentapi.Boot{
			Installation: b.id.Installation,
			ClaimUID:     string(claim.UID),
			ClaimName:    claim.Name,
			CertPEM:      string(pair.CertPEM),
			KeyPEM:       string(pair.KeyPEM),
			CAPEM:        string(b.id.CAPEM),
			Port:         agentapi.DefaultPort,
			GPUs:         agentapi.GPUExpectation{Name: string(offer.GPU), Count: offer.GPUCount, VRAMGB: offer.VRAMGB},
		},
	})
}
