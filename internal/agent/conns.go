package agent

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

const (
	// maxStrangers bounds the connections whose caller has not sent a request yet, and so mostly has not shown a
	// certificate. Who has one is past this in a moment.
	maxStrangers = 128
	// maxIdle bounds the connections of known callers between requests: more than those of both roles keep together.
	maxIdle = 256
)

// doorway bounds what connections that do nothing can hold of the agent's memory. Beyond a bound the oldest such
// connection is closed, so that whoever fills the doorway keeps nobody out. Connections with a request on them are
// bounded by what is admitted. It is safe for concurrent use.
type doorway struct {
	mu        sync.Mutex
	strangers queue
	idle      queue
}

// queue holds connections in the order in which they came.
type queue struct {
	most  int
	order *list.List
	at    map[net.Conn]*list.Element
}

func newDoorway() *doorway {
	made := func(most int) queue { return queue{most, list.New(), map[net.Conn]*list.Element{}} }
	return &doorway{strangers: made(maxStrangers), idle: made(maxIdle)}
}

// changed is an http.Server's ConnState.
func (d *doorway) changed(c net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.strangers.remove(c)
	d.idle.remove(c)
	switch state {
	case http.StateNew:
		d.strangers.add(c)
	case http.StateIdle:
		d.idle.add(c)
	}
}

func (q *queue) remove(c net.Conn) {
	if e, ok := q.at[c]; ok {
		q.order.Remove(e)
		delete(q.at, c)
	}
}

func (q *queue) add(c net.Conn) {
	q.at[c] = q.order.PushBack(c)
	if q.order.Len() <= q.most {
		return
	}
	oldest, ok := q.order.Front().Value.(net.Conn)
	if !ok {
		return
	}
	q.remove(oldest)
	if secured, ok := oldest.(*tls.Conn); ok {
		oldest = secured.NetConn() // Without the farewell, which may block.
	}
	_ = oldest.Close() // Its goroutine sees it and says the rest.
}
