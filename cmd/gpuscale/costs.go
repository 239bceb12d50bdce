package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/ledger"
	"github.com/munhq/gpuscale/pkg/money"
)

type costsOptions struct {
	ledger, by, from, to, output string
	clock                        clock.PassiveClock
}

func newCosts(c *console) *cobra.Command {
	o := costsOptions{clock: clock.RealClock{}} //gpuscale:clock costs of what runs are up to the present
	cmd := &cobra.Command{
		Use:   "costs",
		Short: "Show what was spent, from the ledger",
		Long: "Shows what rented GPUs have cost. A figure is the provider's own where its account was read, and exact to the\n" +
			"micro-dollar unless the table says otherwise. It is estimated, from rates and times, for what still runs, where the\n" +
			"provider's account is not known (yet), and where only a part of a rental's life is in the time asked for.\n" +
			"Days are days in UTC.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCosts(cmd.Context(), c, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.ledger, "ledger", "", "URL of the ledger (default: $POSTGRES_URL, then gpuscale/ledger.db in the user's data folder)")
	f.StringVar(&o.by, "by", "pool", "what to add up by: pool, model, provider or day")
	f.StringVar(&o.from, "from", "", "first moment: 2026-03-01 or 2026-03-01T12:00:00Z (default: the beginning)")
	f.StringVar(&o.to, "to", "", "end: a day is included, a moment is not (default: now)")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	return cmd
}

func runCosts(ctx context.Context, c *console, o costsOptions) error {
	if !slices.Contains([]string{"pool", "model", "provider", "day"}, o.by) {
		return usageError{fmt.Errorf("--by %s: pool, model, provider or day", o.by)}
	}
	if o.output != "table" && o.output != "json" {
		return usageError{fmt.Errorf("-o %s: table or json", o.output)}
	}
	now := o.clock.Now()
	from, to, err := window(o, now)
	if err != nil {
		return usageError{err}
	}
	url, err := ledgerURL(c, o.ledger)
	if err != nil {
		return err
	}
	l, err := ledger.Open(ctx, url)
	if err != nil {
		return err
	}
	sums, err := addUp(ctx, l, o.by, from, to, now)
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	if o.output == "json" {
		return sums.json(c.out)
	}
	return sums.table(c.out, o.by)
}

// window is the time that was asked for.
func window(o costsOptions, now time.Time) (from, to time.Time, err error) {
	from, to = time.Unix(0, 0), now
	if o.from != "" {
		if from, _, err = moment(o.from); err != nil {
			return from, to, fmt.Errorf("--from %s: %w", o.from, err)
		}
	}
	if o.to != "" {
		var day bool
		if to, day, err = moment(o.to); err != nil {
			return from, to, fmt.Errorf("--to %s: %w", o.to, err)
		}
		if day {
			to = to.AddDate(0, 0, 1)
		}
	}
	if !from.Before(to) {
		return from, to, errors.New("--from is not before --to")
	}
	return from, to, nil
}

func moment(s string) (t time.Time, day bool, err error) {
	if t, err = time.Parse(time.DateOnly, s); err == nil {
		return t, true, nil
	}
	if t, err = time.Parse(time.RFC3339, s); err == nil {
		return t, false, nil
	}
	return t, false, errors.New("not a time; 2026-03-01 and 2026-03-01T12:00:00Z are")
}

// costSum is one line.
type costSum struct {
	Name      string       `json:"name"`
	Cost      money.Amount `json:"cost"`
	Estimated money.Amount `json:"estimated"`
	// Granularity is the coarsest step of billing among what is estimated, Step that of the figures that are not.
	Granularity string       `json:"granularity,omitempty"`
	Step        money.Amount `json:"step"`
	Instances   int          `json:"instances"`
	Running     int          `json:"running"`

	coarsest time.Duration
	seen     map[string]bool
}

type costSums struct {
	Lines []*costSum `json:"costs"`
	Total *costSum   `json:"total"`
}

// addUp reads the ledger, once for each day where days are asked for.
func addUp(ctx context.Context, l *ledger.Ledger, by string, from, to, now time.Time) (costSums, error) {
	rows, err := l.Costs(ctx, from, to, now)
	if err != nil {
		return costSums{}, err
	}
	lines, total := map[string]*costSum{}, &costSum{Name: "total"}
	add := func(name string, cost money.Amount, row ledger.CostRow) {
		if lines[name] == nil {
			lines[name] = &costSum{Name: name}
		}
		lines[name].add(cost, row)
		total.add(cost, row)
	}
	if by == "day" {
		if len(rows) > 0 && from.Before(rows[0].From) {
			from = rows[0].From
		}
		err = eachDay(ctx, l, from, earliest(to, now), now, func(day string, row ledger.CostRow) { add(day, row.Cost, row) })
		rows = nil
	}
	for _, row := range rows {
		switch {
		case by == "pool":
			add(row.Instance.Pool, row.Cost, row)
		case by == "provider":
			add(row.Instance.Provider, row.Cost, row)
		case len(row.Models) == 0:
			add("(none)", row.Cost, row)
		}
		for _, m := range row.Models {
			if by == "model" {
				add(m.Model, m.Cost, row)
			}
		}
	}
	out := costSums{Lines: []*costSum{}, Total: total}
	for _, line := range lines {
		out.Lines = append(out.Lines, line)
	}
	slices.SortFunc(out.Lines, func(a, b *costSum) int { return cmp.Compare(a.Name, b.Name) })
	return out, err
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func eachDay(ctx context.Context, l *ledger.Ledger, from, to, now time.Time, do func(string, ledger.CostRow)) error {
	for start := from.UTC(); start.Before(to); {
		next := start.Truncate(24*time.Hour).AddDate(0, 0, 1)
		rows, err := l.Costs(ctx, start, earliest(next, to), now)
		if err != nil {
			return err
		}
		for _, row := range rows {
			do(start.Format(time.DateOnly), row)
		}
		start = next
	}
	return nil
}

func (s *costSum) add(cost money.Amount, row ledger.CostRow) {
	s.Cost = s.Cost.Add(cost)
	switch {
	case row.Estimated:
		s.Estimated = s.Estimated.Add(cost)
		if step := max(row.Instance.BillingStep, row.Instance.BillingLeast); step >= s.coarsest && step > 0 {
			s.coarsest, s.Granularity = step, step.String()
		}
	case s.Step.Less(row.Instance.Bill.Step):
		s.Step = row.Instance.Bill.Step
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	if !s.seen[row.Instance.Token] {
		s.seen[row.Instance.Token] = true
		s.Instances++
		if row.Running {
			s.Running++
		}
	}
}

// remarks say how far the figure can be trusted.
func (s *costSum) remarks() string {
	var out []string
	if s.Running > 0 {
		out = append(out, fmt.Sprintf("%d running", s.Running))
	}
	if !s.Estimated.IsZero() {
		text := "$" + s.Estimated.String() + " estimated"
		if s.Granularity != "" {
			text += ", billed in steps of " + s.Granularity
		}
		out = append(out, text)
	}
	if money.AmountFromMicros(1).Less(s.Step) {
		out = append(out, "the provider says so to $"+s.Step.String())
	}
	return strings.Join(out, "; ")
}

func (s costSums) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

func (s costSums) table(w io.Writer, by string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(t, "%s\tCOST\tINSTANCES\tREMARKS\n", strings.ToUpper(by))
	for _, line := range append(slices.Clone(s.Lines), s.Total) {
		_, _ = fmt.Fprintf(t, "%s\t$%s\t%d\t%s\n", line.Name, line.Cost, line.Instances, line.remarks())
	}
	return t.Flush() // it has the first error of all the writes
}
