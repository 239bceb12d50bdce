package demand

import (
	"fmt"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/pkg/provider"
)

// needs are the demands that every replica of a workload shares. A zero field demands nothing.
type needs struct {
	gpuCount int
	vramGB   int
	gpuTypes []string
	provider provider.Name
	capacity provider.CapacityType
	pool     string
}

// need is one field of needs, for comparing and for people.
type need struct {
	name, value string
}

func (n needs) fields() []need {
	number := func(v int) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprint(v)
	}
	return []need{
		{"GPU count", number(n.gpuCount)},
		{v1alpha1.AnnotationGPUVRAM, number(n.vramGB)},
		{v1alpha1.AnnotationGPUType, strings.Join(n.gpuTypes, ",")},
		{v1alpha1.AnnotationProvider, string(n.provider)},
		{v1alpha1.AnnotationPriority, string(n.capacity)},
		{v1alpha1.AnnotationPool, n.pool},
	}
}

// conflict names the first field that n and o both set, differently; empty where there is none.
func (n needs) conflict(o needs) (name, have, want string) {
	mine, other := n.fields(), o.fields()
	for i, f := range mine {
		if w := other[i].value; f.value != "" && w != "" && f.value != w {
			return f.name, f.value, w
		}
	}
	return "", "", ""
}

// fill sets what n leaves open to what o has.
func (n *needs) fill(o needs) {
	if n.gpuCount == 0 {
		n.gpuCount = o.gpuCount
	}
	if n.vramGB == 0 {
		n.vramGB = o.vramGB
	}
	if len(n.gpuTypes) == 0 {
		n.gpuTypes = slices.Clone(o.gpuTypes)
	}
	if n.provider == "" {
		n.provider = o.provider
	}
	if n.capacity == "" {
		n.capacity = o.capacity
	}
	if n.pool == "" {
		n.pool = o.pool
	}
}
