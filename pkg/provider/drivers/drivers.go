// Package drivers is the list of the clouds that this release can rent from. A new driver is one line in it.
package drivers

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
	"github.com/munhq/gpuscale/pkg/provider/runpod"
	"github.com/munhq/gpuscale/pkg/provider/tensordock"
	"github.com/munhq/gpuscale/pkg/provider/vastai"
	"github.com/munhq/gpuscale/pkg/provider/verda"
)

// Options are what tests and simulated markets set; the zero value is the real cloud.
type Options struct {
	// BaseURL is the API's scheme and host; empty means the vendor's.
	BaseURL string
	// Transport carries the requests; nil means the standard one.
	Transport http.RoundTripper
	// Clock times the pace of calls; nil means the system's.
	Clock rest.Clock
	// PaceFactor stretches the least time between calls: 0 means 1, a negative value no pace.
	PaceFactor float64
}

// Constructor makes the driver of one account from its credentials: a Secret's data, or the environment, by the names
// of Driver.Env. It makes no call. Its error names what is missing and never a value.
type Constructor func(creds map[string]string, opts Options) (provider.Provider, error)

// Driver is one entry of the list.
type Driver struct {
	New Constructor
	// Env are the names under which credentials are found, best first.
	Env []string
}

// All returns every driver of this release by the name that a pool spells. The map is the caller's.
func All() map[provider.Name]Driver {
	return map[provider.Name]Driver{
		provider.RunPod:     {New: newRunPod, Env: runpod.EnvKeys()},
		provider.TensorDock: {New: newTensorDock, Env: tensordock.EnvKeys()},
		provider.VastAI:     {New: newVastAI, Env: vastai.EnvKeys()},
		provider.Verda:      {New: newVerda, Env: verda.EnvKeys()},
	}
}

// Names lists the names in All, sorted.
func Names() []provider.Name { return slices.Sorted(maps.Keys(All())) }

// New makes the driver of the named provider. A provider that this release does not drive, and a name that is no
// provider's, are errors that say which it is and what there is.
func New(name provider.Name, creds map[string]string, opts Options) (provider.Provider, error) {
	d, ok := All()[name]
	if ok {
		return d.New(creds, opts)
	}
	switch name {
	case provider.AWS, provider.Azure, provider.GCP, provider.RunPod, provider.TensorDock, provider.VastAI, provider.Verda:
		return nil, fmt.Errorf("provider %q is not built in this release; it drives %v", name, Names())
	}
	return nil, fmt.Errorf("there is no provider %q; this release drives %v", name, Names())
}

func newRunPod(creds map[string]string, opts Options) (provider.Provider, error) {
	c, err := runpod.FromCredentials(creds)
	if err != nil {
		return nil, err
	}
	c.BaseURL, c.Transport, c.Clock, c.PaceFactor = opts.BaseURL, opts.Transport, opts.Clock, opts.PaceFactor
	p, err := runpod.New(c)
	if err != nil {
		return nil, err // not p, which would be a nil driver in an interface that is not nil
	}
	return p, nil
}

func newVastAI(creds map[string]string, opts Options) (provider.Provider, error) {
	c, err := vastai.FromCredentials(creds)
	if err != nil {
		return nil, err
	}
	c.BaseURL, c.Transport, c.Clock, c.PaceFactor = opts.BaseURL, opts.Transport, opts.Clock, opts.PaceFactor
	p, err := vastai.New(c)
	if err != nil {
		return nil, err // not p, which would be a nil driver in an interface that is not nil
	}
	return p, nil
}

func newTensorDock(creds map[string]string, opts Options) (provider.Provider, error) {
	c, err := tensordock.FromCredentials(creds)
	if err != nil {
		return nil, err
	}
	c.BaseURL, c.Transport, c.Clock, c.PaceFactor = opts.BaseURL, opts.Transport, opts.Clock, opts.PaceFactor
	p, err := tensordock.New(c)
	if err != nil {
		return nil, err // as in newVastAI
	}
	return p, nil
}

func newVerda(creds map[string]string, opts Options) (provider.Provider, error) {
	c, err := verda.FromCredentials(creds)
	if err != nil {
		return nil, err
	}
	c.BaseURL, c.Transport, c.Clock, c.PaceFactor = opts.BaseURL, opts.Transport, opts.Clock, opts.PaceFactor
	p, err := verda.New(c)
	if err != nil {
		return nil, err // as in newVastAI
	}
	return p, nil
}
