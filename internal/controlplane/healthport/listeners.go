package healthport

import (
	"errors"
	"net"
	"sync"
)

// listeners are several listeners for one server. All are added before the first Accept.
type listeners struct {
	all      []net.Listener
	start    sync.Once
	accepted chan accepted
	closed   chan struct{}
	close    sync.Once
}

// accepted is what Accept of one listener returned.
type accepted struct {
	conn net.Conn
	err  error
}

func newListeners() *listeners {
	return &listeners{accepted: make(chan accepted), closed: make(chan struct{})}
}

func (l *listeners) add(listener net.Listener) { l.all = append(l.all, listener) }

// Accept implements net.Listener.
func (l *listeners) Accept() (net.Conn, error) {
	l.start.Do(func() {
		for _, listener := range l.all {
			go l.forward(listener)
		}
	})
	select {
	case next := <-l.accepted:
		return next.conn, next.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// forward hands on what a listener accepts until it is closed.
func (l *listeners) forward(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		select {
		case l.accepted <- accepted{conn, err}:
		case <-l.closed:
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Close implements net.Listener.
func (l *listeners) Close() error {
	var err error
	l.close.Do(func() {
		close(l.closed)
		for _, listener := range l.all {
			err = errors.Join(err, listener.Close())
		}
	})
	return err
}

// Addr implements net.Listener. It is the address of the first listener.
func (l *listeners) Addr() net.Addr { return l.all[0].Addr() }
