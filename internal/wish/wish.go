// Package wish is the gateways' demand in Redis: what each gateway holds and has outstanding for each model, for the
// controllers to read, and a signal when a model is first waited for.
//
// A hash per model has a field per gateway. An entry that its gateway did not write again within MaxAge does not count,
// and the keys expire, so that a gateway that died is not demand. Ages are taken on Redis' clock, in the same call that
// writes or reads: the clocks of gateways, controllers and Redis may differ, and the Times that Read returns are on the
// reader's.
//
// Redis is not the only thing that demand depends on, and losing it must end nothing: an error from Read, and a Demand
// that is not Whole, say nothing of models that are not in it.
package wish

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"k8s.io/utils/clock"
)

const (
	// MaxAge is how old an entry may be and still count.
	MaxAge = 15 * time.Second
	// PutEvery is how often a gateway writes what has not changed: twice may fail before an entry is too old.
	PutEvery = 5 * time.Second

	// expiry is that of the keys, longer than MaxAge so that only Read's own rule decides.
	expiry = 4 * MaxAge
	// bornExpiry is how long an installation may be without gateways until their first entries count as incomplete again.
	bornExpiry = 30 * 24 * time.Hour

	// callTimeout bounds each call, with its connection and its one repetition.
	callTimeout = 3 * time.Second
	stepTimeout = time.Second
)

// Entry is one gateway's demand for one model.
type Entry struct {
	// Held is how many requests wait for a worker, Outstanding how many workers are answering.
	Held, Outstanding int
	// Last is when a worker last had a request of this model from that gateway; zero when none had. Put takes it on the
	// writer's clock.
	Last time.Time
	// At is when the entry was written. Put sets it.
	At time.Time
}

// Demand is what Read found.
type Demand struct {
	// Models has every entry that counts, at least one for each model in it.
	Models map[string][]Entry
	// Whole says that every gateway has had the time to write: a model that is not in Models is not asked for. It is
	// false when Redis had nothing, or nothing before the last MaxAge, as after a restart that lost its data.
	Whole bool
}

// Store is the demand of one installation. It is safe for concurrent use.
type Store struct {
	client *redis.Client
	prefix string
	clock  clock.Clock
}

// Check tells whether Open would take a URL. It connects to nothing, and its error does not repeat the URL.
func Check(url string) error {
	_, err := parse(url)
	return err
}

func parse(url string) (*redis.Options, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("the Redis URL cannot be read; it is like redis://[[user]:password@]host[:port][/database]")
	}
	return options, nil
}

// Open makes a Store on the Redis of a URL (redis://, rediss:// or unix://), for the installation with the given id. It
// connects when it is first used. No error of a Store repeats the URL, which may have a password in it.
func Open(url, installation string, c clock.Clock) (*Store, error) {
	options, err := parse(url)
	if err != nil {
		return nil, err
	}
	if installation == "" {
		return nil, errors.New("wish: no installation id")
	}
	quiet()
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = stepTimeout, stepTimeout, stepTimeout
	options.PoolTimeout, options.ContextTimeoutEnabled = stepTimeout, true
	options.DialerRetries, options.MaxRetries = 1, 1
	options.DisableIdentity = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// The braces keep an installation's keys together where Redis is a cluster.
	return &Store{client: redis.NewClient(options), prefix: "gpuscale:{" + installation + "}:demand:", clock: c}, nil
}

// Close ends the Store's connections.
func (s *Store) Close() error { return s.client.Close() }

func (s *Store) index() string           { return s.prefix + "models" }
func (s *Store) born() string            { return s.prefix + "since" }
func (s *Store) channel() string         { return s.prefix + "wake" }
func (s *Store) key(model string) string { return s.prefix + "model:" + model }

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}

// put writes a gateway's entries, all on Redis' clock, and signals when a model begins to be waited for there. An entry
// that was too old to count, or is no entry, is the same as none.
var put = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local gateway, maxAge, expiry = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('SET', KEYS[2], string.format('%.0f', now), 'NX')
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local wake = 0
for i = 3, #KEYS do
  local a = 6 + (i - 3) * 4
  local model, held, outstanding, age = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local old = redis.call('HGET', KEYS[i], gateway)
  local before = 0
  if old then
    local ok, entry = pcall(cjson.decode, old)
    if ok and type(entry) == 'table' and tonumber(entry.held) and tonumber(entry.at) and now - entry.at <= maxAge then
      before = tonumber(entry.held)
    end
  end
  local last = 0
  if age >= 0 then last = now - age end
  redis.call('HSET', KEYS[i], gateway, string.format('{"held":%d,"outstanding":%d,"last":%.0f,"at":%.0f}', held, outstanding, last, now))
  redis.call('PEXPIRE', KEYS[i], expiry)
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), model)
  if before == 0 and held > 0 then wake = 1 end
end
if #KEYS > 2 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - expiry))
  redis.call('PEXPIRE', KEYS[1], expiry)
end
if wake == 1 then redis.call('PUBLISH', ARGV[5], '') end
return wake
`)

// Put writes what a gateway holds and has outstanding, by model, in one call. What it wrote before of models that are
// not in entries stands until it is too old. A gateway without any calls it too, to be known. Wakes' channels get a
// signal when a model's Held rises from none. It fails when Redis does not answer within seconds; then nothing is known
// of what was written.
func (s *Store) Put(ctx context.Context, gatewayID string, entries map[string]Entry) error {
	keys := []string{s.index(), s.born()}
	args := []any{gatewayID, MaxAge.Milliseconds(), expiry.Milliseconds(), bornExpiry.Milliseconds(), s.channel()}
	now := s.clock.Now()
	for model, e := range entries {
		age := int64(-1)
		if !e.Last.IsZero() {
			age = max(0, now.Sub(e.Last).Milliseconds())
		}
		keys = append(keys, s.key(model))
		args = append(args, model, e.Held, e.Outstanding, age)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return problem("write the demand to Redis", put.Run(ctx, s.client, keys, args...).Err())
}

// Remove takes a gateway's entries away, as one that ends does.
func (s *Store) Remove(ctx context.Context, gatewayID string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	models, err := s.client.ZRange(ctx, s.index(), 0, -1).Result()
	if err == nil && len(models) > 0 {
		_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, model := range models {
				p.HDel(ctx, s.key(model), gatewayID)
			}
			return nil
		})
	}
	return problem("remove the demand from Redis", err)
}

// problem says what was to be done when a call failed. The client's own errors name the server, never its password.
func problem(what string, err error) error {
	var timeout net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s: no answer in time: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// quiet keeps the client from writing to standard error what its caller is told anyway.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

// Printf drops it.
func (silent) Printf(context.Context, string, ...any) {}
