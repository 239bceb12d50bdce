package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
)

// Ports are below the range from which systems choose them for outgoing connections, so that none is taken between its
// choice and the agent's listening.
const (
	firstPort = 20100
	lastPort  = 32600
)

// ports are those of this process's bodies. Its zero value is ready.
type ports struct {
	mu   sync.Mutex
	used map[int]bool
	next int
}

var errNoPort = errors.New("no free port on loopback")

func (p *ports) reserve(ctx context.Context) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil {
		p.used = map[int]bool{}
		// Several programs on one machine begin at different places, so that they seldom try the same port at once.
		p.next = os.Getpid() * 37 % (lastPort - firstPort)
	}
	for range lastPort - firstPort {
		port := firstPort + p.next
		p.next = (p.next + 1) % (lastPort - firstPort)
		if !p.used[port] && unused(ctx, port) {
			p.used[port] = true
			return port, nil
		}
	}
	return 0, errNoPort
}

func (p *ports) free(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, port)
}

func unused(ctx context.Context, port int) bool {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf("%s:%d", loopback, port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
