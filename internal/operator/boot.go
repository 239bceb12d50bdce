package operator

import (
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
}

// Boot makes the claim's worker certificate and what its instance runs first.
func (b bootMaker) Boot(claim *v1alpha1.GPUNodeClaim, offer provider.Offer) (provider.Boot, error) {
	pair, err := b.id.CA.Worker(string(claim.UID), workerTTL, b.clock.Now())
	if err != nil {
		return provider.Boot{}, err
	}
	return bootstrap.Container(bootstrap.Params{
		Image:       claim.Spec.Bootstrap.Image,
		AgentURL:    claim.Spec.Bootstrap.AgentURL,
		AgentSHA256: claim.Spec.Bootstrap.AgentSHA256,
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
