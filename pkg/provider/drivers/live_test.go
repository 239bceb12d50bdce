package drivers_test

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

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
			live(t, ctx, provider.Name(name), budget)
		})
	}
}

func live(t *testing.T, ctx context.Context, name provider.Name, budget money.Amount) {
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
