package body

import (
	"context"
	"sync"
)

// Inert is a factory of bodies that hold an address at which nothing answers. For tests of the market itself.
func Inert() Factory {
	return FactoryFunc(func(context.Context, Spec) (Body, error) { return NewInert(), nil })
}

// InertBody never answers and lives until it is killed or told to exit.
type InertBody struct {
	once sync.Once
	done chan struct{}
	info ExitInfo
}

// NewInert is one inert body, for tests which end it themselves.
func NewInert() *InertBody { return &InertBody{done: make(chan struct{})} }

// inertPort is the discard port, which nothing on a modern machine listens on.
const inertPort = 9

// Address is loopback's discard port.
func (b *InertBody) Address() (string, int) { return "127.0.0.1", inertPort }

// Done is closed by Kill and Exit.
func (b *InertBody) Done() <-chan struct{} { return b.done }

// ExitInfo says which of Kill and Exit came first.
func (b *InertBody) ExitInfo() ExitInfo {
	<-b.done
	return b.info
}

// Kill ends the body at once.
func (b *InertBody) Kill() { b.end(ExitInfo{Code: -1, Killed: true, Message: "killed"}) }

// Exit ends the body as software that returned the given status.
func (b *InertBody) Exit(code int) { b.end(ExitInfo{Code: code, Message: "exited"}) }

func (b *InertBody) end(info ExitInfo) {
	b.once.Do(func() {
		b.info = info
		close(b.done)
	})
}
