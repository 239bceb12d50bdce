package demand

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/money"
)

// ask is one pod's, or one pool model's, wish for one workload.
type ask struct {
	// Exactly one of pod and pool is set.
	pod  *PodRef
	pool *v1alpha1.GPUNodePool
	// model is the pool's entry.
	model *v1alpha1.PoolModel

	key string
	// source is empty where the pod only names what it wants. weak: it is the value of the model annotation alone, which
	// may be a name that a pool gives a source for.
	source string
	weak   bool
	// args are nil where the ask says nothing about arguments.
	args []string

	needs    needs
	maxPrice *money.Dollars
	priority int
	image    string
	aliases  []string
}

func (a ask) created() time.Time {
	if a.pod != nil {
		return a.pod.Created
	}
	return a.pool.CreationTimestamp.Time
}

// label names the ask for people and breaks ties of age.
func (a ask) label() string {
	if a.pod != nil {
		return "pod " + a.pod.String()
	}
	return "pool " + a.pool.Name
}

// problem is a Problem of whoever asks.
func (a ask) problem(reason, message string) Problem {
	p := Problem{Reason: reason, Message: message}
	if a.pod != nil {
		p.Pod = *a.pod
	} else {
		p.Pool = a.pool.Name
	}
	return p
}

func refOf(pod *corev1.Pod) PodRef {
	return PodRef{
		NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		UID:            pod.UID,
		Created:        pod.CreationTimestamp.Time,
	}
}

// readPod reads one candidate. A non-nil Problem means that nothing can be bought for it.
func readPod(pod *corev1.Pod) (ask, *Problem) {
	ref := refOf(pod)
	said, wrong := parseAnnotations(pod.Annotations)
	if len(wrong) > 0 {
		return ask{}, &Problem{Pod: ref, Reason: v1alpha1.PodReasonInvalidAnnotation, Message: strings.Join(wrong, "; ")}
	}
	a := ask{pod: &ref, key: said.served, source: said.model, needs: said.needs, maxPrice: said.maxPrice,
		priority: said.priority}
	c, line, err := engineContainer(pod)
	if c != nil {
		a.image = c.Image
		a.needs.gpuCount = containerGPUs(c)
	}
	switch {
	case err == nil:
		a.readLine(line)
	case a.source != "":
		a.weak = a.key == ""
	case a.key == "":
		return ask{}, noModel(ref, err)
	}
	if a.key == "" {
		a.key = a.source
	}
	if err := checkName(a.key); err != nil {
		return ask{}, &Problem{Pod: ref, Reason: v1alpha1.PodReasonNoModel,
			Message: fmt.Sprintf("the model would be served as %q, which %s; set %s", a.key, err, v1alpha1.AnnotationServedName)}
	}
	return a, nil
}

// readLine takes from the engine's command line what the annotations leave open.
func (a *ask) readLine(line engineLine) {
	if a.source == "" {
		a.source = line.source
	}
	if len(line.served) > 0 {
		if a.key == "" {
			a.key = line.served[0]
		}
		a.aliases = slices.DeleteFunc(slices.Clone(line.served), func(n string) bool { return n == a.key })
	}
	if a.needs.gpuCount == 0 {
		a.needs.gpuCount = line.gpus()
	}
	a.args = append([]string{}, line.argsFor(a.needs.gpuCount)...)
}

func noModel(ref PodRef, why error) *Problem {
	what := "the pod has no container"
	if why != nil {
		what = why.Error()
	}
	return &Problem{Pod: ref, Reason: v1alpha1.PodReasonNoModel, Message: fmt.Sprintf(
		"%s; start it with \"vllm serve MODEL\" or \"--model MODEL\", or set the annotation %s", what, v1alpha1.AnnotationModel)}
}

// readPool reads the models that a pool lists. The schema lets names through that no engine or request could use.
func readPool(pool *v1alpha1.GPUNodePool) (asks []ask, problems []Problem) {
	for i := range pool.Spec.Models {
		m := &pool.Spec.Models[i]
		a := ask{pool: pool, model: m, key: m.Name, source: cmp.Or(m.Source, m.Name)}
		if err := cmp.Or(checkName(a.key), checkSource(a.source)); err != nil {
			problems = append(problems, Problem{Pool: pool.Name, Reason: v1alpha1.PodReasonNoModel,
				Message: fmt.Sprintf("spec.models[%d]: the model %q from %q %s", i, a.key, a.source, err)})
			continue
		}
		line := parseFlags(m.Args)
		a.needs = needs{gpuCount: cmp.Or(int(m.GPUCount), line.gpus()), vramGB: int(m.VRAM)}
		// A pool that gives no arguments leaves them to the pods: most entries only say how large a model is.
		a.args = line.argsFor(a.needs.gpuCount)
		asks = append(asks, a)
	}
	return asks, problems
}
