package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/cloudsim/clouds"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/near"
	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// defaultTimeout is past the slowest search of a provider in good health, two in a row at the pace it allows.
const defaultTimeout = 30 * time.Second

// askOptions are those of every command that asks providers without a cluster.
type askOptions struct {
	market  string
	seed    int64
	timeout time.Duration
	output  string
	headers bool
}

func (o *askOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.market, "market", "real", "whom to ask: real, or sim for simulated clouds in this process (no account, no network)")
	f.Int64Var(&o.seed, "seed", 1, "seed of the simulated market: the same seed has the same offers")
	f.DurationVar(&o.timeout, "timeout", defaultTimeout, "how long to wait for providers; what has not answered by then is left out and named")
	f.StringVarP(&o.output, "output", "o", "", "wide, json or yaml; a table where empty")
	f.BoolVar(&o.headers, "no-headers", false, "leave the table's headers out")
	complete(cmd, "market", "real", "sim")
	complete(cmd, "output", "wide", "json", "yaml")
}

// complete offers fixed values for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	completeFrom(cmd, flag, func() []string { return values })
}

// completeFrom offers values for a flag, also for each part of a list.
func completeFrom(cmd *cobra.Command, flag string, values func() []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		head := typed[:strings.LastIndex(typed, ",")+1]
		var out []string
		for _, v := range values() {
			out = append(out, head+v)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // there is no such flag
	}
}

// check refuses what no command can do.
func (o *askOptions) check() error {
	switch {
	case !slices.Contains([]string{"", "wide", "json", "yaml"}, o.output):
		return usageError{fmt.Errorf("-o %s: wide, json or yaml", o.output)}
	case o.market != "real" && o.market != "sim":
		return usageError{fmt.Errorf("--market %s: real or sim", o.market)}
	case o.timeout <= 0:
		return usageError{fmt.Errorf("--timeout %s: more than nothing", o.timeout)}
	}
	return nil
}

// session is a desk at the providers that were asked for.
type session struct {
	quote.Desk
	// getenv is the environment in which credentials are found.
	getenv func(string) string
	// settle takes the progress away, before anything is written.
	settle func()
	// close ends everything that was started for it.
	close func()
}

func (o *askOptions) open(ctx context.Context, c *console, secrets map[account.SecretRef]map[string][]byte) (*session, error) {
	ctx, cancel := context.WithCancel(ctx)
	now := clock.RealClock{} //gpuscale:clock the offers of now are asked for
	s := quote.Sources{Getenv: c.getenv, Secrets: secrets, Clock: now}
	closing := func() {}
	if o.market == "sim" {
		sim, err := openSimulated(ctx, o.seed, c.simHook)
		if err != nil {
			cancel()
			return nil, err
		}
		s.Getenv, s.Options, s.Wrap, closing = sim.getenv, sim.options, quick, sim.close
	}
	p := newProgress(c, now)
	return &session{
		Desk:   quote.Desk{Accounts: quote.AccountsOf(ctx, s), Clock: now, Timeout: o.timeout, Asked: p.asked, Answered: p.answered},
		getenv: s.Getenv, settle: p.end, close: func() { p.end(); cancel(); closing() },
	}, nil
}

// simulated are the simulated clouds of one command.
type simulated struct {
	urls   map[provider.Name]string
	env    map[string]string
	closes []func()
}

// simKey opens the simulated accounts.
const simKey = "simulated-0123456789abcdef"

func openSimulated(ctx context.Context, seed int64, hook func(*market.Market)) (*simulated, error) {
	s := &simulated{urls: map[provider.Name]string{}, env: map[string]string{}}
	for _, cloud := range clouds.All() {
		m := market.New(cloud.Calm(seed))
		s.closes = append(s.closes, m.Close)
		if hook != nil {
			hook(m)
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			s.close()
			return nil, err
		}
		srv := &http.Server{Handler: cloud.API(m, clouds.Access{Keys: []string{simKey}, Unlimited: true}), ReadHeaderTimeout: time.Minute}
		go func() { _ = srv.Serve(l) }() // until it is closed
		s.closes = append(s.closes, func() { _ = srv.Close() })
		s.urls[provider.Name(cloud.Provider)] = "http://" + l.Addr().String()
		for name, value := range cloud.Credentials(simKey) {
			s.env[name] = value
		}
	}
	return s, nil
}

func (s *simulated) close() {
	for _, f := range slices.Backward(s.closes) {
		f()
	}
}

func (s *simulated) getenv(name string) string { return s.env[name] }

func (s *simulated) options(name provider.Name) drivers.Options {
	// Without a simulated cloud there are no credentials either; should there be, nobody real is asked.
	return drivers.Options{BaseURL: cmp.Or(s.urls[name], "http://127.0.0.1:1"), PaceFactor: -1}
}

// quickly takes the pauses between searches away, which protect real providers.
type quickly struct{ provider.Provider }

func quick(p provider.Provider) provider.Provider { return quickly{p} }

// Capabilities are the provider's, but for the pause.
func (q quickly) Capabilities() provider.Capabilities {
	c := q.Provider.Capabilities()
	c.SearchInterval = 0
	return c
}

// Unwrap is the provider itself.
func (q quickly) Unwrap() provider.Provider { return q.Provider }

// providersOf reads a list of names of providers.
func providersOf(flag string, names []string) ([]provider.Name, error) {
	var out []provider.Name
	for _, n := range names {
		name := provider.Name(strings.TrimSpace(n))
		if !slices.Contains(quote.Providers(), name) {
			return nil, usageError{fmt.Errorf("%s %s: there is no such provider; %s", flag, n, meant(n, providerNames()))}
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out, nil
}

func providerNames() []string {
	var out []string
	for _, n := range quote.Providers() {
		out = append(out, string(n))
	}
	return out
}

// meant suggests names for one that there is not.
func meant(written string, names []string) string {
	if found := near.Names(written, names); len(found) > 0 {
		return "did you mean " + strings.Join(found, " or ") + "?"
	}
	return "there are " + strings.Join(names, ", ")
}

// interrupted turns the end of ctx into its exit code.
func interrupted(ctx context.Context, c *console) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	c.note("gpuscale: interrupted")
	return exitError(exitInterrupted)
}

// notes tells of providers that are missing from the output.
func notes(c *console, failed []quote.Failure, without []provider.Name) {
	for _, f := range failed {
		c.note("note: %s is left out: %s", strings.TrimSpace(string(f.Provider)+" "+f.What), f.Message)
	}
	if len(without) > 0 {
		c.note("note: not asked, for want of credentials: %s (gpuscale check says what they need)", joinNames(without))
	}
}

func joinNames(names []provider.Name) string {
	var out []string
	for _, n := range names {
		out = append(out, string(n))
	}
	return strings.Join(out, ", ")
}
