package wish

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// stored is an Entry as it is in Redis, its times in milliseconds of Redis' clock.
type stored struct {
	Held        int     `json:"held"`
	Outstanding int     `json:"outstanding"`
	Last        float64 `json:"last"`
	At          float64 `json:"at"`
}

// Read returns the demand of all gateways, its times on this Store's clock. It fails when Redis does not answer within
// seconds, or has what no gateway writes; then nothing is known.
func (s *Store) Read(ctx context.Context) (Demand, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	d, err := s.read(ctx)
	if err != nil {
		return Demand{}, problem("read the demand from Redis", err)
	}
	return d, nil
}

func (s *Store) read(ctx context.Context) (Demand, error) {
	models, err := s.client.ZRange(ctx, s.index(), 0, -1).Result()
	if err != nil {
		return Demand{}, err
	}
	var (
		redisTime *redis.TimeCmd
		born      *redis.StringCmd
	)
	hashes := make([]*redis.MapStringStringCmd, len(models))
	_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, model := range models {
			hashes[i] = p.HGetAll(ctx, s.key(model))
		}
		born, redisTime = p.Get(ctx, s.born()), p.Time(ctx)
		return nil
	})
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns Nil itself, for the missing key alone
		return Demand{}, err
	}
	now := redisTime.Val()
	d := Demand{Models: map[string][]Entry{}}
	if d.Whole, err = whole(born, now); err != nil {
		return Demand{}, err
	}
	shift := s.clock.Now().Sub(now)
	for i, model := range models {
		for gateway, text := range hashes[i].Val() {
			e, counts, err := entry(text, now, shift)
			if err != nil {
				return Demand{}, fmt.Errorf("the entry of gateway %s for model %s: %w", gateway, model, err)
			}
			if counts {
				d.Models[model] = append(d.Models[model], e)
			}
		}
	}
	return d, nil
}

// whole tells whether Redis has had this installation's demand for long enough.
func whole(born *redis.StringCmd, now time.Time) (bool, error) {
	text, err := born.Result()
	if err == redis.Nil { //nolint:errorlint // as above
		return false, nil
	}
	if err != nil {
		return false, err
	}
	since, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return false, fmt.Errorf("since when there is demand: %w", err)
	}
	return now.Sub(time.UnixMilli(since)) > MaxAge, nil
}

// entry reads one, and tells whether it is young enough. Its times are shifted to another clock.
func entry(text string, now time.Time, shift time.Duration) (Entry, bool, error) {
	var in stored
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return Entry{}, false, err
	}
	at := time.UnixMilli(int64(in.At))
	e := Entry{Held: in.Held, Outstanding: in.Outstanding, At: at.Add(shift)}
	if in.Last > 0 {
		e.Last = time.UnixMilli(int64(in.Last)).Add(shift)
	}
	return e, now.Sub(at) <= MaxAge, nil
}
