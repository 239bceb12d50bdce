// Package agent is what runs first on a rented machine: it checks that the GPUs are those that were paid for, keeps the
// engines of the desired models running, and is the only door to them.
//
// The door is one HTTPS port with mutual TLS (package pki); package agentapi says what passes it. Engines listen on
// loopback only and never see a request that the agent did not admit and count: whether a worker is idle is judged from
// these counts, so they are exact.
//
// Desired models arrive as a whole set. Each one is a unit, a goroutine that starts its engine, waits until it truly
// serves, tends it, and restarts it a bounded number of times; GPU memory and the right to be the one that starts on a
// GPU are handed out by a placer. Runner is what separates this from processes: engines may as well be in-process.
package agent
