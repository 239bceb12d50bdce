package localstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gatewayrun"
	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// readyTimeout bounds the controllers' and the gateway's start.
const readyTimeout = time.Minute

func (s *Stack) startControllers(ctx context.Context) {
	urls := map[provider.Name]string{}
	for _, c := range s.Clouds {
		urls[provider.Name(c.Provider)] = c.API
	}
	s.background(ctx, "controllers", func(ctx context.Context) error {
		return operator.Run(ctx, operator.Config{
			Rest: s.Rest, Namespace: Namespace, LedgerURL: s.ledgerURL, RedisURL: s.redis, Getenv: s.getenv,
			BaseURLs:    urls,
			Agent:       s.Agent,
			MetricsAddr: "0", HealthAddr: "0", Log: s.log,
		})
	})
}

// getenv is all of the environment that the controllers see: credentials of real clouds that the user may have must not
// reach them.
func (s *Stack) getenv(name string) string {
	switch name {
	case "REDIS_URL":
		return s.redis
	case "POD_NAMESPACE":
		return Namespace
	}
	return ""
}

func (s *Stack) startGateway(ctx context.Context, l net.Listener) {
	s.background(ctx, "gateway", func(ctx context.Context) error {
		return gatewayrun.Run(ctx, gatewayrun.Config{
			Rest: s.Rest, Namespace: Namespace, Listener: l, Grace: time.Second, Log: s.log.WithName("gateway"),
			Clock: s.opts.Clock, HoldLimit: gateway.DefaultHoldLimit, RedisURL: s.redis, ID: "local-" + rand.Text(),
		})
	})
}

// awaitGateway returns when the gateway knows the workers, for which the controllers must have made its certificate.
func (s *Stack) awaitGateway(ctx context.Context) error {
	const interval = 50 * time.Millisecond
	err := wait.PollUntilContextTimeout(ctx, interval, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if err := s.Err(); err != nil {
			return false, err
		}
		// Until the gateway serves, a connection is accepted and waits.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Gateway+"/readyz", nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil // not yet
		}
		return resp.StatusCode == http.StatusOK, resp.Body.Close()
	})
	if failed := s.Err(); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("the gateway is not ready within %s: %w", readyTimeout, err)
	}
	return nil
}

// LedgerCost is what everything that was ever bought has cost by the ledger.
func (s *Stack) LedgerCost(ctx context.Context) (money.Amount, error) {
	var sum money.Amount
	l, err := ledger.Open(ctx, s.ledgerURL)
	if err != nil {
		return sum, err
	}
	now := s.opts.Clock.Now()
	rows, err := l.Costs(ctx, time.Unix(0, 0), now, now)
	for _, row := range rows {
		sum = sum.Add(row.Cost)
	}
	return sum, errors.Join(err, l.Close())
}
