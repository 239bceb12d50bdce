package agent

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// Reading is what the driver said of all GPUs at one moment.
type Reading struct {
	Driver, CUDA string
	GPUs         []GPUReading
}

// GPUReading is one GPU's part. Values are by the names of agentapi.GPUMetrics; what the driver does not tell is missing.
type GPUReading struct {
	Name, UUID, MIG string
	Values          map[string]float64
	// ECC are errors by kind, Throttled 1 or 0 by reason.
	ECC, Throttled map[string]float64
}

const (
	// maxGPUs, maxReasons and maxWord bound what a report can make of this agent's memory and of its metrics.
	maxGPUs    = 64
	maxReasons = 32
	maxWord    = 128
)

// xmlReport is the part of nvidia-smi's report that is read, under every name that drivers have given it.
type xmlReport struct {
	XMLName xml.Name `xml:"nvidia_smi_log"`
	Driver  string   `xml:"driver_version"`
	CUDA    string   `xml:"cuda_version"`
	GPUs    []xmlGPU `xml:"gpu"`
}

type xmlGPU struct {
	Name       string `xml:"product_name"`
	UUID       string `xml:"uuid"`
	MIG        string `xml:"mig_mode>current_mig"`
	Fan        string `xml:"fan_speed"`
	Use        string `xml:"utilization>gpu_util"`
	MemoryUse  string `xml:"utilization>memory_util"`
	Total      string `xml:"fb_memory_usage>total"`
	Used       string `xml:"fb_memory_usage>used"`
	Temp       string `xml:"temperature>gpu_temp"`
	MemoryTemp string `xml:"temperature>memory_temp"`
	SM         string `xml:"clocks>sm_clock"`
	Memory     string `xml:"clocks>mem_clock"`
	// Up to driver 525 power_readings, since then gpu_power_readings; in both the draw has had several names.
	OldPower xmlPower `xml:"power_readings"`
	Power    xmlPower `xml:"gpu_power_readings"`
	// Up to driver 530 clocks_throttle_reasons, since then clocks_event_reasons.
	OldReasons xmlReasons `xml:"clocks_throttle_reasons"`
	Reasons    xmlReasons `xml:"clocks_event_reasons"`
	Volatile   xmlECC     `xml:"ecc_errors>volatile"`
	Pending    string     `xml:"remapped_rows>remapped_row_pending"`
	Failed     string     `xml:"remapped_rows>remapped_row_failure"`
}

type xmlPower struct {
	Draw     string `xml:"power_draw"`
	Instant  string `xml:"instant_power_draw"`
	Average  string `xml:"average_power_draw"`
	Enforced string `xml:"enforced_power_limit"`
	Current  string `xml:"current_power_limit"`
	Limit    string `xml:"power_limit"`
}

type xmlReasons struct {
	All []struct {
		XMLName xml.Name
		Value   string `xml:",chardata"`
	} `xml:",any"`
}

// xmlECC has the counts of GPUs before Turing (single and double bit), of Turing and Ampere, and of later drivers, which
// tell how SRAM errors were found.
type xmlECC struct {
	Single      string `xml:"single_bit>total"`
	Double      string `xml:"double_bit>total"`
	SRAMFixed   string `xml:"sram_correctable"`
	SRAM        string `xml:"sram_uncorrectable"`
	SRAMParity  string `xml:"sram_uncorrectable_parity"`
	SRAMSECDED  string `xml:"sram_uncorrectable_secded"`
	DRAMFixed   string `xml:"dram_correctable"`
	DRAMUnfixed string `xml:"dram_uncorrectable"`
}

// parseReading reads one report of nvidia-smi -q -x, of any driver. A value that is missing, "N/A", "[Not Supported]" or
// not a number in the expected unit is left out. It fails when the report is not one.
func parseReading(document []byte) (Reading, error) {
	var report xmlReport
	if err := xml.Unmarshal(document, &report); err != nil {
		return Reading{}, fmt.Errorf("%w: %w", errDocument, err)
	}
	if len(report.GPUs) > maxGPUs {
		return Reading{}, fmt.Errorf("%w: %d GPUs", errDocument, len(report.GPUs))
	}
	out := Reading{Driver: word(report.Driver), CUDA: word(report.CUDA)}
	for _, g := range report.GPUs {
		out.GPUs = append(out.GPUs, g.reading())
	}
	return out, nil
}

func (g xmlGPU) reading() GPUReading {
	out := GPUReading{Name: word(g.Name), UUID: word(g.UUID), MIG: word(g.MIG), Values: map[string]float64{},
		ECC: map[string]float64{}, Throttled: map[string]float64{}}
	for _, v := range []struct {
		name, unit string
		factor     float64
		texts      []string
	}{
		{agentapi.GPUUtilization, "%", 0.01, []string{g.Use}},
		{agentapi.GPUMemoryUtilization, "%", 0.01, []string{g.MemoryUse}},
		{agentapi.GPUMemoryUsed, "MiB", 1 << 20, []string{g.Used}},
		{agentapi.GPUMemoryTotal, "MiB", 1 << 20, []string{g.Total}},
		{agentapi.GPUTemperature, "C", 1, []string{g.Temp}},
		{agentapi.GPUMemoryTemperature, "C", 1, []string{g.MemoryTemp}},
		{agentapi.GPUPowerDraw, "W", 1, []string{g.Power.Draw, g.Power.Instant, g.Power.Average, g.OldPower.Draw}},
		{agentapi.GPUPowerLimit, "W", 1, []string{g.Power.Current, g.Power.Enforced, g.OldPower.Enforced, g.OldPower.Limit}},
		{agentapi.GPUSMClock, "MHz", 1e6, []string{g.SM}},
		{agentapi.GPUMemoryClock, "MHz", 1e6, []string{g.Memory}},
		{agentapi.GPUFanSpeed, "%", 0.01, []string{g.Fan}},
	} {
		for _, text := range v.texts {
			if number, ok := quantity(text, v.unit); ok {
				out.Values[v.name] = scaled(number, v.factor)
				break
			}
		}
	}
	boolean(out.Values, agentapi.GPURowRemapPending, g.Pending, "Yes", "No")
	boolean(out.Values, agentapi.GPURowRemapFailed, g.Failed, "Yes", "No")
	count(out.ECC, "corrected", g.Volatile.Single, g.Volatile.SRAMFixed, g.Volatile.DRAMFixed)
	count(out.ECC, "uncorrected", g.Volatile.Double, g.Volatile.SRAM, g.Volatile.SRAMParity, g.Volatile.SRAMSECDED, g.Volatile.DRAMUnfixed)
	throttles(out.Throttled, g.OldReasons)
	throttles(out.Throttled, g.Reasons)
	return out
}

// scaled keeps per cents exact: 7 % is 0.07, not 0.07 and a bit.
func scaled(number, factor float64) float64 {
	if factor < 1 {
		return number / (1 / factor)
	}
	return number * factor
}

// quantity reads "62.10 W". It knows no number that is negative or not finite.
func quantity(text, unit string) (float64, bool) {
	number, ok := strings.CutSuffix(strings.TrimSpace(text), unit)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	return v, err == nil && v >= 0 && v < math.MaxInt64
}

func boolean(into map[string]float64, name, text, yes, no string) {
	switch strings.TrimSpace(text) {
	case yes:
		into[name] = 1
	case no:
		into[name] = 0
	}
}

// count adds up what there is; nothing is written when there is nothing.
func count(into map[string]float64, kind string, texts ...string) {
	for _, text := range texts {
		if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 53); err == nil {
			into[kind] += float64(n)
		}
	}
}

// throttles reads reasons why clocks are low under either name of them. That nothing runs is no throttling.
func throttles(into map[string]float64, reasons xmlReasons) {
	for _, r := range reasons.All {
		name := r.XMLName.Local
		reason, ok := strings.CutPrefix(name, "clocks_event_reason_")
		if !ok {
			reason, ok = strings.CutPrefix(name, "clocks_throttle_reason_")
		}
		if ok && reason != "gpu_idle" && len(into) < maxReasons && len(reason) <= maxWord {
			boolean(into, reason, r.Value, "Active", "Not Active")
		}
	}
}

// word is a name as the driver gives it, bounded; empty where it gives none.
func word(text string) string {
	text = strings.TrimSpace(text)
	if text == "N/A" || strings.HasPrefix(text, "[") {
		return ""
	}
	return shorten(strings.ToValidUTF8(text, "?"), maxWord)
}
