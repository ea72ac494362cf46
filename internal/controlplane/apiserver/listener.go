package apiserver

import (
	"net"
	"sync"
)

// memoryListener is the API server's listener. It never accepts a connection: requests
// come through the supervisor, which owns the real listener, and from this process.
// Upstream takes the port of the Service kubernetes from its address, which is the
// supervisor's, and closes it when the server drains and stops.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/secure_serving.go RunServer
//upstream:relies-on k8s.io/apiserver/pkg/server/options/serving.go SecureServingOptions.ApplyTo
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
