package operator_test

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// testLogger writes to the test's log when GPUSCALE_TEST_LOG is set: the controllers say much more than a failure needs.
func testLogger(t *testing.T) logr.Logger {
	log := logr.Discard()
	if os.Getenv("GPUSCALE_TEST_LOG") != "" {
		log = funcr.New(func(prefix, args string) {
			if len(args) > 600 {
				args = args[:600]
			}
			t.Log(prefix, args)
		}, funcr.Options{})
	}
	ctrl.SetLogger(log)
	return log
}
