package vllmsim

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fillEvery is how often the simulated download grows.
const fillEvery = 20 * time.Millisecond

// fillCache makes the weights appear in a Hub cache as huggingface_hub's client does: one blob, with the suffix
// .incomplete until it is whole. The file is sparse, so that any size costs nothing. It returns when the download is over
// or ctx ends.
func (s *Server) fillCache(ctx context.Context, home string) error {
	dir := filepath.Join(home, "hub", "models--"+strings.ReplaceAll(s.cfg.Model, "/", "--"), "blobs")
	whole := filepath.Join(dir, "0000000000000000000000000000000000000000000000000000000000000000")
	if _, err := os.Stat(whole); err == nil {
		return nil // It is there from an earlier start.
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	partial, err := os.Create(whole + ".incomplete")
	if err != nil {
		return err
	}
	defer func() { _ = partial.Close() }() // Nothing was buffered.
	total := s.cfg.WeightsGiB * (1 << 30)
	for {
		began, ended := spans[1].start, spans[2].start
		part := min(1, max(0, (s.lifecycle().Progress-began)/(ended-began)))
		if err := partial.Truncate(int64(total * part)); err != nil {
			return err
		}
		if part == 1 {
			return os.Rename(partial.Name(), whole)
		}
		if s.cfg.Clock.Wait(ctx, fillEvery) != nil {
			return nil // The process ends; an unfinished file stays, as a real one does.
		}
	}
}
