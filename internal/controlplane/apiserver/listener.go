package apiserver

import (
	"net"
	"sync"
)

// memoryListener is what the API server listens on: nothing ever arrives
// there. Requests come through the supervisor, which owns the real listener,
// and from this process. It reports the supervisor's address, from which
// upstream derives the port of the `kubernetes` Service's endpoints, and it lets
// upstream drain and stop as ever.
type memoryListener struct {
	address net.Addr
	closed  chan struct{}
	close   func()
}

func newMemoryListener(address net.Addr) *memoryListener {
	closed := make(chan struct{})
	return &memoryListener{address, closed, sync.OnceFunc(func() { close(closed) })}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *memoryListener) Close() error {
	l.close()
	return nil
}

func (l *memoryListener) Addr() net.Addr { return l.address }
