package killtable_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// The providers: one that keeps to its declared lag, one that hides instances for longer, each without and with an
// idempotency key. The last two give an unclear create up before its instance is shown.
var (
	prompt    = habits{Name: "no key, lag within the wait", Lag: 100 * time.Millisecond, ListLag: 200 * time.Millisecond, CreateTime: time.Second}
	promptKey = prompt.with("key, lag within the wait", func(h *habits) { h.Key = true })
	hiding    = habits{Name: "no key, lag above the wait", Lag: 1800 * time.Millisecond, ListLag: 900 * time.Millisecond, CreateTime: 300 * time.Millisecond}
	hidingKey = hiding.with("key, lag above the wait", func(h *habits) { h.Key = true })
)

func (h habits) with(name string, edit func(*habits)) habits {
	h.Name = name
	edit(&h)
	return h
}

func scenarios() []scenario {
	two := []market.Offer{offer("1001", 0.10), offer("1002", 0.15)}
	bad := []market.Offer{offer("1001", 0.10), offer("1002", 0.15)}
	bad[0].Broken = market.WrongGPU
	return []scenario{
		{name: "served", offers: two, most: 1},
		{name: "offer gone", offers: two, most: 1, refuse: true},
		{name: "create failed", offers: two, most: 1, spoil: func(m *market.Market) { m.FailNext(market.OpCreate, market.ServerError) }},
		{name: "answer lost", offers: two, most: 1, spoil: func(m *market.Market) { m.LoseNextAnswer(market.OpCreate) }},
		{name: "bad machine", offers: bad, most: 2},
		{name: "killed after the reservation", offers: two, most: 1, first: "kubernetes PUT gpunodepools/status: 1 reserved, after #1"},
	}
}

// benchCount is how many lives run at once. A life mostly waits for lags, so that there are more than processors.
const benchCount = 4

// The environment may name a part of the table, by what is in a run's name, or ask for the whole product.
const (
	onlyEnv  = "GPUSCALE_KILLTABLE_ONLY"
	wholeEnv = "GPUSCALE_KILLTABLE_WHOLE"
)

// TestKillTable ends the controllers once at every point that a dry run of each scenario passes, under the habits that
// crossed gives.
func TestKillTable(t *testing.T) {
	var benches []*bench
	for range benchCount {
		benches = append(benches, newBench(t))
	}
	begin := time.Now()
	dry := inParallel(t, benches, dryRuns())
	for _, o := range dry {
		if o.err != nil {
			t.Fatalf("%s with %s, nobody killed: %v", o.run.scenario.name, o.run.habits.Name, o.err)
		}
	}
	table := crossed(dry, os.Getenv(wholeEnv) != "")
	t.Logf("%d of the %d runs of the whole product", len(table), len(crossed(dry, true)))
	if only := os.Getenv(onlyEnv); only != "" {
		table = matching(table, only)
	}
	report(t, inParallel(t, benches, table), time.Since(begin))
}

// crossed is the table: which points of which scenario under which habits. A point belongs to the first scenario that
// passes it; calls that settle what is rented, by asking or ending, are points of each scenario anew.
//
//   - Points around the create: all four habits.
//   - Every other point: the two extremes, a key with the lag within the wait, and no key with the lag above it. Where no
//     create is under way the other two differ from these in nothing that the code could see.
//
// Whole, it is every point of every scenario under all four.
func crossed(dry []outcome, whole bool) []run {
	var table []run
	seen := map[string]bool{}
	for _, o := range dry {
		if o.run.habits != prompt {
			continue
		}
		own := map[string]bool{}
		for _, p := range o.points {
			name, nth, _ := strings.Cut(p, " #")
			another := o.run.scenario.name != "served" && seen[name+" #1"] && (nth != "1" || !settles(name))
			if own[p] || cosmetic(name, nth) || !whole && (another || seen[p] && !settles(name)) {
				continue
			}
			own[p] = true
			for _, h := range []habits{promptKey, hiding, prompt, hidingKey} {
				if whole || buys(p) || h == promptKey || h == hiding {
					table = append(table, run{o.run.scenario, h, p})
				}
			}
		}
		for p := range own {
			seen[p] = true
		}
	}
	return table
}

// TestTheTableHasEveryPoint: the rule leaves out runs, never points, and no habits at a create.
func TestTheTableHasEveryPoint(t *testing.T) {
	all := scenarios()
	dry := []outcome{
		{run: run{scenario: all[0], habits: prompt}, points: []string{"provider create, sent #1", "provider list, before #1", "agent models, after #1", "provider list, before #2"}},
		{run: run{scenario: all[0], habits: hiding}, points: []string{"provider get, sent #1"}},
		{run: run{scenario: all[1], habits: prompt}, points: []string{"provider create, sent #1", "provider list, before #1", "agent models, after #1", "ledger update refused, after #1"}},
	}
	count := func(whole bool) map[string]int {
		n := map[string]int{}
		for _, r := range crossed(dry, whole) {
			n[r.scenario.name+"/"+r.killAt]++
		}
		return n
	}
	want := map[string]int{"served/provider create, sent #1": 4, "served/provider list, before #1": 2, "served/agent models, after #1": 2,
		"offer gone/provider list, before #1": 2, "offer gone/ledger update refused, after #1": 2}
	if got := count(false); !maps.Equal(got, want) {
		t.Errorf("by the rule %v, want %v", got, want)
	}
	want = map[string]int{"served/provider create, sent #1": 4, "served/provider list, before #1": 4, "served/agent models, after #1": 4,
		"offer gone/provider create, sent #1": 4, "offer gone/provider list, before #1": 4, "offer gone/agent models, after #1": 4,
		"offer gone/ledger update refused, after #1": 4}
	if got := count(true); !maps.Equal(got, want) {
		t.Errorf("the whole %v, want %v", got, want)
	}
}

// settles reports a call by which the controllers learn what is rented, or end it.
func settles(name string) bool {
	return strings.HasPrefix(name, "provider list") || strings.HasPrefix(name, "provider get") || strings.HasPrefix(name, "provider destroy")
}

func dryRuns() []run {
	var out []run
	for _, s := range scenarios() {
		out = append(out, run{scenario: s, habits: prompt})
	}
	for _, h := range []habits{promptKey, hiding, hidingKey} { // which buy once, too, when nobody is killed
		out = append(out, run{scenario: scenarios()[0], habits: h})
	}
	return out
}

// cosmetic points change nothing that a crash could harm in another way than their neighbours do: reads after the first
// of their kind, what pods are told, and what is written a third time.
func cosmetic(name, nth string) bool {
	read := strings.HasPrefix(name, "agent status") || strings.HasPrefix(name, "provider ") &&
		!strings.HasPrefix(name, "provider create") && !strings.HasPrefix(name, "provider destroy")
	return read && nth != "1" || nth != "1" && nth != "2" || strings.Contains(name, "pods/status") && (nth != "1" || strings.HasSuffix(name, "before"))
}

// buys reports a point around the create, where the provider's habits make a difference.
func buys(point string) bool {
	for _, part := range []string{"ledger intend", "provider create", "ledger update created", "attempt attempts", "attempt instanceID", "attempt "} {
		if strings.Contains(point, part) {
			return true
		}
	}
	return false
}

func matching(table []run, only string) []run {
	var out []run
	for _, r := range table {
		if strings.Contains(r.scenario.name+"/"+r.habits.Name+"/"+r.killAt, only) {
			out = append(out, r)
		}
	}
	return out
}

// inParallel leads the lives on the benches, each bench one at a time, and returns the outcomes in order.
func inParallel(t *testing.T, benches []*bench, runs []run) []outcome {
	out := make([]outcome, len(runs))
	jobs := make(chan int)
	var wg sync.WaitGroup
	for _, b := range benches {
		wg.Go(func() {
			for i := range jobs {
				out[i] = b.live(t.Context(), runs[i])
				t.Logf("%s/%s/%s: reached %t, %d rented, %s", runs[i].scenario.name, runs[i].habits.Name, runs[i].killAt,
					out[i].reached, out[i].rented, out[i].took.Round(time.Millisecond))
				if out[i].err != nil {
					if err := b.clear(t.Context()); err != nil {
						t.Error("a failed life was not cleared away:", err)
					}
				}
			}
		})
	}
	for i := range runs {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	return out
}

func report(t *testing.T, outcomes []outcome, took time.Duration) {
	missed := 0
	for _, o := range outcomes {
		mark := "killed"
		if !o.reached {
			missed++
			mark = "not reached"
		}
		t.Run(fmt.Sprintf("%s/%s/%s", o.run.scenario.name, o.run.habits.Name, o.run.killAt), func(t *testing.T) {
			t.Logf("%s, %d rented, %s", mark, o.rented, o.took.Round(time.Millisecond))
			if o.err != nil {
				t.Error(o.err)
			}
		})
	}
	t.Logf("%d points, %d of them not reached, %s", len(outcomes), missed, took.Round(time.Second))
	// How often a write is repeated varies a little from run to run; a table that is hardly reached proves nothing.
	if missed*4 > len(outcomes) {
		t.Errorf("%d of %d points were not reached", missed, len(outcomes))
	}
}
