package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/munhq/gpuscale/internal/demand"
	"github.com/munhq/gpuscale/internal/manifest"
	"github.com/munhq/gpuscale/internal/planner"
	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/money"
)

type planOptions struct {
	askOptions
	files     []string
	namespace string
	allPods   bool
	explain   bool
}

func newPlan(c *console) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan -f POOL.yaml -f POD.yaml",
		Short: "Show what would be bought for pools and pods now, and why, without a cluster",
		Long: "Reads pools, pods and what makes pods, asks the pools' providers what they have now, and shows the controller's own\n" +
			"decision: what would be bought, at what price and why, and what would not. Nothing is rented.\n\n" +
			"Pods are taken as pending. A pool or pod that a cluster would refuse is refused in the same words. GPUNodeClaims in\n" +
			"the files count as what is rented already. Of a pool's Secret the environment takes the place, unless the Secret is\n" +
			"in the files too.",
		Example: "  gpuscale plan -f examples/gpunodepool-vast.yaml -f examples/sample-workload.yaml\n" +
			"  kubectl get gpunodepools,gpunodeclaims,pods -A -o yaml | gpuscale plan -f -",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPlan(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or folder with pools and pods; - for standard input; may be given again")
	f.StringVarP(&o.namespace, "namespace", "n", "default", "namespace of what names none")
	f.BoolVar(&o.allPods, "all-gpu-pods", false, "as the controller's: let pods ask that want nvidia.com/gpu and have no gpuscale.io/ annotation")
	f.BoolVar(&o.explain, "explain", false, "also say what each entry of each pool has, and what of it the pool leaves out and why")
	o.flags(cmd)
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

func runPlan(ctx context.Context, c *console, o *planOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if len(o.files) == 0 {
		return usageError{errors.New("-f is required: a file with a GPUNodePool, and one with pods")}
	}
	//nolint:contextcheck // The rules of the CRD take one and wait for nothing.
	set, err := manifest.Read(o.files, c.in, o.namespace)
	if err != nil {
		return err
	}
	for _, p := range set.PassedOver {
		c.note("note: %s is passed over: only %s are read", p, strings.Join(manifest.Kinds(), ", "))
	}
	if len(set.Pools) == 0 {
		return fmt.Errorf("there is no GPUNodePool in %s: it says what may be bought", strings.Join(o.files, ", "))
	}
	s, err := o.open(ctx, c, quote.SecretsOf(set))
	if err != nil {
		return err
	}
	defer s.close()
	plan := s.Plan(ctx, set, demand.Options{AllGPUPods: o.allPods})
	s.settle()
	if err := interrupted(ctx, c); err != nil {
		return err
	}
	if o.output == "json" || o.output == "yaml" {
		err = document(c.out, o.output, planDocument(plan))
	} else {
		err = showPlan(c, o, set, plan)
	}
	if err != nil {
		return err
	}
	if o.market == "real" {
		for _, secret := range plan.EnvFor {
			c.note("note: the environment's credentials stand in for the Secret %s, which is not in the files", secret)
		}
	}
	notes(c, plan.Failed, nil)
	return planned(plan)
}

// planned is the outcome.
func planned(p quote.Plan) error {
	switch {
	case len(p.Failed) > 0 && len(p.Failed) == len(p.Markets):
		if !slices.ContainsFunc(p.Failed, func(f quote.Failure) bool { return f.Kind != "" }) {
			return errors.New("no provider of the pools was asked, for want of credentials; --market sim needs none")
		}
		return errors.New("no provider of the pools gave offers")
	case len(p.Unmet)+len(p.Demand.Problems) > 0:
		return exitError(exitUnmet)
	case len(p.Failed) > 0:
		return exitError(exitPartial)
	}
	return nil
}

func showPlan(c *console, o *planOptions, set *manifest.Set, p quote.Plan) error {
	if len(p.Purchases) > 0 {
		if err := purchasesTable(p.Purchases, o.output == "wide").write(c.out, o.headers); err != nil {
			return err
		}
		c.say("\nWhy:\n")
		for _, b := range p.Purchases {
			c.say("  %s: %s\n", b.ClaimName, b.Reason)
		}
	}
	if len(p.Bindings) > 0 {
		c.say("%sServed by what is rented already:\n", gap(len(p.Purchases)))
		for _, b := range p.Bindings {
			c.say("  %s: %s\n", b.Placement.Workload, b.Reason)
		}
	}
	lines := notBought(p)
	if len(lines) > 0 {
		c.say("%sNot bought:\n  %s\n", gap(len(p.Purchases)+len(p.Bindings)), strings.Join(lines, "\n  "))
	}
	if len(p.Purchases)+len(p.Bindings)+len(lines) == 0 {
		c.say("Nothing would be bought: nothing asks for a GPU.\n")
	}
	totals(c, set, p)
	if o.explain {
		if err := explainPools(c, o, p); err != nil {
			return err
		}
	}
	for _, n := range idle(p) {
		c.note("note: %s", n)
	}
	return nil
}

// explainPools says of each entry what its provider has and what the pool makes of it.
func explainPools(c *console, o *planOptions, p quote.Plan) error {
	c.say("\n")
	t := &table{headers: []string{"POOL", "PROVIDER", "TYPE", "OFFERS", "FIT", "LEFT OUT"}}
	for _, l := range p.Lists {
		t.row(l.Pool, string(l.Provider), string(l.CapacityType), strconv.Itoa(l.Why.Total), strconv.Itoa(l.Why.Kept()), l.Why.LeftOut())
	}
	return t.write(c.out, o.headers)
}

// gap is an empty line below something.
func gap(above int) string {
	if above > 0 {
		return "\n"
	}
	return ""
}

func purchasesTable(list []planner.Purchase, wide bool) *table {
	t := &table{headers: []string{"CLAIM", "POOL", "PROVIDER", "GPU", "TYPE", "$/H", "RESERVES", "MODELS"}}
	if wide {
		t.headers = append(t.headers, "REGION", "VRAM", "DISK", "RELIABILITY", "OFFER")
	}
	for _, p := range list {
		o := p.Offer
		cells := []string{p.ClaimName, p.Pool, string(o.Provider), fmt.Sprintf("%d×%s", o.GPUCount, o.GPU), string(o.CapacityType),
			fixed(o.Price), fixed(p.Reservation.DollarsPerHour), strings.Join(p.Reservation.Workloads, ",")}
		if wide {
			cells = append(cells, o.Region, vram(o), gb(&o.DiskGB), score(o.Reliability), o.ID)
		}
		t.row(cells...)
	}
	return t
}

// notBought says of everything that asks in vain why.
func notBought(p quote.Plan) []string {
	var out []string
	for _, u := range p.Unmet {
		replicas := "1 replica"
		if u.Missing > 1 {
			replicas = strconv.Itoa(u.Missing) + " replicas"
		}
		out = append(out, fmt.Sprintf("%s (%s): %s: %s", u.Workload, replicas, u.Reason, u.Message))
	}
	var who []string
	for i, d := range p.Demand.Problems {
		name := d.Pod.String()
		if d.Pool != "" {
			name = "pool " + d.Pool
		}
		who = append(who, name)
		if next := i + 1; next < len(p.Demand.Problems) && alike(d, p.Demand.Problems[next]) {
			continue
		}
		what := ""
		if d.Pool == "" {
			what = "pod "
		}
		out = append(out, fmt.Sprintf("%s%s: %s: %s", what, quote.Names(who), d.Reason, d.Message))
		who = nil
	}
	return out
}

// alike are problems of pods that can be said in one line: those of one template.
func alike(a, b demand.Problem) bool {
	return a.Pool == "" && b.Pool == "" && a.Reason == b.Reason && a.Message == b.Message
}

// totals are what every pool that buys would have promised altogether, beside its ceilings.
func totals(c *console, set *manifest.Set, p quote.Plan) {
	var lines []string
	for _, pool := range set.Pools {
		sum, price, n := planner.ReservedIn(pool, set.Claims), money.Dollars{}, 0
		for _, b := range p.Purchases {
			if b.Pool == pool.Name {
				n, price = n+1, price.Add(b.Offer.Price)
				sum.GPUs, sum.Dollars = sum.GPUs+b.Offer.GPUCount, sum.Dollars.Add(b.Reservation.DollarsPerHour)
			}
		}
		if n == 0 {
			continue
		}
		instances := "1 instance"
		if n != 1 {
			instances = strconv.Itoa(n) + " instances"
		}
		gpus := ""
		if most := pool.Spec.Limits.MaxGPUs; most != nil {
			gpus = fmt.Sprintf(" and %d of %d GPUs", sum.GPUs, *most)
		}
		lines = append(lines, fmt.Sprintf("Pool %s: %s at $%s/h. Then $%s/h is reserved of at most $%s/h%s.", pool.Name,
			instances, price, sum.Dollars, pool.Spec.Limits.MaxCostPerHour, gpus))
	}
	if len(lines) > 0 {
		c.say("\n%s\n", strings.Join(lines, "\n"))
	}
}

// idle is what is in the files and leads to nothing now, and why; and what a pod's owner should know.
func idle(p quote.Plan) []string {
	out := p.Idle
	for _, w := range p.Demand.Workloads {
		if w.Replicas == 0 {
			out = append(out, fmt.Sprintf("model %s of pool %s is bought for when the first request arrives, or with minReplicas", w.Key, strings.Join(w.Pools, ", ")))
		}
	}
	for _, n := range p.Demand.Notes {
		out = append(out, fmt.Sprintf("pod %s: %s", n.Pod, n.Message))
	}
	return out
}
