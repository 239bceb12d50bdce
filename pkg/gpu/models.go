package gpu

type model struct {
	name Name
	spec Spec
}

// models is the specification table.
//
// T4G and GB200 are not in the reference's specification table, only among the clouds' names: T4G is a T4 that comes
// with an Arm host, kept apart so that a pool that asks for T4 is not sold one; GB200's memory is what its driver
// leaves of 192.
var models = []model{
	{"T4", Spec{16, 300, [2]int{7, 5}, "Turing", 0, false}},
	{"T4G", Spec{16, 300, [2]int{7, 5}, "Turing", 0, true}},
	{"V100-16GB", Spec{16, 900, [2]int{7, 0}, "Volta", 0, false}},
	{"V100-32GB", Spec{32, 900, [2]int{7, 0}, "Volta", 0, false}},
	{"L4", Spec{24, 300, [2]int{8, 9}, "Ada", 0, false}},
	{"L40", Spec{48, 864, [2]int{8, 9}, "Ada", 0, false}},
	{"L40S", Spec{48, 864, [2]int{8, 9}, "Ada", 0, false}},
	{"A10", Spec{24, 600, [2]int{8, 6}, "Ampere", 0, false}},
	{"A10G", Spec{24, 600, [2]int{8, 6}, "Ampere", 0, false}},
	{"A16", Spec{16, 200, [2]int{8, 6}, "Ampere", 0, false}},
	{"A30", Spec{24, 933, [2]int{8, 0}, "Ampere", 4, false}},
	{"A40", Spec{48, 696, [2]int{8, 6}, "Ampere", 0, false}},
	{"A100-40GB-PCIE", Spec{40, 1555, [2]int{8, 0}, "Ampere", 7, false}},
	{"A100-40GB-SXM", Spec{40, 1555, [2]int{8, 0}, "Ampere", 7, false}},
	{"A100-80GB-PCIE", Spec{80, 1935, [2]int{8, 0}, "Ampere", 7, false}},
	{"A100-80GB-SXM", Spec{80, 2039, [2]int{8, 0}, "Ampere", 7, false}},
	{"H100-PCIE", Spec{80, 2000, [2]int{9, 0}, "Hopper", 7, false}},
	{"H100-SXM", Spec{80, 3350, [2]int{9, 0}, "Hopper", 7, false}},
	{"H100-NVL", Spec{94, 3938, [2]int{9, 0}, "Hopper", 7, false}},
	{"H200", Spec{141, 4800, [2]int{9, 0}, "Hopper", 7, false}},
	{"H200-NVL", Spec{141, 4800, [2]int{9, 0}, "Hopper", 7, false}},
	{"B200", Spec{180, 7700, [2]int{10, 0}, "Blackwell", 7, false}},
	{"B300", Spec{268, 8000, [2]int{10, 3}, "Blackwell Ultra", 7, false}},
	{"GB200", Spec{186, 8000, [2]int{10, 0}, "Blackwell", 7, true}},
	{"GH200", Spec{96, 4000, [2]int{9, 0}, "Hopper", 7, true}},
	{"RTX3090", Spec{24, 936, [2]int{8, 6}, "Ampere", 0, false}},
	{"RTX4090", Spec{24, 1008, [2]int{8, 9}, "Ada", 0, false}},
	{"RTX5090", Spec{32, 1792, [2]int{12, 0}, "Blackwell", 0, false}},
	{"RTXA4000", Spec{16, 448, [2]int{8, 6}, "Ampere", 0, false}},
	{"RTXA5000", Spec{24, 768, [2]int{8, 6}, "Ampere", 0, false}},
	{"RTXA6000", Spec{48, 768, [2]int{8, 6}, "Ampere", 0, false}},
	{"RTX6000ADA", Spec{48, 960, [2]int{8, 9}, "Ada", 0, false}},
	{"RTXPRO6000", Spec{96, 1597, [2]int{12, 0}, "Blackwell", 4, false}},
	{"MI300X", Spec{192, 5300, [2]int{}, "CDNA 3", 0, false}},
}
