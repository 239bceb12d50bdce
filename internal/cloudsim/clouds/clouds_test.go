package clouds_test

import (
	"maps"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/munhq/gpuscale/internal/cloudsim/clouds"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// TestEveryCloudIsRentedFromByItsDriver asks each cloud with the driver of its provider and the credentials that the
// list gives: they are accepted, others are not, and offers have prices and GPUs that are known.
func TestEveryCloudIsRentedFromByItsDriver(t *testing.T) {
	for _, c := range clouds.All() {
		t.Run(c.Provider, func(t *testing.T) {
			m := market.New(c.Calm(1))
			t.Cleanup(m.Close)
			api := httptest.NewServer(c.API(m, clouds.Access{Keys: []string{"good-key"}, Unlimited: true}))
			t.Cleanup(api.Close)
			open := func(key string) provider.Provider {
				p, err := drivers.New(provider.Name(c.Provider), c.Credentials(key), drivers.Options{BaseURL: api.URL, PaceFactor: -1})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			env := drivers.All()[provider.Name(c.Provider)].Env
			for name := range maps.Keys(c.Credentials("x")) {
				if !slices.Contains(env, name) {
					t.Errorf("the driver does not read %s; it reads %v", name, env)
				}
			}
			p := open("good-key")
			if err := p.CheckCredentials(t.Context()); err != nil {
				t.Error(err)
			}
			if err := open("bad-key").CheckCredentials(t.Context()); provider.KindOf(err) != provider.Unauthorized {
				t.Errorf("a bad key: %v", err)
			}
			caps := p.Capabilities()
			for ct, can := range map[provider.CapacityType]bool{provider.Spot: caps.Spot, provider.OnDemand: caps.OnDemand} {
				found, err := p.SearchOffers(t.Context(), provider.OfferQuery{CapacityType: ct, DiskGB: 50})
				if !can {
					if provider.KindOf(err) != provider.Unsupported {
						t.Errorf("%s is not offered, and the search says %v", ct, err)
					}
					continue
				}
				known := slices.ContainsFunc(found, func(o provider.Offer) bool {
					return o.GPU.Known() && o.Price.Micros() > 0 && slices.Contains(gpu.Names(), o.GPU)
				})
				if err != nil || !known {
					t.Errorf("%s: %d offers, one that can be bought: %t, %v", ct, len(found), known, err)
				}
			}
		})
	}
}
