package gpu

// spelling is one provider's name; with two names it covers two memory sizes and the size has to be given.
type spelling struct {
	raw   string
	names []Name
}

func is(raw string, names ...Name) spelling { return spelling{raw, names} }

var spellings = map[string][]spelling{
	// GpuInfo.Gpus[].Name. AWS rents A100 and H100 as SXM only.
	"aws": {
		is("T4", "T4"), is("T4g", "T4G"), is("V100", "V100-16GB", "V100-32GB"), is("L4", "L4"), is("L40S", "L40S"),
		is("A10G", "A10G"), is("A100", "A100-40GB-SXM", "A100-80GB-SXM"), is("H100", "H100-SXM"), is("H200", "H200"),
		is("B200", "B200"), is("B300", "B300"), is("GB200", "GB200"), is("RTX PRO Server 6000", "RTXPRO6000"),
	},
	// SKUs. NV*_A10_v5 below 36 vCPUs are fractions of an A10 and absent on purpose.
	"azure": {
		is("Standard_NC*as_T4_v3", "T4"),
		is("Standard_NC*s_v3", "V100-16GB"), is("Standard_NC*rs_v3", "V100-16GB"), is("Standard_ND40rs_v2", "V100-32GB"),
		is("Standard_NC*ads_A10_v4", "A10"), is("Standard_NV36ads_A10_v5", "A10"), is("Standard_NV36adms_A10_v5", "A10"),
		is("Standard_NV72ads_A10_v5", "A10"),
		is("Standard_ND96asr_v4", "A100-40GB-SXM"), is("Standard_NC*ads_A100_v4", "A100-80GB-PCIE"),
		is("Standard_ND96amsr_A100_v4", "A100-80GB-SXM"),
		is("Standard_ND96isr_H100_v5", "H100-SXM"), is("Standard_NC40ads_H100_v5", "H100-NVL"),
		is("Standard_NC80adis_H100_v5", "H100-NVL"), is("Standard_ND96isr_H200_v5", "H200"),
		is("Standard_ND128isr_NDR_GB200_v6", "GB200"),
		is("Standard_NC*ds_xl_RTXPRO6000BSE_v6", "RTXPRO6000"), is("Standard_NC*lds_xl_RTXPRO6000BSE_v6", "RTXPRO6000"),
		is("Standard_ND96isr_MI300X_v5", "MI300X"),
	},
	// Accelerator types.
	"gcp": {
		is("nvidia-tesla-t4", "T4"), is("nvidia-tesla-v100", "V100-16GB"), is("nvidia-l4", "L4"),
		is("nvidia-tesla-a100", "A100-40GB-SXM"), is("nvidia-a100-80gb", "A100-80GB-SXM"),
		is("nvidia-h100-80gb", "H100-SXM"), is("nvidia-h100-mega-80gb", "H100-SXM"), is("nvidia-h200-141gb", "H200"),
		is("nvidia-b200", "B200"), is("nvidia-gb200", "GB200"), is("nvidia-rtx-pro-6000", "RTXPRO6000"),
	},
	// GPU ids. Its MIG slices of RTX PRO 6000 have ids of their own and are absent on purpose.
	"runpod": {
		is("Tesla T4", "T4"),
		is("Tesla V100-PCIE-16GB", "V100-16GB"), is("Tesla V100-FHHL-16GB", "V100-16GB"),
		is("Tesla V100-SXM2-16GB", "V100-16GB"), is("Tesla V100-SXM2-32GB", "V100-32GB"),
		is("NVIDIA L4", "L4"), is("NVIDIA L40", "L40"), is("NVIDIA L40S", "L40S"),
		is("NVIDIA A30", "A30"), is("NVIDIA A40", "A40"),
		is("NVIDIA A100-SXM4-40GB", "A100-40GB-SXM"), is("NVIDIA A100 80GB PCIe", "A100-80GB-PCIE"),
		is("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
		is("NVIDIA H100 PCIe", "H100-PCIE"), is("NVIDIA H100 80GB HBM3", "H100-SXM"), is("NVIDIA H100 NVL", "H100-NVL"),
		is("NVIDIA H200", "H200"), is("NVIDIA H200 NVL", "H200-NVL"),
		is("NVIDIA B200", "B200"), is("NVIDIA B300 SXM6 AC", "B300"),
		is("NVIDIA GeForce RTX 3090", "RTX3090"), is("NVIDIA GeForce RTX 4090", "RTX4090"),
		is("NVIDIA GeForce RTX 5090", "RTX5090"),
		is("NVIDIA RTX A4000", "RTXA4000"), is("NVIDIA RTX A5000", "RTXA5000"), is("NVIDIA RTX A6000", "RTXA6000"),
		is("NVIDIA RTX 6000 Ada Generation", "RTX6000ADA"),
		is("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
		is("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTXPRO6000"),
		is("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000"),
		is("AMD Instinct MI300X OAM", "MI300X"),
	},
	// gpu_name in answers, with spaces. "Q RTX 6000" is a Turing part and absent on purpose.
	"vast.ai": {
		is("Tesla T4", "T4"), is("Tesla V100", "V100-16GB", "V100-32GB"),
		is("L4", "L4"), is("L40", "L40"), is("L40S", "L40S"),
		is("A10", "A10"), is("A10g", "A10G"), is("A16", "A16"), is("A30", "A30"), is("A40", "A40"),
		is("A100 PCIE", "A100-40GB-PCIE", "A100-80GB-PCIE"), is("A100 SXM4", "A100-40GB-SXM", "A100-80GB-SXM"),
		is("A100 SXM", "A100-40GB-SXM", "A100-80GB-SXM"),
		is("H100 PCIE", "H100-PCIE"), is("H100 SXM", "H100-SXM"), is("H100 NVL", "H100-NVL"),
		is("H200", "H200"), is("H200 NVL", "H200-NVL"),
		is("B200", "B200"), is("B300", "B300"), is("B300 SXM6 AC", "B300"), is("GH200 SXM", "GH200"),
		is("RTX 3090", "RTX3090"), is("RTX 4090", "RTX4090"), is("RTX 5090", "RTX5090"),
		is("RTX A4000", "RTXA4000"), is("RTX A5000", "RTXA5000"), is("RTX A6000", "RTXA6000"),
		is("RTX 6000Ada", "RTX6000ADA"),
		is("RTX PRO 6000", "RTXPRO6000"), is("RTX PRO 6000 S", "RTXPRO6000"), is("RTX PRO 6000 WS", "RTXPRO6000"),
		is("RTX PRO 6000 Max-Q", "RTXPRO6000"),
	},
	// v0Name slugs.
	"tensordock": {
		is("v100-pcie-16gb", "V100-16GB"), is("v100-sxm2-16gb", "V100-16GB"), is("v100-nvlink-16gb", "V100-16GB"),
		is("v100-sxm2-32gb", "V100-32GB"), is("v100-sxm3-32gb", "V100-32GB"),
		is("l4-pcie-24gb", "L4"), is("l40-pcie-48gb", "L40"), is("l40s-pcie-48gb", "L40S"), is("a40-pcie-48gb", "A40"),
		is("a100-pcie-40gb", "A100-40GB-PCIE"), is("a100-nvlink-40gb", "A100-40GB-SXM"),
		is("a100-pcie-80gb", "A100-80GB-PCIE"), is("a100-sxm4-80gb", "A100-80GB-SXM"), is("h100-sxm5-80gb", "H100-SXM"),
		is("geforcertx3090-pcie-24gb", "RTX3090"), is("geforcertx4090-pcie-24gb", "RTX4090"),
		is("geforcertx5090-pcie-32gb", "RTX5090"),
		is("rtxa4000-pcie-16gb", "RTXA4000"), is("rtxa5000-pcie-24gb", "RTXA5000"), is("rtxa6000-pcie-48gb", "RTXA6000"),
		is("rtx6000ada-pcie-48gb", "RTX6000ADA"),
	},
	// Descriptions without the leading count.
	"verda": {
		is("Tesla V100 16GB", "V100-16GB"), is("L40S 48GB", "L40S"),
		is("A100 SXM4 40GB", "A100-40GB-SXM"), is("A100 SXM4 80GB", "A100-80GB-SXM"), is("H100 SXM5 80GB", "H100-SXM"),
		is("H200 SXM5 141GB", "H200"), is("B200 SXM6 180GB", "B200"), is("B300 SXM6 268GB", "B300"),
		is("RTX A6000 48GB", "RTXA6000"), is("RTX6000 Ada 48GB", "RTX6000ADA"), is("RTX 6000 Ada 48GB", "RTX6000ADA"),
		is("RTX PRO 6000 96GB", "RTXPRO6000"),
	},
}

// verdaTokens are the GPU parts of Verda's instance types that have been seen; for the rest the description decides.
var verdaTokens = map[string][]Name{
	"V100": {"V100-16GB"}, "L40S": {"L40S"}, "A100.40S": {"A100-40GB-SXM"}, "A100": {"A100-80GB-SXM"},
	"H100.80S": {"H100-SXM"}, "B300": {"B300"}, "A6000": {"RTXA6000"}, "RTX6000ADA": {"RTX6000ADA"},
}

// awsFamilies are the EC2 families that rent whole GPUs.
var awsFamilies = map[string]Name{
	"g4dn": "T4", "g5g": "T4G", "p3": "V100-16GB", "p3dn": "V100-32GB", "g6": "L4", "gr6": "L4", "g6e": "L40S",
	"g5": "A10G", "p4d": "A100-40GB-SXM", "p4de": "A100-80GB-SXM", "p5": "H100-SXM", "p5e": "H200", "p5en": "H200",
	"p6-b200": "B200", "p6-b300": "B300", "p6e-gb200": "GB200", "g7e": "RTXPRO6000",
}

// awsFractions are the EC2 families that rent slices of a GPU.
var awsFractions = []string{"g6f", "gr6f"}
