package bench

// Groups are all that is measured, in the order in which it is.
func Groups() []Group { return groups }

var groups = []Group{
	{Name: "plan", Package: "./internal/planner", Test: "TestPlanFigures", Figures: []Spec{
		{Name: "plan.time", Unit: "ms", Most: 500},
		{Name: "plan.allocated", Unit: "MB", Most: 200},
		{Name: "plan.growth", Unit: "×", Most: 1.5},
	}},
	{Name: "create", Package: "./internal/operator/scale", Test: "TestCreateFigures", Figures: []Spec{
		{Name: "create.single.p50", Unit: "ms", Most: 150},
		{Name: "create.single.p99", Unit: "ms", Most: 1000},
		{Name: "create.herd.first", Unit: "ms", Most: 1000},
		{Name: "create.herd.p50", Unit: "ms"},
		{Name: "create.herd.p99", Unit: "ms"},
		{Name: "create.herd.refused", Unit: "creates", Most: 10},
	}},
	{Name: "steady", Package: "./internal/operator/scale", Test: "TestSteadyFigures", Figures: []Spec{
		{Name: "memory.100", Unit: "MB"},
		{Name: "memory.1000", Unit: "MB", Most: 150},
		{Name: "memory.claim", Unit: "kB"},
		{Name: "memory.peak", Unit: "MB"},
		{Name: "calls.ready.100", Unit: "calls"},
		{Name: "calls.ready.1000", Unit: "calls"},
		{Name: "calls.ready.growth", Unit: "×", Most: 1.5},
		{Name: "calls.gone.100", Unit: "calls"},
		{Name: "calls.gone.1000", Unit: "calls"},
		{Name: "calls.gone.growth", Unit: "×", Most: 1.5},
		{Name: "calls.kept.1000", Unit: "calls/s"},
		{Name: "cpu.kept.1000", Unit: "cores"},
	}},
	{Name: "agent", Package: "./internal/agent", Test: "TestAgentFigures", Figures: []Spec{
		{Name: "agent.binary.amd64", Unit: "MB", Most: 20},
		{Name: "agent.binary.arm64", Unit: "MB", Most: 20},
		{Name: "agent.memory", Unit: "MB", Most: 40},
		{Name: "agent.latency.direct", Unit: "µs"},
		{Name: "agent.latency.added", Unit: "µs", Most: 200},
	}},
	{Name: "workers", Package: "./internal/controller/workermetrics", Test: "TestWorkerMetricsFigures", Figures: []Spec{
		{Name: "workers.cpu", Unit: "cores", Most: 0.5},
		{Name: "workers.memory", Unit: "MB", Most: 400},
		{Name: "workers.exposed", Unit: "MB"},
	}},
	{Name: "gateway", Package: "./cmd/gpuscale", Test: "TestGatewayFigures", Figures: []Spec{
		{Name: "gateway.direct.p50", Unit: "µs"},
		{Name: "gateway.direct.p99", Unit: "µs"},
		{Name: "gateway.added.p50", Unit: "µs", Most: 200},
		{Name: "gateway.added.p99", Unit: "µs", Most: 2000},
		{Name: "gateway.cpu", Unit: "µs"},
		{Name: "gateway.nginx.added.p50", Unit: "µs"},
		{Name: "gateway.nginx.added.p99", Unit: "µs"},
		{Name: "gateway.nginx.cpu", Unit: "µs"},
		{Name: "gateway.cpu.nginx", Unit: "×", Most: 2.5},
		{Name: "gateway.streams.memory", Unit: "MB", Most: 200},
	}},
	{Name: "wake", Package: "./internal/operator", Test: "TestWakeFigures", Figures: []Spec{
		{Name: "wake.claim.p95", Unit: "ms", Most: 100},
		{Name: "wake.1.p50", Unit: "ms"},
		{Name: "wake.1.last", Unit: "ms", Most: 100},
		{Name: "wake.1.step", Unit: "ms"},
		{Name: "wake.25.p50", Unit: "ms"},
		{Name: "wake.25.last", Unit: "ms", Most: 100},
		{Name: "wake.25.step", Unit: "ms"},
		{Name: "wake.100.p50", Unit: "ms"},
		{Name: "wake.100.last", Unit: "ms", Most: 100},
		{Name: "wake.100.step", Unit: "ms"},
	}},
}
