//go:build !linux

package upstreamtest

import "testing"

// Swallow fails the test: only Linux lets a program drop what arrives at its own sockets.
func Swallow(t testing.TB, _ any) {
	t.Helper()
	t.Error("packets can only be dropped on Linux")
}
