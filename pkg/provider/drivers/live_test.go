package drivers_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/munhq/gpuscale/internal/cloudsim/clouds"
	"github.com/munhq/gpuscale/internal/cloudsim/cloudsimtest"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
	"github.com/munhq/gpuscale/pkg/provider/providertest"
)

// The environment of TestLive.
const (
	// liveEnv names the providers to rent from, with commas: GPUSCALE_LIVE=vast.ai,runpod.
	liveEnv = "GPUSCALE_LIVE"
	// budgetEnv is what each may cost in dollars, if not providertest.LiveBudget.
	budgetEnv = "GPUSCALE_LIVE_BUDGET"
	// urlEnv is another address of the API, for a simulated cloud; it takes one provider.
	urlEnv = "GPUSCALE_LIVE_URL"
)

// TestLive spends real money, within the budget, at each provider that GPUSCALE_LIVE names, with the credentials of the
// environment. See docs/checklists/add-a-provider.md.
func TestLive(t *testing.T) {
	names := strings.FieldsFunc(os.Getenv(liveEnv), func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 {
		t.Skipf("%s names no provider", liveEnv)
	}
	if len(names) > 1 && os.Getenv(urlEnv) != "" {
		t.Fatalf("%s is the address of one provider's API; %s names %d", urlEnv, liveEnv, len(names))
	}
	budget := providertest.LiveBudget()
	if s := os.Getenv(budgetEnv); s != "" {
		var err error
		if budget, err = money.ParseAmount(s); err != nil {
			t.Fatalf("%s: %v", budgetEnv, err)
		}
	}
	// An interrupt ends the run and not the process, which has something to give back.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live(ctx, t, provider.Name(name), budget)
		})
	}
}

func live(ctx context.Context, t *testing.T, name provider.Name, budget money.Amount) {
	creds := map[string]string{}
	for _, env := range drivers.All()[name].Env {
		if v := strings.TrimSpace(os.Getenv(env)); v != "" {
			creds[env] = v
		}
	}
	opts := drivers.Options{BaseURL: os.Getenv(urlEnv)}
	good, err := drivers.New(name, creds, opts)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := drivers.New(name, spoiled(creds), opts)
	if err != nil {
		t.Fatalf("with wrong credentials: %v", err)
	}
	end, _ := t.Deadline() // when go test kills the process; what it rented lives on
	providertest.RunLive(until{t, ctx}, providertest.Live{Driver: good, BadKey: bad, Budget: budget, End: end})
}

// spoiled are credentials of the same form that nobody has.
func spoiled(creds map[string]string) map[string]string {
	out := map[string]string{}
	for name, v := range creds {
		out[name] = strings.Map(func(r rune) rune {
			switch {
			case r >= '0' && r <= '9':
				return '9' - (r - '0')
			case r >= 'a' && r <= 'f':
				return 'f' - (r - 'a')
			case r >= 'g' && r <= 'z':
				return 'z' - (r - 'g')
			}
			return r
		}, v)
	}
	return out
}

// until is a test that is over with a context, which an interrupt ends.
type until struct {
	*testing.T
	ctx context.Context
}

// Context ends with the test, or before.
func (u until) Context() context.Context { return u.ctx }

// TestALiveRunOfEverySimulatedCloud is TestLive without money: each driver against its cloud's façade, in stepped time.
func TestALiveRunOfEverySimulatedCloud(t *testing.T) {
	missing := drivers.All()
	for _, cloud := range clouds.All() {
		delete(missing, provider.Name(cloud.Provider))
		t.Run(cloud.Provider, func(t *testing.T) {
			clock := cloudsimtest.NewClock()
			config := cloud.Calm(1)
			config.Clock = clock.FakeClock
			m := market.New(config)
			t.Cleanup(m.Close)
			srv := httptest.NewServer(cloud.API(m, clouds.Access{Keys: []string{simKey}}))
			t.Cleanup(srv.Close)
			opts := drivers.Options{BaseURL: srv.URL, Clock: clock}
			creds := cloud.Credentials(simKey)
			var both [2]provider.Provider
			for i, c := range []map[string]string{creds, spoiled(creds)} {
				var err error
				if both[i], err = drivers.New(provider.Name(cloud.Provider), c, opts); err != nil {
					t.Fatal(err)
				}
			}
			for _, complaint := range providertest.Attempt(t.Context(), func(lt providertest.T) {
				providertest.RunLive(lt, providertest.Live{
					Driver: both[0], BadKey: both[1], Budget: providertest.LiveBudget(), Clock: clock,
				})
			}) {
				t.Error(complaint)
			}
			books := m.Books()
			if len(books.Instances) != 1 || books.Now.Live != 0 {
				t.Errorf("%d instances were rented and %d are left; want one, and none", len(books.Instances), books.Now.Live)
			}
		})
	}
	for name := range missing {
		t.Errorf("%s has no simulated cloud", name)
	}
}

const simKey = "0f3c51d9b7a84e62c1d0a95b7e44f2d8"
