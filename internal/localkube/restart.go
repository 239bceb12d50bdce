package localkube

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// KillAPIServer ends the API server as a crash would, and returns once it is gone. All else runs on; etcd keeps what was
// written. It is for tests of what clients do meanwhile. Killing what is not running is an error.
func (c *Cluster) KillAPIServer() error {
	c.mu.Lock()
	i := slices.IndexFunc(c.running, func(p *process) bool { return p.name == apiserver })
	if i < 0 || c.stopping || c.err != nil {
		c.mu.Unlock()
		return errors.New("no API server is running")
	}
	p := c.running[i]
	p.expected = true
	c.running = slices.Delete(c.running, i, i+1)
	c.mu.Unlock()
	return p.stop(0)
}

// RestartAPIServer starts the API server again after KillAPIServer, at the same port and with the same data, CA and
// tokens, and returns when it is ready. Its log begins anew. Other than by Start, a port that was lost to another
// process meanwhile is not replaced: the clients know this one. On an error the cluster is only good for Stop.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	there, over := slices.ContainsFunc(c.running, func(p *process) bool { return p.name == apiserver }), c.stopping || c.err != nil
	c.mu.Unlock()
	if there || over {
		return errors.New("an API server is running, or the cluster has ended")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.launch(apiserver, c.layout.apiserverArgs(!c.opts.APIOnly)); err != nil {
		return fmt.Errorf("start the API server again: %w", err)
	}
	return c.await(ctx, apiserver, c.layout.ports.apiserver, "/readyz")
}
