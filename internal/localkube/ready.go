package localkube

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	probeInterval = 50 * time.Millisecond
	probeTimeout  = 5 * time.Second
)

// await returns when path answers 200, or with the reason why it never will: a component that ended, or ctx. The named
// component is the one to blame for the latter.
func (c *Cluster) await(ctx context.Context, component string, port int, path string) error {
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return err
	}
	client.Timeout = probeTimeout
	defer client.CloseIdleConnections()
	url := loopback(port) + path
	last := "never asked"
	err = wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		if err := c.Err(); err != nil {
			return false, err
		}
		answer, ok := probe(ctx, client, url)
		if ctx.Err() == nil {
			last = answer // And not that the probe was cut short.
		}
		return ok, nil
	})
	switch {
	case err == nil:
		return nil
	case c.Err() != nil:
		return c.Err()
	default:
		return fmt.Errorf("%s is not ready: %s: %s: %w%s", component, url, last, err, c.logTail(component))
	}
}

// probe says whether url answers 200, and what it answers otherwise.
func probe(ctx context.Context, client *http.Client, url string) (answer string, ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error(), false
	}
	resp, err := client.Do(req)
	if err != nil {
		return err.Error(), false
	}
	_ = resp.Body.Close()
	return resp.Status, resp.StatusCode == http.StatusOK
}

func (c *Cluster) logTail(component string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.running {
		if p.name == component {
			return p.logTail()
		}
	}
	return ""
}
