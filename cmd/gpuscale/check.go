package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/provider"
)

func newCheck(c *console) *cobra.Command {
	var o askOptions
	cmd := &cobra.Command{
		Use:   "check [PROVIDER...]",
		Short: "Try credentials and show what each provider can and cannot do, without a cluster",
		Long: "Tries the credentials of every provider, or of those named, by the cheapest call that a bad key fails, and shows\n" +
			"what the provider can do: spot, on-demand, and whether an instance that nobody calls can end its own bill.\n" +
			"Nothing is rented. Credentials are the controller's, in the environment.",
		Example: "  gpuscale check\n  VASTAI_API_KEY=... gpuscale check vast.ai -o wide",
		RunE:    func(cmd *cobra.Command, args []string) error { return runCheck(cmd.Context(), c, &o, args) },
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return driverNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	o.flags(cmd)
	return cmd
}

func runCheck(ctx context.Context, c *console, o *askOptions, args []string) error {
	if err := o.check(); err != nil {
		return err
	}
	names, err := providersOf("check", args)
	if err != nil {
		return err
	}
	s, err := o.open(ctx, c, nil)
	if err != nil {
		return err
	}
	defer s.close()
	all := s.Check(ctx, names, s.getenv)
	s.settle()
	if err := interrupted(ctx, c); err != nil {
		return err
	}
	if o.output == "json" || o.output == "yaml" {
		err = document(c.out, o.output, checkDocument(all))
	} else {
		err = checkTable(all, o.output == "wide").write(c.out, o.headers)
	}
	if err != nil {
		return err
	}
	return checked(all, len(names) > 0)
}

// checked is the outcome: what is not there at all counts only where it was asked for.
func checked(all []quote.Checked, named bool) error {
	good, bad := 0, 0
	for _, p := range all {
		switch {
		case p.Verdict == quote.Works:
			good++
		case named || p.Verdict != quote.Missing && p.Verdict != quote.Unsupported:
			bad++
		}
	}
	switch {
	case good == 0 && bad == 0:
		return errors.New("there are no credentials in the environment; the table says what each provider needs, and --market sim needs none")
	case good == 0:
		return errors.New("no credentials work")
	case bad > 0:
		return exitError(exitPartial)
	}
	return nil
}

func checkTable(all []quote.Checked, wide bool) *table {
	t := &table{headers: []string{"PROVIDER", "CREDENTIALS", "ACCOUNT", "SPOT", "ON-DEMAND", "RUNS", "ENDS ITSELF", "BILLED BY"}}
	if wide {
		t.headers = append(t.headers, "AT LEAST", "NOTICE", "SEARCH EVERY", "LIST LAG", "ENVIRONMENT")
	}
	t.headers = append(t.headers, "MESSAGE")
	for _, p := range all {
		cells := []string{string(p.Provider), string(p.Verdict), p.Account}
		if can := p.Capabilities; can != nil {
			cells = append(cells, yes(can.Spot), yes(can.OnDemand), string(can.Boot), string(can.SelfEnd), span(can.BillingGranularity))
			if wide {
				cells = append(cells, span(can.MinimumBilling), notice(can.Notices), span(can.SearchInterval), span(can.ListLag))
			}
		} else {
			cells = append(cells, "", "", "", "", "")
			if wide {
				cells = append(cells, "", "", "", "")
			}
		}
		if wide {
			cells = append(cells, strings.Join(p.Env, ","))
		}
		t.row(append(cells, orDash(p.Message))...)
	}
	return t
}

// orDash keeps the last column quiet where there is nothing to say.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func notice(n provider.Notices) string {
	if n == provider.NoticesNone {
		return "no"
	}
	return "yes"
}

// span is a time without the parts that are nothing: "1h", not "1h0m0s".
func span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

type checkedDocument struct {
	Provider    string        `json:"provider"`
	Credentials string        `json:"credentials"`
	Message     string        `json:"message,omitempty"`
	Account     string        `json:"account,omitempty"`
	Environment []envDocument `json:"environment,omitempty"`
	Can         *canDocument  `json:"can,omitempty"`
}

type envDocument struct {
	Name string `json:"name"`
	Set  bool   `json:"set"`
}

type canDocument struct {
	Spot             bool   `json:"spot"`
	OnDemand         bool   `json:"onDemand"`
	Runs             string `json:"runs"`
	EndsItself       string `json:"endsItself"`
	Notice           bool   `json:"notice"`
	BilledBy         string `json:"billedBy"`
	BilledAtLeast    string `json:"billedAtLeast,omitempty"`
	SearchEvery      string `json:"searchEvery,omitempty"`
	ListLag          string `json:"listLag"`
	IdempotentCreate bool   `json:"idempotentCreate"`
	BootDataLimit    int    `json:"bootDataLimit"`
}

func checkDocument(all []quote.Checked) any {
	out := struct {
		Providers []checkedDocument `json:"providers"`
	}{Providers: []checkedDocument{}}
	for _, p := range all {
		d := checkedDocument{Provider: string(p.Provider), Credentials: string(p.Verdict), Message: p.Message, Account: p.Account}
		for _, name := range p.Env {
			d.Environment = append(d.Environment, envDocument{name, slices.Contains(p.Set, name)})
		}
		if can := p.Capabilities; can != nil {
			d.Can = &canDocument{can.Spot, can.OnDemand, string(can.Boot), string(can.SelfEnd), can.Notices != provider.NoticesNone,
				span(can.BillingGranularity), span(can.MinimumBilling), span(can.SearchInterval), can.ListLag.String(),
				can.IdempotentCreate, can.BootDataLimit}
		}
		out.Providers = append(out.Providers, d)
	}
	return out
}
