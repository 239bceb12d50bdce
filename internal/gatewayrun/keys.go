package gatewayrun

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
)

// keysInterval is how often the file is read: kubelets need a minute or so to write a changed Secret anyway.
const keysInterval = 5 * time.Second

// keysFile follows the file of API keys.
type keysFile struct {
	path  string
	clock clock.Clock
	log   logr.Logger

	first map[string]gateway.Key
	text  string
}

// readKeys reads the file for the first time. Without a file the keys are the configured ones, for good.
func readKeys(cfg Config) (*keysFile, error) {
	f := &keysFile{path: cfg.KeysFile, clock: cfg.Clock, log: cfg.Log, first: cfg.Keys}
	if f.path == "" {
		return f, nil
	}
	var err error
	f.first, f.text, err = f.read()
	return f, err
}

func (f *keysFile) read() (map[string]gateway.Key, string, error) {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return nil, "", err
	}
	keys, err := gateway.ParseKeys(string(text))
	if err != nil {
		return nil, "", fmt.Errorf("API keys in %s: %w", f.path, err)
	}
	return keys, string(text), nil
}

// follow hands changed keys on until ctx ends. What cannot be read is logged, once, and changes nothing: a bad file must
// neither open the gateway nor shut it.
func (f *keysFile) follow(ctx context.Context, set func(map[string]gateway.Key) error) error {
	if f.path == "" {
		return nil
	}
	said := ""
	for {
		timer := f.clock.NewTimer(keysInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		keys, text, err := f.read()
		if err == nil && text != f.text {
			if err = set(keys); err == nil {
				f.text = text
				f.log.Info("the API keys changed", "keys", len(keys))
			}
		}
		switch {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			f.log.Error(err, "the API keys cannot be read; the last ones stay")
		}
	}
}
