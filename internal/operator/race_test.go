//go:build race

package operator_test

func init() { raceDetector = true }
