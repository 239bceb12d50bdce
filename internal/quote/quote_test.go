package quote_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/internal/cloudsim/clouds"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/manifest"
	"github.com/munhq/gpuscale/internal/offers"
	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// simKey opens every simulated account.
const simKey = "sim-key-0123456789"

// desk is one at every simulated cloud, with an environment that has what change leaves of the right credentials.
func desk(t *testing.T, change func(env map[string]string), secrets map[account.SecretRef]map[string][]byte) (quote.Desk, func(string) string, map[provider.Name]*market.Market) {
	t.Helper()
	env, urls, markets := map[string]string{}, map[provider.Name]string{}, map[provider.Name]*market.Market{}
	for _, c := range clouds.All() {
		m := market.New(c.Calm(1))
		t.Cleanup(m.Close)
		api := httptest.NewServer(c.API(m, clouds.Access{Keys: []string{simKey}, Unlimited: true}))
		t.Cleanup(api.Close)
		name := provider.Name(c.Provider)
		urls[name], markets[name] = api.URL, m
		maps.Copy(env, c.Credentials(simKey))
	}
	if change != nil {
		change(env)
	}
	getenv := func(name string) string { return env[name] }
	accounts := quote.AccountsOf(t.Context(), quote.Sources{Getenv: getenv, Secrets: secrets, Clock: clock.RealClock{},
		Options: func(name provider.Name) drivers.Options {
			return drivers.Options{BaseURL: urls[name], PaceFactor: -1, Transport: only(urls)}
		}})
	return quote.Desk{Accounts: accounts, Clock: clock.RealClock{}, Timeout: 20 * time.Second}, getenv, markets
}

// only lets no call of a test leave for a real cloud.
func only(urls map[provider.Name]string) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		for _, u := range urls {
			if strings.HasPrefix(r.URL.String(), u) {
				return http.DefaultTransport.RoundTrip(r)
			}
		}
		panic("a call to " + r.URL.Host)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCheckTellsCredentialsApart has every verdict that can be had from a provider that answers.
func TestCheckTellsCredentialsApart(t *testing.T) {
	for name, c := range map[string]struct {
		change func(env map[string]string)
		want   quote.Verdict
		says   string
	}{
		"good":      {nil, quote.Works, ""},
		"missing":   {func(env map[string]string) { delete(env, "VASTAI_API_KEY") }, quote.Missing, "no credentials: set VASTAI_API_KEY"},
		"malformed": {func(env map[string]string) { env["VASTAI_API_KEY"] = "two words" }, quote.Unusable, "white space"},
		"rejected":  {func(env map[string]string) { env["VASTAI_API_KEY"] = "wrong-key" }, quote.Rejected, "Unauthorized"},
	} {
		d, getenv, _ := desk(t, c.change, nil)
		got := d.Check(t.Context(), []provider.Name{provider.VastAI}, getenv)[0]
		if got.Verdict != c.want || !strings.Contains(got.Message, c.says) || c.says == "" && got.Message != "" || got.Capabilities == nil ||
			!got.Capabilities.Spot || strings.Contains(got.Message, "wrong-key") || strings.Contains(got.Message, "two words") {
			t.Errorf("%s: %+v", name, got)
		}
		if (got.Account == "10001") != (c.want == quote.Works) {
			t.Errorf("%s: account %q", name, got.Account)
		}
	}
	for name, c := range map[string]struct {
		spoil func(*market.Market)
		want  quote.Verdict
		says  string
	}{
		"does not answer": {func(m *market.Market) {
			m.SetFaultRates(market.FaultRates{Share: map[market.Fault]float64{market.ServerError: 1}})
		}, quote.Unclear, "Unavailable"},
		"asks for patience": {func(m *market.Market) { m.FailNext(market.OpList, market.TooMany) }, quote.Unclear, "RateLimited"},
	} {
		d, getenv, markets := desk(t, nil, nil)
		c.spoil(markets[provider.VastAI])
		if got := d.Check(t.Context(), []provider.Name{provider.VastAI}, getenv)[0]; got.Verdict != c.want || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	d, getenv, _ := desk(t, nil, nil)
	for _, p := range d.Check(t.Context(), nil, getenv) {
		if _, driven := drivers.All()[p.Provider]; driven == (p.Verdict == quote.Unsupported) {
			t.Errorf("%+v", p)
		}
	}
}

// TestOffersAccountForEveryOffer: what is kept and what is left out are together what every list had.
func TestOffersAccountForEveryOffer(t *testing.T) {
	d, _, _ := desk(t, func(env map[string]string) { env["RUNPOD_API_KEY"] = "wrong-key" }, nil)
	got := d.Offers(t.Context(), quote.OffersRequest{CapacityTypes: []provider.CapacityType{provider.OnDemand},
		Need: offers.Need{MinDiskGB: 50, GPUTypeSets: [][]string{{"RTX 4090"}}, MaxPrice: offers.AnyPrice()}})
	total, kept := 0, 0
	for _, l := range got.Lists {
		total, kept = total+l.Why.Total, kept+l.Why.Kept()
	}
	if len(got.Lists) != len(clouds.All())-1 || kept != len(got.Kept) || total != len(got.Kept)+len(got.LeftOut) || kept == 0 {
		t.Errorf("%d lists with %d offers of which %d fit; %d kept, %d left out", len(got.Lists), total, kept, len(got.Kept), len(got.LeftOut))
	}
	if len(got.Failed) != 1 || got.Failed[0].Provider != provider.RunPod || got.Failed[0].Kind != provider.Unauthorized {
		t.Errorf("%+v", got.Failed)
	}
}

// TestPlanUsesTheSecretOfTheFiles and not the environment, where the files have it.
func TestPlanUsesTheSecretOfTheFiles(t *testing.T) {
	read := func(extra string) *manifest.Set {
		set, err := manifest.Read([]string{"../../examples/gpunodepool-vast.yaml", "../../examples/sample-workload.yaml", "-"}, strings.NewReader(extra), "default")
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	secret := func(key string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: gpuscale-provider-credentials, namespace: gpuscale-system}\nstringData: {VASTAI_API_KEY: " + key + "}\n"
	}
	for name, c := range map[string]struct {
		files, env string
		buys       int
		stands     int
	}{
		"the environment":         {"", simKey, 1, 1},
		"a Secret":                {secret(simKey), "wrong-key", 1, 0},
		"a Secret that is wrong":  {secret("wrong-key"), simKey, 0, 0},
		"an environment as wrong": {"", "wrong-key", 0, 1},
	} {
		set := read(c.files)
		d, _, _ := desk(t, func(env map[string]string) { env["VASTAI_API_KEY"] = c.env }, quote.SecretsOf(set))
		p := d.Plan(context.Background(), set, demand.Options{})
		if len(p.Purchases) != c.buys || len(p.EnvFor) != c.stands || len(p.Failed) != 1-c.buys || len(p.Unmet) != 1-c.buys {
			t.Errorf("%s: %d purchases, %q, %+v, %+v", name, len(p.Purchases), p.EnvFor, p.Failed, p.Unmet)
		}
		for _, f := range p.Failed {
			if f.Kind != provider.Unauthorized {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

// TestNothingIsEverRented by any of the questions.
func TestNothingIsEverRented(t *testing.T) {
	set, err := manifest.Read([]string{"../../examples"}, nil, "default")
	if err != nil {
		t.Fatal(err)
	}
	d, getenv, markets := desk(t, nil, nil)
	d.Check(t.Context(), nil, getenv)
	d.Offers(t.Context(), quote.OffersRequest{CapacityTypes: []provider.CapacityType{provider.Spot, provider.OnDemand}, Need: offers.Need{MinDiskGB: 50}})
	d.Plan(t.Context(), set, demand.Options{})
	for name, m := range markets {
		if n := m.Books().Rented; n != 0 {
			t.Errorf("%s rented %d", name, n)
		}
	}
}
