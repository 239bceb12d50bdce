package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/agentfile"
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
	agent bootstrap.Agent
	files *agentfile.Checker
	// lease is the workers'; apis are the addresses of providers' APIs that are not their own.
	lease time.Duration
	apis  map[provider.Name]string
}

// stockImage is the engine's own image, which has no agent in it: an instance of it would be paid for and never answer.
const stockImage = "vllm/vllm-openai"

// Boot makes the claim's worker certificate and what its instance runs first. It is a *agentfile.WrongError where the
// instance could not fetch its agent.
func (b bootMaker) Boot(ctx context.Context, claim *v1alpha1.GPUNodeClaim, offer provider.Offer, can provider.Capabilities) (provider.Boot, error) {
	boot := claim.Spec.Bootstrap
	agent := bootstrap.Agent{URL: boot.AgentURL, SHA256: boot.AgentSHA256, SHA256ARM64: boot.AgentSHA256ARM64}
	if agent.URL == "" {
		agent = b.agent
	}
	if agent.URL == "" && strings.HasPrefix(boot.Image, stockImage+":") {
		return provider.Boot{}, fmt.Errorf("image %s has no gpuscale-agent in it and none is named to fetch: set the pool's "+
			"bootstrap.agentURL and agentSHA256, or the controller's --agent-url and --agent-sha256", boot.Image)
	}
	if agent.URL != "" {
		wrong := &agentfile.WrongError{}
		if err := b.files.Check(ctx, agent); errors.As(err, &wrong) {
			return provider.Boot{}, err
		} else if err != nil {
			// The machines may have a way to it that the cluster has not.
			log.FromContext(ctx).Info("agent cannot be seen from here, bought all the same", "error", err.Error())
		}
	}
	pair, err := b.id.CA.Worker(string(claim.UID), workerTTL, b.clock.Now())
	if err != nil {
		return provider.Boot{}, err
	}
	return bootstrap.For(can, bootstrap.Params{
		Image: boot.Image,
		Agent: agent,
		Boot: bootstrap.Leased(agentapi.Boot{
			Installation: b.id.Installation,
			ClaimUID:     string(claim.UID),
			ClaimName:    claim.Name,
			CertPEM:      string(pair.CertPEM),
			KeyPEM:       string(pair.KeyPEM),
			CAPEM:        string(b.id.CAPEM),
			Port:         agentapi.DefaultPort,
			GPUs:         agentapi.GPUExpectation{Name: string(offer.GPU), Count: offer.GPUCount, VRAMGB: offer.VRAMGB},
		}, b.lease, can, b.apis[offer.Provider]),
	})
}
