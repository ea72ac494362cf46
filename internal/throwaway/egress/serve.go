package egress

import (
	"errors"
	"net"
	"sync"
	"time"
)

// MaxConnections is how many connections a Server has at a time. Each costs the keeper up to six file
// descriptors, and a thread while it is opened: the Go runtime ends a process that has 10000 threads.
const MaxConnections = 4096

// Server serves the connections of one listener.
type Server struct {
	listener net.Listener
	closed   chan struct{}
	running  sync.WaitGroup
}

// Serve calls serve for each connection, in a goroutine of its own. If there are limit of them, others wait in the
// kernel until one has ended.
func Serve(listener net.Listener, limit int, serve func(net.Conn)) *Server {
	s := &Server{listener: listener, closed: make(chan struct{})}
	s.running.Go(func() { s.accept(make(chan struct{}, limit), serve) })
	return s
}

func (s *Server) accept(places chan struct{}, serve func(net.Conn)) {
	for {
		select {
		case places <- struct{}{}:
		case <-s.closed:
			return
		}
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-places
			time.Sleep(100 * time.Millisecond) // too many open files, for example
			continue
		}
		go func() {
			defer func() { <-places }()
			serve(conn)
		}()
	}
}

// Close ends the listening. Open connections stay open.
func (s *Server) Close() {
	close(s.closed)
	s.listener.Close()
	s.running.Wait()
}
