package agentapi

// GPUMetricPrefix begins the names of the agent's GPU metrics on GET /metrics.
const GPUMetricPrefix = "gpuscale_agent_gpu_"

// LabelModel is the label by which the agent tells engines apart: the served name of the model, on every series that an
// engine wrote.
const LabelModel = "model"

// GPUMetric is one family of the agent's GPU metrics. Each series has the labels gpu (the index on the machine) and uuid,
// and those in Labels. What the driver does not tell has no series: absent is unknown, never 0.
type GPUMetric struct {
	// Name follows GPUMetricPrefix.
	Name string
	// Counter is false for a gauge.
	Counter bool
	Help    string
	Labels  []string
	// Core is true for what the controller re-exposes by default.
	Core bool
}

// Names of GPU metrics, after GPUMetricPrefix.
const (
	GPUInfo              = "info"
	GPUUtilization       = "utilization_ratio"
	GPUMemoryUtilization = "memory_utilization_ratio"
	GPUMemoryUsed        = "memory_used_bytes"
	GPUMemoryTotal       = "memory_total_bytes"
	GPUTemperature       = "temperature_celsius"
	GPUMemoryTemperature = "memory_temperature_celsius"
	GPUPowerDraw         = "power_draw_watts"
	GPUPowerLimit        = "power_limit_watts"
	GPUSMClock           = "sm_clock_hertz"
	GPUMemoryClock       = "memory_clock_hertz"
	GPUFanSpeed          = "fan_speed_ratio"
	GPUECCErrors         = "ecc_errors_total"
	GPURowRemapPending   = "row_remap_pending"
	GPURowRemapFailed    = "row_remap_failed"
	GPUThrottled         = "throttled"
)

// GPUMetrics are all of them, in the order in which they are written.
func GPUMetrics() []GPUMetric {
	return []GPUMetric{
		{Name: GPUInfo, Core: true, Labels: []string{"name", "driver_version", "cuda_version", "mig"},
			Help: "1, with the GPU's product name, the versions of driver and CUDA, and whether it is cut into MIG instances."},
		{Name: GPUUtilization, Core: true, Help: "Share of the last sample period in which a kernel ran, 0 to 1."},
		{Name: GPUMemoryUtilization, Help: "Share of the last sample period in which memory was read or written, 0 to 1."},
		{Name: GPUMemoryUsed, Core: true, Help: "Memory in use."},
		{Name: GPUMemoryTotal, Core: true, Help: "Memory of the GPU, as the driver counts it."},
		{Name: GPUTemperature, Core: true, Help: "Temperature of the core."},
		{Name: GPUMemoryTemperature, Help: "Temperature of the memory."},
		{Name: GPUPowerDraw, Core: true, Help: "Power drawn."},
		{Name: GPUPowerLimit, Core: true, Help: "Power limit in force."},
		{Name: GPUSMClock, Core: true, Help: "Clock of the streaming multiprocessors."},
		{Name: GPUMemoryClock, Help: "Clock of the memory."},
		{Name: GPUFanSpeed, Help: "Fan speed asked for, 1 is the most; absent where the machine cools."},
		{Name: GPUECCErrors, Core: true, Counter: true, Labels: []string{"kind"},
			Help: "ECC errors since the driver was loaded, kind corrected or uncorrected."},
		{Name: GPURowRemapPending, Help: "1 while a row of memory waits for a reset to be remapped."},
		{Name: GPURowRemapFailed, Help: "1 once a row of memory could not be remapped."},
		{Name: GPUThrottled, Core: true, Labels: []string{"reason"},
			Help: "1 while the clocks are held down for the reason, 0 while not."},
	}
}
