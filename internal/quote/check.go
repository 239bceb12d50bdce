package quote

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/internal/account"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/drivers"
)

// Verdict is what became of a credential.
type Verdict string

// The closed list of verdicts.
const (
	// Works: the provider accepts them.
	Works Verdict = "ok"
	// Missing: there are none.
	Missing Verdict = "missing"
	// Unusable: there are some, and they are malformed or incomplete.
	Unusable Verdict = "unusable"
	// Rejected: the provider does not accept them, or they lack a right.
	Rejected Verdict = "rejected"
	// NoBalance: the account cannot pay.
	NoBalance Verdict = "no-balance"
	// Unclear: the provider did not answer, or not so that it can be told.
	Unclear Verdict = "unclear"
	// Unsupported: this release cannot rent there.
	Unsupported Verdict = "unsupported"
)

// Verdicts lists every verdict.
func Verdicts() []Verdict {
	return []Verdict{Works, Missing, Unusable, Rejected, NoBalance, Unclear, Unsupported}
}

// Checked is one provider: whether its credentials work, and what it can do.
type Checked struct {
	Provider provider.Name
	Verdict  Verdict
	// Message says what is wrong and what would be right; empty where all is well.
	Message string
	// Env are the names under which credentials are read, and Set those that are there.
	Env, Set []string
	// Account is the provider's own number of the account, where it can be told.
	Account string
	// Capabilities are nil where they are not known without credentials.
	Capabilities *provider.Capabilities
}

// Check tries the credentials of all providers, or of those named, at once.
func (d Desk) Check(ctx context.Context, names []provider.Name, getenv func(string) string) []Checked {
	if len(names) == 0 {
		names = Providers()
	}
	var questions []question[Checked]
	within, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	for _, name := range names {
		questions = append(questions, question[Checked]{string(name), func() Checked { return d.check(within, name, getenv) }})
	}
	return each(d, questions)
}

// Providers are all that a pool may name, those that this release drives first.
func Providers() []provider.Name {
	driven := drivers.Names()
	for _, name := range []provider.Name{provider.AWS, provider.Azure, provider.GCP, provider.RunPod, provider.TensorDock,
		provider.VastAI, provider.Verda} {
		if !slices.Contains(driven, name) {
			driven = append(driven, name)
		}
	}
	return driven
}

func (d Desk) check(ctx context.Context, name provider.Name, getenv func(string) string) Checked {
	c := Checked{Provider: name}
	driver, driven := drivers.All()[name]
	if !driven {
		c.Verdict, c.Message = Unsupported, "this release does not rent there"
		return c
	}
	for _, key := range EnvOf(name) {
		if c.Env = append(c.Env, key); strings.TrimSpace(getenv(key)) != "" {
			c.Set = append(c.Set, key)
		}
	}
	c.Capabilities = capabilitiesOf(driver)
	acct, err := d.Accounts.For(ctx, account.Ref{Provider: name})
	if err != nil {
		c.Verdict, c.Message = Missing, failureOf(name, "", err).Message
		if missing := (*account.KeyMissingError)(nil); errors.As(err, &missing) && missing.Err != nil {
			c.Verdict = Unusable
		}
		return c
	}
	if c.Capabilities == nil {
		caps := acct.Driver.Capabilities()
		c.Capabilities = &caps
	}
	err = d.timedOut(ctx, name, acct.Check(ctx))
	switch provider.KindOf(err) {
	case "":
		c.Verdict = Works
	case provider.Unauthorized:
		c.Verdict = Rejected
	case provider.NoBalance:
		c.Verdict = NoBalance
	default:
		c.Verdict = Unclear
	}
	if err != nil {
		c.Message = failureOf(name, "", err).Message
	}
	if c.Verdict != Works {
		return c
	}
	id, err := acct.Identity(ctx)
	switch _, numbered := provider.IdentifiedOf(acct.Driver); {
	case err != nil:
		c.Message = "whose account it is cannot be read: " + failureOf(name, "", err).Message
	case id == "" && numbered:
		c.Message = "the key may not say whose account it is, so a key of another account cannot be told from it"
	}
	c.Account = id
	return c
}

// EnvOf are the environment names of a provider's credentials. Keys that only a Secret can have are not among them.
func EnvOf(name provider.Name) []string {
	return slices.DeleteFunc(slices.Clone(drivers.All()[name].Env), func(key string) bool { return strings.ToUpper(key) != key })
}

// capabilitiesOf are a provider's as far as they are known without credentials: those of a driver that is opened with
// none that is real, and asked nothing.
func capabilitiesOf(d drivers.Driver) *provider.Capabilities {
	none := map[string]string{}
	for _, name := range d.Env {
		none[name] = "none"
	}
	p, err := d.New(none, drivers.Options{})
	if err != nil {
		return nil
	}
	caps := p.Capabilities()
	return &caps
}
