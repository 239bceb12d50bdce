package v1alpha1_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

type schema = apiextensionsv1.JSONSchemaProps

// definitions are the CRDs' schemas by kind.
func definitions(t *testing.T) map[string]schema {
	t.Helper()
	files, err := filepath.Glob("../../config/crd/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]schema{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			out[crd.Spec.Names.Kind] = *v.Schema.OpenAPIV3Schema
		}
	}
	if len(out) != 2 {
		t.Fatalf("%d kinds in config/crd, want the pool and the claim", len(out))
	}
	return out
}

// fullOf is a sound object that has every field of its kind's spec.
func fullOf(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	file := map[string]string{"GPUNodePool": "testdata/pool.yaml", "GPUNodeClaim": "testdata/claim.yaml"}[kind]
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%s needs a file here with every field of its spec: %v", kind, err)
	}
	u := &unstructured.Unstructured{}
	if err := utilyaml.Unmarshal(text, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// node is a place in a schema and in an object.
type node struct {
	schema schema
	// path leads through the schema, as in "spec.models[].name"; at through the object.
	path string
	at   []any
	// required is the place's own: its parent insists on it and nothing fills it in.
	required bool
}

// where is the place as the API server names it: "spec.models[0].name".
func (n node) where() string {
	var b strings.Builder
	for _, step := range n.at {
		switch s := step.(type) {
		case int:
			b.WriteString("[" + strconv.Itoa(s) + "]")
		case string:
			if b.Len() > 0 {
				b.WriteString(".")
			}
			b.WriteString(s)
		}
	}
	return b.String()
}

// nodes are all places below a schema, itself first.
func nodes(n node) []node {
	out := []node{n}
	names := make([]string, 0, len(n.schema.Properties))
	for name := range n.schema.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := n.schema.Properties[name]
		child := node{schema: p, path: strings.TrimPrefix(n.path+"."+name, "."), at: append(slices.Clone(n.at), name),
			required: slices.Contains(n.schema.Required, name) && p.Default == nil}
		out = append(out, nodes(child)...)
	}
	if n.schema.Items != nil {
		out = append(out, nodes(node{schema: *n.schema.Items.Schema, path: n.path + "[]", at: append(slices.Clone(n.at), 0)})...)
	}
	if n.schema.AdditionalProperties != nil {
		out = append(out, nodes(node{schema: *n.schema.AdditionalProperties.Schema, path: n.path + "{}", at: append(slices.Clone(n.at), "{}")})...)
	}
	return out
}

// rulesIn are the places that have rules of their own.
func rulesIn(s schema) []node {
	return slices.DeleteFunc(nodes(node{schema: s}), func(n node) bool { return len(n.schema.XValidations) == 0 })
}

// specOf are the places that a user writes.
func specOf(s schema) []node {
	return slices.DeleteFunc(nodes(node{schema: s}), func(n node) bool { return n.path != "spec" && !strings.HasPrefix(n.path, "spec.") })
}

// get is what an object has at a place.
func get(o any, at []any) (any, bool) {
	for _, step := range at {
		switch s := step.(type) {
		case int:
			list, ok := o.([]any)
			if !ok || s >= len(list) {
				return nil, false
			}
			o = list[s]
		case string:
			m, ok := o.(map[string]any)
			if !ok {
				return nil, false
			}
			if o, ok = m[s]; !ok {
				return nil, false
			}
		}
	}
	return o, true
}

// absent as a value removes a field.
type absent struct{}

// with is a copy of u that has value at a place.
func with(t *testing.T, u *unstructured.Unstructured, at []any, value any) *unstructured.Unstructured {
	t.Helper()
	u = u.DeepCopy()
	last := len(at) - 1
	parent, ok := get(u.Object, at[:last])
	if !ok {
		t.Fatalf("the full %s in testdata has nothing at %v", u.GetKind(), at[:last])
	}
	_, remove := value.(absent)
	switch s := at[last].(type) {
	case int:
		parent.([]any)[s] = value
	case string:
		if remove {
			delete(parent.(map[string]any), s)
			break
		}
		parent.(map[string]any)[s] = value
	}
	return u
}
