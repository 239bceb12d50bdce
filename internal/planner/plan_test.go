package planner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/offers/rest"
	"github.com/munhq/gpuscale/pkg/provider"
)

// say is a plan in short: "workload goes on claim" for each binding, "pool offer amount" for each purchase, "workload missing reason: message" for each unmet.
func say(p Plan) string {
	var lines []string
	for _, b := range p.Bindings {
		lines = append(lines, fmt.Sprintf("%s goes on %s with %d×%d", b.Placement.Workload, b.Claim, b.Placement.GPUs, b.Placement.GPUFraction))
	}
	for _, b := range p.Purchases {
		lines = append(lines, fmt.Sprintf("%s buys %s for %s at %s", b.Pool, b.Offer.ID, strings.Join(b.Reservation.Workloads, "+"), b.Reservation.DollarsPerHour))
	}
	for _, u := range p.Unmet {
		lines = append(lines, fmt.Sprintf("%s lacks %d: %s: %s", u.Workload, u.Missing, u.Reason, u.Message))
	}
	return strings.Join(lines, "\n")
}

func TestWhatIsBought(t *testing.T) {
	cheap, dear := makeOffer("cheap", "RTX4090", 1, "0.40"), makeOffer("dear", "RTX4090", 1, "0.48")
	pair := makeOffer("pair", "RTX3090", 2, "0.45")
	big := makeOffer("big", "A100-80GB-PCIE", 1, "0.49")
	for name, c := range map[string]struct {
		s    snapshotWrapper
		want string
	}{
		"nothing wanted": {makeSnapshot(makePool("p")).wants(makeWorkload("m").pods(0)).market("p", 0, cheap), ""},
		"the cheapest":   {makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, dear, cheap), "p buys cheap for m at 0.44"},
		"two replicas of a kind of machine": {makeSnapshot(makePool("p")).wants(makeWorkload("m").pods(2)).market("p", 0, kind(cheap), dear),
			"p buys cheap for m at 0.44\np buys cheap for m at 0.44"},
		"two replicas on two machines": {makeSnapshot(makePool("p")).wants(makeWorkload("m").pods(2)).market("p", 0, cheap, dear),
			"p buys cheap for m at 0.44\np buys dear for m at 0.50"},
		"one is there": {makeSnapshot(makePool("p")).wants(makeWorkload("m").pods(2)).has(makeClaim("c", "p", "m")).market("p", 0, cheap), "p buys cheap for m at 0.44"},
		"never above the entry's price": {makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, dear),
			"p buys dear for m at 0.50"},
		"never above the pods' price": {makeSnapshot(makePool("p")).wants(makeWorkload("m").maxPrice("0.42")).market("p", 0, cheap),
			"p buys cheap for m at 0.42"},
		"what is left of the ceiling": {makeSnapshot(makePool("p").maxCost("0.41")).wants(makeWorkload("m")).market("p", 0, cheap),
			"p buys cheap for m at 0.41"},
		"the margin is rounded up": {makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, makeOffer("odd", "RTX4090", 1, "0.333333")),
			"p buys odd for m at 0.366667"},
		"two GPUs": {makeSnapshot(makePool("p")).wants(makeWorkload("m").vram(0, 2)).market("p", 0, cheap, pair), "p buys pair for m at 0.495"},
		"VRAM covered by one GPU": {makeSnapshot(makePool("p")).wants(makeWorkload("m").vram(60, 0)).market("p", 0, cheap, pair, big),
			"p buys big for m at 0.50"},
		"VRAM covered by two": {makeSnapshot(makePool("p")).wants(makeWorkload("m").vram(40, 0)).market("p", 0, cheap, pair, big),
			"p buys pair for m at 0.495"},
		"more GPUs than cover it where that is cheaper": {makeSnapshot(makePool("p")).wants(makeWorkload("m").vram(20, 0)).market("p", 0, dear, makeOffer("four", "RTX4090", 4, "0.10")),
			"p buys four for m at 0.11"},
		"the pool's GPU count": {makeSnapshot(makePool("p").gpuCount(2)).wants(makeWorkload("m")).market("p", 0, cheap, pair),
			"p buys pair for m at 0.495"},
		"the pool's VRAM": {makeSnapshot(makePool("p").minVRAM(80)).wants(makeWorkload("m")).market("p", 0, cheap, big),
			"p buys big for m at 0.50"},
		"the pod's GPU": {makeSnapshot(makePool("p").types("RTX 4090", "A100")).wants(makeWorkload("m").types("A100")).market("p", 0, cheap, big),
			"p buys big for m at 0.50"},
		"the cheaper pool": {makeSnapshot(makePool("a"), makePool("b")).wants(makeWorkload("m")).market("a", 0, dear).market("b", 0, cheap),
			"b buys cheap for m at 0.44"},
		"a tie goes by name": {makeSnapshot(makePool("b"), makePool("a")).wants(makeWorkload("m")).market("b", 0, cheap).market("a", 0, cheap),
			"a buys cheap for m at 0.44"},
		"the pool named": {makeSnapshot(makePool("a"), makePool("b")).wants(makeWorkload("m").pool("a")).market("a", 0, dear).market("b", 0, cheap),
			"a buys dear for m at 0.50"},
		"the pool that lists it": {makeSnapshot(makePool("a"), makePool("b")).wants(makeWorkload("m").listedBy("a")).market("a", 0, dear).market("b", 0, cheap),
			"a buys dear for m at 0.50"},
		"the pool named before the one that lists it": {makeSnapshot(makePool("a"), makePool("b")).wants(makeWorkload("m").listedBy("b").pool("a")).
			market("a", 0, dear).market("b", 0, cheap), "a buys dear for m at 0.50"},
		"a second pool when the first is full": {makeSnapshot(makePool("a").maxNodes(1), makePool("b")).wants(makeWorkload("m").pods(2)).
			market("a", 0, cheap).market("b", 0, dear), "a buys cheap for m at 0.44\nb buys dear for m at 0.50"},
		"on-demand as the fallback": {makeSnapshot(makePool("p").entry("vast.ai", "on-demand", "1.00")).wants(makeWorkload("m")).
			market("p", 0).market("p", 1, onDemand(makeOffer("od", "RTX4090", 1, "0.90"))), "p buys od for m at 0.99"},
		"on-demand only": {makeSnapshot(makePool("p").entry("vast.ai", "on-demand", "1.00")).wants(makeWorkload("m").at("", provider.OnDemand)).
			market("p", 0, cheap).market("p", 1, onDemand(makeOffer("od", "RTX4090", 1, "0.90"))), "p buys od for m at 0.99"},
		"a machine that rests": {makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap, dear).
			rests(rest.OfferKey(provider.VastAI, "machine/cheap"), time.Minute, "", ""), "p buys dear for m at 0.50"},
		"a rest that is over": {makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap).
			rests(rest.WorkloadKey("m", "f"), 0, "", ""), "p buys cheap for m at 0.44"},
		"another form is forgiven": {makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap).
			rests(rest.WorkloadKey("m", "old"), time.Minute, "", ""), "p buys cheap for m at 0.44"},
	} {
		if got := say(Make(c.s.Snapshot)); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

// TestAProviderThatIsDownIsNamedInThePurchase although another's offer is bought.
func TestAProviderThatIsDownIsNamedInThePurchase(t *testing.T) {
	s := makeSnapshot(makePool("p").entry("runpod", "spot", "0.50")).wants(makeWorkload("m")).
		market("p", 0, makeOffer("cheap", "RTX4090", 1, "0.40")).broken("p", 1, "runpod: search: Unavailable: 503")
	plan := Make(s.Snapshot)
	if len(plan.Purchases) != 1 || !strings.HasSuffix(plan.Purchases[0].Reason, "; without runpod spot (pool p): search: Unavailable: 503") {
		t.Errorf("%+v", plan.Purchases)
	}
}

func TestWhyNot(t *testing.T) {
	cheap, dear := makeOffer("cheap", "RTX4090", 1, "0.40"), makeOffer("dear", "RTX4090", 1, "0.62")
	wrong := makeOffer("wrong", "L4", 1, "0.10")
	for name, c := range map[string]struct {
		s     snapshotWrapper
		want  string
		retry time.Duration
	}{
		"over price and wrong": {s: makeSnapshot(makePool("p").types("RTX 4090")).wants(makeWorkload("m")).market("p", 0, dear, dear, wrong),
			want: "m lacks 1: NoOffers: 3 offers: 2 over $0.50, 1 wrong GPU (cheapest of those over the price: $0.62)"},
		"the pods' price": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m").maxPrice("0.20")).market("p", 0, cheap),
			want: "m lacks 1: NoOffers: 1 offer: 1 over $0.20 (cheapest of those over the price: $0.40)"},
		"too few GPUs": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m").vram(24, 2)).market("p", 0, makeOffer("one", "RTX4090", 1, "0.10")),
			want: "m lacks 1: NoOffers: 1 offer: 1 wrong GPU count"},
		"one machine for two": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m"), makeWorkload("n")).market("p", 0, cheap, dear),
			want: "p buys cheap for m at 0.44\nn lacks 1: NoOffers: 2 offers: 1 fit, 1 over $0.50; what fits was taken for other replicas just now"},
		"nothing offered": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0), want: "m lacks 1: NoOffers: no offers"},
		"not searched": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")),
			want: "m lacks 1: NoOffers: no offers; vast.ai spot (pool p): not searched yet"},
		"provider down": {s: makeSnapshot(makePool("p").entry("runpod", "spot", "0.10")).wants(makeWorkload("m")).broken("p", 0, "it does not answer").market("p", 1),
			want: "m lacks 1: NoOffers: no offers; vast.ai spot (pool p): it does not answer"},
		"resting offers": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap, dear).
			rests(rest.OfferKey(provider.VastAI, "machine/cheap"), 32*time.Minute, "", ""), retry: 32 * time.Minute,
			want: "m lacks 1: Resting: 2 offers: 1 over $0.50, 1 resting until 10:32"},
		"resting account": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap).
			rests(rest.AccountKey(provider.VastAI, "acct"), time.Minute, "", ""), retry: time.Minute,
			want: "m lacks 1: Resting: 1 offer: 1 resting until 10:01"},
		"resting workload": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap).
			rests(rest.WorkloadKey("m", "f"), 5*time.Minute, "ModelFailed", "CUDA out of memory"), retry: 5 * time.Minute,
			want: "m lacks 1: Resting: the workload rests until 10:05 after ModelFailed: CUDA out of memory"},
		"resting pool": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap).
			rests(rest.PoolKey("p"), 5*time.Minute, "", "agent cannot be fetched"), retry: 5 * time.Minute,
			want: "m lacks 1: Resting: pool p rests until 10:05 after agent cannot be fetched"},
		"a resting pool beside an empty one": {s: makeSnapshot(makePool("p"), makePool("q")).wants(makeWorkload("m")).market("p", 0, cheap).market("q", 0).
			rests(rest.PoolKey("p"), 5*time.Minute, "", ""), want: "m lacks 1: NoOffers: no offers; pool p rests until 10:05"},
		"too many purchases": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m")).market("p", 0, cheap).
			bought("m", 59*time.Minute, 61*time.Minute, time.Minute, 2*time.Minute, 3*time.Minute, 4*time.Minute, 5*time.Minute), retry: time.Minute,
			want: "m lacks 1: Resting: 6 instances bought within an hour, the most for one workload; next at 10:01"},
		"too many in one plan": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m").pods(2)).market("p", 0, kind(cheap)).
			bought("m", 59*time.Minute, time.Minute, 2*time.Minute, 3*time.Minute, 4*time.Minute), retry: time.Minute,
			want: "p buys cheap for m at 0.44\nm lacks 1: Resting: 6 instances bought within an hour, the most for one workload; next at 10:01"},
		"nodes": {s: makeSnapshot(makePool("p").maxNodes(1).reserved("x", "0.40", 1, "other")).wants(makeWorkload("m")).market("p", 0, cheap),
			want: "m lacks 1: CeilingReached: pool p: maxNodes 1: 1 reserved"},
		"GPUs": {s: makeSnapshot(makePool("p").maxGPUs(2).reserved("x", "0.40", 1, "other")).wants(makeWorkload("m").vram(0, 2)).
			market("p", 0, makeOffer("pair", "RTX4090", 2, "0.40")), want: "m lacks 1: CeilingReached: pool p: maxGPUs 2: 1 reserved, cheapest fit has 2"},
		"dollars": {s: makeSnapshot(makePool("p").reserved("x", "2.70", 1, "other")).wants(makeWorkload("m")).market("p", 0, cheap),
			want: "m lacks 1: CeilingReached: pool p: maxCostPerHour 3.00: 2.70 reserved, cheapest fit 0.40"},
		"money that the status has lost": {s: makeSnapshot(makePool("p").maxNodes(1)).wants(makeWorkload("m")).market("p", 0, cheap).
			has(makeClaim("x", "p", "other").but(func(c *v1alpha1.GPUNodeClaim) { c.Status.Attempt = &v1alpha1.Attempt{} })),
			want: "m lacks 1: CeilingReached: pool p: maxNodes 1: 1 reserved"},
		"a lowered ceiling": {s: makeSnapshot(makePool("p").maxCost("0").reserved("x", "0.40", 1, "m")).wants(makeWorkload("m").pods(2)).market("p", 0, cheap),
			want: "m lacks 1: CeilingReached: pool p: maxCostPerHour 0.00: 0.40 reserved, cheapest fit 0.40"},
		"ceilings go by priority": {s: makeSnapshot(makePool("p").maxNodes(1)).wants(makeWorkload("a"), makeWorkload("b").priority(1)).market("p", 0, cheap),
			want: "p buys cheap for b at 0.44\na lacks 1: CeilingReached: pool p: maxNodes 1: 1 reserved"},
		"then by age": {s: makeSnapshot(makePool("p").maxNodes(1)).wants(makeWorkload("a"), makeWorkload("b").since(now.Add(-time.Hour))).market("p", 0, cheap),
			want: "p buys cheap for b at 0.44\na lacks 1: CeilingReached: pool p: maxNodes 1: 1 reserved"},
		"then by name": {s: makeSnapshot(makePool("p").maxNodes(1)).wants(makeWorkload("b"), makeWorkload("a")).market("p", 0, cheap),
			want: "p buys cheap for a at 0.44\nb lacks 1: CeilingReached: pool p: maxNodes 1: 1 reserved"},
		"no pools":    {s: makeSnapshot().wants(makeWorkload("m")), want: "m lacks 1: NoPool: there is no GPUNodePool"},
		"no such one": {s: makeSnapshot(makePool("p")).wants(makeWorkload("m").pool("x")), want: "m lacks 1: NoPool: there is no GPUNodePool named x"},
	} {
		plan := Make(c.s.Snapshot)
		if got := say(plan); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
			continue
		}
		want := time.Time{}
		if c.retry != 0 {
			want = now.Add(c.retry)
		}
		if got := plan.Unmet[0].RetryAt; !got.Equal(want) {
			t.Errorf("%s: retry at %s, want %s", name, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		pool poolWrapper
		w    workloadWrapper
		want string
	}{
		"admitted":      {makePool("p").namespaces("team"), makeWorkload("m"), ""},
		"not a pod's":   {makePool("p").namespaces("ml"), makeWorkload("m").traffic(1), ""},
		"namespace":     {makePool("p").namespaces("ml", "web"), makeWorkload("m"), "does not admit namespace team (spec.namespaces has ml, web)"},
		"capacity type": {makePool("p"), makeWorkload("m").at("", provider.OnDemand), "has no provider on-demand (it has vast.ai spot)"},
		"provider":      {makePool("p").entry("aws", "on-demand", "1"), makeWorkload("m").at(provider.AWS, provider.Spot), "has no provider aws spot (it has vast.ai spot, aws on-demand)"},
		"GPU count":     {makePool("p").gpuCount(1), makeWorkload("m").vram(0, 2), "buys instances with 1 GPUs (requirements.gpuCount); one replica spans 2"},
		"GPU type":      {makePool("p").types("RTX 4090", "A100"), makeWorkload("m").types("A10"), "has no GPU of A10 (requirements.gpuTypes has RTX 4090, A100)"},
		"GPU subtype":   {makePool("p").types("A100"), makeWorkload("m").types("A100-80GB"), ""},
		"leaving":       {makePool("p").but(func(p *v1alpha1.GPUNodePool) { p.DeletionTimestamp = &metav1.Time{Time: now} }), makeWorkload("m"), "is being deleted"},
	} {
		if got := Refusal(c.pool.GPUNodePool, c.w.Workload); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	s := makeSnapshot(makePool("b").namespaces("ml"), makePool("a").gpuCount(1)).wants(makeWorkload("m").vram(0, 2))
	want := "m lacks 1: NoPool: pool a buys instances with 1 GPUs (requirements.gpuCount); one replica spans 2; pool b does not admit namespace team (spec.namespaces has ml)"
	if got := say(Make(s.Snapshot)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestNothingIsBoughtTwice(t *testing.T) {
	for name, c := range map[string]struct {
		pool    poolWrapper
		claim   claimWrapper
		covered bool
	}{
		"pending":               {makePool("p"), makeClaim("c", "p", "m").phase(v1alpha1.PhasePending), true},
		"no phase yet":          {makePool("p"), makeClaim("c", "p", "m").phase(""), true},
		"booting":               {makePool("p"), makeClaim("c", "p", "m").phase(v1alpha1.PhaseBootstrapping), true},
		"of a pool that left":   {makePool("p"), makeClaim("c", "gone", "m"), true},
		"another's":             {makePool("p"), makeClaim("c", "p", "other"), false},
		"draining":              {makePool("p"), makeClaim("c", "p", "m").phase(v1alpha1.PhaseDraining), false},
		"terminated":            {makePool("p"), makeClaim("c", "p", "m").phase(v1alpha1.PhaseTerminated), false},
		"being deleted":         {makePool("p"), makeClaim("c", "p", "m").but(func(c *v1alpha1.GPUNodeClaim) { c.DeletionTimestamp = &metav1.Time{Time: now} }), false},
		"failed":                {makePool("p"), makeClaim("c", "p", "m").but(func(c *v1alpha1.GPUNodeClaim) { c.Status.Failure = &v1alpha1.Failure{} }), false},
		"asked to drain":        {makePool("p"), makeClaim("c", "p", "m").but(func(c *v1alpha1.GPUNodeClaim) { c.Annotations = map[string]string{v1alpha1.AnnotationDrain: "x"} }), false},
		"reserved, not created": {makePool("p").reserved("r", "0.4", 1, "m"), makeClaim("c", "p", "other"), true},
		"reserved and failing": {makePool("p").reserved("c", "0.4", 1, "m"),
			makeClaim("c", "p", "m").but(func(c *v1alpha1.GPUNodeClaim) { c.Status.Failure = &v1alpha1.Failure{} }), false},
	} {
		s := makeSnapshot(c.pool).has(c.claim).wants(makeWorkload("m")).market("p", 0, makeOffer("o", "RTX4090", 1, "0.40"))
		if got := Make(s.Snapshot); (len(got.Purchases) == 0) != c.covered || len(got.Unmet) != 0 {
			t.Errorf("%s: %s", name, say(got))
		}
	}
}

func TestTheLicence(t *testing.T) {
	pool := makePool("p").types("RTX 4090", "RTX 3090", "A100").minVRAM(20).args("--port", "9", "--seed", "1").
		entry("runpod", "spot", "0.70").entry("vast.ai", "on-demand", "0.80")
	pool.Spec.Bootstrap.Image = "img"
	w := makeWorkload("Org/Model").types("RTX 4090", "A100-40GB").vram(24, 0).engine("--dtype", "half").at("", provider.Spot).maxPrice("0.60")
	s := makeSnapshot(pool).wants(w).market("p", 0, makeOffer("o", "RTX4090", 1, "0.40"), makeOffer("x", "L4", 1, "0.10"), makeOffer("y", "RTX4090", 1, "0.41")).
		market("p", 1, makeOffer("z", "RTX4090", 1, "0.01"))
	got := Make(s.Snapshot).Purchases[0]
	if got.Pool != "p" || got.ClaimName != ClaimName("Org/Model", 0) || got.Offer.ID != "o" {
		t.Errorf("%+v", got)
	}
	spec := got.Spec
	if len(spec.Providers) != 2 || spec.Providers[1].Name != "runpod" || spec.MaxPrice.String() != "0.44" || spec.Bootstrap.Image != "img" {
		t.Errorf("%+v", spec)
	}
	if r := spec.Requirements; r.GPUCount != 1 || r.MinVRAM != 24 || strings.Join(r.GPUTypes, ",") != "A100-40GB-PCIE,A100-40GB-SXM,RTX4090" {
		t.Errorf("%+v", r)
	}
	place := spec.Placements[0]
	if place.Workload != "Org/Model" || place.Source != "org/Org/Model" || strings.Join(place.Args, " ") != "--seed 1 --dtype half" ||
		place.GPUs != 1 || place.GPUFraction != 1000 || place.Form != "f" || !place.Since.Time.Equal(now) {
		t.Errorf("%+v", place)
	}
	if r := got.Reservation; r.Claim != got.ClaimName || r.DollarsPerHour != spec.MaxPrice || r.GPUs != 1 || r.Workloads[0] != "Org/Model" {
		t.Errorf("%+v", r)
	}
	want := "cheapest of 2 fitting offers (4 seen: 1 at another provider, 1 wrong GPU): RTX4090 ×1 at $0.40/h from vast.ai in Sweden, spot"
	if got.Reason != want {
		t.Errorf("%s\nwant\n%s", got.Reason, want)
	}
	spec.Providers[0].Name, spec.Requirements.GPUTypes[0] = "changed", "changed"
	if pool.Spec.Providers[0].Name != "vast.ai" || pool.Spec.Requirements.GPUTypes[0] != "RTX 4090" {
		t.Error("the licence shares memory with the pool")
	}
}

func TestReasonSaysWhenTheCheapestDidNotFit(t *testing.T) {
	s := makeSnapshot(makePool("a").maxNodes(0), makePool("b")).wants(makeWorkload("m")).
		market("a", 0, makeOffer("o", "RTX4090", 1, "0.40")).market("b", 0, makeOffer("d", "RTX4090", 1, "0.45"))
	want := "cheapest within the ceilings of 2 fitting offers: RTX4090 ×1 at $0.45/h from vast.ai in Sweden, spot"
	if got := Make(s.Snapshot).Purchases[0].Reason; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestClaimNames(t *testing.T) {
	s := makeSnapshot(makePool("p").reserved(ClaimName("m", 1), "0.01", 1, "m")).wants(makeWorkload("m").pods(4)).
		has(makeClaim(ClaimName("m", 0), "p", "m").phase(v1alpha1.PhaseDraining), makeClaim(ClaimName("m", 3), "p", "m")).
		market("p", 0, kind(makeOffer("o", "RTX4090", 1, "0.10")))
	var got []string
	for _, b := range Make(s.Snapshot).Purchases {
		got = append(got, b.ClaimName)
	}
	if want := ClaimName("m", 2) + "," + ClaimName("m", 4); strings.Join(got, ",") != want {
		t.Errorf("%v, want %s", got, want)
	}
	for key, want := range map[string]string{
		"Qwen/Qwen2.5-7B-Instruct": "qwen-qwen2-5-7b-instruct-",
		"/// 模型":                   "model-",
		strings.Repeat("a/", 100):  strings.Repeat("a-", 19) + "a-",
	} {
		if name := ClaimName(key, 9999); !strings.HasPrefix(name, want) || len(name) > 63 {
			t.Errorf("%s: %s", key, name)
		}
	}
	if ClaimName("a.b", 0) == ClaimName("a-b", 0) {
		t.Error("two keys share a name")
	}
}
