package manifest

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Kinds are those that are read; all others are passed over.
func Kinds() []string {
	return []string{"GPUNodePool", "GPUNodeClaim", "Pod", "Deployment", "StatefulSet", "ReplicaSet", "Job", "Secret", "List"}
}

// decoder reads the kinds of Kubernetes, and refuses fields that they do not have.
var decoder = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

func (r *reader) document(d document) {
	asJSON, err := yaml.YAMLToJSONStrict([]byte(d.text))
	if err != nil {
		r.fail(d.syntax(err))
		return
	}
	if bytes.Equal(asJSON, []byte("null")) {
		return // nothing but comments
	}
	var o map[string]any
	if err := utiljson.Unmarshal(asJSON, &o); err != nil {
		r.fail(fmt.Errorf("%s: not an object: a document begins with apiVersion and kind", d.at(d.first())))
		return
	}
	r.object(d, o, nil)
}

// lineIn finds the line that the YAML library names, which counts from the document's own first.
var lineIn = regexp.MustCompile(`line ([0-9]+)(: )?`)

func (d document) syntax(err error) error {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.Replace(text, "unmarshal errors:\n  ", "", 1)
	line := d.line
	if m := lineIn.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // digits, as matched
		line += n - 1
		text = strings.Replace(text, m[0], "", 1)
	}
	return fmt.Errorf("%s: %s", d.at(line), text)
}

// object reads one object; at is its place in the document.
func (r *reader) object(d document, o map[string]any, at []any) {
	where := d.at(d.lineOf(at))
	apiVersion, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	if apiVersion == "" || kind == "" {
		r.fail(fmt.Errorf("%s: apiVersion and kind are required, for example %s and GPUNodePool", where, v1alpha1.GroupVersion))
		return
	}
	group, _, _ := strings.Cut(apiVersion, "/")
	switch {
	case kind == "List" || strings.HasSuffix(kind, "List") && o["items"] != nil:
		items, _ := o["items"].([]any)
		for i, item := range items {
			if obj, ok := item.(map[string]any); ok {
				r.object(d, obj, append(slices.Clone(at), "items", i))
			}
		}
	case group == v1alpha1.GroupVersion.Group:
		r.own(d, o, at, apiVersion, kind)
	case slices.Contains(Kinds(), kind):
		r.builtin(o, where)
	default:
		r.set.PassedOver = append(r.set.PassedOver, fmt.Sprintf("%s: %s %s", where, kind, nameOf(o)))
	}
}

// own reads gpuscale's kinds.
func (r *reader) own(d document, o map[string]any, at []any, apiVersion, kind string) {
	where := d.at(d.lineOf(at))
	definition, err := definitionOf(kind)
	switch {
	case err != nil:
		r.fail(fmt.Errorf("%s: %w", where, err))
		return
	case definition == nil:
		r.fail(fmt.Errorf("%s: there is no kind %s in %s; GPUNodePool and GPUNodeClaim are", where, kind, v1alpha1.GroupVersion.Group))
		return
	case apiVersion != v1alpha1.GroupVersion.String():
		r.fail(fmt.Errorf("%s: there is no %s in %s; use %s", where, kind, apiVersion, v1alpha1.GroupVersion))
		return
	}
	for _, p := range definition.complaints(o) {
		r.fail(fmt.Errorf("%s: %s %q: %s", d.at(d.lineOf(append(slices.Clone(at), steps(p.field)...))), kind, nameOf(o), p.text))
	}
	r.unique(where, kind, "", nameOf(o))
	if kind == "GPUNodePool" {
		pool := &v1alpha1.GPUNodePool{}
		if r.into(where, o, pool) {
			r.set.Pools = append(r.set.Pools, pool)
		}
		return
	}
	claim := &v1alpha1.GPUNodeClaim{}
	if r.into(where, o, claim) {
		r.set.Claims = append(r.set.Claims, claim)
	}
}

// into converts what the schema has checked; what it complained of may not fit.
func (r *reader) into(where string, o map[string]any, to any) bool {
	if len(r.errs) > 0 {
		return false
	}
	text, err := utiljson.Marshal(o)
	if err == nil {
		err = utiljson.Unmarshal(text, to)
	}
	if err != nil {
		r.fail(fmt.Errorf("%s: %w", where, err))
	}
	return err == nil
}

func (r *reader) unique(where, kind, namespace, name string) {
	key := kind + " " + namespace + "/" + name
	if before, twice := r.seen[key]; twice {
		r.fail(fmt.Errorf("%s: %s %q is in %s already", where, kind, name, before))
		return
	}
	r.seen[key] = where
}

// builtin reads Kubernetes' own kinds.
func (r *reader) builtin(o map[string]any, where string) {
	text, err := utiljson.Marshal(o)
	if err != nil {
		r.fail(fmt.Errorf("%s: %w", where, err))
		return
	}
	obj, _, err := decoder.Decode(text, nil, nil)
	if err != nil {
		kind, _ := o["kind"].(string)
		r.fail(fmt.Errorf("%s: %s %q: %w", where, kind, nameOf(o), err))
		return
	}
	meta, isObject := obj.(metav1.Object)
	if !isObject {
		return
	}
	if meta.GetNamespace() == "" {
		meta.SetNamespace(r.namespace)
	}
	kind, _ := o["kind"].(string)
	r.unique(where, kind, meta.GetNamespace(), meta.GetName())
	switch v := obj.(type) {
	case *corev1.Pod:
		r.set.Pods = append(r.set.Pods, v)
	case *corev1.Secret:
		r.set.Secrets = append(r.set.Secrets, v)
	case *appsv1.Deployment:
		r.makes(v, v.Spec.Template, v.Spec.Replicas)
	case *appsv1.StatefulSet:
		r.makes(v, v.Spec.Template, v.Spec.Replicas)
	case *appsv1.ReplicaSet:
		r.makes(v, v.Spec.Template, v.Spec.Replicas)
	case *batchv1.Job:
		r.makes(v, v.Spec.Template, v.Spec.Parallelism)
	default: // an extension's kind by the name of one of Kubernetes' own
		r.set.PassedOver = append(r.set.PassedOver, fmt.Sprintf("%s: %s %s", where, kind, nameOf(o)))
	}
}

// makes adds the pods that a controller would make; one where it does not say how many.
func (r *reader) makes(owner metav1.Object, template corev1.PodTemplateSpec, replicas *int32) {
	n := int32(1)
	if replicas != nil {
		n = *replicas
	}
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		pod.Name, pod.Namespace = fmt.Sprintf("%s-%d", owner.GetName(), i), owner.GetNamespace()
		pod.Status.Phase = corev1.PodPending
		r.set.Pods = append(r.set.Pods, pod)
	}
}

func nameOf(o map[string]any) string {
	meta, _ := o["metadata"].(map[string]any)
	for _, key := range []string{"name", "generateName"} {
		if s, ok := meta[key].(string); ok {
			return s
		}
	}
	return ""
}

// first is the line on which the document has anything but comments.
func (d document) first() int { return d.lineOf(nil) }

// lineOf is the line of a place in the document, or of the nearest above it that is there.
func (d document) lineOf(at []any) int {
	var root yaml3.Node
	if err := yaml3.Unmarshal([]byte(d.text), &root); err != nil || len(root.Content) == 0 {
		return d.line
	}
	n := root.Content[0]
	line := n.Line
	for _, step := range at {
		next := child(n, step)
		if next == nil {
			break
		}
		line, n = next.line, next.node
	}
	return d.line + line - 1
}

type place struct {
	node *yaml3.Node
	line int
}

func child(n *yaml3.Node, step any) *place {
	switch s := step.(type) {
	case string:
		for i := 0; n.Kind == yaml3.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == s {
				return &place{n.Content[i+1], n.Content[i].Line}
			}
		}
	case int:
		if n.Kind == yaml3.SequenceNode && s < len(n.Content) {
			return &place{n.Content[s], n.Content[s].Line}
		}
	}
	return nil
}

// stepIn finds the steps of a path like spec.providers[0].maxPrice.
var stepIn = regexp.MustCompile(`[^.\[\]]+`)

func steps(path string) []any {
	var out []any
	for _, s := range stepIn.FindAllString(path, -1) {
		if i, err := strconv.Atoi(s); err == nil {
			out = append(out, i)
			continue
		}
		out = append(out, s)
	}
	return out
}
