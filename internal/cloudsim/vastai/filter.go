package vastai

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// fieldType is what a column holds.
type fieldType int

const (
	number fieldType = iota
	boolean
	text
)

// columns are what a query may name.
type columns map[string]fieldType

func typed(t fieldType, names string, into columns) {
	for _, n := range strings.Fields(names) {
		into[n] = t
	}
}

// offerColumns are the search's.
func offerColumns() columns {
	c := columns{}
	typed(number, `id ask_contract_id bundle_id machine_id host_id num_gpus gpu_frac gpu_ram gpu_total_ram gpu_mem_bw
		gpu_max_power gpu_max_temp gpu_lanes compute_cap cuda_max_good driver_vers cpu_cores cpu_cores_effective cpu_ghz
		cpu_ram has_avx disk_space disk_bw inet_down inet_up inet_down_cost inet_up_cost storage_cost storage_total_cost
		dph_base dph_total min_bid reliability reliability2 duration end_date start_date direct_port_count pci_gen pcie_bw
		bw_nvlink dlperf dlperf_per_dphtotal flops_per_dphtotal total_flops score hosting_type`, c)
	typed(boolean, `verified rentable rented external datacenter static_ip vms_enabled gpu_display_active is_bid`, c)
	typed(text, `gpu_name gpu_arch cpu_arch cpu_name geolocation verification driver_version mobo_name os_version
		ubuntu_version`, c)
	return c
}

// contractColumns are those of the list that are stored, and so can be filtered and ordered by. Anything computed, such
// as the price, cannot.
func contractColumns() columns {
	c := columns{}
	typed(number, `id machine_id host_id start_date end_date disk_space`, c)
	typed(boolean, `is_bid`, c)
	typed(text, `label actual_status intended_status cur_state next_state gpu_name verification image_uuid
		image_runtype`, c)
	return c
}

// condition is one operator applied to one column.
type condition struct {
	column, op string
	value      any
}

// conditions reads {"column": {"op": value}} for the columns of a query, or says what the vendor would of the first
// mistake.
func (c columns) conditions(filters object) ([]condition, error) {
	var out []condition
	for _, name := range sortedKeys(filters) {
		kind, known := c[name]
		if !known {
			return nil, fmt.Errorf("%s is not a valid search key", name)
		}
		ops, ok := filters[name].(object)
		if !ok {
			return nil, fmt.Errorf("%s must be an object of operator and value", name)
		}
		for _, op := range sortedKeys(ops) {
			if err := checkOperand(kind, name, op, ops[op]); err != nil {
				return nil, err
			}
			out = append(out, condition{name, op, ops[op]})
		}
	}
	return out, nil
}

func sortedKeys(o object) []string {
	keys := make([]string, 0, len(o))
	for k := range o {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func checkOperand(kind fieldType, name, op string, value any) error {
	switch op {
	case "eq", "neq":
		return checkScalar(kind, name, value)
	case "gt", "gte", "lt", "lte":
		if kind == boolean {
			return fmt.Errorf("%s is not a valid operator for %s", op, name)
		}
		return checkScalar(kind, name, value)
	case "in", "notin":
		list, ok := value.([]any)
		if !ok {
			return fmt.Errorf("%s of %s must be a list", op, name)
		}
		for _, v := range list {
			if err := checkScalar(kind, name, v); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s is not a valid operator", op)
}

func checkScalar(kind fieldType, name string, value any) error {
	ok := false
	switch kind {
	case number:
		_, ok = value.(float64)
	case boolean:
		_, ok = value.(bool)
	case text:
		_, ok = value.(string)
	}
	if value == nil { // An absent status is asked for with null.
		ok = true
	}
	if !ok {
		return fmt.Errorf("%v is not a valid value for %s", value, name)
	}
	return nil
}

// holds reports whether a row passes; a column that is null passes nothing but a comparison with null.
func (q condition) holds(row object) bool {
	have := row[q.column]
	switch q.op {
	case "eq":
		return same(have, q.value)
	case "neq":
		return !same(have, q.value)
	case "in", "notin":
		list, _ := q.value.([]any)
		found := slices.ContainsFunc(list, func(v any) bool { return same(have, v) })
		return found == (q.op == "in")
	}
	order, ok := compare(have, q.value)
	if !ok {
		return false
	}
	switch q.op {
	case "gt":
		return order > 0
	case "gte":
		return order >= 0
	case "lt":
		return order < 0
	default:
		return order <= 0
	}
}

func allHold(conditions []condition, row object) bool {
	return !slices.ContainsFunc(conditions, func(c condition) bool { return !c.holds(row) })
}

func same(a, b any) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	order, ok := compare(a, b)
	return ok && order == 0
}

// compare orders two values of one type, for which numbers of any kind are one.
func compare(a, b any) (order int, ok bool) {
	if x, y := float(a), float(b); x != nil && y != nil {
		return cmp.Compare(*x, *y), true
	}
	switch x := a.(type) {
	case string:
		if y, same := b.(string); same {
			return cmp.Compare(x, y), true
		}
	case bool:
		if y, same := b.(bool); same {
			return cmp.Compare(btoi(x), btoi(y)), true
		}
	}
	return 0, false
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func float(v any) *float64 {
	switch n := v.(type) {
	case float64:
		return &n
	case int:
		f := float64(n)
		return &f
	case int64:
		f := float64(n)
		return &f
	}
	return nil
}
