package localstack

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/cloudsim/vastai"
)

const loopback = "127.0.0.1"

// listenGateway takes the port that people are told of, before anything else is started.
func listenGateway(ctx context.Context, port int) (net.Listener, error) {
	l, err := listen(ctx, port)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d on %s is in use; choose another for the gateway with --port, or --port 0 for any",
			port, loopback)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port %d on %s may not be used by this user; choose another for the gateway with --port",
			port, loopback)
	}
	return l, err
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", fmt.Sprintf("%s:%d", loopback, port))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// marketConfig is a market at real prices in which everything goes well and minutes take seconds. Prices walk less than
// a bid is above the floor, so that nobody is outbid by chance; POST /sim/reclaim/{id} takes an instance back.
func marketConfig(seed int64) market.Config {
	c := market.Realistic("vast.ai", seed)
	c.Boot = market.Boot{Accept: 300 * time.Millisecond, Create: 500 * time.Millisecond, Load: 1500 * time.Millisecond, Jitter: 0.5}
	c.Walk = market.Walk{Step: time.Minute, OnDemand: 0.05, Spot: 0.05}
	c.Reclaim.PerHour = 0
	c.Faults = market.FaultRates{}
	c.Broken = 0
	c.ListLag, c.DestroyLag = 500*time.Millisecond, 500*time.Millisecond
	return c
}

// engine is how the simulated engines behave: slow enough to be watched.
func engine() map[string]string {
	return map[string]string{"VLLM_SIM_LOAD_TIME": "2s", "VLLM_SIM_TTFT": "200ms", "VLLM_SIM_TOKENS_PER_SEC": "30"}
}

// startCloud opens the market, Vast.ai's API in front of it, and its books.
func (s *Stack) startCloud(ctx context.Context, p programs) error {
	root := filepath.Join(s.dir, "instances")
	// Instances do not outlive the market, so what is there is of a stack that was killed.
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	bodies, err := process.New(process.Options{Agent: p.agent, VLLM: p.vllm, Root: root, Env: engine()})
	if err != nil {
		return err
	}
	for _, key := range []*string{&s.secretKey, &s.CustomerKey} {
		if *key, err = newKey(); err != nil {
			return err
		}
	}
	c := marketConfig(s.opts.Seed)
	c.Clock, c.Body = s.opts.Clock, bodies
	if !s.temporary || s.opts.Kubeconfig != "" {
		// The cluster may remember instances of an earlier market, whose ids must not come again.
		first := s.opts.Clock.Now().Unix() * 1000
		c.InstanceID = func(n int64) string { return strconv.FormatInt(first+n, 10) }
	}
	s.market = market.New(c)
	s.onStop(func() error { s.market.Close(); return nil })
	if s.Provider, err = s.serve(ctx, vastai.New(s.market, vastai.Options{Keys: []string{s.secretKey, s.CustomerKey}})); err != nil {
		return err
	}
	admin, err := s.serve(ctx, s.market.AdminHandler())
	if err != nil {
		return err
	}
	s.Books = admin + "/sim/books"
	return s.offerAgent(ctx, p.agent)
}

// offerAgent serves the agent's binary, which real instances would fetch from a release. Simulated ones have it already.
func (s *Stack) offerAgent(ctx context.Context, path string) error {
	binary, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(binary)
	base, err := s.serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, path)
	}))
	s.agent = bootstrap.Agent{URL: base + "/gpuscale-agent", SHA256: hex.EncodeToString(sum[:])}
	return err
}

func newKey() (string, error) {
	var b [32]byte
	_, err := rand.Read(b[:])
	return hex.EncodeToString(b[:]), err
}

// serve answers on a free port and returns the base URL.
func (s *Stack) serve(ctx context.Context, h http.Handler) (string, error) {
	l, err := listen(ctx, 0)
	if err != nil {
		return "", err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.fail("simulated market", err)
		}
	}()
	s.onStop(srv.Close)
	return "http://" + l.Addr().String(), nil
}

// Spent is the market's own account of what the simulated instances cost so far, and how many there are now.
func (s *Stack) Spent() (dollars float64, live int) {
	b := s.market.Books()
	return b.Spent.Dollars(), len(b.Live())
}

// Offers is how many offers the market has now.
func (s *Stack) Offers() int { return len(s.market.Offers()) }

// startRedis runs a Redis in this process unless one was given. Its keys expire only when it is told that time has passed.
func (s *Stack) startRedis(ctx context.Context) error {
	if s.opts.RedisURL != "" {
		s.redis = s.opts.RedisURL
		return nil
	}
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(net.JoinHostPort(loopback, "0")); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	s.onStop(func() error { m.Close(); return nil })
	s.redis = "redis://" + m.Addr()
	s.background(ctx, "Redis clock", func(ctx context.Context) error {
		const tick = time.Second
		ticker := s.opts.Clock.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C():
				m.FastForward(tick)
			}
		}
	})
	return nil
}
