package account

import (
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// Drivers are the constructors of this release's drivers. Both arguments may be nil: options directs a provider's driver
// to a simulated cloud, and wrap goes around every driver that is opened.
func Drivers(options func(provider.Name) drivers.Options, wrap func(provider.Provider) provider.Provider) map[provider.Name]Constructor {
	out := map[provider.Name]Constructor{}
	for name, d := range drivers.All() {
		var opts drivers.Options
		if options != nil {
			opts = options(name)
		}
		out[name] = Constructor{Env: d.Env, New: func(creds map[string]string) (provider.Provider, error) {
			p, err := d.New(creds, opts)
			if err != nil || wrap == nil {
				return p, err
			}
			return wrap(p), nil
		}}
	}
	return out
}
