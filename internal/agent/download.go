package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// download is how far an engine's weights have come. It follows the folder in which the Hub's client keeps a model's
// files, since vLLM turns that client's progress bars off.
type download struct {
	bytes, total int64
	// partial: some file is not whole yet.
	partial bool
	// grown is when bytes last grew, zero if they never did.
	grown   time.Time
	samples []reading
}

type reading struct {
	at    time.Time
	bytes int64
}

// rateOver is the time over which the rate is taken: bars that jump with each second say little.
const rateOver = 15 * time.Second

// saw takes a look at the folder into account.
func (d *download) saw(now time.Time, bytes int64, partial bool) {
	if len(d.samples) > 0 && bytes > d.bytes {
		d.grown = now
	}
	d.bytes, d.partial = bytes, partial
	d.samples = append(d.samples, reading{now, bytes})
	for len(d.samples) > 2 && now.Sub(d.samples[1].at) >= rateOver {
		d.samples = d.samples[1:]
	}
}

// rate is in bytes per second, of late.
func (d *download) rate() int64 {
	if len(d.samples) < 2 {
		return 0
	}
	first, last := d.samples[0], d.samples[len(d.samples)-1]
	seconds := last.at.Sub(first.at).Seconds()
	if seconds <= 0 || last.bytes < first.bytes {
		return 0
	}
	return int64(float64(last.bytes-first.bytes) / seconds)
}

// info is what the status tells, nil where nothing came over the network.
func (d *download) info() *agentapi.Download {
	if d == nil || d.grown.IsZero() {
		return nil
	}
	return &agentapi.Download{Bytes: d.bytes, TotalBytes: d.total, BytesPerSecond: d.rate()}
}

// String is "3.2 of 15.0 GB (21 %), 140 MB/s", without what is not known.
func (d *download) String() string {
	text := fmt.Sprintf("%.1f GB", gigabytes(d.bytes))
	if d.total > 0 {
		// The folder may hold more than the weights: all of it is there only when the engine says so.
		text = fmt.Sprintf("%.1f of %.1f GB (%d %%)", gigabytes(min(d.bytes, d.total)), gigabytes(d.total), min(99, d.bytes*100/d.total))
	}
	if rate := d.rate(); rate > 0 {
		text += fmt.Sprintf(", %d MB/s", (rate+500_000)/1_000_000)
	}
	return text
}

func gigabytes(n int64) float64 { return float64(n) / 1e9 }

// weightsDir is where the Hub's client keeps a repository's files, as huggingface_hub documents its cache: blobs below
// models--<owner>--<name>, unfinished ones with the suffix .incomplete. Empty where the source is no repository.
func weightsDir(m agentapi.DesiredModel, env func(string) string) string {
	if !repository(m.Source) {
		return ""
	}
	cache := flagValue(m.Args, "--download-dir")
	switch {
	case cache != "":
	case env("HF_HUB_CACHE") != "":
		cache = env("HF_HUB_CACHE")
	case env("HF_HOME") != "":
		cache = filepath.Join(env("HF_HOME"), "hub")
	case env("XDG_CACHE_HOME") != "":
		cache = filepath.Join(env("XDG_CACHE_HOME"), "huggingface", "hub")
	case env("HOME") != "":
		cache = filepath.Join(env("HOME"), ".cache", "huggingface", "hub")
	default:
		return ""
	}
	return filepath.Join(cache, "models--"+strings.ReplaceAll(m.Source, "/", "--"), "blobs")
}

// repository reports whether a source is one on the Hub, "name" or "owner/name", as opposed to a path or a URL.
func repository(source string) bool {
	return source != "" && !strings.HasPrefix(source, "/") && !strings.HasPrefix(source, ".") && !strings.HasPrefix(source, "~") &&
		!strings.ContainsAny(source, ":\\ ?#%") && strings.Count(source, "/") <= 1
}

// flagValue is the value of an engine's argument, in either form, empty if it is not there.
func flagValue(args []string, name string) string {
	for i, arg := range args {
		if flagOf(arg) != name {
			continue
		}
		if _, value, ok := strings.Cut(arg, "="); ok {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// size is how much is in a folder of files, and whether some are unfinished. A folder that is not there yet is empty.
func size(dir string) (bytes int64, partial bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // It was renamed, being whole now, or is none of the client's.
		}
		bytes += info.Size()
		partial = partial || strings.HasSuffix(e.Name(), ".incomplete")
	}
	return bytes, partial
}

// follow looks at the download until ctx ends.
func (u *unit) follow(ctx context.Context, env map[string]string) {
	lookup := func(name string) string {
		if v, ok := env[name]; ok {
			return v
		}
		return os.Getenv(name) // Engines inherit it.
	}
	dir := weightsDir(u.spec, lookup)
	if dir == "" {
		return
	}
	u.agent.work.Go(func() {
		total, err := weightsSize(ctx, u.spec, lookup)
		if err != nil {
			u.agent.cfg.Log.Info("size of the weights is not known", "model", u.spec.Name, "reason", err.Error())
			return
		}
		u.agent.mu.Lock()
		defer u.agent.mu.Unlock()
		u.download.total = total
	})
	for {
		bytes, partial := size(dir)
		u.agent.mu.Lock()
		u.download.saw(u.agent.cfg.Clock.Now(), bytes, partial)
		if u.state == agentapi.StateDownloading && !u.download.grown.IsZero() {
			u.message = u.download.String()
		}
		u.agent.mu.Unlock()
		if u.agent.cfg.Clock.Wait(ctx, u.agent.cfg.Settings.DownloadPoll) != nil {
			return
		}
	}
}

// due is when a load that began then has taken too long, as things stand, and what is said then. A load timeout that
// came with the model is for everything. Without one, bytes that come are no reason to give up: a download may only not
// stall, and the rest has its time from the last byte on.
func (u *unit) due(began time.Time) (time.Time, error) {
	if s := u.spec.LoadTimeoutSeconds; s > 0 {
		return began.Add(time.Duration(s) * time.Second), errLate
	}
	u.agent.mu.Lock()
	defer u.agent.mu.Unlock()
	settings := u.agent.cfg.Settings
	if d := u.download; d.grown.IsZero() {
		return began.Add(settings.LoadTimeout), errLate
	} else if u.state == agentapi.StateDownloading && d.partial {
		return d.grown.Add(settings.DownloadStall), fmt.Errorf("%w for %s, at %s", errStalled, settings.DownloadStall, d)
	}
	return u.download.grown.Add(settings.LoadTimeout), errLate
}

// whileInTime calls late with the reason once the load has taken too long, unless ctx ends first.
func (u *unit) whileInTime(ctx context.Context, late func(error)) {
	clock := u.agent.cfg.Clock
	began := clock.Now()
	for {
		due, why := u.due(began)
		left := due.Sub(clock.Now())
		if left <= 0 {
			late(why)
			return
		}
		// The stall of a download that has yet to begin is noticed in time, too.
		if clock.Wait(ctx, min(left, u.agent.cfg.Settings.DownloadStall)) != nil {
			return
		}
	}
}
