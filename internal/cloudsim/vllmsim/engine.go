package vllmsim

import (
	"context"
	"sync"
	"time"
)

// engine is one data-parallel rank: a batch of limited size, a queue without
// limit, and counters.
type engine struct {
	clock      Clock
	maxRunning int
	kvTokens   int

	mu      sync.Mutex
	running int
	queue   []*ticket
	inUse   int // KV tokens of running requests
	meter   meter
}

// ticket is a request that waits for its place in the batch.
type ticket struct {
	admitted chan struct{}
	done     bool
}

func newEngine(cfg Config) *engine {
	return &engine{clock: cfg.Clock, maxRunning: cfg.MaxNumSeqs, kvTokens: cfg.KVBlocks * blockSize}
}

func (e *engine) depth() (running, waiting int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running, len(e.queue)
}

// admit waits for a place in the batch; release gives it back. After an error
// there is nothing to release.
func (e *engine) admit(ctx context.Context) error {
	e.mu.Lock()
	if e.running < e.maxRunning && len(e.queue) == 0 {
		e.running++
		e.mu.Unlock()
		return nil
	}
	t := &ticket{admitted: make(chan struct{})}
	e.queue = append(e.queue, t)
	e.mu.Unlock()
	select {
	case <-t.admitted:
		return nil
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.done { // admitted and cancelled at once: hand the place on
		e.releaseLocked()
		return ctx.Err()
	}
	for i, queued := range e.queue {
		if queued == t {
			e.queue = append(e.queue[:i], e.queue[i+1:]...)
			break
		}
	}
	return ctx.Err()
}

func (e *engine) releaseLocked() {
	e.running--
	for e.running < e.maxRunning && len(e.queue) > 0 {
		next := e.queue[0]
		e.queue = e.queue[1:]
		next.done = true
		close(next.admitted)
		e.running++
	}
}

// job is one request on an engine, measured from arrival to its end.
type job struct {
	engine    *engine
	prompt    int
	maxTokens int
	n         int

	arrived, started, first, last time.Time
	generated                     int
	held                          int // KV tokens this job holds
}

// start queues the job and returns once it runs. A job that leaves the queue
// by cancellation is counted as aborted.
func (e *engine) start(ctx context.Context, prompt, maxTokens, n int) (*job, error) {
	j := &job{engine: e, prompt: prompt, maxTokens: maxTokens, n: n, arrived: e.clock.Now()}
	if err := e.admit(ctx); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.meter.finished[reasonAbort]++
		return nil, err
	}
	j.started = e.clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	j.held = prompt
	e.inUse += prompt
	e.meter.promptTokens += float64(prompt)
	e.meter.iteration.observe(iterationBuckets, float64(prompt))
	return j, nil
}

// token counts tokens that leave the engine now.
func (j *job) token(count int) {
	now := j.engine.clock.Now()
	e := j.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.generated == 0 {
		j.first = now
		e.meter.ttft.observe(ttftBuckets, now.Sub(j.arrived).Seconds())
	} else {
		e.meter.interToken.observe(interTokenBuckets, now.Sub(j.last).Seconds()/float64(count))
	}
	j.last = now
	j.generated += count
	j.held += count
	e.inUse += count
	e.meter.generationTokens += float64(count)
	e.meter.iteration.observe(iterationBuckets, float64(count))
}

// finish ends the job for a reason of vLLM's finished_reason label and gives
// its place to the next in the queue.
func (j *job) finish(reason string) {
	now := j.engine.clock.Now()
	e := j.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inUse -= j.held
	e.releaseLocked()
	m := &e.meter
	m.finished[reasonIndex(reason)]++
	first := j.first
	if j.generated == 0 {
		first = now
	}
	m.e2e.observe(requestBuckets, now.Sub(j.arrived).Seconds())
	m.queued.observe(requestBuckets, j.started.Sub(j.arrived).Seconds())
	m.prefill.observe(requestBuckets, first.Sub(j.started).Seconds())
	m.decode.observe(requestBuckets, now.Sub(first).Seconds())
	m.inference.observe(requestBuckets, now.Sub(j.started).Seconds())
	if j.generated > 1 {
		m.perToken.observe(interTokenBuckets, j.last.Sub(j.first).Seconds()/float64(j.generated-1))
	}
	m.promptLen.observe(countBuckets, float64(j.prompt))
	m.generationLen.observe(countBuckets, float64(j.generated))
	m.maxGeneration.observe(countBuckets, float64(j.maxTokens))
	m.paramMaxTokens.observe(countBuckets, float64(j.maxTokens))
	m.paramN.observe(paramNBuckets, float64(j.n))
}
