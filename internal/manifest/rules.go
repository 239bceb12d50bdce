package manifest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/config/crd"
	"github.com/munhq/gpuscale/internal/near"
)

// definition is a CRD as the API server uses it: by the API server's own code, so that it says the same.
type definition struct {
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// complaint is one thing that the API server would refuse an object for.
type complaint struct {
	// field is its path, empty for the object.
	field string
	text  string
}

// definitions are the CRDs of this release by kind.
var definitions = sync.OnceValues(func() (map[string]*definition, error) {
	files, err := crd.Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	out := map[string]*definition{}
	for _, f := range files {
		text, err := crd.Files.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		var v1 apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &v1); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		d, err := newDefinition(v1.Spec.Versions[0].Schema.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		out[v1.Spec.Names.Kind] = d
	}
	return out, nil
})

func definitionOf(kind string) (*definition, error) {
	all, err := definitions()
	return all[kind], err
}

func newDefinition(v1 *apiextensionsv1.JSONSchemaProps) (*definition, error) {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v1, internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, err
	}
	schema, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, err
	}
	return &definition{structural, schema, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// complaints gives an object the defaults that the API server would, and says what that would refuse it for. The order is
// the API server's: unknown fields, then types and bounds, lists, and rules.
func (d *definition) complaints(o map[string]any) []complaint {
	var out []complaint
	for _, path := range pruning.PruneWithOptions(o, d.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		out = append(out, complaint{path, fmt.Sprintf("strict decoding error: unknown field %q%s", path, d.meant(path))})
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(o, d.structural)
	defaulting.Default(o, d.structural)
	errs := metaErrors(o)
	errs = append(errs, validation.ValidateCustomResource(nil, o, d.schema)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.structural, o)...)
	blocked := blocks(errs)
	if !blocked {
		more, _ := d.rules.Validate(context.Background(), nil, d.structural, o, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, more...)
	}
	for _, e := range errs {
		out = append(out, complaint{e.Field, e.Error()})
	}
	if blocked {
		out = append(out, complaint{"", "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"})
	}
	return out
}

// meant is the field that a misspelt one may be, which differs in case or is a letter off.
func (d *definition) meant(path string) string {
	s := d.structural
	parts := steps(path)
	for i, step := range parts {
		name, isName := step.(string)
		switch {
		case !isName:
			if s.Items == nil {
				return ""
			}
			s = s.Items
			continue
		case i < len(parts)-1:
			next, ok := s.Properties[name]
			if !ok {
				return ""
			}
			s = &next
			continue
		}
		names := make([]string, 0, len(s.Properties))
		for n := range s.Properties {
			names = append(names, n)
		}
		if meant := near.Names(name, names); len(meant) > 0 {
			return fmt.Sprintf("; did you mean %s?", strings.Join(meant, " or "))
		}
	}
	return ""
}

// metaErrors are those of the name and the labels.
func metaErrors(o map[string]any) field.ErrorList {
	m, _ := o["metadata"].(map[string]any)
	meta := metav1.ObjectMeta{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &meta); err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("metadata"), "", err.Error())}
	}
	return apivalidation.ValidateObjectMeta(&meta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
}

// blocks reports whether rules cannot be tried, as the API server decides it.
func blocks(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}
