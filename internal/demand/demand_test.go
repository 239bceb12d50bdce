package demand

import (
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

func serving(name, model string) podWrapper {
	return makePod(name).note("priority", "0").command("vllm", "serve", model)
}

func TestAnnotationsThatDoNotParse(t *testing.T) {
	for name, c := range map[string]struct{ annotation, value, want string }{
		"VRAM with a unit":     {"gpu-vram", "24Gi", `gpuscale.io/gpu-vram: "24Gi" must be a whole number of GB without a unit; write "24"`},
		"VRAM in words":        {"gpu-vram", "lots", `gpuscale.io/gpu-vram: "lots" must be the VRAM of one replica`},
		"no VRAM":              {"gpu-vram", "0", "above 0"},
		"unknown GPU":          {"gpu-type", "RTX 4090, RTX 9999", `names the unknown GPU "RTX 9999"; use names such as`},
		"empty GPU":            {"gpu-type", "A100,", "separated by commas"},
		"price with a sign":    {"max-price", "$0.50", `must be dollars per hour for the whole instance, above 0 and with at most six decimals, such as "0.50"`},
		"no price":             {"max-price", "0", "above 0"},
		"unknown provider":     {"provider", "vast", `"vast" is not a provider; use one of aws, azure, gcp, runpod, tensordock, vast.ai, verda`},
		"priority in words":    {"priority", "high", `must be a whole number (higher is served first when ceilings bind), or "spot" or "on-demand"`},
		"pool name":            {"pool", "My Pool", "must be the name of a GPUNodePool"},
		"model with a space":   {"model", "a b", "must be what the engine loads"},
		"model that is a flag": {"model", "--x", "must be what the engine loads"},
		"served name":          {"served-name", "a b", "must be the model name that requests use"},
		"typo":                 {"gpu-vran", "24", "gpuscale.io/gpu-vran is not an annotation of gpuscale; known are gpuscale.io/{gpu-type,gpu-vram,max-price,model,pool,priority,provider,served-name}"},
	} {
		res := Workloads(Input{Pods: unwrap(serving("a", "m").note(c.annotation, c.value))})
		if len(res.Workloads) != 0 || len(res.Problems) != 1 {
			t.Errorf("%s: %+v", name, res)
			continue
		}
		p := res.Problems[0]
		if p.Reason != v1alpha1.PodReasonInvalidAnnotation || p.Pod.Name != "a" || !strings.Contains(p.Message, c.want) {
			t.Errorf("%s: %s: %s; want %s", name, p.Reason, p.Message, c.want)
		}
	}
	res := Workloads(Input{Pods: unwrap(serving("a", "m").note("gpu-vram", "x").note("pool", "X"))})
	if len(res.Problems) != 1 || !strings.Contains(res.Problems[0].Message, "; gpuscale.io/pool") {
		t.Errorf("both mistakes in one message: %+v", res.Problems)
	}
}

func TestAnnotationsThatParse(t *testing.T) {
	pod := serving("a", "m").note("gpu-vram", " 24 ").note("gpu-type", "RTX 4090,A100").note("max-price", "0.5").
		note("provider", "vast.ai").note("priority", "on-demand").note("pool", "p")
	w := Workloads(Input{Pods: unwrap(pod)}).Workloads[0]
	if w.VRAMGB != 24 || strings.Join(w.GPUTypes, "|") != "A100|RTX 4090" || w.MaxPrice.String() != "0.50" ||
		w.Provider != "vast.ai" || w.CapacityType != "on-demand" || w.Pool != "p" || w.Priority != 0 {
		t.Errorf("%+v", w)
	}
}

func TestReplicasAreTheMaximum(t *testing.T) {
	three := int32(3)
	pods := unwrap(serving("a", "m"), serving("b", "m").in("other").age(time.Minute))
	for name, c := range map[string]struct {
		in       Input
		want     int
		min      int
		active   bool
		noDemand bool
	}{
		"pods":              {in: Input{Pods: pods}, want: 2},
		"wish above pods":   {in: Input{Pods: pods, GatewayWish: map[string]int{"m": 5}}, want: 5},
		"wish below pods":   {in: Input{Pods: pods, GatewayWish: map[string]int{"m": 1}}, want: 2},
		"wish for a pool's": {in: Input{Pools: []*v1alpha1.GPUNodePool{makePool("p", v1alpha1.PoolModel{Name: "m"})}, GatewayWish: map[string]int{"m": 1}}, want: 1},
		"wish is bounded": {in: Input{Pools: []*v1alpha1.GPUNodePool{makePool("p", v1alpha1.PoolModel{Name: "m", MaxReplicas: &three})},
			GatewayWish: map[string]int{"m": 9}}, want: 3},
		"wish of nobody": {in: Input{GatewayWish: map[string]int{"m": 9}}, noDemand: true},
		"known at zero":  {in: Input{Pools: []*v1alpha1.GPUNodePool{makePool("p", v1alpha1.PoolModel{Name: "m"})}}, want: 0},
		"always active":  {in: Input{Pools: []*v1alpha1.GPUNodePool{makePool("p", v1alpha1.PoolModel{Name: "m", AlwaysActive: true})}}, want: 1, min: 1, active: true},
		"minimum beside pods": {in: Input{Pods: pods, Pools: []*v1alpha1.GPUNodePool{makePool("p", v1alpha1.PoolModel{Name: "m", MinReplicas: 3}),
			makePool("q", v1alpha1.PoolModel{Name: "m", MinReplicas: 2})}}, want: 3, min: 3},
	} {
		res := Workloads(c.in)
		if c.noDemand {
			if len(res.Workloads) != 0 {
				t.Errorf("%s: %+v", name, res.Workloads)
			}
			continue
		}
		if len(res.Workloads) != 1 || len(res.Problems) != 0 {
			t.Errorf("%s: %+v", name, res)
			continue
		}
		if w := res.Workloads[0]; w.Replicas != c.want || w.MinReplicas != c.min || w.AlwaysActive != c.active {
			t.Errorf("%s: replicas %d min %d active %v", name, w.Replicas, w.MinReplicas, w.AlwaysActive)
		}
	}
	w := Workloads(Input{Pods: pods}).Workloads[0]
	if len(w.Pods) != 2 || w.Pods[0].Name != "a" || !w.Since.Equal(epoch) || !w.UnmetSince(1).Equal(epoch.Add(time.Minute)) ||
		!w.UnmetSince(2).IsZero() || strings.Join(w.Namespaces, ",") != "other,team" {
		t.Errorf("%+v", w)
	}
}

func TestTheStrictestPriceAndTheHighestPriorityHold(t *testing.T) {
	res := Workloads(Input{Pods: unwrap(serving("a", "m").note("max-price", "2"), serving("b", "m").note("max-price", "1").note("priority", "7").age(1),
		serving("c", "m").note("max-price", "3").age(2), serving("d", "m").age(3))})
	if w := res.Workloads[0]; len(w.Pods) != 4 || w.MaxPrice.String() != "1.00" || w.Priority != 7 {
		t.Errorf("%+v", res)
	}
	if w := Workloads(Input{Pods: unwrap(serving("a", "m").note("priority", "-3"))}).Workloads[0]; w.Priority != -3 {
		t.Errorf("%+v", w)
	}
}

func TestConflictsGoToTheOlder(t *testing.T) {
	older := serving("old", "m").note("served-name", "n")
	for name, c := range map[string]struct {
		younger podWrapper
		want    string
	}{
		"source":  {serving("new", "other").note("served-name", "n"), "pod team/old, which is older, serves n from m; this one loads other"},
		"args":    {serving("new", "m").note("served-name", "n").args("--seed", "1"), "with the engine arguments []; this one has [--seed 1]"},
		"GPUs":    {serving("new", "m").note("served-name", "n").gpus("2"), "asks for n with GPU count 1; this one with 2"},
		"nothing": {serving("new", "m").note("served-name", "n"), ""},
		"tighter": {serving("new", "m").note("served-name", "n").note("gpu-vram", "24").note("max-price", "1"), ""},
	} {
		for _, order := range [][]podWrapper{{older, c.younger.age(time.Second)}, {c.younger.age(time.Second), older}} {
			res := Workloads(Input{Pods: unwrap(order...)})
			if len(res.Workloads) != 1 || res.Workloads[0].Source != "m" {
				t.Fatalf("%s: %+v", name, res)
			}
			if c.want == "" {
				if len(res.Problems) != 0 || res.Workloads[0].Replicas != 2 {
					t.Errorf("%s: %+v", name, res)
				}
				continue
			}
			if len(res.Problems) != 1 || res.Problems[0].Reason != v1alpha1.PodReasonModelConflict || res.Problems[0].Pod.Name != "new" ||
				!strings.Contains(res.Problems[0].Message, c.want) || res.Workloads[0].Replicas != 1 {
				t.Errorf("%s: %+v", name, res)
			}
		}
	}
}

func TestPoolModels(t *testing.T) {
	pool := makePool("p", v1alpha1.PoolModel{Name: "n", Source: "org/m", VRAM: 20, Args: []string{"--seed", "1", "--port", "9"}})
	plain := func() podWrapper { return makePod("a").age(time.Hour).command("sleep", "1") }
	for name, c := range map[string]struct {
		pod     podWrapper
		problem string
		vram    int
	}{
		"named by served-name": {pod: plain().note("served-name", "n"), vram: 20},
		"named by model":       {pod: plain().note("model", "n"), vram: 20},
		"same in full":         {pod: plain().note("priority", "0").command("vllm", "serve", "org/m", "--served-model-name", "n", "--seed", "1"), vram: 20},
		"its own VRAM":         {pod: plain().note("served-name", "n").note("gpu-vram", "40"), vram: 40},
		"other arguments": {pod: plain().note("priority", "0").command("vllm", "serve", "org/m", "--served-model-name", "n", "--seed", "2"), vram: 20,
			problem: "pool p, which is older, serves n with the engine arguments [--seed 1]; this one has [--seed 2]"},
		"other source": {pod: plain().note("priority", "0").command("vllm", "serve", "x", "--served-model-name", "n"), vram: 20,
			problem: "pool p, which is older, serves n from org/m; this one loads x"},
	} {
		res := Workloads(Input{Pods: unwrap(c.pod), Pools: []*v1alpha1.GPUNodePool{pool}})
		if len(res.Workloads) != 1 {
			t.Errorf("%s: %+v", name, res)
			continue
		}
		w := res.Workloads[0]
		if w.Source != "org/m" || strings.Join(w.Args, " ") != "--seed 1" || w.VRAMGB != c.vram || len(w.Pools) != 1 {
			t.Errorf("%s: %+v", name, w)
		}
		if c.problem == "" && (len(res.Problems) != 0 || w.Replicas != 1) ||
			c.problem != "" && (len(res.Problems) != 1 || !strings.Contains(res.Problems[0].Message, c.problem) || w.Replicas != 0) {
			t.Errorf("%s: %+v", name, res.Problems)
		}
	}
	older := makePod("a").age(-time.Hour).note("priority", "0").command("vllm", "serve", "x", "--served-model-name", "n")
	res := Workloads(Input{Pods: unwrap(older), Pools: []*v1alpha1.GPUNodePool{pool}})
	if len(res.Problems) != 1 || res.Problems[0].Pool != "p" || res.Workloads[0].Source != "x" || len(res.Workloads[0].Pools) != 0 {
		t.Errorf("a pool can lose: %+v", res)
	}
	leaving := pool.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: epoch}
	if res := Workloads(Input{Pools: []*v1alpha1.GPUNodePool{leaving}}); len(res.Workloads) != 0 {
		t.Errorf("a pool that is being deleted asks for nothing: %+v", res)
	}
}

func TestOnlyTheNewestTemplateCounts(t *testing.T) {
	pods := func() []podWrapper {
		return []podWrapper{
			serving("d-1-a", "m1").ownedBy("d-1", "1").age(2 * time.Minute),
			serving("d-2-a", "m2").ownedBy("d-2", "2").age(time.Minute),
			serving("e-1-a", "m3").ownedBy("e-1", "1"),
			serving("alone", "m4"),
		}
	}
	for name, c := range map[string]struct {
		sets []*appsv1.ReplicaSet
		want string
	}{
		"by revision":         {[]*appsv1.ReplicaSet{replicaSet("d-1", "d", "9"), replicaSet("d-2", "d", "10")}, "m2,m3,m4"},
		"after a rollback":    {[]*appsv1.ReplicaSet{replicaSet("d-1", "d", "11"), replicaSet("d-2", "d", "10")}, "m1,m3,m4"},
		"without the objects": {nil, "m1,m3,m4"},
	} {
		res := Workloads(Input{Pods: unwrap(pods()...), ReplicaSets: c.sets})
		var keys []string
		for _, w := range res.Workloads {
			keys = append(keys, w.Key)
		}
		if got := strings.Join(keys, ","); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if len(res.Notes) != 1 || res.Notes[0].Reason != NoteSuperseded || len(res.Problems) != 0 {
			t.Errorf("%s: %+v", name, res.Notes)
		}
	}
}

func TestANamespaceThatMaySpendNothingStopsNobody(t *testing.T) {
	closed := makePool("p", v1alpha1.PoolModel{Name: "m", MinReplicas: 1})
	closed.Spec.Namespaces = []string{"team"}
	intruder := serving("b", "m").in("elsewhere").age(time.Minute)
	for name, pools := range map[string][]*v1alpha1.GPUNodePool{"listed": {closed, makePool("open")}, "not listed": {func() *v1alpha1.GPUNodePool {
		p := closed.DeepCopy()
		p.Spec.Models = nil
		return p
	}()}} {
		res := Workloads(Input{Pods: unwrap(serving("a", "m"), intruder), Pools: pools})
		if len(res.Problems) != 1 || res.Problems[0].Reason != v1alpha1.PodReasonNoPool || res.Problems[0].Pod.Name != "b" ||
			!strings.Contains(res.Problems[0].Message, "admits namespace elsewhere") || strings.Join(res.Workloads[0].Namespaces, ",") != "team" {
			t.Errorf("%s: %+v", name, res)
		}
	}
	// Alone it is the planner that says which pools do not admit it.
	if res := Workloads(Input{Pods: unwrap(intruder), Pools: []*v1alpha1.GPUNodePool{makePool("q")}}); len(res.Problems) != 0 {
		t.Errorf("%+v", res)
	}
	if res := Workloads(Input{Pods: unwrap(serving("a", "m"), intruder), Pools: []*v1alpha1.GPUNodePool{makePool("q")}}); len(res.Problems) != 0 {
		t.Errorf("an open pool: %+v", res)
	}
}

func TestPoolModelsThatCannotBe(t *testing.T) {
	res := Workloads(Input{Pools: []*v1alpha1.GPUNodePool{makePool("p", v1alpha1.PoolModel{Name: "m", Source: "--x"}, v1alpha1.PoolModel{Name: "a b"},
		v1alpha1.PoolModel{Name: "ok"})}})
	if len(res.Problems) != 2 || res.Problems[0].Pool != "p" || len(res.Workloads) != 1 || !strings.Contains(res.Problems[0].Message, "spec.models[") {
		t.Errorf("%+v", res)
	}
}

func TestNotes(t *testing.T) {
	pool := makePool("p")
	pool.Spec.Bootstrap.Image = "mirror/vllm:1"
	res := Workloads(Input{Pods: unwrap(serving("a", "m").args("--served-model-name", "x", "y")), Pools: []*v1alpha1.GPUNodePool{pool}})
	if len(res.Notes) != 2 || res.Notes[0].Reason != NoteAliasesIgnored || res.Notes[1].Reason != NoteImageIgnored ||
		res.Notes[1].Message != "the pod's image vllm/vllm-openai:latest is not run: gpuscale serves its model with the pool's image mirror/vllm:1" {
		t.Errorf("%+v", res.Notes)
	}
	res = Workloads(Input{Pods: unwrap(serving("a", "m").image("mirror/vllm:1")), Pools: []*v1alpha1.GPUNodePool{pool}})
	if len(res.Notes) != 0 {
		t.Errorf("same image: %+v", res.Notes)
	}
}

func TestFormChangesWithPodAndPool(t *testing.T) {
	form := func(pod podWrapper, f func(*v1alpha1.GPUNodePool)) string {
		pool := makePool("p")
		f(pool)
		return Workloads(Input{Pods: unwrap(pod), Pools: []*v1alpha1.GPUNodePool{pool}}).Workloads[0].Form
	}
	same := func(*v1alpha1.GPUNodePool) {}
	base := form(serving("a", "m"), same)
	if form(serving("b", "m").age(time.Hour), same) != base {
		t.Error("another pod of the same template is no change")
	}
	if form(serving("a", "m"), func(p *v1alpha1.GPUNodePool) { p.Spec.Scaling.MaxNodes = 9 }) != base {
		t.Error("a ceiling cures no engine")
	}
	for name, f := range map[string]string{
		"args":  form(serving("a", "m").args("--seed", "1"), same),
		"VRAM":  form(serving("a", "m").note("gpu-vram", "48"), same),
		"image": form(serving("a", "m"), func(p *v1alpha1.GPUNodePool) { p.Spec.Bootstrap.Image = "x" }),
		"token": form(serving("a", "m"), func(p *v1alpha1.GPUNodePool) { p.Spec.Bootstrap.HFTokenSecret = &v1alpha1.SecretReference{Name: "t"} }),
		"floor": form(serving("a", "m"), func(p *v1alpha1.GPUNodePool) { p.Spec.Requirements.MinVRAM = 48 }),
	} {
		if f == base {
			t.Errorf("%s: same form", name)
		}
	}
}

func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := drawInput(rt)
		want := Workloads(in)
		shuffle := rand.New(rand.NewSource(rapid.Int64().Draw(rt, "seed")))
		shuffle.Shuffle(len(in.Pods), func(i, j int) { in.Pods[i], in.Pods[j] = in.Pods[j], in.Pods[i] })
		shuffle.Shuffle(len(in.Pools), func(i, j int) { in.Pools[i], in.Pools[j] = in.Pools[j], in.Pools[i] })
		got := Workloads(in)
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("%+v\n%+v", got, want)
		}
		accountFor(rt, in, got)
	})
}

// accountFor: every candidate ends in exactly one workload, problem or superseded template.
func accountFor(rt *rapid.T, in Input, res Result) {
	seen := map[string]int{}
	for _, w := range res.Workloads {
		if w.Replicas < len(w.Pods) || w.Source == "" || w.Form == "" {
			rt.Fatalf("%+v", w)
		}
		for _, p := range w.Pods {
			seen[p.String()]++
		}
	}
	for _, p := range res.Problems {
		if p.Message == "" || p.Reason == "" {
			rt.Fatalf("%+v", p)
		}
		if p.Pool == "" {
			seen[p.Pod.String()]++
		}
	}
	for _, p := range in.Pods {
		if key := p.Namespace + "/" + p.Name; seen[key] != 1 {
			rt.Fatalf("%s is accounted for %d times", key, seen[key])
		}
	}
}

func drawInput(rt *rapid.T) Input {
	in := Input{GatewayWish: map[string]int{"m1": rapid.IntRange(0, 4).Draw(rt, "wish")}}
	model := rapid.SampledFrom([]string{"m1", "m2"})
	for i := range rapid.IntRange(0, 6).Draw(rt, "pods") {
		p := serving(fmt.Sprint("pod", i), model.Draw(rt, "source")).note("served-name", model.Draw(rt, "name")).
			age(time.Duration(rapid.IntRange(0, 3).Draw(rt, "age")) * time.Second)
		if v := rapid.SampledFrom([]string{"", "24", "48", "x"}).Draw(rt, "vram"); v != "" {
			p.note("gpu-vram", v)
		}
		if rapid.Bool().Draw(rt, "nameless") {
			p.command("sleep")
		}
		in.Pods = append(in.Pods, p.Pod)
	}
	for i := range rapid.IntRange(0, 3).Draw(rt, "pools") {
		in.Pools = append(in.Pools, makePool(fmt.Sprint("pool", i), v1alpha1.PoolModel{Name: model.Draw(rt, "listed"),
			Source: rapid.SampledFrom([]string{"", "m1"}).Draw(rt, "pool source"), MinReplicas: rapid.Int32Range(0, 2).Draw(rt, "min")}))
	}
	return in
}

// FuzzCommandLine: whatever a container's command line is, reading it ends, and what it yields is safe to pass on.
func FuzzCommandLine(f *testing.F) {
	f.Add("sh -c", "vllm serve \"$M\" --x '${Y:-z}' > /dev/null 2>&1 & # c\\")
	f.Fuzz(func(t *testing.T, command, script string) {
		pod := makePod("a").note("priority", "1").command(append(strings.Fields(command), script)...)
		res := Workloads(Input{Pods: unwrap(pod)})
		if len(res.Workloads)+len(res.Problems) != 1 {
			t.Fatalf("%+v", res)
		}
		for _, w := range res.Workloads {
			if checkSource(w.Source) != nil || checkName(w.Key) != nil {
				t.Fatalf("%+v", w)
			}
		}
	})
}
