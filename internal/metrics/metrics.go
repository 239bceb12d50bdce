// Package metrics has the controllers' own counters, on the registry that the manager serves. They are apart from the
// controllers because several count the same thing.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The controllers' metrics.
var (
	// DestroyFailures counts tries to end a rental that failed, by provider; each is repeated until it succeeds.
	DestroyFailures = counter("gpuscale_destroy_failures_total",
		"Tries to end a rental that failed, for whatever reason. Each means that something still bills and is tried again.", "provider")
	// SweepOrphans counts instances with our tag and without a claim that the sweep asked the provider to end, each once.
	SweepOrphans = counter("gpuscale_sweep_orphans_total",
		"Instances of this installation that belong to no claim and whose end the sweep asked for.", "provider")
	// SweepSurplus counts second instances of a claim that the sweep asked the provider to end, each once.
	SweepSurplus = counter("gpuscale_sweep_surplus_total",
		"Instances beyond a claim's one whose end the sweep asked for.", "provider")
	// SweepListFailures counts accounts that could not be listed in a sweep.
	SweepListFailures = counter("gpuscale_sweep_list_failures_total",
		"Accounts whose instances could not be listed in a sweep.", "provider")
	// SweepHalted is 1 while the sweep destroys no orphan because its own memory cannot be believed.
	SweepHalted = gauge("gpuscale_sweep_halted",
		"1 while the sweep ends nothing because what it knows of its own claims cannot be believed. A person has to look.")
	// TrafficUnknown is 1 while what gateways ask for is not known: their store cannot be read, or has just come back.
	TrafficUnknown = gauge("gpuscale_traffic_unknown",
		"1 while the gateways' demand cannot be read or has just come back: what it was last holds for a while, and nothing is bought from that.")
)

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	ctrlmetrics.Registry.MustRegister(c)
	return c
}

func gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	ctrlmetrics.Registry.MustRegister(g)
	return g
}
