package agent

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/pkg/gpu"
)

// Inventory is what the GPU driver reports.
type Inventory struct {
	GPUs         []agentapi.GPU
	Driver, CUDA string
	// Sliced: some GPU is cut into MIG instances, so that what is here is not the whole of it.
	Sliced bool
}

// ErrNoDriver says that the machine has no working GPU driver.
var ErrNoDriver = errors.New("no GPU driver")

// Probe reads the machine's GPUs. It fails with ErrNoDriver when there is nothing to ask.
type Probe func(ctx context.Context) (Inventory, error)

// probeTimeout is far more than nvidia-smi takes: on a broken driver it hangs.
const probeTimeout = 90 * time.Second

// NvidiaSMI is the Probe of a real machine.
func NvidiaSMI(ctx context.Context) (Inventory, error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return Inventory{}, fmt.Errorf("%w: nvidia-smi is not there", ErrNoDriver)
	}
	command := exec.CommandContext(ctx, path, "-q", "-x")
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil {
		// On failure nvidia-smi explains itself on standard output.
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return Inventory{}, fmt.Errorf("%w: nvidia-smi: %w: %s", ErrNoDriver, err, shorten(first, maxMessage))
	}
	return parseNvidiaSMI(out)
}

func parseNvidiaSMI(text []byte) (Inventory, error) {
	var log struct {
		Driver string `xml:"driver_version"`
		CUDA   string `xml:"cuda_version"`
		GPUs   []struct {
			Name  string `xml:"product_name"`
			UUID  string `xml:"uuid"`
			Total string `xml:"fb_memory_usage>total"`
			MIG   string `xml:"mig_mode>current_mig"`
		} `xml:"gpu"`
	}
	if err := xml.Unmarshal(text, &log); err != nil {
		return Inventory{}, fmt.Errorf("%w: nvidia-smi: %w", ErrNoDriver, err)
	}
	out := Inventory{Driver: log.Driver, CUDA: log.CUDA}
	for _, g := range log.GPUs {
		megabytes, err := strconv.Atoi(strings.TrimSuffix(g.Total, " MiB"))
		if err != nil {
			return Inventory{}, fmt.Errorf("%w: nvidia-smi: memory %q", ErrNoDriver, g.Total)
		}
		out.GPUs = append(out.GPUs, agentapi.GPU{Name: g.Name, UUID: g.UUID, MemoryMB: megabytes})
		out.Sliced = out.Sliced || g.MIG == "Enabled"
	}
	return out, nil
}

// wholePercent of nominal VRAM is the least that a whole GPU reports; see gpu.Canonical.
const wholePercent = 88

// mismatch says how what is there differs from what was bought, empty if it does not. A name that is not known is no
// difference: drivers learn new names before we do, and count and memory are compared all the same.
func mismatch(want agentapi.GPUExpectation, have Inventory) string {
	if len(have.GPUs) != want.Count {
		return fmt.Sprintf("bought %d GPUs, %d are there", want.Count, len(have.GPUs))
	}
	if have.Sliced {
		return "a GPU is cut into MIG instances"
	}
	for _, g := range have.GPUs {
		if g.MemoryMB*100 < want.VRAMGB*1000*wholePercent {
			return fmt.Sprintf("bought GPUs of %d GB, %s has %d MB", want.VRAMGB, g.Name, g.MemoryMB)
		}
		name := canonical(g.Name, g.MemoryMB)
		if wanted := gpu.Name(want.Name); wanted.Known() && name.Known() && name != wanted {
			return fmt.Sprintf("bought %s, %s is there", wanted, g.Name)
		}
	}
	return ""
}

// canonical is the canonical name of what nvidia-smi calls a GPU. RunPod names GPUs as the driver does, so its
// spellings serve; driverNames has what it does not sell or spells otherwise.
func canonical(name string, megabytes int) gpu.Name {
	if n := gpu.Canonical("runpod", name, megabytes); n.Known() {
		return n
	}
	if n, ok := driverNames[strings.TrimPrefix(name, "NVIDIA ")]; ok {
		return n
	}
	return gpu.Unknown(name)
}

var driverNames = map[string]gpu.Name{
	"Tesla T4": "T4", "T4": "T4", "T4G": "T4G", "A10": "A10", "A10G": "A10G", "A16": "A16", "A30": "A30", "L4": "L4",
	"Tesla V100-SXM2-16GB": "V100-16GB", "Tesla V100-PCIE-16GB": "V100-16GB",
	"Tesla V100-SXM2-32GB": "V100-32GB", "Tesla V100-SXM3-32GB": "V100-32GB", "Tesla V100-PCIE-32GB": "V100-32GB",
	"A100-SXM4-40GB": "A100-40GB-SXM", "A100-SXM4-80GB": "A100-80GB-SXM", "A100-SXM-80GB": "A100-80GB-SXM",
	"A100-PCIE-40GB": "A100-40GB-PCIE", "A100-PCIE-80GB": "A100-80GB-PCIE", "A100 80GB PCIe": "A100-80GB-PCIE",
	"H100 80GB HBM3": "H100-SXM", "H100 PCIe": "H100-PCIE", "H100 NVL": "H100-NVL", "H200": "H200", "H200 NVL": "H200-NVL",
	"B200": "B200", "GH200 480GB": "GH200", "L40": "L40", "L40S": "L40S", "A40": "A40",
	"GeForce RTX 3090": "RTX3090", "GeForce RTX 4090": "RTX4090", "GeForce RTX 5090": "RTX5090",
	"RTX A4000": "RTXA4000", "RTX A5000": "RTXA5000", "RTX A6000": "RTXA6000", "RTX 6000 Ada Generation": "RTX6000ADA",
	"RTX PRO 6000 Blackwell Server Edition":            "RTXPRO6000",
	"RTX PRO 6000 Blackwell Workstation Edition":       "RTXPRO6000",
	"RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTXPRO6000",
}
