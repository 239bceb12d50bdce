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
	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
	"github.com/munhq/gpuscale/internal/cloudsim/clouds"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
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

// engine is how the simulated engines behave: slow enough to be watched.
func engine() map[string]string {
	return map[string]string{"VLLM_SIM_LOAD_TIME": "2s", "VLLM_SIM_TTFT": "200ms", "VLLM_SIM_TOKENS_PER_SEC": "30"}
}

// startCloud opens every simulated cloud: a market, the provider's API in front of it, and its books.
func (s *Stack) startCloud(ctx context.Context, p programs) error {
	root := filepath.Join(s.dir, "instances")
	// Instances do not outlive the market, so what is there is of a stack that was killed.
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	for _, key := range []*string{&s.secretKey, &s.CustomerKey} {
		var err error
		if *key, err = newKey(); err != nil {
			return err
		}
	}
	admin := http.NewServeMux()
	for _, c := range clouds.All() {
		dir := filepath.Join(root, c.Provider)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		bodies, err := process.New(process.Options{Agent: p.agent, VLLM: p.vllm, Root: dir, Env: engine()})
		if err != nil {
			return err
		}
		m := s.openMarket(c, bodies)
		base, err := s.serve(ctx, c.API(m, clouds.Access{Keys: []string{s.secretKey, s.CustomerKey}}))
		if err != nil {
			return err
		}
		s.Clouds = append(s.Clouds, Cloud{Provider: c.Provider, API: base, Offers: len(m.Offers()), market: m})
		admin.Handle("/"+c.Provider+"/", http.StripPrefix("/"+c.Provider, m.AdminHandler()))
	}
	base, err := s.serve(ctx, admin)
	if err != nil {
		return err
	}
	for i := range s.Clouds {
		s.Clouds[i].Books = base + "/" + s.Clouds[i].Provider + "/sim/books"
	}
	return s.offerAgent(ctx, p.agent)
}

func (s *Stack) openMarket(cloud clouds.Cloud, bodies body.Factory) *market.Market {
	c := cloud.Calm(s.opts.Seed)
	c.Clock, c.Body = s.opts.Clock, bodies
	if !s.temporary || s.opts.Kubeconfig != "" {
		// The cluster may remember instances of an earlier market, whose ids must not come again.
		first, spell := s.opts.Clock.Now().Unix()*1000, c.InstanceID
		c.InstanceID = func(n int64) string {
			if spell != nil {
				return spell(first + n)
			}
			return strconv.FormatInt(first+n, 10)
		}
	}
	m := market.New(c)
	s.onStop(func() error { m.Close(); return nil })
	return m
}

// credentials are those of the simulated accounts at all providers, by the names of the environment.
func (s *Stack) credentials() map[string]any {
	out := map[string]any{}
	for _, c := range clouds.All() {
		for name, value := range c.Credentials(s.secretKey) {
			out[name] = value
		}
	}
	return out
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
	s.Agent = bootstrap.Agent{URL: base + "/gpuscale-agent", SHA256: hex.EncodeToString(sum[:])}
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

// Spent is the markets' own account of what the simulated instances cost so far, and how many there are now.
func (s *Stack) Spent() (dollars float64, live int) {
	for _, c := range s.Clouds {
		b := c.market.Books()
		dollars += b.Spent.Dollars()
		live += len(b.Live())
	}
	return dollars, live
}

// Cloud is the provider's simulated cloud. It panics where there is none.
func (s *Stack) Cloud(provider string) Cloud {
	for _, c := range s.Clouds {
		if c.Provider == provider {
			return c
		}
	}
	panic("there is no simulated " + provider)
}

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
